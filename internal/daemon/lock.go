package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Lock locks the state directory; ErrLocked if an engine has the lock. The lock is released when
// the file is closed, and so when the process ends. The process ID in the file is for people.
func Lock(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the state directory: %w; set LINUS_STATE_DIR to a directory you can write to", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "engine.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the state directory: %w; set LINUS_STATE_DIR to a directory you can write to", err)
	}
	if err := lockFile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	if err := f.Truncate(0); err == nil {
		_, _ = fmt.Fprintln(f, os.Getpid())
	}
	return f, nil
}

// ErrLocked says that another process has locked the state directory.
var ErrLocked = errors.New("an engine is running here already")
