package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"
)

// PVE waits 10 s for a VM's config lock and for a storage.
const lockWait = 10 * time.Second

// withLock runs fn while holding the flock file locks/<name>. shown is the
// name PVE would print. As PVE does, it says on stderr when it has to wait.
func (s *State) withLock(ctx context.Context, stderr io.Writer, name, shown string, wait time.Duration, fn func() error) error {
	f, err := os.OpenFile(s.path("locks", name), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close() // ends the lock
	if err := waitFlock(ctx, f, stderr, wait); err != nil {
		return fail(255, "can't lock file '%s' - %s", shown, err)
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

// lockVM holds a VM's config lock.
func (c *call) lockVM(id int, fn func() error) error {
	name := "lock-" + strconv.Itoa(id) + ".conf"
	shown := "/var/lock/qemu-server/" + name
	if c.s.useFault(FaultLockTimeout) {
		return fail(255, "can't lock file '%s' - got timeout", shown)
	}
	return c.s.withLock(c.ctx, c.stderr, name, shown, lockWait, func() error {
		task := c.s.taskPath(strconv.Itoa(id))
		if err := writePidFile(task, os.Getpid()); err != nil {
			return err
		}
		defer os.Remove(task) //nolint:errcheck // a task whose process is gone is none
		return fn()
	})
}

// lockStorage holds a storage's lock.
func (c *call) lockStorage(st storage, fn func() error) error {
	shown := "/var/lock/pve-manager/pve-storage-" + st.name
	if c.s.useFault(FaultStorageLockTimeout) {
		return fail(255, "can't lock file '%s' - got timeout", shown)
	}
	return c.s.withLock(c.ctx, c.stderr, "storage-"+st.name, shown, lockWait, func() error {
		if err := c.s.pause(c.ctx, FaultSlowStorage); err != nil {
			return err
		}
		return fn()
	})
}
