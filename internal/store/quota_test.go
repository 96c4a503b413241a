package store

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// of returns a new job of a principal.
func of(t *testing.T, principal string, change ...func(*job.Job)) job.Job {
	t.Helper()
	id, err := uuid.NewV7()
	if err != nil {
		t.Fatal(err)
	}
	j := newJob("x")
	j.ID, j.Principal, j.CreatedAt, j.Manifest.Resources = id.String(), principal, time.Now().UTC(), vm.Resources{Memory: "1G", Disk: "10G"}
	for _, c := range change {
		c(&j)
	}
	return j
}

// Who waits for room waits for none that there never is.
func TestInsert_MoreThanThereEverIsIsNotWaitedFor(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	for most, fault := range map[int]job.Fault{1023: "", 1500: job.FaultLimit} {
		for n := range 2 {
			_, _, err := s.Insert(t.Context(), of(t, fmt.Sprint("ci", most)), "", job.Limits{MemoryMB: most})
			if field, is := errors.AsType[*job.FieldError](err); (fault == "" || n > 0) && (!is || field.Fault != fault) {
				t.Errorf("%d MiB: %v", most, err)
			}
		}
	}
}

func TestInsert_CountsWhatThePrincipalHas(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	add := func(j job.Job, l job.Limits) error {
		_, _, err := s.Insert(t.Context(), j, "", l)
		return err
	}
	end := func(id string) {
		t.Helper()
		update(t, s, id, func(j *job.Job) ([]job.Event, error) {
			if j.VM != nil {
				j.VM.State = vm.Destroyed
			}
			j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at}
			j.Status, j.CompletedAt = job.Failed, at
			return nil, nil
		})
	}
	for says, l := range map[string]job.Limits{
		"limit jobs of this token is 1 unfinished jobs; 1 are in use":               {Jobs: 1},
		"limit jobs_per_hour of this token is 1 jobs and VMs within an hour; 1 are": {PerHour: 1},
		"limit vms of this token is 1 VMs; 1 are in use":                            {VMs: 1},
		"memory_mb of this token is 2000 MiB of memory of VMs; 1024 are in use":     {MemoryMB: 2000},
		"disk_mb of this token is 20000 MiB of disk; 10240 are in use (VMs 10240)":  {DiskMB: 20000},
	} {
		name := fmt.Sprintf("p%d", len(says))
		first := of(t, name)
		if err := add(first, l); err != nil {
			t.Fatal(says, err)
		}
		var field *job.FieldError
		if err := add(of(t, name), l); !errors.As(err, &field) || !strings.Contains(err.Error(), says) || field.Remedy == "" {
			t.Errorf("%v; want %s", err, says)
		} else if is := field.Limit; l.PerHour > 0 && (is.Window != time.Hour || is.Room < time.Minute || is.Room > time.Hour) || l.PerHour == 0 && is.Room != 0 {
			t.Errorf("%s: %+v", says, is)
		}
		if err := add(of(t, name+"x"), l); err != nil {
			t.Errorf("another principal: %v", err)
		}
		if err := add(of(t, ""), l); err != nil {
			t.Errorf("the operator: %v", err)
		}
		for _, state := range []vm.State{vm.Intended, vm.Created, vm.LeftAlone} { // its result is there, its VM not gone yet
			update(t, s, first.ID, func(j *job.Job) ([]job.Event, error) {
				j.VM = &vm.VM{Job: j.ID, State: state}
				j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at}
				j.Status, j.CompletedAt = job.Failed, at
				return nil, nil
			})
			next := of(t, name)
			if err := add(next, l); (err == nil) != (l.Jobs > 0) {
				t.Errorf("%s, after the first has ended, with its VM %s: %v", says, state, err)
			} else if err == nil {
				end(next.ID)
			}
		}
		end(first.ID)
		if err := add(of(t, name), l); (err == nil) == (l.PerHour > 0) {
			t.Errorf("%s, after the first's VM is gone: %v", says, err)
		}
		kept := of(t, name+"k", func(j *job.Job) { j.Manifest.Lifecycle = vm.Persistent })
		if err := add(kept, l); err != nil {
			t.Fatal(err)
		}
		update(t, s, kept.ID, func(j *job.Job) ([]job.Event, error) {
			j.VM = &vm.VM{Job: j.ID, State: vm.Created}
			j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at}
			j.Status, j.CompletedAt = job.Failed, at
			return nil, nil
		})
		next := of(t, name+"k")
		if err := add(next, l); (err == nil) != (l.Jobs > 0) {
			t.Errorf("%s, after a job that keeps its VM: %v", says, err)
		} else if err == nil {
			end(next.ID)
		}
		for _, state := range []vm.State{vm.LeftAlone, vm.Forgotten} {
			update(t, s, kept.ID, func(j *job.Job) ([]job.Event, error) {
				j.VM.State = state
				return nil, nil
			})
		}
		if err := add(of(t, name+"k"), l); (err == nil) != (l.PerHour == 0) {
			t.Errorf("%s, after a VM is forgotten: %v", says, err)
		}
	}
	shares := of(t, "sharer", func(j *job.Job) { j.Manifest.VM = "dev" })
	for range 2 {
		shares.ID = uuid.Must(uuid.NewV7()).String()
		if err := add(shares, job.Limits{VMs: 1, MemoryMB: 1}); err != nil {
			t.Errorf("a job without a VM of its own: %v", err)
		}
	}
}

