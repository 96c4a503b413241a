package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// A process guest cannot be written to a disk. When it is suspended, its processes are stopped
// where they are (SIGSTOP) and keep their memory; to everybody who asks the host, the VM is off.
// When continued, they are the same processes of the same boot. This does not reproduce memory
// being freed, a state that survives the machine's restart, a clock that was stopped, or a snapshot
// with memory: a process cannot be copied, so such a snapshot boots.

// stoppedFile lists the processes that were stopped, one per line, the guest's init first;
// frozenFile is the pid file of a suspended guest.
const (
	stoppedFile = "stopped"
	frozenFile  = "frozen"
)

// Pause stops every process of the guest.
func (Driver) Pause(ctx context.Context, s *state.State, vm state.VM) error {
	init, running := s.Pid(vm.ID)
	if !running {
		return fmt.Errorf("VM %d is not running", vm.ID)
	}
	var stopped []int
	for {
		moving, err := moving(init)
		if err != nil {
			return err
		}
		moving = slices.DeleteFunc(moving, func(pid int) bool { return slices.Contains(stopped, pid) })
		if len(moving) == 0 {
			break
		}
		for _, pid := range moving {
			if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
			stopped = append(stopped, pid)
		}
		if err := awaitStopped(ctx, moving); err != nil {
			return err
		}
	}
	var lines strings.Builder
	for _, pid := range stopped {
		fmt.Fprintln(&lines, pid)
	}
	return sys.WriteFile(filepath.Join(s.RunDir(vm.ID), stoppedFile), []byte(lines.String()), 0o644)
}

// Continue resumes what Pause stopped, children first: no parent sees that they were stopped.
func (Driver) Continue(_ context.Context, s *state.State, vm state.VM) error {
	path := filepath.Join(s.RunDir(vm.ID), stoppedFile)
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("VM %d was not paused: %w", vm.ID, err)
	}
	lines := strings.Fields(string(raw))
	for _, line := range slices.Backward(lines) {
		pid, err := strconv.Atoi(line)
		if err != nil {
			return err
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return os.Remove(path)
}

// Paused reports whether the guest is paused.
func (Driver) Paused(_ context.Context, s *state.State, vm state.VM) bool {
	_, err := os.Stat(filepath.Join(s.RunDir(vm.ID), stoppedFile))
	return err == nil
}

// SaveMemory writes only the guest's identity and small files: the memory stays with the processes.
func (Driver) SaveMemory(_ context.Context, s *state.State, vm state.VM, path string, size int64) error {
	pid, running := s.Pid(vm.ID)
	if !running {
		return fmt.Errorf("VM %d is not running", vm.ID)
	}
	saved, err := readSaved(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return err
	}
	line, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	size = max(size, int64(len(line)))
	return sys.WriteFile(path, fmt.Appendf(nil, "%s%d\n%s\n", markerPrefix, size, line), 0o640)
}

// Shelve hides a paused guest, and records in the volume where it is.
func (Driver) Shelve(_ context.Context, s *state.State, vm state.VM, path string) error {
	marker, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	frozen := filepath.Join(s.RunDir(vm.ID), frozenFile)
	marker = fmt.Appendf(marker, "%s\n", frozen)
	if err := sys.WriteFile(path, marker, 0o640); err != nil {
		return err
	}
	return errors.Join(os.Rename(s.PidFile(vm.ID), frozen), s.ForgetProcess(vm.ID))
}

// Restore resumes a shelved guest. If there is none, as for a snapshot, the VM boots. A VM that
// starts from another VM's state is a new process with that guest's identity (copy.go).
func (d Driver) Restore(ctx context.Context, s *state.State, vm state.VM, path string) error {
	frozen, err := shelved(path)
	if err != nil {
		return err
	}
	if frozen == "" {
		return d.Start(ctx, s, vm)
	}
	pid, alive := sys.ReadPidFile(frozen)
	if !alive {
		return fmt.Errorf("the processes of VM %d are gone: the machine restarted, or somebody ended them", vm.ID)
	}
	if err := record(s, vm.ID, pid); err != nil { // the uptime counts from here on
		return err
	}
	if err := os.Remove(frozen); err != nil {
		return err
	}
	return d.Continue(ctx, s, vm)
}

// shelved returns the pid file of the guest whose state a volume is, or "" if there is none.
func shelved(path string) (frozen string, err error) {
	raw, err := os.ReadFile(path)
	lines := strings.Split(string(raw), "\n")
	if err != nil || !strings.HasPrefix(lines[0], markerPrefix) || len(lines) < 3 || !filepath.IsAbs(lines[2]) {
		return "", err
	}
	return lines[2], nil
}

// endShelved kills the guest that is suspended in a volume, if any.
func endShelved(ctx context.Context, path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && info.Size() > 1<<16 { // too large for a state: it is a system's disk
		return nil
	}
	frozen, err := shelved(path)
	if err != nil || frozen == "" {
		return err
	}
	if _, alive := sys.ReadPidFile(frozen); !alive {
		return nil
	}
	if err := sys.KillPidFile(ctx, frozen, syscall.SIGKILL); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Dir(frozen))
}

// moving returns the processes of a guest that are not stopped, its init first.
func moving(init int) ([]int, error) {
	all, err := sys.Descendants(init)
	if p, alive := sys.ReadProcess(init); alive {
		all = slices.Insert(all, 0, p)
	}
	var found []int
	for _, p := range all {
		if !p.Stopped {
			found = append(found, p.PID)
		}
	}
	return found, err
}

// awaitStopped returns when all the processes have stopped or ended.
func awaitStopped(ctx context.Context, pids []int) error {
	for _, pid := range pids {
		for p, alive := sys.ReadProcess(pid); alive && !p.Stopped; p, alive = sys.ReadProcess(pid) {
			if err := sleep.For(ctx, time.Millisecond); err != nil {
				return fmt.Errorf("process %d does not stop: %w", pid, err)
			}
		}
	}
	return nil
}
