package store

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/job"
)

// What a VM names its files leads nowhere else, and is one name for one file.
func TestPutArtifact_TakesPlainPathsOnly(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	for _, path := range []string{"", ".", "..", "/a", "../a", "a/../b", "a//b", "./a", "a/", "a/../../../x", "a\xff"} {
		if err := s.PutArtifact(t.Context(), id, path, 0, []byte("x")); err == nil {
			t.Errorf("%q is kept", path)
		}
	}
	if err := s.PutArtifact(t.Context(), "../"+id, "a", 0, []byte("x")); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("of a job that is none: %v", err)
	}
	if kept, err := os.ReadDir(filepath.Join(s.jobDir(id), artifactsDir)); len(kept) > 0 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

func TestPutArtifact_DoesNotFollowLinks(t *testing.T) {
	sqliteOnly(t)
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	if err := s.PutArtifact(t.Context(), id, "dir/a", 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(s.jobDir(id), artifactsDir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := s.PutArtifact(t.Context(), id, "link/a", 0, []byte("x")); err == nil {
		t.Error("a file is kept beyond a link")
	}
	if found, err := os.ReadDir(outside); len(found) > 0 {
		t.Errorf("outside: %v, %v", found, err)
	}
}

// Why a file is not kept is told to whose job it is, who has no business in the engine's directory.
func TestPutArtifact_ItsErrorsAreWithoutTheEnginesDirectory(t *testing.T) {
	sqliteOnly(t)
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	if err := errors.Join(os.MkdirAll(s.jobDir(id), 0o700), os.WriteFile(filepath.Join(s.jobDir(id), artifactsDir), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	putErr := s.PutArtifact(t.Context(), id, "a", 0, []byte("x"))
	_, openErr := s.OpenArtifact(t.Context(), id, "a")
	for _, err := range []error{putErr, openErr} {
		if err == nil || strings.Contains(err.Error(), s.jobDir(id)) {
			t.Errorf("got %v", err)
		}
	}
}

func TestPutArtifact_FromItsBeginningReplacesWhatThereWas(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	read := func() string {
		t.Helper()
		f, err := s.OpenArtifact(t.Context(), id, "a")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close() //nolint:errcheck // it was read
		data, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.TrimSpace(data))
	}
	for _, step := range []struct {
		offset     int64
		data, want string
	}{{0, "a long one", "a long one"}, {0, "short", "short"}, {5, "er", "shorter"}} {
		if err := s.PutArtifact(t.Context(), id, "a", step.offset, []byte(step.data)); err != nil {
			t.Fatal(err)
		}
		if got := read(); got != step.want {
			t.Errorf("%q at %d: %q, want %q", step.data, step.offset, got, step.want)
		}
	}
	if err := s.DropArtifact(t.Context(), id, "a"); err != nil {
		t.Error(err)
	}
	if _, err := s.OpenArtifact(t.Context(), id, "a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after it was dropped: %v", err)
	}
}
