package sys

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"linus/internal/sleep"

	"golang.org/x/sys/unix"
)

// HasOpen reports whether a process has a file open.
func HasOpen(proc, path string) bool {
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

// KillProcesses kills all processes for which ours holds, until none is left. ours gets the
// process's /proc directory. It is checked again once a descriptor holds the process, so that a
// reused PID is never hit. The caller and its ancestors are spared.
func KillProcesses(ctx context.Context, ours func(proc string) bool) error {
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
			if _, alive := ProcessStart(pid); !alive || !ours(proc) {
				continue
			}
			left++
			if err := KillProven(pid, func() bool { return ours(proc) }); err != nil {
				return err
			}
		}
		if left == 0 {
			return nil
		}
		if err := sleep.For(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("%d processes of the lab do not end: %w", left, err)
		}
	}
}

// KillProven is SignalProven with SIGKILL.
func KillProven(pid int, proof func() bool) error { return SignalProven(pid, unix.SIGKILL, proof) }

// SignalProven signals a process if proof still holds once a descriptor holds the process, so that
// a reused PID is never hit. It is no error if the process is gone.
func SignalProven(pid int, sig unix.Signal, proof func() bool) error {
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
	if err := unix.PidfdSendSignal(fd, sig, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	return nil
}

// ancestors returns this process and all its ancestors.
func ancestors() map[int]bool {
	pids := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !pids[pid]; {
		pids[pid] = true
		p, _ := ReadProcess(pid)
		pid = p.Parent
	}
	return pids
}

// LockRun keeps two labs from changing what they share below /run at the same time. It locks the
// directory itself, so that no lock file is left behind.
func LockRun() (unlock func(), err error) {
	dir, err := os.Open("/run")
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		dir.Close()
		return nil, fmt.Errorf("lock %s: %w", dir.Name(), err)
	}
	return func() { dir.Close() }, nil
}
