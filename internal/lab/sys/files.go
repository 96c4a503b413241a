// Package sys is the lab's access to its machine: files that appear complete, processes recorded so
// that a reused PID is never mistaken for them, and tools that end with their caller.
// It knows nothing about labs.
package sys

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"linus/internal/sleep"

	"golang.org/x/sys/unix"
)

// Streams are a command's standard files.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Temporary is the prefix of names of files that are not in place yet.
const Temporary = ".pvelab-"

// WriteFile replaces a file in one step: readers see the old or the new content, never a part.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	return place(path, data, mode, os.Rename)
}

// CreateFile creates a file with its whole content, or fails with fs.ErrExist.
func CreateFile(path string, data []byte) error { return place(path, data, 0o600, os.Link) }

func place(path string, data []byte, mode os.FileMode, put func(from, to string) error) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), Temporary+"*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(data)
	if err := errors.Join(err, tmp.Chmod(mode), tmp.Close()); err != nil {
		return err
	}
	return put(tmp.Name(), path)
}

// WriteJSON writes a value as JSON, like WriteFile.
func WriteJSON(path string, value any, mode os.FileMode) error {
	raw, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return WriteFile(path, append(raw, '\n'), mode)
}

// ReadJSON reads what WriteJSON wrote.
func ReadJSON(path string, value any) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, value); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}

// MkdirAll creates directories with their parents.
func MkdirAll(dirs ...string) error {
	var err error
	for _, dir := range dirs {
		err = errors.Join(err, os.MkdirAll(dir, 0o755))
	}
	return err
}

// Flock waits for a file's lock, which is released when the file is closed, or until ctx ends. It
// calls waits if somebody else holds the lock.
func Flock(ctx context.Context, f *os.File, waits func()) error {
	for said := false; ; said = true {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		if !said {
			waits()
		}
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
}

// FileSize is a file's length in bytes, or 0 if it does not exist.
func FileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Pipe holds a pipe's two ends.
type Pipe struct{ R, W *os.File }

// OpenPipes opens n pipes, or none on an error.
func OpenPipes(n int) ([]Pipe, error) {
	pipes := make([]Pipe, 0, n)
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			for _, p := range pipes {
				p.R.Close()
				p.W.Close()
			}
			return nil, err
		}
		pipes = append(pipes, Pipe{r, w})
	}
	return pipes, nil
}

// MountPoints returns the mount points that a process sees; proc is its directory in /proc.
func MountPoints(proc string) (points []string) {
	raw, _ := os.ReadFile(filepath.Join(proc, "mountinfo"))
	for line := range strings.Lines(string(raw)) {
		if fields := strings.Fields(line); len(fields) > 4 {
			points = append(points, strings.ReplaceAll(fields[4], `\040`, " "))
		}
	}
	return points
}

// CopyTree copies a directory with its files, links, modes and, where permitted, owners. A missing
// directory counts as empty, and a file that disappears meanwhile, because somebody may be working
// there, is left out. Sockets, pipes and devices are not copied.
func CopyTree(src, dst string) error {
	return filepath.WalkDir(src, func(path string, entry fs.DirEntry, err error) error {
		if err == nil {
			err = copyEntry(path, dst+strings.TrimPrefix(path, src), entry)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

func copyEntry(path, target string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if err != nil {
		return err
	}
	if err := copyContent(path, target, info); err != nil {
		return err
	}
	if of, ok := info.Sys().(*syscall.Stat_t); ok && int(of.Uid) != os.Geteuid() {
		if err := os.Lchown(target, int(of.Uid), int(of.Gid)); !errors.Is(err, fs.ErrPermission) && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func copyContent(path, target string, info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsDir():
		if err := os.MkdirAll(target, 0o700); err != nil {
			return err
		}
		return os.Chmod(target, mode&(fs.ModePerm|fs.ModeSticky)|0o700)
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
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
