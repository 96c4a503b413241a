package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
)

// maxLogSize is how large engine.log becomes before it is rotated, in bytes.
const maxLogSize = 10 << 20

// logPath is the log of an engine in the background: its stderr.
func logPath(stateDir string) string { return filepath.Join(stateDir, "engine.log") }

// openLog opens a log for appending.
func openLog(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the engine's log: %w", err)
	}
	return f, nil
}

// EngineLog is what an engine in the background logs to: stderr, which is the engine.log of
// its state directory. When that has become large, it goes on in an empty one, and what was
// there is engine.log.1.
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
		l.size = 0 // if it cannot be rotated, another time
		_ = l.rotate()
	}
	n, err := l.stderr.Write(line)
	l.size += int64(n)
	return n, err
}

// rotate copies the file and empties it: stderr, where the last words of a process go, stays
// the same file.
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
