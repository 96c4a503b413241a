package lab

import (
	"os"
	"strconv"
)

// lockVM holds a VM's config lock.
func (c *call) lockVM(id int, fn func() error) error {
	name := "lock-" + strconv.Itoa(id) + ".conf"
	shown := "/var/lock/qemu-server/" + name
	if c.s.useFault(FaultLockTimeout) {
		return fail(255, "can't lock file '%s' - got timeout", shown)
	}
	return c.s.withLock(c.ctx, c.stderr, name, shown, lockWait, func() error {
		task := taskPath(c.s, strconv.Itoa(id))
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
