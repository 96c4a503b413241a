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

// EnsureKeyPair returns the public key, as authorized_keys has it, of the
// ed25519 private key in the file, which is made (0600, OpenSSH's format) when
// it is not there. The caller sees to it that nobody else makes it meanwhile.
func EnsureKeyPair(path, comment string) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = makeKey(path, comment); err != nil {
			return "", fmt.Errorf("make SSH key %s: %w", path, err)
		}
	}
	if err != nil {
		return "", fmt.Errorf("read SSH key: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return "", fmt.Errorf("read SSH key %s: %w; remove it to have a new one made", path, err)
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))) + " " + comment, nil
}

// makeKey writes the file whole or not at all.
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
		err = f.Sync() // what it logs in to may be there before the disk has it
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return data, os.Rename(path+".new", path)
}
