package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"linus/internal/lab/state"
)

// A process cannot be copied, so a guest that starts from another VM's state is a new process that
// takes on the saved guest's identity: host name, MAC, boot, instance and files. Of its memory,
// only small files in /dev/shm are saved. The programs that ran, and the content of /run, are not.

// saved is a guest's identity.
type saved struct {
	Hostname, MAC, InstanceID, BootID string
	Memory                            map[string][]byte // the files in memoryDir
}

const (
	memoryDir  = "/dev/shm"
	memoryMost = 4096 // bytes per file
)

// readMemory returns the part of a guest's memory that can be saved.
func readMemory(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	entries, err := os.ReadDir(filepath.Join(root, memoryDir))
	for _, entry := range entries[:min(len(entries), 8)] {
		info, failed := entry.Info()
		if failed != nil || !info.Mode().IsRegular() || info.Size() > memoryMost {
			continue
		}
		if files[entry.Name()], failed = os.ReadFile(filepath.Join(root, memoryDir, entry.Name())); failed != nil {
			return nil, failed
		}
	}
	return files, err
}

// readSaved returns the current identity of the guest with that root.
func readSaved(root string) (saved, error) {
	var s saved
	for path, value := range map[string]*string{
		"/etc/hostname": &s.Hostname, cardDir + "/address": &s.MAC, instanceIDPath: &s.InstanceID, bootIDPath: &s.BootID,
	} {
		raw, err := os.ReadFile(filepath.Join(root, path))
		if err != nil && !os.IsNotExist(err) {
			return s, err
		}
		*value = strings.TrimSpace(string(raw))
	}
	var err error
	s.Memory, err = readMemory(root)
	return s, err
}

// StartFrom runs a guest with the identity in the saved state at path.
func (d Driver) StartFrom(ctx context.Context, s *state.State, vm state.VM, path string) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var from saved
	lines := strings.Split(string(raw), "\n")
	if !strings.HasPrefix(lines[0], markerPrefix) || len(lines) < 2 {
		return fmt.Errorf("%s is no state of a guest", path)
	}
	if err := json.Unmarshal([]byte(lines[1]), &from); err != nil {
		return fmt.Errorf("read the state %s: %w", path, err)
	}
	return d.launch(ctx, s, vm, &from)
}

// goOn replaces boot for a guest that takes on another's identity.
func (g *guest) goOn(from saved) error {
	if err := unix.Sethostname([]byte(from.Hostname)); err != nil {
		return err
	}
	if err := errors.Join(setBootID(from.BootID), holdMachineID(from.InstanceID)); err != nil {
		return err
	}
	for name, content := range from.Memory {
		path := filepath.Join(memoryDir, name)
		if err := errors.Join(os.WriteFile(path, content, 0o666), os.Chmod(path, 0o666)); err != nil {
			return err
		}
	}
	if err := g.loadHostKey(from.Hostname); err != nil {
		return err
	}
	if err := g.finishCloudInit(); err != nil {
		return err
	}
	return g.plugCard(from.MAC)
}
