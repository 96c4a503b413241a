package pve

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"linus/internal/lab/state"
)

// diskFormatFor is the file format of a new disk: always qcow2 for a thin pool's files; in a
// directory what was asked for, raw by default.
func diskFormatFor(st state.Storage, asked string) string {
	if st.Thin() {
		return "qcow2"
	}
	if asked == "" {
		return "raw"
	}
	return asked
}

// makeVolume takes a disk name on a storage and lets fn make the file. command is the LVM command
// for it, as it appears in errors; "" for lvcreate.
func (c *call) makeVolume(st state.Storage, id int, format, command string, fn func(path string) error) (volid string, err error) {
	err = c.lockStorage(st, func() error {
		if volid, err = c.s.NewVolume(st, id, format); err != nil {
			return err
		}
		if command == "" {
			command = "lvcreate 'pve/" + volumeName(volid) + "'"
		}
		return c.makeFile(st, id, volid, command, fn)
	})
	if err != nil {
		volid = "" // fn leaves nothing behind when it fails
	}
	return volid, err
}

func (c *call) makeFile(st state.Storage, id int, volid, command string, fn func(path string) error) error {
	if st.Thin() && c.s.UseFault(state.FaultPoolFull) {
		return state.Fail(255, "%s error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.", command)
	}
	path, err := c.s.VolumePath(volid)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(st.VolumeDir(id), 0o755); err != nil {
		return err
	}
	return fn(path)
}

func (c *call) allocVolume(st state.Storage, id int, asked string, size int64) (string, error) {
	format := diskFormatFor(st, asked)
	return c.makeVolume(st, id, format, "", func(path string) error {
		return c.drv.CreateDisk(c.ctx, path, format, size)
	})
}

// importVolume copies an image by absolute path, which PVE allows root@pam.
func (c *call) importVolume(st state.Storage, id int, source, asked string) (string, error) {
	if !filepath.IsAbs(source) {
		path, err := c.s.VolumePath(source)
		if err != nil {
			return "", err
		}
		source = path
	}
	if _, err := os.Stat(source); err != nil {
		return "", state.Fail(255, "cannot import from '%s' - file does not exist", source)
	}
	format := diskFormatFor(st, asked)
	full := c.s.UseFault(state.FaultStorageFull)
	volid, err := c.makeVolume(st, id, format, "", func(path string) error {
		if full {
			return nil
		}
		return c.drv.ImportDisk(c.ctx, source, path, format)
	})
	if err != nil {
		return volid, err
	}
	c.tellTransfer(full)
	if full {
		// The cause appears on stdout only, where qemu-img's output goes.
		fmt.Fprintln(c.stdout, "qemu-img: error while writing at byte 1073741824: No space left on device")
		return volid, state.Fail(255, "copy failed: command '/usr/bin/qemu-img convert -p -n -f qcow2 -O raw %s zeroinit:%s' failed: exit code 1", source, volid)
	}
	return volid, nil
}

// tellTransfer prints the progress of a copy of 2 GiB as qm does, or half of it if cut short.
func (c *call) tellTransfer(half bool) {
	const lines = 36
	for i := range lines + 1 {
		if half && i > lines/2 {
			return
		}
		share := float64(i) / lines
		fmt.Fprintf(c.stdout, "transferred %.1f MiB of 2.0 GiB (%.2f%%)\n", share*2048, share*100)
	}
}

// allocCloudInit creates the VM's cloud-init volume: 4 MiB, which start fills.
func (c *call) allocCloudInit(st state.Storage, id int) (volid string, err error) {
	return c.makeNamed(st, id, fmt.Sprintf("vm-%d-cloudinit", id), "qcow2", func(path string) error {
		return os.WriteFile(path, make([]byte, 4<<20), 0o640)
	})
}

// makeNamed is makeVolume with a given name.
func (c *call) makeNamed(st state.Storage, id int, stem, format string, fn func(path string) error) (volid string, err error) {
	volid = st.VolID(id, stem, format)
	err = c.lockStorage(st, func() error {
		switch {
		case c.s.VolumeExists(st, id, stem) && st.Thin():
			return state.Fail(5, "lvcreate 'pve/%s' error:   Logical Volume \"%s\" already exists in volume group \"pve\"", stem, stem)
		case c.s.VolumeExists(st, id, stem):
			return state.Fail(255, "disk image '/var/lib/vz/images/%d/%s.%s' already exists", id, stem, format)
		}
		return c.makeFile(st, id, volid, "lvcreate 'pve/"+stem+"'", fn)
	})
	if err != nil {
		return "", err
	}
	return volid, nil
}

