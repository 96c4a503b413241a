package sys

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"linus/internal/sleep"
)

// A pid file holds `<pid> <start time>`, with the start time as the kernel counts it (field 22 of
// /proc/<pid>/stat), so that a reused PID is never mistaken for the process, and never killed.

// WritePidFile records a process.
func WritePidFile(path string, pid int) error {
	start, ok := ProcessStart(pid)
	if !ok {
		return fmt.Errorf("process %d is gone already", pid)
	}
	return WriteFile(path, fmt.Appendf(nil, "%d %d\n", pid, start), 0o644)
}

// ReadPidFile returns the recorded process, and whether it is still alive.
func ReadPidFile(path string) (pid int, running bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	var recorded uint64
	if n, err := fmt.Sscan(string(raw), &pid, &recorded); n != 2 || err != nil {
		return 0, false
	}
	start, alive := ProcessStart(pid)
	return pid, alive && start == recorded
}

// KillPidFile signals the recorded process, or its whole group if it leads one, and waits until the
// process is gone. It leaves alone any other process that has the PID.
func KillPidFile(ctx context.Context, path string, sig syscall.Signal) error {
	pid, running := ReadPidFile(path)
	if !running {
		return nil
	}
	target := pid
	if group, err := syscall.Getpgid(pid); err == nil && group == pid {
		target = -pid
	}
	if err := syscall.Kill(target, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill process %d: %w", pid, err)
	}
	return WaitPidFile(ctx, path)
}

// WaitPidFile returns when the recorded process is gone, or with ctx's error.
func WaitPidFile(ctx context.Context, path string) error {
	for {
		if _, running := ReadPidFile(path); !running {
			return nil
		}
		if err := sleep.For(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// ProcessStart returns a process's start time in clock ticks since boot. A zombie counts as gone:
// there may be nobody to reap it.
func ProcessStart(pid int) (ticks uint64, alive bool) {
	p, alive := ReadProcess(pid)
	return p.Start, alive
}

// Process is a line of the process table.
type Process struct {
	PID, Parent int
	Start       uint64 // in clock ticks since boot
	Stopped     bool   // by a signal
}

// ReadProcess reads one process from /proc/<pid>/stat. A zombie counts as gone.
func ReadProcess(pid int) (p Process, alive bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	// The command name in parentheses may itself contain blanks and parentheses.
	end := strings.LastIndexByte(string(raw), ')')
	fields := strings.Fields(string(raw)[end+1:])
	if end < 0 || len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return Process{}, false
	}
	parent, errParent := strconv.Atoi(fields[1])
	start, errStart := strconv.ParseUint(fields[19], 10, 64)
	return Process{PID: pid, Parent: parent, Start: start, Stopped: strings.ContainsAny(fields[0], "Tt")}, errParent == nil && errStart == nil
}

// Descendants returns the processes below one, nearest first.
func Descendants(ancestor int) ([]Process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]Process{}
	for _, path := range paths {
		pid, _ := strconv.Atoi(filepath.Base(path))
		if p, alive := ReadProcess(pid); alive {
			children[p.Parent] = append(children[p.Parent], p)
		}
	}
	all := children[ancestor]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].PID]...)
	}
	return all, nil
}

// AdoptPidFile makes a pid file in the lab's format from the one a daemon wrote.
func AdoptPidFile(daemons, ours string) error {
	raw, err := os.ReadFile(daemons)
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return fmt.Errorf("read %s: %w", daemons, err)
	}
	return WritePidFile(ours, pid)
}

// ResidentBytes is the memory a process has in RAM, or 0 if it is gone.
func ResidentBytes(pid int) int64 {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0
	}
	var total, resident int64
	if _, err := fmt.Sscan(string(raw), &total, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}
