package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
)

// diskInfo is what `qemu-img info` tells of an image.
type diskInfo struct {
	Format string `json:"format"`
	Size   int64  `json:"virtual-size"` // bytes the guest sees
}

// readDiskInfo also reads a disk that a running VM has open.
func readDiskInfo(ctx context.Context, path string) (diskInfo, error) {
	var info diskInfo
	out, err := runTool(ctx, "qemu-img", "info", "--force-share", "--output=json", path)
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(out, &info); err != nil {
		return info, fmt.Errorf("read qemu-img's answer on %s: %w", path, err)
	}
	return info, nil
}

func (qemuDriver) CreateDisk(ctx context.Context, dst, format string, size int64) error {
	return makeDisk(ctx, dst, "create", "-q", "-f", format, dst, strconv.FormatInt(size, 10))
}

func (qemuDriver) ImportDisk(ctx context.Context, src, dst, format string) error {
	return makeDisk(ctx, dst, "convert", "-q", "-O", format, src, dst)
}

func (qemuDriver) LinkDisk(ctx context.Context, base, dst string) error {
	info, err := readDiskInfo(ctx, base)
	if err != nil {
		return err
	}
	return makeDisk(ctx, dst, "create", "-q", "-f", "qcow2", "-b", base, "-F", info.Format, dst)
}

func (qemuDriver) ResizeDisk(ctx context.Context, path string, size int64) error {
	info, err := readDiskInfo(ctx, path)
	if err != nil {
		return err
	}
	_, err = runTool(ctx, "qemu-img", "resize", "-q", "-f", info.Format, path, strconv.FormatInt(size, 10))
	return err
}

func (qemuDriver) DiskSize(ctx context.Context, path string) (int64, error) {
	info, err := readDiskInfo(ctx, path)
	return info.Size, err
}

func (qemuDriver) DeleteDisk(_ context.Context, path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// makeDisk runs qemu-img and removes what a failure left of dst.
func makeDisk(ctx context.Context, dst string, args ...string) error {
	if _, err := runTool(ctx, "qemu-img", args...); err != nil {
		return errors.Join(err, qemuDriver{}.DeleteDisk(ctx, dst))
	}
	return nil
}
