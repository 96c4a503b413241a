package pve

import (
	"os"
	"strconv"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// lockVM runs fn while holding a VM's config lock.
func (c *call) lockVM(id int, fn func() error) error {
	name := "lock-" + strconv.Itoa(id) + ".conf"
	shown := "/var/lock/qemu-server/" + name
	if c.s.UseFault(state.FaultLockTimeout) {
		return state.Fail(255, "can't lock file '%s' - got timeout", shown)
	}
	return c.s.WithLock(c.ctx, c.stderr, name, shown, state.LockWait, func() error {
		task := c.s.TaskPath(strconv.Itoa(id))
		if err := sys.WritePidFile(task, os.Getpid()); err != nil {
			return err
		}
		defer os.Remove(task) //nolint:errcheck // a task whose process is gone does not count
		return fn()
	})
}

// lockStorage holds a storage's lock: the node's, or the cluster's for a shared storage.
func (c *call) lockStorage(st state.Storage, fn func() error) error {
	name, shown := "storage-"+st.Name, "/var/lock/pve-manager/pve-storage-"+st.Name
	work := func() error {
		if err := c.s.Pause(c.ctx, state.FaultSlowStorage); err != nil {
			return err
		}
		return fn()
	}
	switch {
	case st.Shared && c.s.Quorate() != nil:
		return noQuorumFor(st)
	case st.Shared && c.s.UseFault(state.FaultStorageLockTimeout):
		return state.Fail(255, "cfs-lock '%s' error: got lock request timeout", name)
	case st.Shared:
		return c.s.WithClusterLock(c.ctx, c.stderr, name, work)
	case c.s.UseFault(state.FaultStorageLockTimeout):
		return state.Fail(255, "can't lock file '%s' - got timeout", shown)
	}
	return c.s.WithLock(c.ctx, c.stderr, name, shown, state.LockWait, work)
}

// noQuorumFor refuses a change of a shared storage, whose lock is the cluster's.
func noQuorumFor(st state.Storage) error {
	return state.Fail(255, "cfs-lock 'storage-%s' error: no quorum!", st.Name)
}
