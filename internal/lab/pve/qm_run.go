package pve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab/state"
)

// PVE's own time limits.
const (
	startTimeout    = 60 * time.Second
	resumeTimeout   = 300 * time.Second
	shutdownTimeout = 60 * time.Second
	stopTimeout     = 30 * time.Second
)

func qmStart(c *call) error {
	if err := c.s.Quorate(); err != nil {
		return err
	}
	if c.opts["stateuri"] == "" && c.asksHA(c.id(), "start") { // qm does not ask it if a state is given
		return nil
	}
	return c.withVM(c.id(), true, func(conf *state.Conf) error { return c.start(state.VM{ID: c.id(), Conf: conf}) })
}

// asksHA reports whether the HA manager manages a VM; the command then only sends the manager a
// request. The lab does not simulate the manager, which would run the command with --skiplock.
func (c *call) asksHA(id int, what string) bool {
	asks := c.s.Lists(state.FaultHAManaged, strconv.Itoa(id)) && !c.on("skiplock")
	if asks {
		fmt.Fprintf(c.stdout, "Requesting HA %s for VM %d\n", what, id)
	}
	return asks
}

// start boots a VM. The caller holds the VM's lock.
func (c *call) start(vm state.VM) (err error) {
	id, conf := vm.ID, vm.Conf
	if conf.IsTemplate() {
		return state.Fail(255, "you can't start a vm if it's a template")
	}
	if err := checkLock(conf, c.on("skiplock") || conf.Get("lock") == lockSuspended); err != nil {
		return err
	}
	if _, running := c.s.Pid(id); running {
		return state.Fail(255, "VM %d already running", id)
	}
	saved, uri := conf.Has("vmstate"), c.opts["stateuri"]
	if !saved && uri == "" && conf.ApplyPending() {
		if err := c.s.WriteConf(id, conf); err != nil {
			return err
		}
	}
	if conf.CloudInitVolume() != "" {
		fmt.Fprintln(c.stdout, "generating cloud-init ISO")
	}
	if len(conf.Drive) > 0 {
		conf.Drive = nil
		if err := c.s.WriteConf(id, conf); err != nil {
			return err
		}
	}
	for _, key := range conf.Keys() {
		bridge := state.Props(conf.Get(key))["bridge"]
		if strings.HasPrefix(key, "net") && bridge != "" && !c.bridgeExists(bridge) {
			return state.Fail(255, "bridge '%s' does not exist", bridge)
		}
	}
	if c.s.UseFault(state.FaultStartFails) {
		return state.Fail(255, "start failed: QEMU exited with code 1")
	}
	switch {
	case saved && uri != "":
		err = errors.New("QEMU exited with code 1") // two states at once
	case saved:
		err = c.restore(vm)
	case uri != "":
		var path string
		if path, err = c.stateFile(uri); err != nil {
			return err
		}
		err = c.startWith(vm, path)
	default:
		err = c.within(startTimeout, func(ctx context.Context) error { return c.drv.Start(ctx, c.s, vm) })
	}
	if err != nil {
		return state.Fail(255, "start failed: %s", err)
	}
	return nil
}

// within runs work with a time limit.
func (c *call) within(limit time.Duration, work func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(c.ctx, limit)
	defer cancel()
	return work(ctx)
}

func (c *call) bridgeExists(name string) bool {
	return name == c.s.Config.Bridge && !c.s.Lists(state.FaultMissingBridge, name)
}

func qmStop(c *call) error {
	id := c.id()
	return c.lockVM(id, func() error {
		conf, err := c.s.LoadConf(id)
		if err != nil {
			return state.Fail(2, "unable to find configuration file for VM %d on node '%s'", id, c.s.Config.Node)
		}
		if _, running := c.s.Pid(id); !running || c.asksHA(id, "stop") {
			return nil
		}
		if err := checkLock(conf, c.on("skiplock")); err != nil {
			return err
		}
		return c.stop(state.VM{ID: id, Conf: conf})
	})
}

// stop powers off a VM and cleans up its run directory. The caller holds the VM's lock.
func (c *call) stop(vm state.VM) error {
	err := c.within(stopTimeout, func(ctx context.Context) error { return c.drv.Stop(ctx, c.s, vm) })
	if err != nil {
		return state.Fail(255, "VM %d: stop failed: %s", vm.ID, err)
	}
	return nil
}

func qmShutdown(c *call) error {
	id := c.id()
	return c.withVM(id, true, func(conf *state.Conf) error {
		vm := state.VM{ID: id, Conf: conf}
		if _, running := c.s.Pid(id); !running {
			return nil
		}
		if c.drv.Paused(c.ctx, c.s, vm) {
			if !c.on("forceStop") {
				return state.Fail(255, "VM is paused - cannot shutdown")
			}
			fmt.Fprintln(c.stderr, "VM is paused - stop instead of shutdown")
			return c.stop(vm)
		}
		if c.asksHA(id, "stop") {
			return nil
		}
		if err := checkLock(conf, c.on("skiplock")); err != nil {
			return err
		}
		return c.shutdown(vm)
	})
}

