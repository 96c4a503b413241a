package remote_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

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
		})
	}
}
