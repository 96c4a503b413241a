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

// A disk that a process guest is given beside its own is a file in disksDir, named by its
// serial number, which says where the volume is and whether it may be written to. A
// filesystem is a line behind the size in the volume's marker; what is mounted is the
// volume's directory. The guest has commands that know it, for just what our scripts ask.

const (
	disksDir    = labDir + "/disks/"
	mountsDir   = labDir + "/mounts/" // where each is mounted
	storageRoot = "/.storage"         // below it, the lab's directories of volumes
	readOnly    = "ro"
)

// plugged is a disk's file.
func plugged(path string, d state.Drive) string {
	mode := "rw"
	if d.Props["ro"] == "1" {
		mode = readOnly
	}
	return mode + "\n" + path
}

// bindStorages shows the guest the lab's volumes: which may be plugged is not known yet.
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

// PlugDisk writes the disk's file where the guest looks.
func (Driver) PlugDisk(_ context.Context, s *state.State, vm state.VM, slot string) error {
	d := state.ParseDrive(vm.Conf.Get(slot))
	path, err := s.VolumePath(d.File)
	if err != nil || d.Props["serial"] == "" {
		return err
	}
	pid, _ := s.Pid(vm.ID)
	return os.WriteFile(fmt.Sprintf("/proc/%d/root%s%s", pid, disksDir, d.Props["serial"]), []byte(plugged(path, d)), 0o644)
}

// UnplugDisk removes it, unless it is mounted.
func (Driver) UnplugDisk(_ context.Context, s *state.State, vm state.VM, slot string, d state.Drive) error {
	serial := d.Props["serial"]
	if serial == "" {
		return nil
	}
	pid, _ := s.Pid(vm.ID)
	root := fmt.Sprintf("/proc/%d/root", pid)
	if mountedAt(root, fmt.Sprintf("/proc/%d/mountinfo", pid), serial) != "" {
		return fmt.Errorf("error on hot-unplugging device '%s' - %w", slot, state.ErrBusy)
	}
	return os.Remove(root + disksDir + serial)
}

// mountedAt is where the guest with that root has a disk mounted; "": nowhere.
func mountedAt(root, mountinfo, serial string) string {
	at, _ := os.ReadFile(root + mountsDir + serial)
	if len(at) == 0 || !slices.Contains(mountPoints(mountinfo), string(at)) {
		return ""
	}
	return string(at)
}

func mountPoints(mountinfo string) (points []string) {
	raw, _ := os.ReadFile(mountinfo)
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, strings.ReplaceAll(fields[4], `\040`, " "))
		}
	}
	return points
}

const ownMounts = "/proc/self/mountinfo"

// unmountVolumes is what a guest's end does.
func unmountVolumes() {
	entries, _ := os.ReadDir(mountsDir)
	for _, entry := range entries {
		if at := mountedAt("", ownMounts, entry.Name()); at != "" {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}
}

// mountTab mounts what /etc/fstab names by the UUID of its filesystem, as a boot does. What
// cannot be mounted is left.
func mountTab() {
	tab, _ := os.ReadFile("/etc/fstab")
	entries, _ := os.ReadDir(disksDir)
	for line := range strings.Lines(string(tab)) {
		fields := strings.Fields(line)
		if len(fields) < 4 {
			continue
		}
		uuid, _ := strings.CutPrefix(fields[0], "UUID=")
		at := strings.NewReplacer(`\040`, " ", `\134`, `\`).Replace(fields[1])
		for _, entry := range entries {
			if _, found, _, err := openDisk(disksDir + entry.Name()); err == nil && found == "ext4 "+uuid {
				_ = mountDisk(disksDir+entry.Name(), at, slices.Contains(strings.Split(fields[3], ","), readOnly))
			}
		}
	}
}

// openDisk is where a disk's marker is, in the guest, and what is on it: empty, or the
// kind of its filesystem and its UUID.
func openDisk(dev string) (path, found string, ro bool, err error) {
	raw, err := os.ReadFile(dev)
	if err != nil {
		return "", "", false, err
	}
	mode, at, _ := strings.Cut(string(raw), "\n")
	path = storageRoot + at
	marker, err := os.ReadFile(path)
	_, found, _ = strings.Cut(string(marker), "\n")
	return path, strings.TrimSpace(found), mode == readOnly, err
}

// volumeTool is a command of util-linux or e2fsprogs for these disks. exit codes are theirs.
func volumeTool(name string, args []string, std sys.Streams) int {
	last := ""
	if len(args) > 0 {
		last = args[len(args)-1]
	}
	switch {
	case name == "lsblk":
		entries, _ := os.ReadDir(disksDir)
		for _, entry := range entries {
			fmt.Fprintln(std.Out, disksDir+entry.Name(), entry.Name())
		}
		return 0
	case name == "findmnt":
		return findMount(args, last, std)
	case name == "mount" && len(args) > 1 && strings.HasPrefix(args[len(args)-2], disksDir):
		return told(mountDisk(args[len(args)-2], last, slices.Contains(args, readOnly)), "mount", std.Err)
	case !strings.HasPrefix(last, disksDir):
		return realTool(name, args, std)
	}
	path, found, ro, err := openDisk(last)
	if err != nil {
		return told(err, name, std.Err)
	}
	kind, uuid, _ := strings.Cut(found, " ")
	switch {
	case name == "mkfs.ext4" && ro:
		return told(fs.ErrPermission, name, std.Err)
	case name == "mkfs.ext4":
		uuid = args[slices.Index(args, "-U")+1]
		size, err := Driver{}.DiskSize(context.Background(), path)
		if err == nil {
			err = errors.Join(os.RemoveAll(path+contentSuffix), os.Mkdir(path+contentSuffix, 0o755),
				os.WriteFile(path, fmt.Appendf(nil, "%s%d\next4 %s\n", markerPrefix, size, uuid), 0o640))
		}
		return told(err, name, std.Err)
	case name == "wipefs" && found != "":
		fmt.Fprintf(std.Out, "DEVICE OFFSET TYPE UUID LABEL\n%s 0x438 %s %s\n", last, kind, uuid)
	case name == "blkid" && found == "":
		return 2
	case name == "blkid" && uuid != "":
		fmt.Fprintln(std.Out, uuid)
	}
	return 0
}

func findMount(args []string, what string, std sys.Streams) int {
	entries, _ := os.ReadDir(mountsDir)
	for _, entry := range entries {
		at := mountedAt("", ownMounts, entry.Name())
		switch {
		case at == "":
		case slices.Contains(args, "-S") && what == disksDir+entry.Name():
			fmt.Fprintln(std.Out, at)
			return 0
		case slices.Contains(args, "--mountpoint") && what == at:
			fmt.Fprintln(std.Out, disksDir+entry.Name())
			return 0
		}
	}
	if strings.HasPrefix(what, disksDir) {
		return 1
	}
	return realTool("findmnt", args, std)
}

func mountDisk(dev, at string, asReadOnly bool) error {
	path, found, ro, err := openDisk(dev)
	switch {
	case err != nil:
		return err
	case !strings.HasPrefix(found, "ext4 "):
		return fmt.Errorf("wrong fs type, bad option, bad superblock on %s", dev)
	case ro && !asReadOnly:
		return fmt.Errorf("cannot mount %s read-write: it is write-protected", dev)
	}
	if err := unix.Mount(path+contentSuffix, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if asReadOnly {
		if err := unix.Mount("", at, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return errors.Join(err, unix.Unmount(at, 0))
		}
	}
	return os.WriteFile(mountsDir+filepath.Base(dev), []byte(at), 0o644)
}
