package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// sessionVariable marks what was started through the lab's sshd. It is not
// PVELAB_DIR, which people export in their own shells.
const sessionVariable = "PVELAB_SESSION"

// killNetns ends every process in a named network namespace.
func killNetns(ctx context.Context, path string) error {
	var want, got unix.Stat_t
	if err := unix.Stat(path, &want); err != nil {
		return err
	}
	return killProcesses(ctx, func(proc string) bool {
		err := unix.Stat(filepath.Join(proc, "ns/net"), &got)
		return err == nil && got.Ino == want.Ino && got.Dev == want.Dev
	})
}

// killSessions ends what was started through the lab's sshd and the sshd's own
// processes, also those of an sshd that was itself killed.
func killSessions(ctx context.Context, s *State) error {
	marker, log := "\x00"+sessionVariable+"="+s.Dir+"\x00", s.path("ssh", "log")
	return killProcesses(ctx, func(proc string) bool {
		// What a session starts has the sshd's marker in its environment; sshd
		// overwrites its own with its title, but keeps the lab's log open.
		if raw, err := os.ReadFile(filepath.Join(proc, "environ")); err == nil &&
			strings.Contains("\x00"+string(raw), marker) {
			return true
		}
		exe, err := os.Readlink(filepath.Join(proc, "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(exe), "sshd") {
			return false
		}
		return hasOpen(proc, log)
	})
}

// hasOpen tells whether a process has a file open.
func hasOpen(proc, path string) bool {
	descriptors, err := os.ReadDir(filepath.Join(proc, "fd"))
	if err != nil {
		return false
	}
	for _, descriptor := range descriptors {
		target, err := os.Readlink(filepath.Join(proc, "fd", descriptor.Name()))
		if err == nil && target == path {
			return true
		}
	}
	return false
}

// killProcesses ends all processes that are proven ours, until there is none.
// The proof is given the process's /proc directory. It is asked again once the
// process is held by a descriptor, so that a number that was given to another
// process in between is never hit. The caller and its ancestors are spared.
func killProcesses(ctx context.Context, ours func(proc string) bool) error {
	spared := ancestors()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for {
		entries, err := os.ReadDir("/proc")
		if err != nil {
			return err
		}
		left := 0
		for _, entry := range entries {
			pid, err := strconv.Atoi(entry.Name())
			if err != nil || spared[pid] {
				continue
			}
			proc := filepath.Join("/proc", entry.Name())
			if _, alive := processStart(pid); !alive || !ours(proc) {
				continue
			}
			left++
			if err := killProven(pid, func() bool { return ours(proc) }); err != nil {
				return err
			}
		}
		if left == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d processes of the lab do not end: %w", left, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func killProven(pid int, proof func() bool) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("hold process %d: %w", pid, err)
	}
	defer unix.Close(fd)
	if !proof() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return nil
}

// ancestors are this process and all it descends from.
func ancestors() map[int]bool {
	pids := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !pids[pid]; {
		pids[pid] = true
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			break
		}
		fields := strings.Fields(string(raw)[strings.LastIndexByte(string(raw), ')')+1:])
		if len(fields) < 2 {
			break
		}
		if pid, err = strconv.Atoi(fields[1]); err != nil {
			break
		}
	}
	return pids
}
