package pve

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

	"linus/internal/lab/state"
)

// qmClone copies a VM or one of its snapshots; clones of a template are linked unless --full 1.
func qmClone(c *call) error {
	id := c.id()
	newID, _ := strconv.Atoi(c.opts["newid"])
	target := cmp.Or(c.opts["target"], c.s.Config.Node)
	if err := c.checkMember(target); err != nil {
		return err
	}
	if err := c.s.Quorate(); err != nil {
		return err
	}
	var source *state.Conf
	err := c.withVM(id, false, func(conf *state.Conf) error {
		source = conf
		return nil
	})
	if err != nil {
		return err
	}
	full := !source.IsTemplate()
	if name := c.opts["snapname"]; name != "" {
		values, there := source.Snapshots[name]
		if !there {
			return state.Fail(255, "snapshot '%s' does not exist", name)
		}
		source = state.NewConf()
		for key, value := range values {
			if key != "snaptime" && key != "snapstate" {
				source.Set(key, value)
			}
		}
	}
	if _, given := c.opts["full"]; given {
		full = c.on("full")
	}
	if err := c.checkClone(source, full); err != nil {
		return err
	}
	if c.s.Config.Version != "8.2" {
		fmt.Fprintf(c.stdout, "creating a clone of VM %d with ID %d\n", id, newID)
	}
	err = c.lockVM(newID, func() error {
		reserved := state.NewConf()
		reserved.Set("lock", "clone")
		if err := c.s.Reserve(c.ctx, newID, reserved); err != nil {
			return c.cloneTaken(newID, err)
		}
		if c.s.UseFault(state.FaultCloneFails) {
			failed := errors.New("clone failed: can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout")
			return errors.Join(taskFailure(failed), os.Remove(c.s.ConfPath(newID)))
		}
		thaw := func() error { return nil }
		if _, running := c.s.Pid(id); running && full && c.opts["snapname"] == "" {
			if thaw, err = c.freeze(state.VM{ID: id, Conf: source}); err != nil {
				return errors.Join(err, os.Remove(c.s.ConfPath(newID)))
			}
		}
		conf, made, err := c.cloneConf(source, newID, full)
		if err := thaw(); err != nil {
			fmt.Fprintln(c.stderr, err)
		}
		c.dieHalfWay()
		if err == nil {
			err = c.s.WriteConf(newID, conf)
		}
		if err == nil && target != c.s.Config.Node {
			err = os.Rename(c.s.ConfPath(newID), c.s.ConfPathOn(target, newID))
		}
		if err != nil {
			return errors.Join(state.Fail(255, "clone failed: %s", err), c.freeAll(made), os.Remove(c.s.ConfPath(newID)))
		}
		return nil
	})
	return c.lie(err)
}

// freeze keeps the VM from writing to its disks while they are copied: through its agent, or else
// by pausing the VM. PVE mirrors the disks first, and freezes only for the last moment.
func (c *call) freeze(vm state.VM) (thaw func() error, err error) {
	ctx := context.WithoutCancel(c.ctx)
	if _, err := c.agent(vm.ID, "guest-fsfreeze-freeze", nil); err == nil {
		return func() error { _, err := c.agent(vm.ID, "guest-fsfreeze-thaw", nil); return err }, nil
	}
	if c.drv.Paused(ctx, c.s, vm) {
		return func() error { return nil }, nil
	}
	return func() error { return c.drv.Continue(ctx, c.s, vm) }, c.drv.Pause(ctx, c.s, vm)
}

func (c *call) checkClone(source *state.Conf, full bool) error {
	if !full {
		for _, name := range []string{"storage", "format"} {
			if _, given := c.opts[name]; given {
				return state.Fail(255, "parameter '%s' not allowed for linked clones", name)
			}
		}
	}
	of, kind := "", "Linked"
	if c.opts["snapname"] != "" {
		of = " a snapshot of"
	}
	if full {
		kind = "Full"
	}
	for key, d := range state.Drives(source.Values) {
		if d.Disk() && !c.canClone(d, source.IsTemplate(), full) {
			return state.Fail(255, "%s clone feature is not supported for%s '%s' (%s)", kind, of, d.File, key)
		}
	}
	if target := c.opts["target"]; target != "" && target != c.s.Config.Node && !c.onShared(source) {
		return state.Fail(255, "can't clone VM to node '%s' (VM uses local storage)", target)
	}
	return nil
}

