package executor_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// keyed is a provider that keeps what it was asked for.
type keyed struct {
	job.Provider
	dir string // of the keys

	mu   sync.Mutex
	keys map[string][]string // by job: the public key of each create whose private one was on disk
}

func (p *keyed) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	if _, err := os.Stat(filepath.Join(p.dir, spec.Job)); err == nil {
		p.mu.Lock()
		p.keys[spec.Job] = append(p.keys[spec.Job], spec.PublicKey)
		p.mu.Unlock()
	}
	return p.Provider.Create(ctx, spec, progress)
}

func (p *keyed) of(id string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.keys[id])
}

// left waits until the keys that are kept are those of the jobs.
func (p *keyed) left(t *testing.T, jobs ...string) {
	t.Helper()
	var names []string
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		names = nil
		entries, _ := os.ReadDir(p.dir)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		if slices.Equal(names, slices.Sorted(slices.Values(jobs))) {
			return
		}
	}
	t.Fatalf("keys kept: %v, want %v", names, jobs)
}

func withKeys(t *testing.T) (*rig, *keyed) {
	r := newRig(t, 2)
	r.stop()
	p := &keyed{Provider: r.fake, dir: filepath.Join(t.TempDir(), "keys"), keys: map[string][]string{}}
	r.opts.Provider, r.vms.Keys = p, guest.Keys{Dir: p.dir}
	r.restart()
	return r, p
}

// Each VM has a login key of its own, on disk before the VM can be, and gone with
// it; an engine that takes a create up goes on with the same.
func TestKeys_ComeAndGoWithTheirVM(t *testing.T) {
	r, p := withKeys(t)
	kept := r.makeVM("kept")
	id := r.submit()
	r.wait(id)
	p.left(t, kept.ID)
	first, second := p.of(kept.ID), p.of(id)
	if len(first) != 1 || len(second) != 1 || first[0] == "" || first[0] == second[0] {
		t.Errorf("keys: %q, %q", first, second)
	}

	made := make(chan struct{})
	r.behave(providertest.Behaviour{Hold: made}, true)
	cut := r.submit()
	r.until(cut, func(j job.Job) bool { return j.VM != nil })
	r.stop()
	close(made)
	p.left(t, kept.ID, cut)
	r.restart()
	r.wait(cut)
	if keys := p.of(cut); len(keys) < 1 || len(slices.Compact(keys)) != 1 {
		t.Errorf("keys of a job two engines worked on: %q", keys)
	}
	p.left(t, kept.ID)

	if _, err := r.DestroyVM(context.Background(), "kept"); err != nil {
		t.Fatal(err)
	}
	r.gone()
	p.left(t)
}

// A job that ended before it had a VM leaves no key, nor does one that failed.
func TestKeys_OfJobsThatHadNoVM(t *testing.T) {
	r, p := withKeys(t)
	r.behave(providertest.Behaviour{FailStep: "create_vm"}, true)
	if j := r.wait(r.submit()); j.Outcome.Reason != job.ReasonProvisionFailed {
		t.Errorf("job %+v", j.Outcome)
	}
	p.left(t)
	if err := os.WriteFile(filepath.Join(p.dir, "019e0000-0000-7000-8000-000000000000"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.restart() // a sweep comes first
	p.left(t)
}

// looking counts the looks at all keys.
type looking struct {
	fleet.Keys
	looks *atomic.Int64
}

func (l looking) Keep(keep func(string) bool) error {
	l.looks.Add(1)
	return l.Keys.Keep(keep)
}

// With a thousand VMs, looking at all keys at each job's end would be a million looks.
func TestKeys_AJobsEndDropsItsOwn(t *testing.T) {
	r, p := withKeys(t)
	r.stop()
	var looks atomic.Int64
	r.vms.Keys = looking{r.vms.Keys, &looks}
	r.restart()
	before := time.Now()
	for looks.Load() == 0 { // the sweep's at the start
		if time.Since(before) > time.Minute {
			t.Fatal("keys are never looked at")
		}
		time.Sleep(time.Millisecond)
	}
	r.wait(r.submit())
	p.left(t)
	if n := looks.Load(); n != 1 {
		t.Errorf("%d looks at all keys, want that of the start", n)
	}
}