// linkVolume creates a linked clone's disk. On a thin pool, a clone is independent of its base once
// made, so a second name keeps the base alive for it.
func (c *call) linkVolume(base string, st state.Storage, id int) (volid string, err error) {
	basePath, err := c.s.VolumePath(base)
	if err != nil {
		return "", err
	}
	volid, err = c.makeVolume(st, id, "qcow2", "clone image 'pve/"+volumeName(base)+"'", func(path string) error {
		if !st.Thin() || c.s.Config.Driver != state.DriverQemu {
			return c.drv.LinkDisk(c.ctx, basePath, path)
		}
		hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".base") // removed with the disk
		if err := os.Link(basePath, hidden); err != nil {
			return err
		}
		err := c.drv.LinkDisk(c.ctx, hidden, path)
		if err != nil {
			err = errors.Join(err, os.Remove(hidden))
		}
		return err
	})
	if err == nil && !st.Thin() {
		_, own, _ := strings.Cut(volid, ":")
		volid = state.OwnPart(base) + "/" + own
	}
	return volid, err
}

func volumeName(volid string) string {
	_, name, _ := strings.Cut(volid, ":")
	return name
}

// cloneSnapshot creates a disk of a snapshot's clone. The disk is independent, even on a thin pool,
// where the clone is a linked one.
func (c *call) cloneSnapshot(volid, name string, st state.Storage, id int) (string, error) {
	path, err := c.s.VolumePath(volid)
	if err != nil {
		return "", err
	}
	format := diskFormatFor(st, "qcow2")
	return c.makeVolume(st, id, format, "clone image 'pve/snap_"+volumeName(volid)+"_"+name+"'", func(dst string) error {
		return c.drv.CloneSnapshot(c.ctx, path, name, dst, format)
	})
}

// copyVolume creates a full clone's disk on a storage.
func (c *call) copyVolume(volid string, st state.Storage, id int, asked string) (string, error) {
	path, err := c.s.VolumePath(volid)
	if err != nil {
		return "", err
	}
	if asked == "" && strings.HasSuffix(path, ".qcow2") {
		asked = "qcow2"
	}
	format := diskFormatFor(st, asked)
	return c.makeVolume(st, id, format, "", func(dst string) error {
		switch _, running := c.s.Pid(c.id()); {
		case !c.s.UseFault(state.FaultStorageFull):
			return c.drv.ImportDisk(c.ctx, path, dst, format)
		case running && c.s.Config.Version == "8.2": // 8.2 does not report the cause
			return state.Fail(255, "block job (mirror) error: drive-scsi0: 'mirror' has been cancelled")
		case running:
			return state.Fail(255, "block job (mirror) error: drive-scsi0: No space left on device (io-status: ok)")
		}
		fmt.Fprintln(c.stdout, "qemu-img: error while writing at byte 1073741824: No space left on device")
		return state.Fail(255, "copy failed: command '/usr/bin/qemu-img convert -p -n -f %s -O %s %s zeroinit:%s' failed: exit code 1", format, format, path, dst)
	})
}

// freeVolume removes a volume; it is no error if the volume is already gone.
func (c *call) freeVolume(volid string) error {
	path, err := c.s.VolumePath(volid)
	if err != nil {
		return err
	}
	st, err := c.s.Storage(state.Drive{File: volid}.Storage())
	if err != nil {
		return err
	}
	if st.Shared && c.s.Quorate() != nil {
		return noQuorumFor(st)
	}
	if err := c.drv.DeleteDisk(c.ctx, path); err != nil {
		return err
	}
	if !st.Thin() {
		_ = os.Remove(filepath.Dir(path)) // removes the VM's directory once it is empty
	}
	return nil
}

func (c *call) freeAll(volids []string) error {
	var all error
	for _, volid := range volids {
		all = errors.Join(all, c.freeVolume(volid))
	}
	return all
}

// qmResize grows a disk. As in the real qm, its task's failure shows on stderr only; it exits 0.
func qmResize(c *call) error {
	id, key := c.id(), c.opts["disk"]
	err := c.withVM(id, c.on("skiplock"), func(conf *state.Conf) error {
		if !conf.Has(key) {
			return state.Fail(255, "disk '%s' does not exist", key)
		}
		d := state.ParseDrive(conf.Get(key))
		if d.CDROM() {
			return state.Fail(255, "you can't resize a cdrom")
		}
		return taskFailure(c.growDrive(id, conf, key, d))
	})
	return c.lie(err)
}

