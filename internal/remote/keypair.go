package remote

import (
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"
)

// EnsureKeyPair returns the public key, in authorized_keys format, of the
// ed25519 private key in the file, which is created (0600, OpenSSH's format) if
// missing. The caller ensures that nobody else creates it at the same time.
func EnsureKeyPair(path, comment string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = makeKey(path, comment); err != nil {
			return "", fmt.Errorf("create SSH key %s: %w", path, err)
		}
	}
	if err != nil {
		return "", fmt.Errorf("read SSH key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return "", fmt.Errorf("read SSH key %s: %w; remove it to have a new one created", path, err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))) + " " + comment, nil
}

// makeKey writes the file completely or not at all.
func makeKey(path, comment string) ([]byte, error) {
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(block)
	f, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync() // the machine it logs in to may exist before the disk has it
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return data, os.Rename(path+".new", path)
}
