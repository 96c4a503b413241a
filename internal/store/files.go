package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"linus/internal/wholefile"
)

// writeFile replaces a whole file (0600). Readers find the old bytes or the new, even after a crash
// of this process. If durable, that also holds after a crash of the machine, and the new bytes are
// on disk.
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

// syncFile puts a file's bytes on disk. A missing file is no error.
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

// appendAt writes data at offset, which is the end of a file (0600, created if missing). Without
// data it changes nothing.
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

// readAt reads n bytes from offset; the file has them.
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
