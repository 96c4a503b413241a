package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/uuid"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/pgtest"
)

var _ = executor.StoresOf((*Store)(nil))

// open opens a store on the database that the tests are to use.
func open(t testing.TB, o Options) (*Store, error) {
	t.Helper()
	o.URL = pgtest.URL(t, o.Dir)
	return Open(t.Context(), o)
}

// sqliteOnly skips a test of SQLite, or of files on disk.
func sqliteOnly(t testing.TB) {
	t.Helper()
	if pgtest.Chosen() {
		t.Skip("of SQLite and its files")
	}
}

// The files of a job on disk, where they are there.
func (s *Store) jobDir(id string) string { return s.outputPath(id, "") }

func (s *Store) outputPath(id, name string) string {
	if d, ok := s.files.(*directories); ok {
		return d.path(id, name)
	}
	return filepath.Join("/nonexistent", id, name)
}

// openStore opens a store that closes with the test.
func openStore(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := open(t, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newStore opens a store in a new directory that keeps 100 bytes of output.
func newStore(t testing.TB) *Store { return openStore(t, Options{Dir: t.TempDir(), MaxOutput: 100}) }

// newJob returns a pending job as the executor would create it.
func newJob(task string) job.Job {
	return job.Job{
		ID:        uuid.Must(uuid.NewV7()).String(),
		Manifest:  job.Manifest{Task: task, AgentType: job.AgentScript, Timeout: 60},
		Status:    job.Pending,
		CreatedAt: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC),
	}
}

func insert(t testing.TB, s *Store, j job.Job) job.Job {
	t.Helper()
	got, isNew, err := s.Insert(context.Background(), j, "", job.Limits{})
	if err != nil || !isNew {
		t.Fatalf("Insert: new %v, err %v", isNew, err)
	}
	return got
}

func update(t testing.TB, s *Store, id string, change func(*job.Job) ([]job.Event, error)) job.Job {
	t.Helper()
	return updateWith(t, s, id, job.EventsOnly(change))
}

func updateWith(t testing.TB, s *Store, id string, change func(*job.Job) (job.Record, error)) job.Job {
	t.Helper()
	j, err := s.Update(context.Background(), id, change)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func diff(t testing.TB, want, got any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("want -, got +:\n%s", d)
	}
}

func TestOpen_KeepsEverythingFromOthers(t *testing.T) {
	sqliteOnly(t)
	dir := filepath.Join(t.TempDir(), "state")
	s := openStore(t, Options{Dir: dir})
	j := newJob("echo")
	j.Manifest.Files = []job.File{{Path: "/a", Content: "aGk="}}
	insert(t, s, j)
	if _, err := s.AppendOutput(t.Context(), j.ID, job.Stdout, 0, []byte("hi")); err != nil {
		t.Fatal(err)
	}
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		seen++
		if fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, fi.Mode())
		}
		return nil
	})
	if err != nil || seen < 7 {
		t.Errorf("saw %d entries, err %v", seen, err)
	}
}

func TestOpen_DirectoryWithOddNames(t *testing.T) {
	sqliteOnly(t)
	for _, name := range []string{"with blank", "100%", "a?b#c", "ünïcode", "x&_pragma=query_only(1)"} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), name)
			s := openStore(t, Options{Dir: dir})
			insert(t, s, newJob("echo"))
			if _, err := os.Stat(filepath.Join(dir, databaseName)); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOpen_ManyAtOnceOnANewDirectory(t *testing.T) {
	dir := t.TempDir()
	pgtest.URL(t, dir) // only the test itself can skip, not what it starts
	ids := make([]string, 8)
	var group sync.WaitGroup
	for i := range ids {
		group.Go(func() {
			s, err := open(t, Options{Dir: dir})
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close() //nolint:errcheck // what counts is what was read
			if ids[i], err = s.InstallationID(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	for _, id := range ids {
		if id != ids[0] || !isID(id) {
			t.Fatalf("installation ids differ or are no UUIDs: %q", ids)
		}
	}
}

func TestOpen_NewerDatabase(t *testing.T) {
	dir := t.TempDir()
	s, err := open(t, Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.write.ExecContext(t.Context(), `INSERT INTO goose_db_version (version_id, is_applied) VALUES (99, TRUE)`)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = open(t, Options{Dir: dir})
	if err == nil {
		t.Fatal("opened a database of the future")
	}
	where := dir
	if pgtest.Chosen() {
		where = "LINUS_DATABASE_URL"
	}
	for _, want := range []string{where, "newer linus", "schema 99"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestOpen_Refuses(t *testing.T) {
	sqliteOnly(t)
	tests := []struct {
		name    string
		prepare func(t *testing.T, dir string)
		want    string
	}{
		{"no database", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, databaseName), strings.Repeat("this is a poem\n", 100))
		}, databaseName},
		{"a file where the directory should be", func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, jobsDir), "")
		}, "create state directory"},
		{"a directory where the database should be", func(t *testing.T, dir string) {
			if err := os.Mkdir(filepath.Join(dir, databaseName), 0o700); err != nil {
				t.Fatal(err)
			}
		}, "create database"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.prepare(t, dir)
			s, err := open(t, Options{Dir: dir})
			if err == nil {
				s.Close() //nolint:errcheck // the test has failed already
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%q does not say %q", err, tt.want)
			}
		})
	}
}

