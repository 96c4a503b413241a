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

// PVE waits 10 s for a VM's config lock and for a storage.
const LockWait = 10 * time.Second

// WithLock runs fn while holding the flock file locks/<name>. shown is the
// name PVE would print. As PVE does, it says on stderr when it has to wait.
func (s *State) WithLock(ctx context.Context, stderr io.Writer, name, shown string, wait time.Duration, fn func() error) error {
	f, err := os.OpenFile(s.Path("locks", name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close() // ends the lock
	if err := waitFlock(ctx, f, stderr, wait); err != nil {
		return Fail(255, "can't lock file '%s' - %s", shown, err)
	}
	return fn()
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
			return errors.New("got timeout")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}
