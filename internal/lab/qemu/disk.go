package qemu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// diskInfo is what `qemu-img info` reports for an image.
type diskInfo struct {
	Format  string `json:"format"`
	Size    int64  `json:"virtual-size"`     // bytes the guest sees
	Backing string `json:"backing-filename"` // set by LinkDisk
}

// readDiskInfo can also read a disk that a running VM has open.
func readDiskInfo(ctx context.Context, path string) (diskInfo, error) {
	var info diskInfo
	out, err := sys.Run(ctx, "qemu-img", "info", "--force-share", "--output=json", path)
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return info, fmt.Errorf("read qemu-img's answer on %s: %w", path, err)
	}
	return info, nil
}

// CreateDisk creates an empty image.
func (Driver) CreateDisk(ctx context.Context, dst, format string, size int64) error {
	return makeDisk(ctx, dst, "create", "-q", "-f", format, dst, strconv.FormatInt(size, 10))
}

// ImportDisk converts an image of any format qemu-img reads. A paused machine may have it open.
func (Driver) ImportDisk(ctx context.Context, src, dst, format string) error {
	return makeDisk(ctx, dst, "convert", "-q", "-U", "-O", format, src, dst)
}

// CloneSnapshot converts an internal snapshot, which does not change while the machine runs.
func (Driver) CloneSnapshot(ctx context.Context, src, name, dst, format string) error {
	return makeDisk(ctx, dst, "convert", "-q", "-U", "-l", "snapshot.name="+name, "-O", format, src, dst)
}

// LinkDisk creates a qcow2 image backed by base.
func (Driver) LinkDisk(ctx context.Context, base, dst string) error {
	info, err := readDiskInfo(ctx, base)
	if err != nil {
		return err
	}
	return makeDisk(ctx, dst, "create", "-q", "-f", "qcow2", "-b", base, "-F", info.Format, dst)
}

// ResizeDisk grows an image.
func (Driver) ResizeDisk(ctx context.Context, path string, size int64) error {
	info, err := readDiskInfo(ctx, path)
	if err != nil {
		return err
	}
	_, err = sys.Run(ctx, "qemu-img", "resize", "-q", "-f", info.Format, path, strconv.FormatInt(size, 10))
	return err
}

// DiskSize is the image's virtual size in bytes.
func (Driver) DiskSize(ctx context.Context, path string) (int64, error) {
	info, err := readDiskInfo(ctx, path)
	return info.Size, err
}

// Snapshots of a disk lie inside its qcow2 file. A running machine has exclusive use of the file,
// so the machine itself makes and deletes them.

// SnapshotDisk creates an internal snapshot, through the monitor while the machine runs.
func (d Driver) SnapshotDisk(ctx context.Context, s *state.State, vm state.VM, slot, path, name string) error {
	if _, running := s.Pid(vm.ID); running {
		return Monitor(ctx, s.RunDir(vm.ID), "blockdev-snapshot-internal-sync", snapshotArguments(slot, name))
	}
	_, err := sys.Run(ctx, "qemu-img", "snapshot", "-c", name, path)
	return err
}

// DeleteSnapshot removes an internal snapshot, through the monitor while the machine runs.
func (d Driver) DeleteSnapshot(ctx context.Context, s *state.State, vm state.VM, slot, path, name string) error {
	if _, running := s.Pid(vm.ID); running {
		return Monitor(ctx, s.RunDir(vm.ID), "blockdev-snapshot-delete-internal-sync", snapshotArguments(slot, name))
	}
	_, err := sys.Run(ctx, "qemu-img", "snapshot", "-d", name, path)
	return err
}

func snapshotArguments(slot, name string) map[string]any {
	return map[string]any{"device": state.DriveID(slot), "name": name}
}

// RollbackDisk applies an internal snapshot.
func (Driver) RollbackDisk(ctx context.Context, path, name string) error {
	_, err := sys.Run(ctx, "qemu-img", "snapshot", "-a", name, path)
	return err
}

// RenameDisk renames the image; its snapshots are inside.
func (Driver) RenameDisk(path, other string) error { return os.Rename(path, other) }

// DeleteDisk removes the image, and the hidden image that backs only this one. A missing image is
// no error. If the image has another hard link, its data stays, and so does what backs it.
func (d Driver) DeleteDisk(ctx context.Context, path string) error {
	below := ""
	if stat, err := os.Stat(path); err == nil && stat.Sys().(*syscall.Stat_t).Nlink == 1 { //nolint:forcetypeassert // on Linux
		if info, err := readDiskInfo(ctx, path); err == nil && strings.HasPrefix(filepath.Base(info.Backing), ".") {
			below = info.Backing
		}
	}
	if err := os.RemoveAll(path); err != nil || below == "" {
		return err
	}
	return d.DeleteDisk(ctx, below)
}

// makeDisk runs qemu-img, and removes what a failure left of dst.
func makeDisk(ctx context.Context, dst string, args ...string) error {
	if _, err := sys.Run(ctx, "qemu-img", args...); err != nil {
		return errors.Join(err, Driver{}.DeleteDisk(ctx, dst))
	}
	return nil
}
