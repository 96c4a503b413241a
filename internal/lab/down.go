package lab

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

const downTimeout = 60 * time.Second

// Down takes down the lab in dir. If there is no lab, it only removes the leftovers of an Up that
// was killed in its first step.
func Down(ctx context.Context, dir string) error {
	l, err := Open(dir)
	if err == nil {
		return l.Down(ctx)
	}
	if !errors.Is(err, state.ErrNoLab) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil || checkEmpty(dir) != nil {
		return nil // there is nothing, or nothing that belongs to a lab
	}
	for _, entry := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// Down ends everything the lab started and removes the content of its directory, and the directory
// itself if nothing else is in it. It works on a half-made lab and after any process was killed.
func (l *Lab) Down(ctx context.Context) error {
	if l.Root() != l.Dir {
		return l.onlyANode()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
	defer cancel()
	if err := os.MkdirAll(l.Path("locks"), 0o755); err != nil {
		return err
	}
	return l.WithLock(ctx, io.Discard, upLock, l.Path("locks", upLock), downWait, func() error {
		// The order ensures that nothing new starts meanwhile: end what can be asked to start
		// things first, then what runs.
		err := errors.Join(l.otherNodesDown(ctx), l.powerCut(ctx), l.Driver.Down(ctx, l.State), l.Thaw())
		if err != nil {
			return err // keep the pid files, so that another Down can continue from here
		}
		return l.remove()
	})
}

// remove deletes the lab's files, lab.json last.
func (l *Lab) remove() error {
	entries, err := os.ReadDir(l.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if halfWritten(entry.Name()) {
			if err := os.Remove(l.Path(entry.Name())); err != nil {
				return err
			}
		}
	}
	for _, part := range parts {
		if err := os.RemoveAll(l.Path(part)); err != nil {
			return err
		}
	}
	if err := os.Remove(l.Dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return nil
}

// endCalls kills the work-alikes that still run.
func (l *Lab) endCalls(ctx context.Context) error {
	files, err := filepath.Glob(l.Path("run", "call-*"))
	for _, file := range files {
		err = errors.Join(err, sys.KillPidFile(ctx, file, syscall.SIGKILL))
	}
	return err
}

// stopVMs stops every VM that has a run directory, including VMs whose config is gone.
func (l *Lab) stopVMs(ctx context.Context) error {
	entries, err := os.ReadDir(l.Path("run"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if id, atoiErr := strconv.Atoi(entry.Name()); atoiErr == nil {
			err = errors.Join(err, l.Driver.Stop(ctx, l.State, state.VM{ID: id, Conf: state.NewConf()}))
		}
	}
	return err
}
