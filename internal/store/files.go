package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"linus/internal/wholefile"
)

// writeFile writes a whole file (0600): readers, also after a crash of this
// process, find the old bytes or the new. If it is durable, that holds after a
// crash of the machine, too, and the new are on disk.
func writeFile(path string, data []byte, durable bool) error {
	temporary := path + ".tmp"
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	if durable {
		err = wholefile.SyncDir(filepath.Dir(path))
	}
	return err
}

// syncFile puts a file's bytes on disk. A missing file has none.
func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// appendAt writes data at the end of a file (0600, created if missing), which
// is at offset. Without data it changes nothing.
func appendAt(path string, offset int64, data []byte) (err error) {
	if len(data) == 0 {
		return nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.WriteAt(data, offset)
	return err
}

// readAt reads n bytes, which the file has, from offset.
func readAt(path string, offset, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	data := make([]byte, n)
	_, err = f.ReadAt(data, offset)
	return data, err
}
