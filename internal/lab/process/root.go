package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A process guest's root file system is a tmpfs with the machine's programs bound read-only, the
// guest's own directories where a system writes, and read-only under /.host what their links borrow
// from the machine. The machine's own root is unmounted: a mount kept here would keep alive what
// the machine unmounts. Everything is mounted in the guest's namespace only, on an empty directory
// of the lab, so the machine never sees the mounts.

// programDirs are the machine's directories of programs that a guest runs.
var programDirs = []string{"bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr"}

// borrowedDirs are the machine's directories that links in the guest's own directories lead to.
var borrowedDirs = []string{"etc", "usr/local/bin", "usr/local/lib", "var/lib/dpkg"}

// ownDirs lie on the guest's disk and survive a reboot.
var ownDirs = []string{"etc", "home", "root", "opt", "srv", "var", "tmp", "usr/local/bin", "usr/local/lib"}

const (
	hostRoot  = "/.host"
	guestPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	toolPath  = "/.pvelab" // the pvelab binary, for the guest's tools
)

// guestTools are pvelab's commands in the guest: those about the guest as a machine.
func guestTools() []string {
	return []string{"cloud-init", "sudo", "poweroff", "halt", "reboot", "shutdown", "systemctl", "ip", "blkid", "fstrim", "sync", "lsblk", "findmnt", "wipefs", "mkfs.ext4", "mount"}
}

// mountRoot builds the root file system and moves into it.
func (c guestConfig) mountRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", c.Root, "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return fmt.Errorf("mount the guest's root: %w", err)
	}
	if err := c.populateDisk(); err != nil {
		return err
	}
	for _, step := range []func() error{c.bindPrograms, c.bindBorrowed, c.bindOwn, c.bindStorages, c.mountKernel, c.bindTool} {
		if err := step(); err != nil {
			return err
		}
	}
	const oldRoot = "/.old"
	if err := os.Mkdir(filepath.Join(c.Root, oldRoot), 0o755); err != nil {
		return err
	}
	if err := unix.PivotRoot(c.Root, filepath.Join(c.Root, oldRoot)); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount(oldRoot, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let go of the machine's root: %w", err)
	}
	return os.Remove(oldRoot)
}