// canClone reports whether a disk, or its snapshot, can be cloned. Linked clones are possible of
// bases and, on a thin pool, of snapshots. A snapshot of a raw file cannot be copied either.
func (c *call) canClone(d state.Drive, base, full bool) bool {
	st, err := c.s.Storage(d.Storage())
	switch {
	case err != nil:
		return true // the clone then fails by itself
	case c.opts["snapname"] == "":
		return base || full
	}
	return st.Thin() || full && strings.HasSuffix(d.File, ".qcow2")
}

func (c *call) checkMember(name string) error {
	if slices.ContainsFunc(c.s.Nodes(), func(n state.Node) bool { return n.Name == name }) {
		return nil
	}
	return state.Fail(255, "no such cluster node '%s'", name)
}

// onShared reports whether all disks of a VM are on shared storages.
func (c *call) onShared(conf *state.Conf) bool {
	for _, d := range state.Drives(conf.Values) {
		if st, err := c.s.Storage(d.Storage()); d.Storage() != "" && (err != nil || !st.Shared) {
			return false
		}
	}
	return true
}

// cloneTaken words a lost race for an ID as clone does: clone itself looks only for a VM of this
// node; in all other cases pmxcfs refuses the config.
func (c *call) cloneTaken(id int, err error) error {
	var taken *state.TakenError
	switch {
	case errors.As(err, &taken) && taken.Kind == "VM" && taken.Node == c.s.Config.Node:
		return state.Fail(255, "unable to create VM %d: config file already exists", id)
	case taken != nil:
		return state.Fail(255, "close (rename) atomic file '/etc/pve/nodes/%s/qemu-server/%d.conf' failed: File exists", c.s.Config.Node, id)
	}
	return err
}

// cloneConf makes the clone's disks and config. made has its volumes, also on failure.
func (c *call) cloneConf(source *state.Conf, id int, full bool) (conf *state.Conf, made []string, err error) {
	conf = source.Clone()
	conf.DropPending()
	clear(conf.Snapshots)
	conf.Delete("template", "lock", "description", "parent")
	conf.Delete(stateKeys...)
	conf.Set("vmgenid", uuid.NewString())
	conf.Set("smbios1", "uuid="+uuid.NewString())
	conf.Set("name", cmp.Or(c.opts["name"], "Copy-of-VM-"+strings.TrimSpace(source.Get("name"))))
	if description, given := c.opts["description"]; given {
		conf.Set("description", description)
	} else if source.Has("description") {
		conf.Set("description", source.Get("description"))
	}
	for _, key := range conf.Keys() {
		switch {
		case strings.HasPrefix(key, "unused"):
			conf.Delete(key)
		case strings.HasPrefix(key, "net"):
			conf.Set(key, withMAC(conf.Get(key), true))
		case state.IsDrive(key):
			volid, err := c.cloneDrive(key, conf, id, full)
			if volid != "" {
				made = append(made, volid)
			}
			if err != nil {
				return nil, made, err
			}
		}
	}
	return conf, made, nil
}

func (c *call) cloneDrive(key string, conf *state.Conf, id int, full bool) (volid string, err error) {
	d := state.ParseDrive(conf.Get(key))
	if !d.Disk() && !d.CloudInit() {
		return "", nil
	}
	storage, kind := d.Storage(), "full"
	switch {
	case d.CloudInit():
	case full:
		storage = cmp.Or(c.opts["storage"], storage)
	default:
		kind = "linked"
	}
	st, err := c.s.Storage(storage)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(c.stdout, "create %s clone of drive %s (%s)\n", kind, key, d.File)
	switch {
	case d.CloudInit():
		volid, err = c.allocCloudInit(st, id)
	case c.opts["snapname"] != "":
		volid, err = c.cloneSnapshot(d.File, c.opts["snapname"], st, id)
	case full:
		volid, err = c.copyVolume(d.File, st, id, c.opts["format"])
	default:
		volid, err = c.linkVolume(d.File, st, id)
	}
	if err != nil {
		return volid, err
	}
	d.File = volid
	conf.Set(key, d.String())
	return volid, nil
}
