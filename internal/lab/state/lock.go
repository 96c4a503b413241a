package state

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// LockWait is how long PVE waits for a VM's config lock and for a storage.
const LockWait = 10 * time.Second

// WithLock runs fn while holding the flock file locks/<name>. shown is the
// name PVE would print. As PVE does, it says on stderr when it has to wait.
func (s *State) WithLock(ctx context.Context, stderr io.Writer, name, shown string, wait time.Duration, fn func() error) error {
	unlock, err := lockFile(ctx, stderr, s.Path("locks", name), wait)
	if errors.Is(err, errLockTimeout) {
		return Fail(255, "can't lock file '%s' - %s", shown, err)
	}
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

// WithClusterLock runs fn while holding a lock that all nodes of the cluster share.
func (s *State) WithClusterLock(ctx context.Context, stderr io.Writer, name string, fn func() error) error {
	unlock, err := lockFile(ctx, stderr, s.Common("locks", name), LockWait)
	if errors.Is(err, errLockTimeout) {
		return Fail(255, "cfs-lock '%s' error: got lock request timeout", name)
	}
	if err != nil {
		return err
	}
	defer unlock()
	return fn()
}

var errLockTimeout = errors.New("got timeout")

func lockFile(ctx context.Context, stderr io.Writer, path string, wait time.Duration) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := waitFlock(ctx, f, stderr, wait); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}

func waitFlock(ctx context.Context, f *os.File, stderr io.Writer, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	said := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			if said {
				fmt.Fprintln(stderr, " OK")
			}
			return nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			return err
		}
		if !said {
			fmt.Fprint(stderr, "trying to acquire lock...")
			said = true
		}
		if time.Now().After(deadline) {
			fmt.Fprintln(stderr)
			return errLockTimeout
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