func (c guestConfig) bindPrograms() error {
	for _, name := range programDirs {
		src, dst := "/"+name, filepath.Join(c.Root, name)
		info, err := os.Lstat(src)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(src)
			if err != nil {
				return err
			}
			if err := os.Symlink(target, dst); err != nil {
				return err
			}
		default:
			if err := bindReadOnly(src, dst); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c guestConfig) bindBorrowed() error {
	for _, name := range borrowedDirs {
		if _, err := os.Stat("/" + name); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := bindReadOnly("/"+name, filepath.Join(c.Root, hostRoot, name)); err != nil {
			return err
		}
	}
	return nil
}

func (c guestConfig) bindOwn() error {
	for _, name := range ownDirs {
		if err := bind(filepath.Join(c.Disk, name), filepath.Join(c.Root, name)); err != nil {
			return err
		}
	}
	return nil
}

func (c guestConfig) mountKernel() error {
	if err := bind("/sys", filepath.Join(c.Root, "sys")); err != nil {
		return err
	}
	// Not recursive: a guest has its own mounts there, and labs may lie in the machine's /dev/shm.
	dev := filepath.Join(c.Root, "dev")
	if err := os.Mkdir(dev, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("/dev", dev, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /dev: %w", err)
	}
	mounts := []struct {
		kind, path, data string
		flags            uintptr
	}{
		{"proc", "proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC},
		{"tmpfs", "run", "mode=755", unix.MS_NOSUID | unix.MS_NODEV},
		{"tmpfs", "dev/shm", "mode=1777", unix.MS_NOSUID | unix.MS_NODEV},
		{"devpts", "dev/pts", "newinstance,ptmxmode=0666,mode=0620", unix.MS_NOSUID | unix.MS_NOEXEC},
	}
	for _, m := range mounts {
		path := filepath.Join(c.Root, m.path)
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, path, m.kind, m.flags, m.data); err != nil {
			return fmt.Errorf("mount the guest's /%s: %w", m.path, err)
		}
	}
	// These settings are the machine's.
	settings := filepath.Join(c.Root, "proc/sys")
	if err := unix.Mount(settings, settings, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind /proc/sys: %w", err)
	}
	if err := unix.Mount("", settings, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("make /proc/sys read-only: %w", err)
	}
	return c.mountCards()
}

func (c guestConfig) bindTool() error {
	path := filepath.Join(c.Root, toolPath)
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(c.Binary, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s: %w", c.Binary, err)
	}
	return nil
}

// bind shows a directory, with what is mounted in it, in another place.
func bind(src, dst string) error {
	if err := os.MkdirAll(dst, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(src, dst, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", src, dst, err)
	}
	return nil
}

func bindReadOnly(src, dst string) error {
	if err := bind(src, dst); err != nil {
		return err
	}
	// Before kernel 5.12 this fails, and the guest can write there.
	_ = unix.MountSetattr(unix.AT_FDCWD, dst, unix.AT_RECURSIVE, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return nil
}

// populateDisk fills a new disk with directories, with links to the machine's settings and local
// programs, and with the guest's own tools, which take precedence.
func (c guestConfig) populateDisk() error {
	if _, err := os.Stat(filepath.Join(c.Disk, "etc")); err == nil {
		return nil
	}
	dirs := append(slices.Clone(ownDirs), "var/lib/cloud/data", "var/log", "var/tmp", "var/cache", "etc/ssh", "etc/systemd/system")
	for _, name := range dirs {
		if err := os.MkdirAll(filepath.Join(c.Disk, name), 0o755); err != nil {
			return err
		}
	}
	for name, mode := range map[string]fs.FileMode{"tmp": 0o777 | fs.ModeSticky, "var/tmp": 0o777 | fs.ModeSticky, "root": 0o700} {
		if err := os.Chmod(filepath.Join(c.Disk, name), mode); err != nil {
			return err
		}
	}
	links := map[string]string{"var/run": "/run", "var/lock": "/run/lock", "var/lib/dpkg": hostRoot + "/var/lib/dpkg"}
	for _, name := range guestTools() {
		links["usr/local/bin/"+name] = toolPath
	}
	for _, dir := range []string{"usr/local/bin", "usr/local/lib", "etc"} {
		entries, err := os.ReadDir("/" + dir)
		if err != nil {
			return err
		}
		for _, entry := range entries {
			name := dir + "/" + entry.Name()
			if _, ours := links[name]; ours || slices.Contains(ownSettings, name) {
				continue
			}
			links[name] = hostRoot + "/" + name
			// A link means the same from here: etc/os-release leads to usr/lib.
			if target, err := os.Readlink("/" + name); err == nil {
				links[name] = target
			}
		}
	}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join(c.Disk, name)); err != nil {
			return err
		}
	}
	return nil
}

// ownSettings are the files of /etc that the guest does not borrow from the machine.
var ownSettings = []string{
	"etc/passwd", "etc/passwd-", "etc/group", "etc/group-", "etc/shadow", "etc/shadow-", "etc/gshadow", "etc/gshadow-",
	"etc/.pwd.lock", "etc/subuid", "etc/subuid-", "etc/subgid", "etc/subgid-",
	"etc/fstab", "etc/hostname", "etc/hosts", "etc/machine-id", "etc/ssh", "etc/cloud", "etc/systemd",
}

// systemAccounts returns the lines of a passwd or group file for the system's own accounts, which
// may own files of the bound programs.
func systemAccounts(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	var b strings.Builder
	for line := range strings.Lines(string(raw)) {
		fields := strings.Split(line, ":")
		if len(fields) > 2 && fields[2] != "0" && (len(fields[2]) < 4 || fields[2] == "65534") {
			b.WriteString(line)
		}
	}
	return b.String()
}