// A VM that was to be destroyed and could not be takes what it took before, until it is
// gone or forgotten: also of what the settings allow each client.
func TestOfClient_HasVMsThatAreLeftAlone(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	for _, principal := range []string{"alice", ""} {
		j := of(t, principal, func(j *job.Job) { j.Client, j.VM = "cli", &vm.VM{Job: j.ID, State: vm.Intended} })
		if _, _, err := s.Insert(t.Context(), j, "", job.Limits{}); err != nil {
			t.Fatal(err)
		}
		for _, state := range []vm.State{vm.LeftAlone, vm.Forgotten} {
			update(t, s, j.ID, func(j *job.Job) ([]job.Event, error) {
				j.VM = &vm.VM{Job: j.ID, State: state}
				j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at}
				j.Status, j.CompletedAt = job.Failed, at
				return nil, nil
			})
			if has, err := s.OfClient(t.Context(), principal, "cli"); err != nil || (len(has) == 1) != (state == vm.LeftAlone) {
				t.Errorf("%q, whose VM is %s: %d jobs, %v", principal, state, len(has), err)
			}
		}
	}
}

// What the engine stores of a principal's jobs counts until they are removed: the contents
// of files until the job is done, and its output and artifacts after that.
func TestInsert_CountsWhatIsStored(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	withFile := func(mb int) job.Job {
		return of(t, "alice", func(j *job.Job) {
			j.Manifest.Files = []job.File{{Path: "/f", Content: strings.Repeat("A", mb<<20)}}
		})
	}
	within := job.Limits{StoredMB: 10}
	first := withFile(7)
	refused := func(j job.Job, says string) {
		t.Helper()
		var field *job.FieldError
		if _, _, err := s.Insert(t.Context(), j, "", within); !errors.As(err, &field) || !strings.Contains(err.Error(), says) || field.Remedy == "" {
			t.Errorf("%v; want %s", err, says)
		}
	}
	if _, _, err := s.Insert(t.Context(), first, "", within); err != nil {
		t.Fatal(err)
	}
	refused(withFile(4), "limit stored_mb of this token is 10 MiB stored of its jobs; 8 are in use, and this job asks for 5")
	if _, err := s.SealOutput(t.Context(), first.ID, job.StreamEnd{Stream: job.Stdout}, job.StreamEnd{Stream: job.Stderr}); err != nil {
		t.Fatal(err)
	}
	update(t, s, first.ID, func(j *job.Job) ([]job.Event, error) {
		j.Artifacts = []job.Artifact{{Path: "a", Size: 3 << 20}}
		j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at}
		j.Status, j.CompletedAt = job.Failed, at
		return nil, nil
	})
	var dropped *job.FieldError
	if _, err := s.Manifest(t.Context(), first.ID); !errors.As(err, &dropped) || !strings.Contains(err.Error(), "the contents of the job's files were removed when it was done") {
		t.Errorf("manifest of a job that is done: %v", err)
	}
	if _, _, err := s.Insert(t.Context(), withFile(4), "", within); err != nil {
		t.Errorf("after the first is done: %v", err)
	}
	refused(withFile(3), "8 are in use, and this job asks for 4")
	if _, err := s.Forget(t.Context(), time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Insert(t.Context(), withFile(3), "", within); err != nil {
		t.Errorf("after the first was removed: %v", err)
	}
}

func TestInsert_TwoAtOnceDoNotBothPass(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	var passed atomic.Int64
	var all sync.WaitGroup
	for range 20 {
		j := of(t, "alice")
		all.Go(func() {
			if _, _, err := s.Insert(t.Context(), j, "", job.Limits{Jobs: 3, VMs: 5}); err == nil {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n != 3 {
		t.Errorf("%d jobs passed a limit of 3", n)
	}
}

func TestInsert_AKeyReturnsItsJobBeyondTheLimit(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	j := of(t, "alice")
	for range 2 {
		got, _, err := s.Insert(t.Context(), j, "k", job.Limits{Jobs: 1})
		if err != nil || got.ID != j.ID {
			t.Errorf("%s, %v", got.ID, err)
		}
	}
}
