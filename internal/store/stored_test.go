package store

import (
	"os"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/pgtest"
)

// What the migration counts for jobs that were done before it is what is counted as they are.
func TestMigration_CountsWhatIsStoredOfOldJobs(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	j := of(t, "alice", func(j *job.Job) { j.Manifest.Files = []job.File{{Path: "/f", Content: "AAEC"}} })
	open := of(t, "alice", func(j *job.Job) { j.Manifest.Files = []job.File{{Path: "/f", Content: "AAEC"}} })
	for _, one := range []job.Job{j, open} {
		if _, _, err := s.Insert(t.Context(), one, "", job.Limits{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.AppendOutput(t.Context(), j.ID, job.Stdout, 0, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.SealOutput(t.Context(), j.ID, job.StreamEnd{Stream: job.Stdout, Total: 5}, job.StreamEnd{Stream: job.Stderr}); err != nil {
		t.Fatal(err)
	}
	update(t, s, j.ID, func(j *job.Job) ([]job.Event, error) {
		j.Artifacts = []job.Artifact{{Path: "a", Size: 3 << 20}, {Path: "b", Size: 7}}
		j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at}
		j.Status, j.CompletedAt = job.Failed, at
		return nil, nil
	})
	counted := func() []int64 {
		t.Helper()
		all, err := query(t.Context(), s.read, func(row scanner) (n int64, err error) {
			err = row.Scan(&n)
			return n, err
		}, `SELECT stored FROM jobs ORDER BY id`)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := counted()
	if want[0] < 3<<20+12 {
		t.Errorf("stored: %v", want)
	}
	file := "migrations/sqlite/00008_stored.sql"
	if pgtest.Chosen() {
		file = strings.Replace(file, "sqlite", "postgres", 1)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, updates, _ := strings.Cut(string(text), "-- The contents of files")
	_, updates, _ = strings.Cut(updates, "\n")
	err = s.transaction(t.Context(), func(tx *tx) error {
		if _, err := tx.ExecContext(t.Context(), `UPDATE jobs SET stored = 0`); err != nil {
			return err
		}
		for part := range strings.SplitSeq(updates, ";") {
			if strings.TrimSpace(part) == "" {
				continue
			}
			if _, err := tx.ExecContext(t.Context(), part); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	diff(t, want, counted())
}
