package netns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// netnsDir is where iproute2 keeps named network namespaces: as mounts on files, in a directory
// that it mounts over itself.
const netnsDir = "/run/netns"

func createNetns(ctx context.Context, name string) error {
	unlock, err := sys.LockRun()
	if err != nil {
		return err
	}
	defer unlock()
	_, err = sys.Run(ctx, "ip", "netns", "add", name)
	return err
}

// removeNetns removes the name; the namespace itself ends with its last process. iproute2 would
// leave its directory and the mount on it, so both are removed along with the last name.
func removeNetns(ctx context.Context, name string) error {
	unlock, err := sys.LockRun()
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(netnsDir, name)); err == nil {
		if _, err := sys.Run(ctx, "ip", "netns", "delete", name); err != nil {
			return err
		}
	}
	if names, err := os.ReadDir(netnsDir); err != nil || len(names) > 0 {
		return nil
	}
	for isMountPoint(netnsDir) {
		if err := unix.Unmount(netnsDir, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", netnsDir, err)
		}
	}
	_ = os.Remove(netnsDir) // fails if a name has appeared in the directory, which then stays
	return nil
}

// Do runs f, and the processes f starts, inside a named network namespace, whether the caller is
// inside or outside of it. There is no other way to enter one.
func Do(path string, f func() error) error {
	return sys.OnThreadOfItsOwn(func() error {
		namespace, err := os.Open(path)
		if err != nil {
			return err
		}
		defer namespace.Close()
		if err := unix.Setns(int(namespace.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", filepath.Base(path), err)
		}
		return f()
	})
}

// isMountPoint reads the list of mounts: device numbers do not show bind mounts on one file system.
func isMountPoint(path string) bool {
	return slices.Contains(sys.MountPoints("/proc/thread-self"), path)
}

// killNetns ends every process in a named network namespace.
func killNetns(ctx context.Context, path string) error {
	var want, got unix.Stat_t
	if err := unix.Stat(path, &want); err != nil {
		return err
	}
	return sys.KillProcesses(ctx, func(proc string) bool {
		err := unix.Stat(filepath.Join(proc, "ns/net"), &got)
		return err == nil && got.Ino == want.Ino && got.Dev == want.Dev
	})
}