func (c *call) shutdown(vm state.VM) error {
	if _, running := c.s.Pid(vm.ID); !running {
		return nil
	}
	timeout := shutdownTimeout
	if seconds, err := strconv.Atoi(c.opts["timeout"]); err == nil {
		timeout = time.Duration(seconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	err := state.ErrShutdownTimeout
	if c.s.Fault(state.FaultShutdownIgnored) == "" {
		err = c.drv.Shutdown(ctx, c.s, vm)
	} else {
		<-ctx.Done()
	}
	switch {
	case err == nil:
		return c.stop(vm) // cleans up after a machine that ended on its own
	case !errors.Is(err, state.ErrShutdownTimeout):
		return err
	case c.on("forceStop"):
		fmt.Fprintln(c.stderr, "VM quit/powerdown failed - terminating now with SIGTERM")
		return c.stop(vm)
	}
	return state.Fail(255, "VM quit/powerdown failed - got timeout")
}

// qmReboot shuts the VM down and starts it again, so that pending changes take effect.
func qmReboot(c *call) error {
	id := c.id()
	return c.withVM(id, true, func(conf *state.Conf) error {
		vm := state.VM{ID: id, Conf: conf}
		if _, running := c.s.Pid(vm.ID); !running {
			return state.Fail(255, "VM %d not running", id)
		}
		if err := c.shutdown(vm); err != nil {
			return err
		}
		return c.start(vm)
	})
}

// qmUnlock removes a lock line. It is silent, and fails only if there is no config.
func qmUnlock(c *call) error {
	err := c.withVM(c.id(), true, func(conf *state.Conf) error {
		conf.Delete("lock")
		return c.s.WriteConf(c.id(), conf)
	})
	if exit, ok := errors.AsType[*state.ExitError](err); ok && exit.Code == 2 {
		return err
	}
	return nil
}

// qmDestroy removes a stopped VM and its disks.
func qmDestroy(c *call) error {
	id := c.id()
	return c.withVM(id, true, func(conf *state.Conf) error {
		if err := checkLock(conf, c.on("skiplock") || conf.Get("lock") == lockSuspended); err != nil {
			return err
		}
		if conf.Get("protection") == "1" {
			return state.Fail(255, "can't remove VM %d - protection mode enabled", id)
		}
		if _, running := c.s.Pid(id); running {
			return state.Fail(25, "VM %d is running - destroy failed", id)
		}
		if err := c.checkBasesFree(conf); err != nil {
			return err
		}
		return c.destroy(id, conf)
	})
}

// checkBasesFree refuses a template whose disks linked clones read. A thin pool's clones do not.
func (c *call) checkBasesFree(conf *state.Conf) error {
	for _, d := range state.Drives(conf.Values) {
		if conf.IsTemplate() && c.s.UsedBy(d.File) {
			return state.Fail(255, "base volume '%s' is still in use by linked cloned", d.File)
		}
	}
	return nil
}

func (c *call) destroy(id int, conf *state.Conf) error {
	warnings := 0
	for _, volid := range c.ownVolumes(id, conf) {
		var err error
		if c.s.UseFault(state.FaultDestroyLeaves) {
			err = state.Fail(5, "lvremove 'pve/vm-%d-disk-0' error:   Logical volume pve/vm-%d-disk-0 in use.", id, id)
		} else {
			err = c.freeVolume(volid)
		}
		if err != nil {
			fmt.Fprintf(c.stdout, "WARN: Could not remove disk '%s', check manually: %s\n", volid, err)
			warnings++
		}
	}
	// The ID stays taken until everything that names the VM is cleared. Without quorum, destroy
	// fails here, after it has freed the disks.
	if err := c.s.WriteConf(id, destroyedConf()); err != nil {
		return state.Fail(255, "%s", err)
	}
	if c.s.UseFault(state.FaultDestroyLate) {
		return state.Fail(255, "access permissions cleanup for VM %d failed: cfs-lock 'file-user_cfg' error: got lock request timeout", id)
	}
	if c.on("purge") {
		fmt.Fprintf(c.stdout, "purging VM %d from related configurations..\n", id)
	}
	if err := os.Remove(c.s.ConfPath(id)); err != nil {
		return err
	}
	_ = os.Remove(c.s.LogPath(id)) // may never have been written
	if warnings > 0 {
		fmt.Fprintf(c.stderr, "Task finished with %d warning(s)!\n", warnings)
	}
	return nil
}

// destroyedConf is the config as a destroy leaves it until it removes the file.
func destroyedConf() *state.Conf {
	conf := state.NewConf()
	conf.Set("lock", lockDestroyed)
	return conf
}

const lockDestroyed = "destroyed"

// ownVolumes returns the volumes that destroy removes: those that the config names and the VM owns
// and, with --destroy-unreferenced-disks, all that carry the VM's ID.
func (c *call) ownVolumes(id int, conf *state.Conf) []string {
	var volids []string
	seen := map[string]bool{}
	add := func(volid string) {
		path, err := c.s.VolumePath(volid)
		if err == nil && !seen[path] && state.Owner(volid) == id {
			seen[path] = true
			volids = append(volids, volid)
		}
	}
	for _, key := range conf.Keys() {
		if d := state.ParseDrive(conf.Get(key)); state.IsDrive(key) || strings.HasPrefix(key, "unused") || key == "vmstate" {
			add(d.File)
		}
	}
	for _, snapshot := range conf.Snapshots {
		add(snapshot["vmstate"])
	}
	if c.on("destroy-unreferenced-disks") {
		for _, st := range c.s.Storages() {
			for _, v := range c.s.Volumes(st, id) {
				add(v.VolID)
			}
		}
	}
	return volids
}
