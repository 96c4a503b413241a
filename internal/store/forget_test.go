package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/vm"
)

func TestForget_RemovesOldEndedJobsWithTheirFiles(t *testing.T) {
	ctx := context.Background()
	s, err := open(t, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // the test is over
	old := time.Now().Add(-48 * time.Hour)
	add := func(id string, ended time.Time, state vm.State, lifecycle vm.Lifecycle) {
		t.Helper()
		m := job.Manifest{Task: "x", AgentType: job.AgentScript, Lifecycle: lifecycle}
		j := job.Job{ID: id, Manifest: m, Status: job.Pending, CreatedAt: old}
		if state != "" {
			j.VM = &vm.VM{Name: "vm", Job: id, State: vm.Intended}
		}
		if _, _, err := s.Insert(ctx, j, "key-"+id, job.Limits{}); err != nil {
			t.Fatal(err)
		}
		if ended.IsZero() {
			return
		}
		_, err := s.Update(ctx, id, func(j *job.Job) (job.Record, error) {
			j.VM.State = state
			j.Decide(job.Outcome{Status: job.Failed, Reason: job.ReasonInternal, At: ended})
			return job.Record{Events: []job.Event{{Kind: job.EventDecided}}}, j.Finish(ended)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	const (
		gone    = "019aa000-0000-7000-8000-000000000001"
		recent  = "019aa000-0000-7000-8000-000000000002"
		pending = "019aa000-0000-7000-8000-000000000003"
		leaked  = "019aa000-0000-7000-8000-000000000004"
		kept    = "019aa000-0000-7000-8000-000000000005"
		left    = "019aa000-0000-7000-8000-000000000006"
		unsure  = "019aa000-0000-7000-8000-000000000007" // ended, and its VM not yet looked for
	)
	add(gone, old, vm.Destroyed, vm.Ephemeral)
	add(recent, time.Now(), vm.Destroyed, vm.Ephemeral)
	add(pending, time.Time{}, "", vm.Ephemeral)
	add(leaked, old, vm.Created, vm.Ephemeral)
	add(kept, old, vm.Created, vm.Persistent)
	add(left, old, vm.LeftAlone, vm.Ephemeral)
	add(unsure, old, vm.Intended, vm.Ephemeral)
	orphan := s.jobDir("019aa000-0000-7000-8000-000000000009")
	if err := errors.Join(os.Mkdir(orphan, 0o700), os.Chtimes(orphan, old, old)); err != nil && !pgtest.Chosen() {
		t.Fatal(err)
	}
	n, err := s.Forget(ctx, time.Now().Add(-24*time.Hour))
	if n != 1 || err != nil {
		t.Errorf("Forget = %d, %v; want 1", n, err)
	}
	if _, err := s.Job(ctx, gone); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the old job: %v", err)
	}
	for _, id := range []string{pending, leaked, kept, left, unsure} { // by its ID, neither
		if gone, err := s.ForgetJob(ctx, id); gone || err != nil {
			t.Errorf("ForgetJob of %s = %v, %v", id, gone, err)
		}
		if _, err := s.Job(ctx, id); err != nil {
			t.Errorf("job %s: %v", id, err)
		}
	}
	const named = "019aa000-0000-7000-8000-000000000008"
	add(named, time.Now(), vm.Destroyed, vm.Ephemeral)
	if gone, err := s.ForgetJob(ctx, named); !gone || err != nil {
		t.Errorf("ForgetJob = %v, %v", gone, err)
	}
	_, jobErr := s.Job(ctx, named)
	_, vmErr := s.VM(ctx, named)
	if !errors.Is(jobErr, job.ErrNotFound) || !errors.Is(vmErr, job.ErrNotFound) {
		t.Errorf("the job that was named: %v, its VM: %v", jobErr, vmErr)
	}
	for _, dir := range []string{s.jobDir(gone), s.jobDir(named), orphan} {
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is still there", dir)
		}
	}
	for _, id := range []string{recent, pending, leaked, kept, left, unsure} {
		if _, err := s.Manifest(ctx, id); err != nil {
			t.Errorf("job %s: %v", id, err)
		}
	}
}

// A pool's VM that is gone goes, but not one that is left alone: an operator is to decide on it.
func TestForget_KeepsAPoolsVMThatIsLeftAlone(t *testing.T) {
	s := newStore(t)
	for state, want := range map[vm.State]error{vm.Destroyed: job.ErrNotFound, vm.LeftAlone: nil} {
		v := member(t, s, "p", vm.MemberWarm)
		_, err := s.UpdateVM(t.Context(), v.Job, func(v *vm.VM) ([]job.Event, error) {
			v.Member.State, v.State = vm.MemberDoomed, state
			return nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = s.Forget(t.Context(), time.Now().Add(time.Hour)); err != nil {
			t.Error(err)
		}
		if _, err := s.VM(t.Context(), v.Job); !errors.Is(err, want) {
			t.Errorf("%s: %v", state, err)
		}
	}
}

// Insert creates a job's directory before its row, and a restored database is
// younger than its files: only what no row has claimed for an hour is removed.
func TestForget_LeavesAYoungDirectoryWithoutAJob(t *testing.T) {
	sqliteOnly(t)
	ctx := context.Background()
	s, err := open(t, Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // the test is over
	for name, tt := range map[string]struct {
		age  time.Duration
		gone bool
	}{
		"019aa000-0000-7000-8000-000000000001": {0, false},
		"019aa000-0000-7000-8000-000000000002": {59 * time.Minute, false},
		"019aa000-0000-7000-8000-000000000003": {61 * time.Minute, true},
		"somebody-elses":                       {61 * time.Minute, false},
	} {
		dir, made := s.jobDir(name), time.Now().Add(-tt.age)
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chtimes(dir, made, made)); err != nil {
			t.Fatal(err)
		}
		if err := s.files.(*directories).removeOrphans(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) != tt.gone {
			t.Errorf("%s, %s old: %v, want it gone: %t", name, tt.age, err, tt.gone)
		}
	}
}

// A search reads the names of all jobs: it is not repeated whenever an engine starts.
func TestForget_SearchesForOrphansOnceADay(t *testing.T) {
	sqliteOnly(t)
	t.Parallel()
	ctx, dir := context.Background(), t.TempDir()
	orphan := func(s *Store) string {
		name, old := s.jobDir(idOf(time.Now())), time.Now().Add(-2*orphanAge)
		if err := errors.Join(os.Mkdir(name, 0o700), os.Chtimes(name, old, old)); err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, step := range []struct {
		name     string
		searched time.Duration // ago; 0: as it is
		want     bool          // that it is removed
	}{
		{"never searched", 0, true},
		{"an engine later", 0, false},
		{"nearly a day ago", orphansEvery - time.Hour, false},
		{"a day ago", orphansEvery, true},
		{"in the future, before the clock was set", -time.Hour, true},
	} {
		s, err := open(t, Options{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if step.searched != 0 {
			err := s.transaction(ctx, func(tx *tx) error {
				return setMeta(ctx, tx, orphansSearched, timeText(time.Now().Add(-step.searched)))
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		left := orphan(s)
		if _, err := s.Forget(ctx, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(left); errors.Is(err, os.ErrNotExist) != step.want {
			t.Errorf("%s: %v, want it removed: %t", step.name, err, step.want)
		}
		if err := errors.Join(os.RemoveAll(left), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestForget_ManyAtOnce(t *testing.T) {
	s := openCounted(t, t.TempDir())
	const many = 2*forgottenAtOnce + 1
	jobsOf(t, s, 1, many)
	old := time.Now().Add(-48 * time.Hour)
	for n := range many {
		dir := s.jobDir(fmt.Sprintf("019aa000-0000-7000-8000-%012d", n))
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chtimes(dir, old, old)); err != nil {
			t.Fatal(err)
		}
	}
	young := s.jobDir("019aa000-0000-7000-9000-000000000001")
	if err := os.Mkdir(young, 0o700); err != nil {
		t.Fatal(err)
	}
	got := during(func() {
		if n, err := s.Forget(context.Background(), time.Now()); n != many || err != nil {
			t.Errorf("forgot %d of %d, %v", n, many, err)
		}
	})
	if got.commits != 3+1 { // and that orphans were searched for
		t.Errorf("%d commits", got.commits)
	}
	entries, err := os.ReadDir(s.jobDir(""))
	if err != nil || len(entries) != 1 || entries[0].Name() != filepath.Base(young) {
		t.Errorf("directories %v, %v; want one", entries, err)
	}
	if page := list(t, s, job.Filter{}); len(page.Jobs) != 1 {
		t.Errorf("%d jobs are left", len(page.Jobs))
	}
}