func TestOpen_Settings(t *testing.T) {
	sqliteOnly(t)
	s := newStore(t)
	for pragma, want := range map[string]string{
		"journal_mode": "wal", "synchronous": "2", "foreign_keys": "1", "busy_timeout": "10000",
	} {
		for name, db := range map[string]querier{"writer": s.write, "reader": s.read} {
			got, err := query(t.Context(), db, func(row scanner) (string, error) {
				var v string
				return v, row.Scan(&v)
			}, "PRAGMA "+pragma)
			if err != nil || len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s is %v, %v; want %s", name, pragma, got, err, want)
			}
		}
	}
	if _, err := s.read.db.ExecContext(t.Context(), `DELETE FROM jobs`); err == nil {
		t.Error("the reading pool can write")
	}
}

func TestInstallationID_SurvivesReopen(t *testing.T) {
	dir := t.TempDir()
	var ids []string
	for range 3 {
		s, err := open(t, Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		id, err := s.InstallationID(t.Context())
		if err := errors.Join(err, s.Close()); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if ids[0] != ids[1] || ids[1] != ids[2] {
		t.Errorf("installation id changed: %q", ids)
	}
	if other, err := newStore(t).InstallationID(t.Context()); err != nil || other == ids[0] {
		t.Errorf("another directory has id %q, %v", other, err)
	}
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// notFound calls every method that takes an ID.
func notFound(s *Store, id string) map[string]error {
	ctx := context.Background()
	errs := map[string]error{}
	_, errs["Job"] = s.Job(ctx, id)
	_, errs["Manifest"] = s.Manifest(ctx, id)
	_, errs["Update"] = s.Update(ctx, id, func(*job.Job) (job.Record, error) {
		return job.Record{}, fmt.Errorf("change was called")
	})
	_, errs["Events"] = s.Events(ctx, id, 0)
	_, errs["TokenHash"] = s.TokenHash(ctx, id)
	_, errs["AppendOutput"] = s.AppendOutput(ctx, id, job.Stdout, 0, []byte("x"))
	_, errs["SealOutput"] = sealOutput(ctx, s, id, job.Stdout, 0, nil)
	_, errs["Output"] = s.Output(ctx, id, job.Stdout, 0, 1)
	return errs
}

func TestUnknownJob_IsNotFoundEverywhere(t *testing.T) {
	s := newStore(t)
	insert(t, s, newJob("echo"))
	orphan := uuid.NewString() // a directory without a row: an insert that was killed
	if err := os.Mkdir(s.jobDir(orphan), 0o700); err != nil && !pgtest.Chosen() {
		t.Fatal(err)
	}
	for _, id := range []string{"", ".", "..", "../jobs", "nope", uuid.NewString(), orphan, strings.ToUpper(orphan), "' OR 1=1 --"} {
		for method, err := range notFound(s, id) {
			if !errors.Is(err, job.ErrNotFound) {
				t.Errorf("%s(%q): %v", method, id, err)
			}
		}
	}
}

// A fault of the database is the engine's own, and a refused change is not.
func TestDatabase_FaultsAreTheEnginesOwn(t *testing.T) {
	sqliteOnly(t)
	s := newStore(t)
	j := newJob("x")
	tok := job.Token{ID: "1", TokenSpec: job.TokenSpec{Name: "a"}}
	if err := errors.Join(insertErr(s, j), s.InsertToken(t.Context(), tok, "hash")); err != nil {
		t.Fatal(err)
	}
	_, unknown := s.Job(t.Context(), newJob("x").ID)
	for what, err := range map[string]error{"a duplicate": s.InsertToken(t.Context(), tok, "hash"), "an unknown job": unknown} {
		if err == nil || job.IsEngineFault(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.write.conn.ExecContext(t.Context(), `PRAGMA max_page_count = 1`); err != nil { // a full disk
		t.Fatal(err)
	}
	j = newJob(strings.Repeat("x", 1<<20))
	if err := insertErr(s, j); !job.IsEngineFault(err) || !strings.Contains(err.Error(), "full") {
		t.Errorf("a full database: %v", err)
	}
}

func insertErr(s *Store, j job.Job) error {
	_, _, err := s.Insert(context.Background(), j, "", job.Limits{})
	return err
}
