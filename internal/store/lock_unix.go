//go:build unix

package store

import (
	"errors"
	"os"
	"syscall"
)

// lockDir locks a directory against other goroutines and other processes. The kernel drops the lock
// when its holder dies. Locks are held briefly, so the wait is not bounded.
func lockDir(dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX) //nolint:gosec // a file descriptor fits an int
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(&os.PathError{Op: "lock", Path: dir, Err: err}, f.Close())
	}
	return func() { f.Close() }, nil //nolint:errcheck // opened for reading: closing cannot lose anything
}
