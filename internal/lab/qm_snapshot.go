package lab

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Snapshots, of disks only: the lab keeps no memory of a running machine.

// kept are the keys of a config that a snapshot does not take and a rollback
// does not bring back.
func kept(key string) bool {
	return slices.Contains([]string{"description", "lock", "snapstate", "snaptime", "vmstate"}, key) || strings.HasPrefix(key, "unused")
}

// snapshotDisks are the keys of what is in a snapshot: disks, not CD drives.
func snapshotDisks(values map[string]string) []string {
	return slices.DeleteFunc(sortedKeys(values), func(key string) bool {
		d := parseDrive(values[key])
		return !isDrive(key) || d.cdrom() || d.file == "none"
	})
}

// hasSnapshots reports whether every disk can have snapshots: a raw file cannot.
func hasSnapshots(conf *Conf) bool {
	return !slices.ContainsFunc(snapshotDisks(conf.values), func(key string) bool {
		return strings.HasSuffix(parseDrive(conf.Get(key)).file, ".raw")
	})
}

// apiFeature tells whether a VM can have snapshots, or be cloned or copied.
func apiFeature(c *call, vars map[string]string) (any, error) {
	_, conf, err := c.vmOf(vars)
	if err != nil {
		return nil, err
	}
	feature := c.opts["feature"]
	if !slices.Contains([]string{"snapshot", "clone", "copy"}, feature) {
		return nil, fail(255, "400 Parameter verification failed.\nfeature: value '%s' does not have a value in the enumeration 'snapshot, clone, copy'", feature)
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
		return fail(255, "unable to use snapshot name '%s' (reserved name)", name)
	}
	return c.lockVM(id, func() error {
		conf, err := c.s.LoadConf(id)
		if err != nil {
			return err
		}
		if conf.IsTemplate() {
			return fail(255, "you can't take a snapshot if it's a template")
		}
		if err := checkLock(conf, false); err != nil {
			return err
		}
		if _, used := conf.snapshots[name]; used {
			return fail(255, "snapshot name '%s' already used", name)
		}
		if !hasSnapshots(conf) {
			return fail(255, "snapshot feature is not available")
		}
		return c.takeSnapshot(VMRef{id, conf}, name)
	})
}

func (c *call) takeSnapshot(vm VMRef, name string) error {
	snapshot := map[string]string{}
	for key, value := range vm.Conf.values {
		if !kept(key) {
			snapshot[key] = value
		}
	}
	if description := c.opts["description"]; description != "" {
		snapshot["description"] = description + "\n"
	}
	snapshot["snaptime"] = strconv.FormatInt(time.Now().Unix(), 10)
	snapshot["snapstate"] = "prepare"
	vm.Conf.snapshots[name] = snapshot
	vm.Conf.Set("lock", "snapshot")
	if err := c.s.writeConf(vm.ID, vm.Conf); err != nil {
		return err
	}
	err := c.snapshotDisks(vm, snapshot, name)
	c.dieHalfWay()
	vm.Conf.Delete("lock")
	if err != nil {
		delete(vm.Conf.snapshots, name)
		return errors.Join(err, c.s.writeConf(vm.ID, vm.Conf))
	}
	delete(snapshot, "snapstate")
	vm.Conf.Set("parent", name)
	return c.s.writeConf(vm.ID, vm.Conf)
}

