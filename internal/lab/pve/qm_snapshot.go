package pve

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"linus/internal/lab/state"
)

// Snapshots: of disks, and with --vmstate of what runs in the machine.

// kept reports whether a key stays out of snapshots, and rollbacks do not restore it.
func kept(key string) bool {
	return slices.Contains([]string{"description", "lock", "snapstate", "snaptime"}, key) || slices.Contains(stateKeys, key) || strings.HasPrefix(key, "unused")
}

// snapshotDisks returns the keys of what a snapshot contains: disks, but not CD drives.
func snapshotDisks(values map[string]string) []string {
	var keys []string
	for key, d := range state.Drives(values) {
		if d.Disk() {
			keys = append(keys, key)
		}
	}
	return keys
}

// hasSnapshots reports whether every disk can have snapshots: a raw file cannot.
func hasSnapshots(conf *state.Conf) bool {
	return !slices.ContainsFunc(snapshotDisks(conf.Values), func(key string) bool {
		return strings.HasSuffix(state.ParseDrive(conf.Get(key)).File, ".raw")
	})
}

// apiFeature reports whether a VM can have snapshots, or be cloned or copied.
func apiFeature(c *call, vars map[string]string) (any, error) {
	_, conf, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	feature := c.opts["feature"]
	if !slices.Contains([]string{"snapshot", "clone", "copy"}, feature) {
		return nil, state.Fail(255, "400 Parameter verification failed.\nfeature: value '%s' does not have a value in the enumeration 'snapshot, clone, copy'", feature)
	}
	has := 1
	if feature == "snapshot" && !hasSnapshots(conf) || feature == "clone" && !conf.IsTemplate() {
		has = 0
	}
	return map[string]any{"hasFeature": has, "nodes": []string{vars["node"]}}, nil
}

// qmSnapshot keeps disks and config under a name.
func qmSnapshot(c *call) error {
	id, name := c.id(), c.opts["snapname"]
	if name == "current" || name == "pending" {
		return state.Fail(255, "unable to use snapshot name '%s' (reserved name)", name)
	}
	return c.withVM(id, true, func(conf *state.Conf) error {
		if conf.IsTemplate() {
			return state.Fail(255, "you can't take a snapshot if it's a template")
		}
		if err := checkLock(conf, false); err != nil {
			return err
		}
		if _, used := conf.Snapshots[name]; used {
			return state.Fail(255, "snapshot name '%s' already used", name)
		}
		if !hasSnapshots(conf) {
			return state.Fail(255, "snapshot feature is not available")
		}
		return c.takeSnapshot(state.VM{ID: id, Conf: conf}, name)
	})
}

func (c *call) takeSnapshot(vm state.VM, name string) error {
	snapshot := map[string]string{}
	for key, value := range vm.Conf.Values {
		if !kept(key) {
			snapshot[key] = value
		}
	}
	if description := c.opts["description"]; description != "" {
		snapshot["description"] = description + "\n"
	}
	_, running := c.s.Pid(vm.ID)
	live := c.on("vmstate") && running
	if live {
		volid, err := c.allocState(vm, name, "")
		if err != nil {
			return err
		}
		c.noteState(vm.Conf, func(key, value string) { snapshot[key] = value }, volid)
	}
	snapshot["snaptime"] = strconv.FormatInt(time.Now().Unix(), 10)
	snapshot["snapstate"] = "prepare"
	vm.Conf.Snapshots[name] = snapshot
	vm.Conf.Set("lock", "snapshot")
	if err := c.s.WriteConf(vm.ID, vm.Conf); err != nil {
		return err
	}
	var err error
	if live {
		err = c.snapshotLive(vm, snapshot, name)
	} else {
		err = c.snapshotDisks(vm, snapshot, name)
	}
	c.dieHalfWay()
	vm.Conf.Delete("lock")
	if err != nil {
		fmt.Fprintln(c.stderr, "snapshot create failed: starting cleanup")
		if live {
			err = errors.Join(err, c.freeVolume(snapshot["vmstate"]))
		}
		delete(vm.Conf.Snapshots, name)
		return errors.Join(err, c.s.WriteConf(vm.ID, vm.Conf))
	}
	delete(snapshot, "snapstate")
	vm.Conf.Set("parent", name)
	return c.s.WriteConf(vm.ID, vm.Conf)
}

