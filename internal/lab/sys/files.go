// Package sys is what the lab asks of the machine it runs on: files that appear
// whole, processes recorded so that a number used again is never taken for
// theirs, and tools that end with their caller. It knows nothing of labs.
package sys

import (
	"io"
	"os"
	"path/filepath"
)

// Streams are a command's standard files.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
}

// Temporary begins the names of files on their way to their place.
const Temporary = ".pvelab-"

// WriteFile replaces a file in one step, so that readers see the old or
// the new content and never a half.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), Temporary+"*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.Write(data); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Chmod(mode); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// CreateFile creates a file with its whole content, or fails with fs.ErrExist.
func CreateFile(path, content string) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), Temporary+"*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	if _, err := tmp.WriteString(content); err != nil {
		tmp.Close()
		return err
	}
	if err := tmp.Close(); err != nil {
		return err
	}
	return os.Link(tmp.Name(), path)
}

// FileSize is a file's length in bytes, 0 when there is none.
func FileSize(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Pipe is a pipe's two ends.
type Pipe struct{ R, W *os.File }

// OpenPipes opens n pipes, all or none.
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
