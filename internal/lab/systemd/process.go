package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// process is a line of the process table.
type process struct {
	pid, parent int
	start       string // in ticks since boot
}

// readProcess reads one process; a zombie is none.
func readProcess(pid int) (process, bool) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	// The command's name, in brackets, may hold blanks and brackets itself.
	text := string(raw)
	fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return process{}, false
	}
	parent, err := strconv.Atoi(fields[1])
	return process{pid: pid, parent: parent, start: fields[19]}, err == nil
}

// descendants are the processes below a supervisor: its unit's cgroup.
func descendants(supervisor int) ([]process, error) {
	paths, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	children := map[int][]process{}
	for _, path := range paths {
		pid, err := strconv.Atoi(filepath.Base(path))
		if err != nil {
			continue
		}
		if p, ok := readProcess(pid); ok {
			children[p.parent] = append(children[p.parent], p)
		}
	}
	all := children[supervisor]
	for i := 0; i < len(all); i++ {
		all = append(all, children[all[i].pid]...)
	}
	return all, nil
}

// signalTree sends a signal once to all below a supervisor, and returns how many
// there were.
func signalTree(supervisor int, sig unix.Signal) (int, error) {
	all, err := descendants(supervisor)
	for _, p := range all {
		err = errors.Join(err, sys.SignalProven(p.pid, sig, func() bool {
			now, ok := readProcess(p.pid)
			return ok && now.start == p.start
		}))
	}
	return len(all), err
}

// killTree kills all below a supervisor and returns when nothing is left. The
// supervisor need not reap them.
func killTree(supervisor int) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, err := signalTree(supervisor, unix.SIGKILL)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of a unit do not end", left)
		}
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // the kernel tells nobody but their parent
	}
}