// snapshotLive keeps what runs in a VM together with its disks. The real qm saves the memory first,
// while the machine runs, and stops the machine for the rest; here it is paused all the time.
func (c *call) snapshotLive(vm state.VM, snapshot map[string]string, name string) error {
	path, err := c.s.VolumePath(snapshot["vmstate"])
	if err != nil {
		return err
	}
	if err := c.drv.Pause(c.ctx, c.s, vm); err != nil {
		return err
	}
	storage, _, _ := strings.Cut(snapshot["vmstate"], ":")
	fmt.Fprintf(c.stdout, "saving VM state and RAM using storage '%s'\n", storage)
	began := time.Now()
	err = c.snapshotDisks(vm, snapshot, name)
	if err == nil {
		if err = c.saveState(vm, snapshot["vmstate"], path); err == nil {
			err = noteMachine(path, machineOf(vm.Conf, snapshot["runningmachine"], snapshot["runningcpu"], snapshot["running-nets-host-mtu"]))
		}
		if err != nil {
			err = state.Fail(255, "unable to save VM state and RAM - %s", err)
			for _, key := range snapshotDisks(snapshot) {
				err = errors.Join(err, c.deleteSnapshotDisk(vm, snapshot, key, name))
			}
		} else {
			fmt.Fprintf(c.stdout, "completed saving the VM state in %ds, saved %d MiB\n", int(time.Since(began).Seconds()), memoryBytes(vm.Conf)>>20)
		}
	}
	return errors.Join(err, c.drv.Continue(context.WithoutCancel(c.ctx), c.s, vm))
}

// snapshotDisks takes snapshots of all disks, or of none.
func (c *call) snapshotDisks(vm state.VM, snapshot map[string]string, name string) error {
	for n, key := range snapshotDisks(snapshot) {
		volid := state.ParseDrive(snapshot[key]).File
		fmt.Fprintf(c.stdout, "snapshotting '%s' (%s)\n", state.DriveID(key), volid)
		path, err := c.s.VolumePath(volid)
		if err == nil {
			err = c.drv.SnapshotDisk(c.ctx, c.s, vm, key, path, name)
		}
		if err != nil {
			for _, taken := range snapshotDisks(snapshot)[:n] {
				err = errors.Join(err, c.deleteSnapshotDisk(vm, snapshot, taken, name))
			}
			return err
		}
	}
	return nil
}

func (c *call) deleteSnapshotDisk(vm state.VM, snapshot map[string]string, key, name string) error {
	path, err := c.s.VolumePath(state.ParseDrive(snapshot[key]).File)
	if err != nil {
		return err
	}
	return c.drv.DeleteSnapshot(c.ctx, c.s, vm, key, path, name)
}

// qmRollback gives a VM a snapshot's disks and config. It pulls the plug of a running VM. It leaves
// the VM off, or running again if the snapshot has its memory.
func qmRollback(c *call) error {
	id, name := c.id(), c.opts["snapname"]
	return c.withVM(id, true, func(conf *state.Conf) error {
		snapshot, there := conf.Snapshots[name]
		switch {
		case !there:
			return state.Fail(255, "snapshot '%s' does not exist", name)
		case snapshot["snapstate"] != "":
			return state.Fail(255, "unable to rollback to incomplete snapshot (snapstate = %s)", snapshot["snapstate"])
		}
		if err := checkLock(conf, false); err != nil {
			return err
		}
		if err := c.stop(state.VM{ID: id, Conf: conf}); err != nil {
			return err
		}
		conf.Set("lock", "rollback")
		if err := c.s.WriteConf(id, conf); err != nil {
			return err
		}
		for _, key := range snapshotDisks(snapshot) {
			path, err := c.s.VolumePath(state.ParseDrive(snapshot[key]).File)
			if err == nil {
				err = c.drv.RollbackDisk(c.ctx, path, name)
			}
			if err != nil {
				return err // the lock stays, as with the real qm
			}
			c.dieHalfWay()
		}
		back := rolledBack(id, conf, name)
		if err := c.s.WriteConf(id, back); err != nil || snapshot["vmstate"] == "" {
			return err
		}
		return c.startFrom(state.VM{ID: id, Conf: back}, snapshot["vmstate"])
	})
}

// startFrom starts a VM with a snapshot's memory, and keeps that memory.
func (c *call) startFrom(vm state.VM, volid string) error {
	if vm.Conf.CloudInitVolume() != "" {
		fmt.Fprintln(c.stdout, "generating cloud-init ISO")
	}
	path, err := c.s.VolumePath(volid)
	if err == nil {
		err = c.within(resumeTimeout, func(ctx context.Context) error { return c.drv.Restore(ctx, c.s, vm, path) })
	}
	if err != nil {
		return state.Fail(255, "start failed: %s", err)
	}
	return nil
}

