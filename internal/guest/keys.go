package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/job"
	"linus/internal/remote"
)

// Keys log in to VMs: each VM has its own key pair, so that a VM which
// impersonates another can neither let linus in nor read what was meant for the
// other. They are in a directory, named after the job that created the VM.
type Keys struct {
	Dir string // of the private keys, created if missing
	Old string // private key of VMs from before each had its own; may be missing
}

// Make returns the public key of the VM that job id creates. The private key is
// on disk by then.
func (k Keys) Make(id string) (string, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return "", fmt.Errorf("create the directory of the VMs' keys: %w", err)
	}
	return remote.EnsureKeyPair(filepath.Join(k.Dir, id), "linus-"+id)
}

// Find returns the public key of a VM that job id has begun to create: Old's if
// that exists and the VM has none of its own.
func (k Keys) Find(id string) (string, error) {
	if _, err := os.Stat(k.Old); err == nil && k.path(id) == k.Old {
		return remote.EnsureKeyPair(k.Old, "linus")
	}
	return k.Make(id)
}

// Path returns the private key that logs in to a VM.
func (k Keys) Path(vm job.VM) string { return k.path(vm.Job) }

func (k Keys) path(id string) string {
	own := filepath.Join(k.Dir, id)
	if info, err := os.Stat(own); k.Dir == "" || !filepath.IsLocal(id) || err != nil || !info.Mode().IsRegular() {
		return k.Old
	}
	return own
}

// Keep removes the keys of all VMs except those created by jobs for which keep
// returns true.
func (k Keys) Keep(keep func(id string) bool) error {
	entries, err := os.ReadDir(k.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !keep(strings.TrimSuffix(entry.Name(), ".new")) { // the name while a key is being written
			err = errors.Join(err, os.Remove(filepath.Join(k.Dir, entry.Name())))
		}
	}
	return err
}
