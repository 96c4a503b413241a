package fleet

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// known is a store with at most one VM and one job.
type known struct {
	Store
	JobStore
	vm          vm.VM
	job         job.Job
	noVM, noJob error
}

func (k known) VM(context.Context, string) (vm.VM, error)    { return k.vm, k.noVM }
func (k known) VMs(context.Context) ([]vm.VM, error)         { return nil, nil }
func (k known) Job(context.Context, string) (job.Job, error) { return k.job, k.noJob }

// The key of a VM goes when nobody can have use of it, and that is known.
func TestNeedsKey(t *testing.T) {
	unread := errors.New("cannot be read")
	for name, tt := range map[string]struct {
		k     known
		needs bool
	}{
		"a VM":                      {known{vm: vm.VM{State: vm.Created}, noJob: job.ErrNotFound}, true},
		"one that is to be":         {known{vm: vm.VM{State: vm.Reserved}, noJob: job.ErrNotFound}, true},
		"one that is left alone":    {known{vm: vm.VM{State: vm.LeftAlone}, noJob: job.ErrNotFound}, true},
		"a destroyed one":           {known{vm: vm.VM{State: vm.Destroyed}, noJob: job.ErrNotFound}, false},
		"a forgotten one":           {known{vm: vm.VM{State: vm.Forgotten}, noJob: job.ErrNotFound}, false},
		"a saved checkpoint":        {known{vm: vm.VM{State: vm.Created, Checkpoint: &vm.Checkpoint{SavedAt: time.Unix(1, 0)}}, noJob: job.ErrNotFound}, false},
		"one of which nothing is":   {known{noVM: job.ErrNotFound, noJob: job.ErrNotFound}, false},
		"of a job that has begun":   {known{noVM: job.ErrNotFound, job: job.Job{Status: job.Provisioning}}, true},
		"of a job that is over":     {known{noVM: job.ErrNotFound, job: job.Job{Status: job.Success}}, false},
		"of a job whose VM is gone": {known{vm: vm.VM{State: vm.Destroyed}, job: job.Job{Status: job.Running}}, true},
		"of a job that is not read": {known{noVM: job.ErrNotFound, noJob: unread}, true},
		"one that is not read":      {known{noVM: unread, noJob: job.ErrNotFound}, true},
	} {
		f := New(Options{Store: tt.k, Jobs: tt.k})
		if needs := f.needsKey(t.Context(), "id"); needs != tt.needs {
			t.Errorf("%s: %v", name, needs)
		}
	}
}

func TestTakesJobs_OnlyOfAPersistentVMThatIsThere(t *testing.T) {
	for name, change := range map[string]func(*vm.VM){
		"of a pool":  func(v *vm.VM) { v.Member = &vm.Member{} },
		"ephemeral":  func(v *vm.VM) { v.Lifecycle = vm.Ephemeral },
		"left alone": func(v *vm.VM) { v.State = vm.LeftAlone },
		"unwanted":   func(v *vm.VM) { v.Unwanted = true },
		"intended":   func(v *vm.VM) { v.State = vm.Intended },
		"destroyed":  func(v *vm.VM) { v.State = vm.Destroyed },
		"forgotten":  func(v *vm.VM) { v.State = vm.Forgotten },
		"being made": func(v *vm.VM) { v.Own = &vm.Own{} },
	} {
		v := vm.VM{Name: "dev", State: vm.Created, Made: vm.Made{Lifecycle: vm.Persistent}}
		if err := takesJobs(v, "dev"); err != nil {
			t.Fatal(err)
		}
		if change(&v); takesJobs(v, "dev") == nil {
			t.Errorf("one that is %s takes jobs", name)
		}
	}
}

// Another's job does not exist, whatever VM it has, and files are of a VM that is there.
func TestFileVM(t *testing.T) {
	is := func(change func(*known)) error {
		k := known{vm: vm.VM{Job: "id", State: vm.Created}}
		k.job = job.Job{ID: "id", Principal: "alice", Status: job.Running, VM: &k.vm}
		change(&k)
		f := New(Options{Store: k, Jobs: k})
		_, err := f.fileVM(job.WithPrincipal(t.Context(), job.Principal{Name: "alice", Role: job.RoleRun}), "id")
		return err
	}
	if err := is(func(*known) {}); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*known){
		"is not a VM of ours":         func(k *known) { k.job.Principal = "bob" },
		"not a VM of ours":            func(k *known) { k.noJob = job.ErrNotFound },
		"cannot be read":              func(k *known) { k.noJob = errors.New("cannot be read") },
		"a job that has no VM":        func(k *known) { k.job.VM = nil },
		"a job that has ended":        func(k *known) { k.job.ID, k.job.Outcome = "inside", &job.Outcome{} },
		"that no job has":             func(k *known) { k.vm.Member = &vm.Member{Pool: "p", State: vm.MemberWarm} },
		"is left alone":               func(k *known) { k.vm.State = vm.LeftAlone },
		"is not ready yet":            func(k *known) { k.vm.State = vm.Intended },
		"is gone":                     func(k *known) { k.vm.State = vm.Destroyed },
		"is being destroyed":          func(k *known) { k.vm.Unwanted = true },
		"goes with job id, which has": func(k *known) { k.job.Outcome = &job.Outcome{} },
	} {
		if err := is(change); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%v; want %q", err, says)
		}
	}
}
