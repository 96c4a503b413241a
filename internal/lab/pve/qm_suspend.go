package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/lazyregexp"
)

// What runs in a machine can be paused (`qm suspend`), written to a volume with the machine off
// until the next start (`qm suspend --todisk 1`), or written beside a snapshot.

// The locks during a suspend, and after it.
const (
	lockSuspending = "suspending"
	lockSuspended  = "suspended"
)

// stateKeys are the keys that a saved state adds to a config.
var stateKeys = []string{"vmstate", "runningmachine", "runningcpu", "running-nets-host-mtu"}

var passedThrough = lazyregexp.New(`^hostpci\d+$`)

// qmSuspend pauses a VM; with --todisk it saves what runs and turns the VM off.
func qmSuspend(c *call) error {
	id := c.id()
	conf, err := c.s.LoadConf(id)
	if err != nil {
		return state.Fail(2, "unable to find configuration file for VM %d on node '%s'", id, c.s.Config.Node)
	}
	if c.opts["statestorage"] != "" && !c.on("todisk") {
		return state.Fail(255, "400 Parameter verification failed.\ntodisk: missing property - 'statestorage' requires this property")
	}
	if _, running := c.s.Pid(id); !running {
		return state.Fail(255, "VM %d not running", id)
	}
	if !c.on("todisk") {
		return c.withVM(id, c.on("skiplock"), func(conf *state.Conf) error {
			return c.drv.Pause(c.ctx, c.s, state.VM{ID: id, Conf: conf})
		})
	}
	switch {
	case c.s.Lists(state.FaultHAManaged, fmt.Sprint(id)):
		return state.Fail(255, "Cannot suspend HA managed VM to disk")
	case slices.ContainsFunc(conf.Keys(), passedThrough.MatchString):
		return state.Fail(255, "cannot suspend VM to disk due to passed-through PCI device(s), which lack the possibility to save/restore their internal state")
	}
	return c.task(id, "qmsuspend", func() error { return c.suspend(id) })
}

// suspend saves what runs in a VM and turns it off. It holds the VM's own lock at the beginning and
// at the end; in between, the config's `lock` line keeps others out.
func (c *call) suspend(id int) error {
	vm := state.VM{ID: id}
	var volid string
	err := c.withVM(id, c.on("skiplock"), func(conf *state.Conf) (err error) {
		vm.Conf = conf
		if volid, err = c.allocState(vm, "suspend-"+time.Now().Format(time.DateOnly), c.opts["statestorage"]); err != nil {
			return err
		}
		vm.Conf.Set("lock", lockSuspending)
		c.noteState(vm.Conf, vm.Conf.Set, volid)
		return c.s.WriteConf(id, vm.Conf)
	})
	if err != nil {
		return err
	}
	c.dieHalfWay()
	path, err := c.s.VolumePath(volid)
	if err == nil {
		err = c.drv.Pause(c.ctx, c.s, vm)
	}
	if err == nil {
		err = c.saveState(vm, volid, path)
	}
	if err != nil {
		err = state.Fail(255, "query-savevm failed with error '%s'", err)
		return errors.Join(err, c.withVM(id, true, func(conf *state.Conf) error { return c.undoSuspend(vm, conf, volid) }))
	}
	fmt.Fprintln(c.stdout, "State saved, quitting")
	return c.withVM(id, true, func(conf *state.Conf) error {
		if conf.Get("lock") != lockSuspending {
			return state.Fail(255, "lock changed unexpectedly")
		}
		if err := c.drv.Shelve(c.ctx, c.s, vm, path); err != nil {
			return err
		}
		if err := noteMachine(path, machineOf(conf, conf.Get("runningmachine"), conf.Get("runningcpu"), conf.Get("running-nets-host-mtu"))); err != nil {
			return err
		}
		conf.Set("lock", lockSuspended)
		return c.s.WriteConf(id, conf)
	})
}

// undoSuspend resumes a VM whose state was not saved. The VM's lock stays, as with the real qm, to
// show that something went wrong.
func (c *call) undoSuspend(vm state.VM, conf *state.Conf, volid string) error {
	conf.Delete(stateKeys...)
	return errors.Join(c.drv.Continue(c.ctx, c.s, vm), c.freeVolume(volid), c.s.WriteConf(vm.ID, conf))
}

// saveState writes what runs in a paused VM to a volume. A file is as large as what is written.
func (c *call) saveState(vm state.VM, volid, path string) error {
	if c.s.UseFault(state.FaultStorageFull) {
		return errors.New("qemu_savevm_state_iterate error -28")
	}
	st, err := c.s.Storage(state.Drive{File: volid}.Storage())
	if err != nil {
		return err
	}
	size := stateSize(vm.Conf)
	if !st.Thin() {
		size = 0
	}
	return c.drv.SaveMemory(c.ctx, c.s, vm, path, size)
}