// snapshotDisks takes all disks' snapshots or none.
func (c *call) snapshotDisks(vm VMRef, snapshot map[string]string, name string) error {
	for n, key := range snapshotDisks(snapshot) {
		volid := parseDrive(snapshot[key]).file
		fmt.Fprintf(c.stdout, "snapshotting '%s' (%s)\n", driveID(key), volid)
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

func (c *call) deleteSnapshotDisk(vm VMRef, snapshot map[string]string, key, name string) error {
	path, err := c.s.VolumePath(parseDrive(snapshot[key]).file)
	if err != nil {
		return err
	}
	return c.drv.DeleteSnapshot(c.ctx, c.s, vm, key, path, name)
}

// qmRollback gives a VM a snapshot's disks and config. It pulls the plug of one
// that runs, and leaves it off.
func qmRollback(c *call) error {
	id, name := c.id(), c.opts["snapname"]
	return c.lockVM(id, func() error {
		conf, err := c.s.LoadConf(id)
		if err != nil {
			return err
		}
		snapshot, there := conf.snapshots[name]
		switch {
		case !there:
			return fail(255, "snapshot '%s' does not exist", name)
		case snapshot["snapstate"] != "":
			return fail(255, "unable to rollback to incomplete snapshot (snapstate = %s)", snapshot["snapstate"])
		}
		if err := checkLock(conf, false); err != nil {
			return err
		}
		if err := c.stop(VMRef{id, conf}); err != nil {
			return err
		}
		conf.Set("lock", "rollback")
		if err := c.s.writeConf(id, conf); err != nil {
			return err
		}
		for _, key := range snapshotDisks(snapshot) {
			path, err := c.s.VolumePath(parseDrive(snapshot[key]).file)
			if err == nil {
				err = c.drv.RollbackDisk(c.ctx, path, name)
			}
			if err != nil {
				return err // the lock stays, as with the real one
			}
			c.dieHalfWay()
		}
		return c.s.writeConf(id, rolledBack(conf, name))
	})
}

// rolledBack is the config after a rollback. Disks made since are kept unused.
func rolledBack(conf *Conf, name string) *Conf {
	snapshot := conf.snapshots[name]
	back := NewConf()
	back.snapshots = conf.snapshots
	for key, value := range conf.values {
		if key == "description" || strings.HasPrefix(key, "unused") {
			back.Set(key, value)
		}
	}
	for key, value := range snapshot {
		if !kept(key) {
			back.Set(key, value)
		}
	}
	for _, key := range snapshotDisks(conf.values) {
		if _, there := snapshot[key]; !there {
			addUnused(back, parseDrive(conf.Get(key)).file)
		}
	}
	back.Set("parent", name)
	back.Set("vmgenid", uuid.NewString())
	return back
}

// qmDelsnapshot forgets a snapshot; its children become its parent's.
func qmDelsnapshot(c *call) error {
	id, name := c.id(), c.opts["snapname"]
	return c.lockVM(id, func() error {
		conf, err := c.s.LoadConf(id)
		if err != nil {
			return err
		}
		if err := checkLock(conf, false); err != nil {
			return err
		}
		snapshot, there := conf.snapshots[name]
		if !there {
			return fail(255, "snapshot '%s' does not exist", name)
		}
		for _, key := range snapshotDisks(snapshot) {
			if err := c.deleteSnapshotDisk(VMRef{id, conf}, snapshot, key, name); err != nil && !c.on("force") {
				return err
			}
		}
		delete(conf.snapshots, name)
		for _, values := range append(slices.Collect(maps.Values(conf.snapshots)), conf.values) {
			switch {
			case values["parent"] != name:
			case snapshot["parent"] == "":
				delete(values, "parent")
			default:
				values["parent"] = snapshot["parent"]
			}
		}
		return c.s.writeConf(id, conf)
	})
}

// snapshotEntry is a snapshot as lists show it; the VM's own state is the one
// called current.
type snapshotEntry struct {
	name, parent, description, state string
	time                             int64 // 0: current
}

func listSnapshots(conf *Conf) []snapshotEntry {
	entries := make([]snapshotEntry, 0, len(conf.snapshots)+1)
	for _, name := range conf.Snapshots() {
		values := conf.snapshots[name]
		e := snapshotEntry{name: name, parent: values["parent"], description: strings.TrimSuffix(values["description"], "\n"), state: values["snapstate"]}
		e.time, _ = strconv.ParseInt(values["snaptime"], 10, 64)
		entries = append(entries, e)
	}
	slices.SortStableFunc(entries, func(a, b snapshotEntry) int { return int(a.time - b.time) })
	return append(entries, snapshotEntry{name: "current", parent: conf.Get("parent"), description: "You are here!"})
}

// qmListsnapshot prints the snapshots as a tree.
func qmListsnapshot(c *call) error {
	conf, err := c.s.LoadConf(c.id())
	if err != nil {
		return err
	}
	c.printSnapshots(listSnapshots(conf), conf, "", "`->")
	return nil
}

func (c *call) printSnapshots(all []snapshotEntry, conf *Conf, parent, prefix string) {
	for _, e := range all {
		if _, known := conf.snapshots[e.parent]; !known {
			e.parent = ""
		}
		if e.parent != parent {
			continue
		}
		when, description := "", e.description
		if e.name != "current" {
			when = time.Unix(e.time, 0).Format(time.DateTime)
		}
		if description == "" {
			description = "no-description"
		}
		fmt.Fprintf(c.stdout, "%s %-*s %-23s %s\n", prefix, max(30-len(prefix), 0), e.name, when, description)
		if e.name != "current" {
			c.printSnapshots(all, conf, e.name, "    "+prefix)
		}
	}
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
			entry["snaptime"], entry["vmstate"] = e.time, 0
		}
		list = append(list, entry)
	}
	return list, nil
}
