package remote_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

func TestUpload(t *testing.T) {
	for _, way := range []struct {
		name   string
		faults sshtest.Faults
	}{
		{name: "sftp"},
		{name: "base64 over exec", faults: sshtest.Faults{NoSFTP: true}},
	} {
		t.Run(way.name, func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{Faults: way.faults})
			p := pool(t, options(s))
			dir := t.TempDir()
			files := []remote.File{
				{Path: filepath.Join(dir, "empty"), Mode: 0o644},
				{Path: filepath.Join(dir, "script.sh"), Data: []byte("#!/bin/sh\n"), Mode: 0o755},
				{Path: filepath.Join(dir, "it's \"odd\" $(name)\n"), Data: []byte("x"), Mode: 0o600},
				{Path: filepath.Join(dir, "large"), Data: bytes.Repeat([]byte{0, 1, 254, '\n'}, 500_000), Mode: 0o600},
			}
			for range 2 { // again: over what is there
				if err := p.Upload(t.Context(), files...); err != nil {
					t.Fatal(err)
				}
			}
			for _, f := range files {
				got, err := os.ReadFile(f.Path)
				if err != nil || !bytes.Equal(got, f.Data) {
					t.Errorf("%q: %d of %d bytes, %v", f.Path, len(got), len(f.Data), err)
				}
				if info, err := os.Stat(f.Path); err != nil || info.Mode() != f.Mode {
					t.Errorf("%q: mode %v, %v", f.Path, info.Mode(), err)
				}
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != len(files) {
				t.Errorf("left behind: %v, %v", entries, err)
			}
		})
	}
}

// A channel that runs a function before each response of a server.
type observed struct {
	io.ReadWriteCloser
	look func()
}

func (o observed) Write(data []byte) (int, error) {
	o.look()
	return o.ReadWriteCloser.Write(data)
}

// A file is nobody else's to read at any time, and its content may look like requests.
func TestUpload_NewFilesArePrivateFromTheBeginning(t *testing.T) {
	const server = "/usr/lib/openssh/sftp-server"
	if _, err := os.Stat(server); err != nil {
		t.Skip(err)
	}
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "secret")
	var mu sync.Mutex
	modes := map[fs.FileMode]bool{}
	s := sshtest.Start(t, sshtest.Options{ServeFiles: func(channel io.ReadWriteCloser) {
		cmd := exec.Command(server, "-u", "0")
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Error(err)
			return
		}
		cmd.Stdout = observed{channel, func() {
			entries, _ := os.ReadDir(dir)
			mu.Lock()
			defer mu.Unlock()
			for _, entry := range entries {
				if info, err := entry.Info(); err == nil && entry.Name() != filepath.Base(path) {
					modes[info.Mode()] = true
				}
			}
		}}
		if err := cmd.Start(); err != nil {
			t.Error(err)
			return
		}
		_, _ = io.Copy(in, channel)
		_ = in.Close()
		_ = cmd.Wait()
	}})
	// A request to open a file, as content: at every place where a piece may begin.
	open := []byte{0, 0, 0, 25, 3, 0, 0, 0, 1, 0, 0, 0, 8, '/', 't', 'm', 'p', '/', 'x', 'x', 'x', 0, 0, 0, 0x1a, 0, 0, 0, 0}
	data := bytes.Repeat(append(open, 0, 0, 0), 10_000)
	if err := pool(t, options(s)).Upload(t.Context(), remote.File{Path: path, Data: data, Mode: 0o640}); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d of %d bytes, %v", len(got), len(data), err)
	}
	mu.Lock()
	defer mu.Unlock()
	if diff := cmp.Diff(map[fs.FileMode]bool{0o600: true, 0o640: true}, modes); diff != "" {
		t.Errorf("modes of the file in the making (-want +got):\n%s", diff)
	}
}

func TestUpload_FailureLeavesTheOldFileAndNothingElse(t *testing.T) {
	for _, noSFTP := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoSFTP=%v", noSFTP), func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{NoSFTP: noSFTP}})
			p := pool(t, options(s))
			dir := t.TempDir()
			// A directory cannot be replaced by a file.
			if err := os.MkdirAll(filepath.Join(dir, "taken", "kept"), 0o700); err != nil {
				t.Fatal(err)
			}
			if !noSFTP { // mv moves into a directory instead of failing
				if err := p.Upload(t.Context(), remote.File{Path: filepath.Join(dir, "taken"), Data: []byte("x"), Mode: 0o600}); err == nil {
					t.Error("a directory was replaced")
				}
			}
			if err := p.Upload(t.Context(), remote.File{Path: filepath.Join(dir, "missing", "x"), Data: []byte("x"), Mode: 0o600}); err == nil {
				t.Error("a file was put into a directory that is not there")
			}
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 1 {
				t.Errorf("left: %v, %v", entries, err)
			}
		})
	}
}

func TestUpload_SurvivesADroppedConnection(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	path := filepath.Join(t.TempDir(), "f")
	for i := range 5 {
		data := fmt.Appendf(nil, "%d", i)
		if err := p.Upload(t.Context(), remote.File{Path: path, Data: data, Mode: 0o600}); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, data) {
			t.Errorf("got %q, %v", got, err)
		}
		s.Drop()
	}
}

func TestReadRange(t *testing.T) {
	for _, noSFTP := range []bool{false, true} {
		t.Run(fmt.Sprintf("NoSFTP=%v", noSFTP), func(t *testing.T) {
			s := sshtest.Start(t, sshtest.Options{Faults: sshtest.Faults{NoSFTP: noSFTP}})
			p := pool(t, options(s))
			data := bytes.Repeat([]byte("0123456789"), 20_000)
			path := filepath.Join(t.TempDir(), "out put")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			size := int64(len(data))
			for _, r := range []struct{ offset, limit, want int64 }{
				{0, size, size}, {0, 10, 10}, {5, 100_000, 100_000}, {size - 3, 10, 3}, {size, 10, 0}, {size + 7, 10, 0},
			} {
				got, err := p.ReadRange(t.Context(), path, r.offset, r.limit)
				if err != nil || int64(len(got)) != r.want || (r.want > 0 && !bytes.Equal(got, data[r.offset:r.offset+r.want])) {
					t.Errorf("%+v: %d bytes, %v", r, len(got), err)
				}
			}
			if _, err := p.ReadRange(t.Context(), path+"x", 0, 1); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("missing file: %v", err)
			}
			// Nobody writes to it: opening it would wait for ever.
			fifo := filepath.Join(t.TempDir(), "fifo")
			if err := exec.CommandContext(t.Context(), "mkfifo", fifo).Run(); err != nil {
				t.Fatal(err)
			}
			if _, err := p.ReadRange(t.Context(), fifo, 0, 1); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("a pipe: %v", err)
			}
		})
	}
}