func (c *call) growDrive(id int, conf *state.Conf, key string, d state.Drive) error {
	if c.s.UseFault(state.FaultResizeFails) {
		return errors.New("command '/sbin/lvextend -L 20971520k /dev/pve/vm' failed: exit code 5")
	}
	path, err := c.s.VolumePath(d.File)
	if err != nil {
		return err
	}
	size, err := c.drv.DiskSize(c.ctx, path)
	if err != nil {
		return err
	}
	wanted, grow := strings.CutPrefix(c.opts["size"], "+")
	target, err := state.ParseSize(wanted)
	if err != nil {
		return err
	}
	if grow {
		target += size
	}
	switch {
	case target < size:
		return errors.New("shrinking disks is not supported")
	case target == size:
		return nil
	}
	if err := c.drv.ResizeDisk(c.ctx, path, target); err != nil {
		return err
	}
	d.Props["size"] = state.FormatSize(target)
	conf.Set(key, d.String())
	return c.s.WriteConf(id, conf)
}

// taskError is an error inside a task whose command ignores the task's result.
type taskError struct{ error }

func taskFailure(err error) error {
	if err == nil {
		return nil
	}
	return &taskError{err}
}

// lie prints a task's error and drops it: resize and template then exit 0.
func (c *call) lie(err error) error {
	if task, ok := errors.AsType[*taskError](err); ok {
		fmt.Fprintln(c.stderr, task.Error())
		return nil
	}
	return err
}

// qmTemplate turns a VM into a template: its disks become base volumes.
func qmTemplate(c *call) error {
	id := c.id()
	err := c.withVM(id, false, func(conf *state.Conf) error {
		if conf.IsTemplate() {
			return state.Fail(255, "you can't convert a template to a template")
		}
		if _, running := c.s.Pid(id); running {
			return state.Fail(255, "you can't convert a VM to template if VM is running")
		}
		if len(conf.Snapshots) > 0 {
			return state.Fail(255, "unable to create template, because VM contains snapshots")
		}
		if c.s.UseFault(state.FaultTemplateFails) {
			return taskFailure(errors.New("command '/sbin/lvrename pve vm-" + strconv.Itoa(id) + "-disk-0' failed: exit code 5"))
		}
		return taskFailure(c.makeBases(id, conf))
	})
	return c.lie(err)
}

func (c *call) makeBases(id int, conf *state.Conf) error {
	for key, d := range state.Drives(conf.Values) {
		if d.CDROM() {
			continue
		}
		path, err := c.s.VolumePath(d.File)
		if err != nil {
			return err
		}
		prefix := fmt.Sprintf("vm-%d-", id)
		at := strings.LastIndex(d.File, prefix)
		if at < 0 {
			continue
		}
		d.File = d.File[:at] + "base-" + d.File[at+len("vm-"):]
		base := filepath.Join(filepath.Dir(path), "base-"+strings.TrimPrefix(filepath.Base(path), "vm-"))
		if err := c.drv.RenameDisk(path, base); err != nil {
			return err
		}
		conf.Set(key, d.String())
	}
	conf.Set("template", "1")
	return c.s.WriteConf(id, conf)
}

// setDisks plugs the disks that a running VM's config has gained, and unplugs those it has lost. A
// change that fails waits for a restart.
func (c *call) setDisks(vm state.VM, before *state.Conf) error {
	refuse := func(slot string, err error) error {
		failed := state.Fail(255, "400 Parameter verification failed.\n%s: hotplug problem - %s", slot, err)
		return errors.Join(failed, c.s.WriteConf(vm.ID, before))
	}
	for slot, d := range state.Drives(before.Values) {
		if !d.Disk() || state.ParseDrive(vm.Conf.Get(slot)).File == d.File {
			continue
		}
		var err error
		if slices.Contains(before.BootOrder(), slot) {
			err = fmt.Errorf("can't unplug bootdisk '%s'", slot)
		} else {
			err = c.drv.UnplugDisk(c.ctx, c.s, vm, slot, d)
		}
		if err != nil {
			before.DeletePending(slot)
			return refuse(slot, err)
		}
	}
	for slot, d := range state.Drives(vm.Conf.Values) {
		if !d.Disk() || state.ParseDrive(before.Get(slot)).File == d.File {
			continue
		}
		if err := c.drv.PlugDisk(c.ctx, c.s, vm, slot); err != nil {
			before.SetPending(slot, vm.Conf.Get(slot))
			return refuse(slot, err)
		}
	}
	return nil
}
