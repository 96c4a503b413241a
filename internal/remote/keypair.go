package remote

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/crypto/ssh"

	"linus/internal/wholefile"
)

// EnsureKeyPair returns the public key, in authorized_keys format, of the ed25519 private key in the
// file. If the file is missing, EnsureKeyPair creates it (0600, OpenSSH's format), either from a seed of
// ed25519.SeedSize bytes, which determines the key, or at random (nil). Without a seed the caller ensures
// that nobody else creates the file at the same time. An existing file is never changed.
func EnsureKeyPair(path, comment string, seed []byte) (string, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if data, err = makeKey(path, comment, seed); err != nil {
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

// PublicKey returns a public key in authorized_keys format, without a comment. It returns an error unless
// text is a single plain key: with options, or as a certificate, it could do more than log in.
func PublicKey(text string) (string, error) {
	key, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(strings.TrimSpace(text)))
	switch {
	case err != nil:
		return "", err
	case len(options) > 0 || len(rest) > 0 || strings.Contains(strings.TrimSpace(text), "\n"):
		return "", errors.New("it is not one key alone")
	}
	if _, is := key.(*ssh.Certificate); is {
		return "", errors.New("it is a certificate")
	}
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))), nil
}

// makeKey writes the file completely or not at all.
func makeKey(path, comment string, seed []byte) ([]byte, error) {
	if seed == nil {
		seed = make([]byte, ed25519.SeedSize)
		_, _ = rand.Read(seed) // never fails
	}
	block, err := ssh.MarshalPrivateKey(ed25519.NewKeyFromSeed(seed), comment)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(block)
	// The key must be on disk before the machine that it logs in to exists.
	return data, wholefile.Replace(path, data)
}
