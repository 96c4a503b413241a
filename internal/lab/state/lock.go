package state

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"linus/internal/lab/sys"
)

// LockWait is how long PVE waits for the lock of a VM's config or of a storage.
const LockWait = 10 * time.Second

// WithLock runs fn while holding the flock file locks/<name>. shown is the name that PVE would
// print. As in PVE, a message on stderr says when it has to wait.
func (s *State) WithLock(ctx context.Context, stderr io.Writer, name, shown string, wait time.Duration, fn func() error) error {
	return withLock(ctx, stderr, s.Path("locks", name), wait, Fail(255, "can't lock file '%s' - got timeout", shown), fn)
}

// WithClusterLock runs fn while holding a lock that all nodes of the cluster share.
func (s *State) WithClusterLock(ctx context.Context, stderr io.Writer, name string, fn func() error) error {
	return withLock(ctx, stderr, s.Common("locks", name), LockWait, Fail(255, "cfs-lock '%s' error: got lock request timeout", name), fn)
}

// withLock returns late if it cannot acquire the lock in time.
func withLock(ctx context.Context, stderr io.Writer, path string, wait time.Duration, late error, fn func() error) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	limited, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	waited := false
	err = sys.Flock(limited, f, func() {
		waited = true
		fmt.Fprint(stderr, "trying to acquire lock...")
	})
	switch {
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		fmt.Fprintln(stderr)
		return late
	case err != nil:
		return err
	case waited:
		fmt.Fprintln(stderr, " OK")
	}
	return fn()
}
