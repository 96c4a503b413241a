package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// maxLogSize is the size, in bytes, at which engine.log is rotated.
const maxLogSize = 10 << 20

// logPath is the log of a background engine: its stderr.
func logPath(stateDir string) string { return filepath.Join(stateDir, "engine.log") }

// openLog opens a log for appending.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the engine's log: %w", err)
	}
	return f, nil
}

// EngineLog is what a background engine logs to: its stderr, which is engine.log in the state
// directory. When that has become large, its content moves to engine.log.1, and the log continues
// in an empty file.
type EngineLog struct {
	path   string
	stderr io.Writer

	mu   sync.Mutex
	size int64 // as far as this process knows
}

// NewEngineLog returns the log of a state directory.
func NewEngineLog(stateDir string, stderr io.Writer) *EngineLog {
	l := &EngineLog{path: logPath(stateDir), stderr: stderr}
	if info, err := os.Stat(l.path); err == nil {
		l.size = info.Size()
	}
	return l
}

func (l *EngineLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size+int64(len(line)) > maxLogSize {
		l.size = 0 // if rotating fails, try again later
		_ = l.rotate()
	}
	n, err := l.stderr.Write(line)
	l.size += int64(n)
	return n, err
}

// rotate copies the file and empties it, so that stderr, which gets the last words of a process,
// stays the same file.
func (l *EngineLog) rotate() error {
	from, err := os.OpenFile(l.path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer from.Close() //nolint:errcheck // nothing is written to it
	to, err := os.OpenFile(l.path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	if err = errors.Join(err, to.Close()); err != nil {
		return err
	}
	return from.Truncate(0)
}
