package store

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"linus/internal/job"
)

// oldState copies a state directory that was written with schema 1.
func oldState(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, jobsDir), os.DirFS("testdata/schema1/jobs")); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("testdata/schema1/linus.db.sql")
	if err != nil {
		t.Fatal(err)
	}
	db, err := openDatabase("sqlite", filepath.Join(dir, databaseName), 1, "")
	if err == nil {
		_, err = db.ExecContext(t.Context(), string(text))
		err = errors.Join(err, db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestOpen_StateOfAnEarlierVersion(t *testing.T) {
	sqliteOnly(t)
	dir := oldState(t)
	id := func(n int) string { return "019aa000-0000-7000-8000-00000000000" + string(rune('0'+n)) }
	const waits, waitsWithFiles, entersVM, runs, cancelled, ended, madeVM = 1, 2, 3, 4, 5, 6, 7
	for range 2 { // also when it is opened again
		s := openStore(t, Options{Dir: dir})
		check(t, s)
		ids := func(jobs []job.Job, err error) []string {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			var ids []string
			for _, j := range jobs {
				ids = append(ids, j.ID)
			}
			slices.Sort(ids)
			return ids
		}
		waiting, err := s.Waiting(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		diff(t, []string{id(waits), id(waitsWithFiles)}, waiting)
		diff(t, []string{id(entersVM), id(runs), id(cancelled)}, ids(s.InProgress(t.Context())))
		diff(t, []string{id(runs), id(madeVM)}, ids(s.VMs(t.Context())))
		diff(t, []string{id(waits), id(waitsWithFiles), id(runs), id(cancelled), id(madeVM)}, ids(s.OfClient(t.Context(), "", "cli")))
		diff(t, []string{id(entersVM)}, ids(s.OfClient(t.Context(), "", "")))

		for n, want := range map[int][]job.File{
			waits:          nil,
			waitsWithFiles: {{Path: "/a", Content: "aGVsbG8=", Mode: "0600"}, {Path: "/b", Content: "AA=="}},
			runs:           {{Path: "/c", Content: "Yw=="}},
		} {
			m, err := s.Manifest(t.Context(), id(n))
			if err != nil || m.Task != "echo" || m.Resources.Memory != "2G" {
				t.Errorf("manifest of job %d: %+v, %v", n, m, err)
			}
			diff(t, want, m.Files)
		}
		out, err := s.Output(t.Context(), id(runs), job.Stdout, 0, 100)
		if err != nil || string(out) != "hello" {
			t.Errorf("output %q, %v", out, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s := openStore(t, Options{Dir: dir})
	if n, err := s.Forget(t.Context(), at.Add(24*time.Hour)); n != 1 || err != nil {
		t.Errorf("forgot %d jobs, %v", n, err)
	}
	if _, err := s.Job(t.Context(), id(ended)); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the ended job: %v", err)
	}
	if _, err := os.Stat(s.jobDir(id(ended))); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory: %v", err)
	}
}
