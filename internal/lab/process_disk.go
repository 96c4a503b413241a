package lab

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
)

// A disk of the process driver is a line of text with its size, and beside it
// a directory with the files its guest has written.
const (
	markerPrefix  = "linus lab disk, size "
	contentSuffix = ".d"
)

// markerSize is the size of the template's disk.
const markerSize = int64(2) << 30

func (processDriver) BuildImage(_ context.Context, s *State) (string, error) {
	path := s.path("image.qcow2")
	return path, writeMarker(path, markerSize)
}

func writeMarker(path string, size int64) error {
	return writeFileAtomic(path, fmt.Appendf(nil, "%s%d\n", markerPrefix, size), 0o640)
}

func (processDriver) CreateDisk(_ context.Context, dst, _ string, size int64) error {
	return writeMarker(dst, size)
}

func (d processDriver) ImportDisk(ctx context.Context, src, dst, _ string) error {
	size, err := d.DiskSize(ctx, src)
	if err != nil {
		return err
	}
	if err := writeMarker(dst, size); err != nil {
		return err
	}
	if err := copyTree(src+contentSuffix, dst+contentSuffix); err != nil {
		return errors.Join(err, d.DeleteDisk(ctx, dst))
	}
	return nil
}

func (d processDriver) LinkDisk(ctx context.Context, base, dst string) error {
	return d.ImportDisk(ctx, base, dst, "")
}

func (processDriver) ResizeDisk(_ context.Context, path string, size int64) error {
	return writeMarker(path, size)
}

// DiskSize reads a marker, a qcow2 image's header, or takes a raw image's
// length.
func (processDriver) DiskSize(_ context.Context, path string) (int64, error) {
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
	return fileSize(path), nil
}

func (processDriver) DeleteDisk(_ context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(path + contentSuffix)
}

// copyTree copies a directory with its files, links and modes. A missing one
// is an empty one. Sockets, pipes and devices stay behind.
func copyTree(src, dst string) error {
	if _, err := os.Stat(src); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return filepath.WalkDir(src, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		target := dst + strings.TrimPrefix(path, src)
		switch mode := info.Mode(); {
		case mode.IsDir():
			return os.MkdirAll(target, mode.Perm()|0o700)
		case mode&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case mode.IsRegular():
			return copyFile(path, target, mode.Perm())
		}
		return nil
	})
}

func copyFile(src, dst string, mode fs.FileMode) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(dst, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		out.Close()
		return err
	}
	return out.Close()
}
