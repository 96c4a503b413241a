// Package wholefile writes files that only their owner can read, whole or not at all: even after a
// crash of the machine, a reader finds the old content or the new.
package wholefile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// Replace writes a file, replacing an existing one.
func Replace(path string, data []byte) error { return place(path, data, os.Rename) }

// Create writes a file; fs.ErrExist if there is one.
func Create(path string, data []byte) error { return place(path, data, os.Link) }

func place(path string, data []byte, put func(from, to string) error) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*") // mode 0600; the name shows which file a leftover is of
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = put(f.Name(), path)
	}
	if left := os.Remove(f.Name()); !errors.Is(left, fs.ErrNotExist) {
		err = errors.Join(err, left)
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// SyncDir puts the entries of a directory on disk. Windows does not need that.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
