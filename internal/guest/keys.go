package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/remote"
	"linus/internal/vm"
)

// Keys log in to VMs. Each VM has its own key pair, so that a VM which impersonates another can
// neither let linus in nor read what was meant for the other. The keys are in a directory, named
// after the job that created the VM.
//
// With an installation key, which all engines of a database share, the keys are derived from it:
// each engine can make the keys of VMs that others created. The directory then holds only the keys
// used here, and keys that a state directory had before it was copied to the database.
type Keys struct {
	Dir          string // directory of the private keys, created if missing
	Installation InstallationKey
}

// Make returns the public key of the VM that job id creates. The private key is then on disk.
func (k Keys) Make(id string) (string, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return "", fmt.Errorf("create the directory of the VMs' keys: %w", err)
	}
	var seed []byte
	if k.Installation != nil {
		var err error
		if seed, err = k.Installation.Derive("login to the VM of job " + id); err != nil {
			return "", err
		}
	}
	return remote.EnsureKeyPair(filepath.Join(k.Dir, id), "linus-"+id, seed)
}

// Path returns the private key that logs in to a VM. The file is missing if the VM has no key here
// and none can be derived or written.
func (k Keys) Path(v vm.VM) string {
	if !isKey(v.Job) {
		return ""
	}
	own := filepath.Join(k.Dir, v.Job)
	if _, err := os.Stat(own); err != nil && k.Installation != nil {
		_, _ = k.Make(v.Job)
	}
	return own
}

// isKey reports whether a job's ID can name a key in the directory.
func isKey(id string) bool {
	return filepath.Base(id) == id && id != "." && id != ".." && id != installationFile
}

// Drop removes the key of the VM that job id created, if there is one.
func (k Keys) Drop(id string) error {
	if !isKey(id) {
		return nil
	}
	if err := os.Remove(filepath.Join(k.Dir, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Keep removes the keys of all VMs except those created by jobs for which keep returns true.
func (k Keys) Keep(keep func(id string) bool) error {
	entries, err := os.ReadDir(k.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		id, _, _ := strings.Cut(entry.Name(), ".") // while a key is being written its name has a suffix
		if id != installationFile && !keep(id) {
			err = errors.Join(err, os.Remove(filepath.Join(k.Dir, entry.Name())))
		}
	}
	return err
}