// stateSize is what PVE reserves: a state is saved while the machine runs, and so partly twice.
func stateSize(conf *state.Conf) int64 { return 2*memoryBytes(conf) + 500<<20 }

// allocState creates the volume for a VM's state. storage "" leaves the choice to stateStorage.
func (c *call) allocState(vm state.VM, name, storage string) (volid string, err error) {
	st, err := c.s.Storage(cmp.Or(storage, c.stateStorage(vm.Conf)))
	if err != nil {
		return "", err
	}
	return c.makeNamed(st, vm.ID, fmt.Sprintf("vm-%d-state-%s", vm.ID, name), "raw", func(path string) error {
		return c.drv.CreateDisk(c.ctx, path, "raw", stateSize(vm.Conf))
	})
}

// stateStorage is where a VM's state goes: where its config says, else to the storage of one of its
// disks, preferably one with files rather than volumes.
func (c *call) stateStorage(conf *state.Conf) string {
	if storage := conf.Get("vmstatestorage"); storage != "" {
		return storage
	}
	target := ""
	for _, d := range state.Drives(conf.Values) {
		if st, err := c.s.Storage(d.Storage()); err == nil && !d.CDROM() && (target == "" || !st.Thin()) {
			target = st.Name
		}
	}
	return cmp.Or(target, "local")
}

// noteState sets the keys that describe a saved state in a config or a snapshot.
func (c *call) noteState(conf *state.Conf, set func(key, value string), volid string) {
	set("vmstate", volid)
	set("runningmachine", "pc-i440fx-"+c.machineVersion()+"+pve0")
	set("runningcpu", "host,+kvm_pv_eoi,+kvm_pv_unhalt")
	if c.s.Config.Version != "8.2" {
		var cards []string
		for _, key := range conf.Keys() {
			if strings.HasPrefix(conf.Get(key), "virtio=") {
				cards = append(cards, key+"=1500")
			}
		}
		set("running-nets-host-mtu", strings.Join(cards, ","))
	}
}

func (c *call) machineVersion() string {
	if c.s.Config.Version == "8.2" {
		return "8.1"
	}
	return "10.1"
}

// restore starts a VM from its saved state, and frees the state. The caller holds the VM's lock.
func (c *call) restore(vm state.VM) error {
	volid := vm.Conf.Get("vmstate")
	fmt.Fprintf(c.stdout, "Resuming suspended VM\nactivating and using '%s' as vmstate\n", volid)
	path, err := c.s.VolumePath(volid)
	if err != nil {
		return err
	}
	if err := c.within(resumeTimeout, func(ctx context.Context) error { return c.drv.Restore(ctx, c.s, vm, path) }); err != nil {
		return err
	}
	fmt.Fprintln(c.stdout, "Resumed VM, removing state")
	vm.Conf.Delete("lock")
	return c.dropState(vm)
}

// dropState frees a config's saved state.
func (c *call) dropState(vm state.VM) error {
	if err := c.freeVolume(vm.Conf.Get("vmstate")); err != nil {
		return err
	}
	vm.Conf.Delete(stateKeys...)
	return c.s.WriteConf(vm.ID, vm.Conf)
}

// qmResume resumes a paused VM, or starts a VM that is suspended to disk.
func qmResume(c *call) error {
	id := c.id()
	conf, err := c.s.LoadConf(id)
	if err != nil {
		return state.Fail(2, "unable to find configuration file for VM %d on node '%s'", id, c.s.Config.Node)
	}
	if conf.Get("lock") == lockSuspended {
		return qmStart(c)
	}
	if _, running := c.s.Pid(id); !running {
		return state.Fail(255, "VM %d not running", id)
	}
	return c.withVM(id, true, func(conf *state.Conf) error {
		vm := state.VM{ID: id, Conf: conf}
		if !c.drv.Paused(c.ctx, c.s, vm) {
			return nil
		}
		if err := checkLock(conf, c.on("skiplock")); err != nil {
			return err
		}
		return c.drv.Continue(c.ctx, c.s, vm)
	})
}

// task shows work on a VM as a task while it does not hold the VM's lock.
func (c *call) task(id int, kind string, work func() error) error {
	file := c.s.TaskPath(fmt.Sprintf("%d.%s", id, kind))
	if err := sys.WritePidFile(file, os.Getpid()); err != nil {
		return err
	}
	defer os.Remove(file) //nolint:errcheck // a task whose process is gone does not count
	return work()
}
