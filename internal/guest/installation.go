package guest

import (
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/secret"
	"linus/internal/wholefile"
)

// InstallationKey is the secret that all engines of one database share, 32 random bytes. It is
// never in that database.
type InstallationKey []byte

// installationFile holds the key, in hex, in the directory of the VMs' keys.
const installationFile = "installation"

const installationSize = 32

// ReadInstallationKey reads the key in a directory of keys; fs.ErrNotExist if there is none.
func ReadInstallationKey(dir string) (InstallationKey, error) {
	path := filepath.Join(dir, installationFile)
	text, err := secret.ReadOwn(path)
	if err != nil {
		return nil, fmt.Errorf("the installation key: %w", err)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != installationSize {
		return nil, fmt.Errorf("the installation key %s is damaged: it must have %d hex digits; copy it from another engine's machine", path, 2*installationSize)
	}
	return key, nil
}

// MakeInstallationKey makes a new key in a directory of keys that has none. The key is on disk when
// it returns.
func MakeInstallationKey(dir string) (InstallationKey, error) {
	key := make([]byte, installationSize)
	_, _ = rand.Read(key) // never fails
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = wholefile.Create(filepath.Join(dir, installationFile), []byte(hex.EncodeToString(key)+"\n"))
	}
	if err != nil {
		return nil, fmt.Errorf("create the installation key: %w", err)
	}
	return key, nil
}

// Fingerprint identifies a key without revealing anything about it.
func (k InstallationKey) Fingerprint() (string, error) {
	derived, err := k.Derive("fingerprint")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(derived)
	return hex.EncodeToString(sum[:]), nil
}

// Derive returns 32 bytes derived for a purpose.
func (k InstallationKey) Derive(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, k, nil, "linus: "+purpose, 32)
}

// String hides the key.
func (k InstallationKey) String() string { return "[redacted]" }
