package systemd

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// signalTree sends a signal once to all below a supervisor, those that are started
// meanwhile included, as systemd does. It returns how many there were.
func signalTree(supervisor int, sig unix.Signal) (int, error) {
	type identity struct {
		pid   int
		start uint64
	}
	told := map[identity]bool{}
	for {
		before := len(told)
		all, err := sys.Descendants(supervisor)
		for _, p := range all {
			if told[identity{p.PID, p.Start}] {
				continue
			}
			told[identity{p.PID, p.Start}] = true
			err = errors.Join(err, signalProcess(p.PID, p.Start, sig))
		}
		if err != nil || len(told) == before {
			return len(told), err
		}
	}
}

// signalProcess sends a signal to the process that had that number at that start.
func signalProcess(pid int, start uint64, sig unix.Signal) error {
	return sys.SignalProven(pid, sig, func() bool {
		now, alive := sys.ProcessStart(pid)
		return alive && now == start
	})
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