// rolledBack is the config after a rollback. Disks made since the snapshot are kept as unused.
func rolledBack(id int, conf *state.Conf, name string) *state.Conf {
	snapshot := conf.Snapshots[name]
	back := state.NewConf()
	back.Snapshots = conf.Snapshots
	for key, value := range conf.Values {
		if key == "description" || strings.HasPrefix(key, "unused") {
			back.Set(key, value)
		}
	}
	for key, value := range snapshot {
		if !kept(key) {
			back.Set(key, value)
		}
	}
	for _, key := range snapshotDisks(conf.Values) {
		if _, there := snapshot[key]; !there {
			addUnused(id, back, state.ParseDrive(conf.Get(key)).File)
		}
	}
	back.Set("parent", name)
	back.Set("vmgenid", uuid.NewString())
	return back
}

// qmDelsnapshot deletes a snapshot; its children become its parent's. Each part leaves the config
// as soon as it is removed: a failure or a kill leaves the lock, and an incomplete snapshot.
func qmDelsnapshot(c *call) error {
	id, name := c.id(), c.opts["snapname"]
	return c.withVM(id, true, func(conf *state.Conf) error {
		snapshot, there := conf.Snapshots[name]
		if !there {
			return state.Fail(255, "snapshot '%s' does not exist", name)
		}
		if err := checkLock(conf, false); err != nil {
			return err
		}
		conf.Set("lock", "snapshot-delete")
		if err := c.s.WriteConf(id, conf); err != nil {
			return err
		}
		if conf.IsTemplate() {
			return state.Fail(255, "you can't delete a snapshot if vm is a template")
		}
		snapshot["snapstate"] = "delete"
		if err := c.s.WriteConf(id, conf); err != nil {
			return err
		}
		c.dieHalfWay()
		if volid := snapshot["vmstate"]; volid != "" {
			if err := c.drop(id, conf, snapshot, "vmstate", c.freeVolume(volid)); err != nil {
				return err
			}
		}
		for _, key := range snapshotDisks(snapshot) {
			if err := c.drop(id, conf, snapshot, key, c.deleteSnapshotDisk(state.VM{ID: id, Conf: conf}, snapshot, key, name)); err != nil {
				return err
			}
		}
		delete(conf.Snapshots, name)
		for _, values := range append(slices.Collect(maps.Values(conf.Snapshots)), conf.Values) {
			switch {
			case values["parent"] != name:
			case snapshot["parent"] == "":
				delete(values, "parent")
			default:
				values["parent"] = snapshot["parent"]
			}
		}
		conf.Delete("lock")
		return c.s.WriteConf(id, conf)
	})
}

// drop removes a deleted part from a snapshot's config. With --force, a failure is a warning only,
// and the config keeps everything until the end.
func (c *call) drop(id int, conf *state.Conf, snapshot map[string]string, key string, failed error) error {
	switch {
	case failed == nil && c.on("force"):
		return nil
	case c.on("force"):
		fmt.Fprintln(c.stderr, failed)
		return nil
	case failed != nil:
		return failed
	}
	delete(snapshot, key)
	return c.s.WriteConf(id, conf)
}

// snapshotEntry is a snapshot as lists show it; the VM's own state is the entry called current.
type snapshotEntry struct {
	name, parent, description, state string
	time                             int64 // 0: current
	live                             int   // 1: with the machine's memory
}

func listSnapshots(conf *state.Conf) []snapshotEntry {
	entries := make([]snapshotEntry, 0, len(conf.Snapshots)+1)
	for _, name := range slices.Sorted(maps.Keys(conf.Snapshots)) {
		values := conf.Snapshots[name]
		e := snapshotEntry{name: name, parent: values["parent"], description: strings.TrimSuffix(values["description"], "\n"), state: values["snapstate"]}
		e.time, _ = strconv.ParseInt(values["snaptime"], 10, 64)
		if values["vmstate"] != "" {
			e.live = 1
		}
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b snapshotEntry) int { return int(a.time - b.time) })
	return append(entries, snapshotEntry{name: "current", parent: conf.Get("parent"), description: "You are here!"})
}

func apiSnapshots(c *call, vars map[string]string) (any, error) {
	id, conf, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	list := []map[string]any{}
	for _, e := range listSnapshots(conf) {
		entry := map[string]any{"name": e.name, "description": e.description}
		for key, value := range map[string]string{"parent": e.parent, "snapstate": e.state} {
			if value != "" {
				entry[key] = value
			}
		}
		if e.name == "current" {
			_, running := c.s.Pid(id)
			entry["running"], entry["digest"] = 0, digest(conf)
			if running {
				entry["running"] = 1
			}
		} else {
			entry["snaptime"], entry["vmstate"] = e.time, e.live
		}
		list = append(list, entry)
	}
	return list, nil
}
