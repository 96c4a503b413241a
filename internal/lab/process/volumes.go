package process

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// An additional disk of a process guest is a file in disksDir, named by the disk's serial number.
// It says where the volume is and whether it is writable. A filesystem is a line after the size in
// the volume's marker; mounting it mounts the volume's directory. The guest has commands that know
// this, limited to what linus's scripts call.

const (
	disksDir    = labDir + "/disks/"
	mountsDir   = labDir + "/mounts/" // where each disk is mounted
	storageRoot = "/.storage"         // below it, the lab's directories of volumes
	readOnly    = "ro"
)

// plugged returns the content of a disk's file.
func plugged(path string, d state.Drive) string {
	mode := "rw"
	if d.Props["ro"] == "1" {
		mode = readOnly
	}
	return mode + "\n" + path
}

// bindStorages shows the guest all of the lab's volumes: any of them may be plugged later.
func (c guestConfig) bindStorages() error {
	for _, dir := range c.Storages {
		if err := bind(dir, filepath.Join(c.Root, storageRoot, dir)); err != nil {
			return err
		}
	}
	return nil
}

func (g *guest) plugDisks() error {
	err := sys.MkdirAll(disksDir, mountsDir)
	for serial, text := range g.config.Disks {
		err = errors.Join(err, os.WriteFile(disksDir+serial, []byte(text), 0o644))
	}
	return err
}

// PlugDisk writes the disk's file where the guest looks for it.
func (Driver) PlugDisk(_ context.Context, s *state.State, vm state.VM, slot string) error {
	d := state.ParseDrive(vm.Conf.Get(slot))
	path, err := s.VolumePath(d.File)
	if err != nil || d.Props["serial"] == "" {
		return err
	}
	pid, _ := s.Pid(vm.ID)
	return os.WriteFile(fmt.Sprintf("/proc/%d/root%s%s", pid, disksDir, d.Props["serial"]), []byte(plugged(path, d)), 0o644)
}

// UnplugDisk removes the disk's file, unless the disk is mounted.
func (Driver) UnplugDisk(_ context.Context, s *state.State, vm state.VM, slot string, d state.Drive) error {
	pid, _ := s.Pid(vm.ID)
	for _, of := range disks(fmt.Sprintf("/proc/%d/root", pid), fmt.Sprintf("/proc/%d", pid)) {
		switch {
		case of.serial != d.Props["serial"]:
		case of.at != "":
			return fmt.Errorf("error on hot-unplugging device '%s' - %w", slot, state.ErrBusy)
		default:
			return os.Remove(of.file)
		}
	}
	return nil
}

// disk is a disk of a guest.
type disk struct {
	dev, serial, file string // its path in the guest, its serial number, and its file as seen from here
	ro                bool
	at                string // mount point; "": not mounted
	path              string // of the volume's marker, in the guest
	kind, uuid        string // of its filesystem
}

// disks returns a guest's disks, given its root and its directory in /proc as seen from here.
func disks(root, proc string) (all []disk) {
	mounts := sys.MountPoints(proc)
	entries, _ := os.ReadDir(root + disksDir)
	for _, entry := range entries {
		d := disk{dev: disksDir + entry.Name(), serial: entry.Name(), file: root + disksDir + entry.Name()}
		if at, _ := os.ReadFile(root + mountsDir + d.serial); slices.Contains(mounts, string(at)) {
			d.at = string(at)
		}
		raw, _ := os.ReadFile(d.file)
		mode, path, _ := strings.Cut(string(raw), "\n")
		d.ro, d.path = mode == readOnly, storageRoot+path
		marker, _ := os.ReadFile(root + d.path)
		_, found, _ := strings.Cut(string(marker), "\n")
		d.kind, d.uuid, _ = strings.Cut(strings.TrimSpace(found), " ")
		all = append(all, d)
	}
	return all
}

func ownDisks() []disk { return disks("", "/proc/self") }

// unmountVolumes unmounts the disks when the guest ends.
func unmountVolumes() {
	for _, d := range ownDisks() {
		if d.at != "" {
			_ = unix.Unmount(d.at, unix.MNT_DETACH)
		}
	}
}

// mountTab mounts what /etc/fstab names by UUID, as a boot does, and ignores failures.
func mountTab() {
	tab, _ := os.ReadFile("/etc/fstab")
	for line := range strings.Lines(string(tab)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		at := strings.NewReplacer(`\040`, " ", `\134`, `\`).Replace(fields[1])
		for _, d := range ownDisks() {
			if fields[0] == "UUID="+d.uuid {
				_ = d.mount(at, slices.Contains(strings.Split(fields[3], ","), readOnly))
			}
		}
	}
}

// volumeTool simulates commands of util-linux and e2fsprogs on these disks, with their exit codes, as
// mount.sh calls them.
func volumeTool(name string, args []string, std sys.Streams) int {
	line, last := name+" "+strings.Join(args, " "), ""
	if len(args) > 0 {
		last = args[len(args)-1]
	}
	all := ownDisks()
	if name == "lsblk" {
		for _, d := range all {
			fmt.Fprintln(std.Out, d.dev, d.serial)
		}
		return 0
	}
	for _, d := range all {
		switch {
		case name == "findmnt" && d.at != "" && line == "findmnt -nro SOURCE --mountpoint "+d.at:
			fmt.Fprintln(std.Out, d.dev)
			return 0
		case name == "mount" && len(args) == 6 && args[4] == d.dev:
			return told(d.mount(last, args[3] == readOnly), name, std.Err)
		case last == d.dev:
			return d.tool(name, args, std)
		}
	}
	return realTool(name, args, std)
}

// tool runs a command about one disk.
func (d disk) tool(name string, args []string, std sys.Streams) int {
	switch {
	case name == "mkfs.ext4" && d.ro:
		return told(fs.ErrPermission, name, std.Err)
	case name == "mkfs.ext4":
		uuid := args[slices.Index(args, "-U")+1]
		size, err := Driver{}.DiskSize(context.Background(), d.path)
		if err == nil {
			err = errors.Join(os.RemoveAll(d.path+contentSuffix), os.Mkdir(d.path+contentSuffix, 0o755),
				os.WriteFile(d.path, fmt.Appendf(nil, "%s%d\next4 %s\n", markerPrefix, size, uuid), 0o640))
		}
		return told(err, name, std.Err)
	case name == "findmnt" && d.at == "":
		return 1
	case name == "findmnt":
		fmt.Fprintln(std.Out, d.at)
	case name == "wipefs" && d.kind != "":
		fmt.Fprintf(std.Out, "DEVICE OFFSET TYPE UUID LABEL\n%s 0x438 %s %s\n", d.dev, d.kind, d.uuid)
	case name == "blkid" && d.kind == "":
		return 2
	case name == "blkid" && d.uuid != "":
		fmt.Fprintln(std.Out, d.uuid)
	}
	return 0
}

func (d disk) mount(at string, asReadOnly bool) error {
	switch {
	case d.kind != "ext4":
		return fmt.Errorf("wrong fs type, bad option, bad superblock on %s", d.dev)
	case d.ro && !asReadOnly:
		return fmt.Errorf("cannot mount %s read-write: it is write-protected", d.dev)
	}
	if err := unix.Mount(d.path+contentSuffix, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if asReadOnly {
		if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return errors.Join(err, unix.Unmount(at, 0))
		}
	}
	return os.WriteFile(mountsDir+d.serial, []byte(at), 0o644)
}
