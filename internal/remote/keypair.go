package remote

import (
	"crypto/ed25519"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/crypto/ssh"
)

// EnsureKeyPair returns the public key, in authorized_keys format, of the
// ed25519 private key in the file, which is created (0600, OpenSSH's format) if
// missing. The caller ensures that nobody else creates it at the same time.
func EnsureKeyPair(path, comment string) (string, error) {
	return ensureKey(path, comment, func() (ed25519.PrivateKey, error) {
		_, private, err := ed25519.GenerateKey(nil)
		return private, err
	})
}

// EnsureDerivedKeyPair is EnsureKeyPair for the key that a seed of
// ed25519.SeedSize bytes determines: several may create the file at the same
// time. A file that is there stays as it is.
func EnsureDerivedKeyPair(path, comment string, seed []byte) (string, error) {
	return ensureKey(path, comment, func() (ed25519.PrivateKey, error) { return ed25519.NewKeyFromSeed(seed), nil })
}

func ensureKey(path, comment string, generate func() (ed25519.PrivateKey, error)) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = makeKey(path, comment, generate); err != nil {
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
func makeKey(path, comment string, generate func() (ed25519.PrivateKey, error)) ([]byte, error) {
	private, err := generate()
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(block)
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*.new") // 0600
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
	return data, os.Rename(f.Name(), path)
}
