package process

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// A disk of the process driver is a marker file, a line of text with the disk's size, and beside it
// a directory with the files that its guest has written.
const (
	markerPrefix  = "linus lab disk, size "
	contentSuffix = ".d"
)

// markerSize is the size of the template's disk in bytes.
const markerSize = int64(2) << 30

// BuildImage writes the marker that stands for the template's image.
func (Driver) BuildImage(_ context.Context, s *state.State) (string, error) {
	path := s.Path("image.qcow2")
	return path, writeMarker(path, markerSize)
}

func writeMarker(path string, size int64) error {
	return sys.WriteFile(path, fmt.Appendf(nil, "%s%d\n", markerPrefix, size), 0o640)
}

// CreateDisk creates an empty disk.
func (Driver) CreateDisk(_ context.Context, dst, _ string, size int64) error {
	return writeMarker(dst, size)
}

// ImportDisk copies an image, and what a guest has written to it, to a new disk.
func (d Driver) ImportDisk(ctx context.Context, src, dst, _ string) error {
	size, err := d.DiskSize(ctx, src)
	if err != nil {
		return err
	}
	if err := writeMarker(dst, size); err != nil {
		return err
	}
	if err := sys.CopyTree(src+contentSuffix, dst+contentSuffix); err != nil {
		return errors.Join(err, d.DeleteDisk(ctx, dst))
	}
	return nil
}

// LinkDisk makes a full copy: this driver's disks are small.
func (d Driver) LinkDisk(ctx context.Context, base, dst string) error {
	return d.ImportDisk(ctx, base, dst, "")
}

// ResizeDisk changes the size in a disk's marker.
func (Driver) ResizeDisk(_ context.Context, path string, size int64) error {
	return writeMarker(path, size)
}

// DiskSize reads a marker or a qcow2 image's header; a raw image's size is its length.
func (Driver) DiskSize(_ context.Context, path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	head := make([]byte, 64)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return 0, err
	}
	var size int64
	if line, ok := strings.CutPrefix(string(head[:n]), markerPrefix); ok {
		_, err := fmt.Sscan(line, &size)
		return size, err
	}
	if n >= 32 && string(head[:4]) == "QFI\xfb" {
		return int64(binary.BigEndian.Uint64(head[24:])), nil
	}
	return sys.FileSize(path), nil
}

// RenameDisk renames a disk with its files.
func (Driver) RenameDisk(path, other string) error {
	if err := os.Rename(path, other); err != nil {
		return err
	}
	if err := os.Rename(path+contentSuffix, other+contentSuffix); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// DeleteDisk removes a disk with its files and snapshots. If the disk is a saved state, it also
// ends the guest that is suspended in it.
func (Driver) DeleteDisk(ctx context.Context, path string) error {
	if err := endShelved(ctx, path); err != nil {
		return err
	}
	dir, prefix := filepath.Split(snapshotPath(path, ""))
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), prefix) {
			if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	return removeDisk(path)
}

// removeDisk removes whatever exists of a marker and its files.
func removeDisk(path string) error {
	return errors.Join(os.RemoveAll(path), os.RemoveAll(path+contentSuffix))
}

// snapshotPath is a separate disk beside the disk, under a name that no volume can have.
func snapshotPath(path, name string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"@"+name)
}

// SnapshotDisk copies the disk to a snapshot.
func (d Driver) SnapshotDisk(ctx context.Context, _ *state.State, _ state.VM, _, path, name string) error {
	return d.replaceDisk(ctx, path, snapshotPath(path, name))
}

// CloneSnapshot copies a snapshot to a new disk.
func (d Driver) CloneSnapshot(ctx context.Context, src, name, dst, format string) error {
	return d.ImportDisk(ctx, snapshotPath(src, name), dst, format)
}

// RollbackDisk copies a snapshot over the disk.
func (d Driver) RollbackDisk(ctx context.Context, path, name string) error {
	return d.replaceDisk(ctx, snapshotPath(path, name), path)
}

// replaceDisk copies a disk over another, which may be half of what a killed copy left.
func (d Driver) replaceDisk(ctx context.Context, src, dst string) error {
	if _, err := os.Stat(src); err != nil {
		return err
	}
	if err := removeDisk(dst); err != nil {
		return err
	}
	return d.ImportDisk(ctx, src, dst, "")
}

// DeleteSnapshot removes a snapshot's copy.
func (Driver) DeleteSnapshot(_ context.Context, _ *state.State, _ state.VM, _, path, name string) error {
	snapshot := snapshotPath(path, name)
	if _, err := os.Stat(snapshot); err != nil {
		return err
	}
	return removeDisk(snapshot)
}
