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

// Keys are what logs in to VMs: a key pair for each, so that a VM which passes
// for another has nothing that lets linus into it, nor hears what was meant for
// the other. They lie in a directory, named by the job that made the VM.
type Keys struct {
	Dir string // of the private keys, made when it is not there
	Old string // private key of the VMs made before each had its own; need not be there
}

// Make returns the public key of the VM that job id makes. The private one is on
// disk by then.
func (k Keys) Make(id string) (string, error) {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return "", fmt.Errorf("make the directory of the VMs' keys: %w", err)
	}
	return remote.EnsureKeyPair(filepath.Join(k.Dir, id), "linus-"+id)
}

// Find returns the public key of a VM that job id has begun to make: Old's where
// that is there and the VM has none of its own.
func (k Keys) Find(id string) (string, error) {
	if _, err := os.Stat(k.Old); err == nil && k.path(id) == k.Old {
		return remote.EnsureKeyPair(k.Old, "linus")
	}
	return k.Make(id)
}

// Path is the private key that logs in to a VM.
func (k Keys) Path(vm job.VM) string { return k.path(vm.Job) }

func (k Keys) path(id string) string {
	own := filepath.Join(k.Dir, id)
	if info, err := os.Stat(own); k.Dir == "" || !filepath.IsLocal(id) || err != nil || !info.Mode().IsRegular() {
		return k.Old
	}
	return own
}

// Keep removes the keys of all VMs but those that jobs have made of which keep
// is true.
func (k Keys) Keep(keep func(id string) bool) error {
	entries, err := os.ReadDir(k.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if !keep(strings.TrimSuffix(entry.Name(), ".new")) { // as a key is written
			err = errors.Join(err, os.Remove(filepath.Join(k.Dir, entry.Name())))
		}
	}
	return err
}
