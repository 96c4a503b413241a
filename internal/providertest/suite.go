// Package providertest is a test suite of what every job.Provider must do, and an in-memory
// Provider and Guest that pass it. It is for tests only.
package providertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// Config is what the suite needs to know about a provider.
type Config struct {
	// New returns the provider under test, on the same host every time.
	New func(t *testing.T) job.Provider
	// Spec returns a VM that can be created, with a unique name and job. See NewSpec.
	Spec func() job.VMSpec
	// Foreign adds a foreign VM. It returns the VM's ID and name, and a check that the VM is
	// unchanged. Nil: not supported.
	Foreign func(t *testing.T) (id int, name string, untouched func(t *testing.T))
	// NoStorage returns a provider set up with a storage that the host does not have. Nil: the
	// provider has no such setting.
	NoStorage func(t *testing.T) job.Provider
	// Slow skips tests that only repeat a boot, if a boot takes minutes.
	Slow bool
	// Memoryless says that a revert to a snapshot with memory boots the VM.
	Memoryless bool
}

// NewSpec returns a small VM of this owner from a template, with a unique name and job.
func NewSpec(owner, template string) job.VMSpec {
	id := uuid.Must(uuid.NewV7()).String()
	return job.VMSpec{
		Name: "linus-job-" + id[len(id)-12:], Job: id, Owner: owner,
		CPU: 1, MemoryMB: 512, DiskGB: 5, Template: template,
	}
}

// Run runs the suite. If a VM it created is left afterwards, the test fails.
func Run(t *testing.T, c Config) {
	t.Helper()
	tests := []struct {
		name string
		slow bool // skipped if boots are slow
		run  func(*testing.T, Config)
	}{
		{"Check", false, check},
		{"Life", false, life},
		{"Power", true, power},
		{"Suspend", true, suspend},
		{"Fork", true, fork},
		{"Plan", false, plan},
		{"UnknownTemplate", false, unknownTemplate},
		{"UnknownStorage", false, unknownStorage},
		{"DestroyOfAForeignVM", false, foreign},
		{"CancelAtReservation", false, func(t *testing.T, c Config) {
			cancelled(t, c, func(p job.Progress) bool { return p.VMID != 0 })
		}},
		{"CancelWhileBooting", false, func(t *testing.T, c Config) {
			cancelled(t, c, func(p job.Progress) bool { return p.Step == "wait_for_network" })
		}},
		{"CancelBeforeTheStart", false, cancelledBefore},
		{"SeveralAtOnce", true, severalAtOnce},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.slow && c.Slow {
				t.Skip("boots are slow here")
			}
			tt.run(t, c)
		})
	}
}

func check(t *testing.T, c Config) {
	p := c.New(t)
	r, err := p.Check(t.Context())
	if err != nil || !r.OK || r.Host == "" || r.Node == "" || len(r.Checks) == 0 {
		t.Errorf("report = %+v, %v", r, err)
	}
	for _, found := range r.Checks {
		if found.Name == "" || found.Text == "" || !slices.Contains([]string{"ok", "warn", "fail"}, found.Level) || (found.Level == "ok") != (found.Remedy == "") {
			t.Errorf("check = %+v", found)
		}
	}
	if host, err := p.CallbackHost(t.Context()); err != nil || host == "" {
		t.Errorf("callback host = %q, %v", host, err)
	}
}

// life takes one VM from creation to destruction, past everything that must not destroy it.
func life(t *testing.T, c Config) {
	p, spec := c.New(t), c.Spec()
	var steps []job.Progress
	v, err := p.Create(t.Context(), spec, func(s job.Progress) { steps = append(steps, s) })
	destroyAtEnd(t, p, v)
	if err != nil {
		t.Fatal(err)
	}
	if v.ID == 0 || v.Name != spec.Name || v.Job != spec.Job || v.Owner != spec.Owner ||
		v.Node == "" || v.IP == "" || v.User == "" || v.HostKey == "" || v.State != vm.Created {
		t.Errorf("vm = %+v", v)
	}
	last := 0
	for _, s := range steps {
		if s.Step != "" && (s.N < 1 || s.N > s.Of || s.N < last || s.Text == "") {
			t.Errorf("step = %+v after %d", s, last)
		}
		last = max(last, s.N)
	}
	reserved := slices.IndexFunc(steps, func(s job.Progress) bool { return s.VMID == v.ID })
	if reserved < 0 || reserved == len(steps)-1 {
		t.Errorf("progress did not tell ID %d before the end: %+v", v.ID, steps)
	}

	isListed := func(t *testing.T) {
		t.Helper()
		want := vm.VM{ID: v.ID, Name: v.Name, Node: v.Node, Job: v.Job, Owner: v.Owner, State: vm.Created, Status: vm.Running}
		if got := listed(t, p, spec.Job); len(got) != 1 || !cmp.Equal(got[0], want) {
			t.Errorf("listed = %+v, want %+v", got, want)
		}
	}
	t.Run("is listed with its marker", isListed)
	t.Run("runs", func(t *testing.T) { wantStatus(t, p, v, vm.Running) })
	t.Run("a second VM of its name is refused", func(t *testing.T) {
		again := c.Spec()
		again.Name = spec.Name
		_, err := p.Create(t.Context(), again, func(job.Progress) {})
		wantClass(t, err, job.HostExists)
		if left := listed(t, p, again.Job); len(left) != 0 {
			t.Errorf("left behind: %+v", left)
		}
		isListed(t)
	})
	for what, claim := range falseClaims(v) {
		t.Run("destroy with the wrong "+what+" is refused", func(t *testing.T) {
			wantClass(t, p.Destroy(t.Context(), claim), job.HostLeftAlone)
			wantStatus(t, p, claim, vm.Unproven)
			isListed(t)
		})
	}
	t.Run("another that had its ID is gone", func(t *testing.T) {
		another := v
		another.Job, another.Name = uuid.NewString(), "another-name"
		wantClass(t, p.Destroy(t.Context(), another), job.HostForeign)
		wantStatus(t, p, another, vm.Gone)
		isListed(t)
	})
	t.Run("is destroyed", func(t *testing.T) {
		if err := p.Destroy(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if left := listed(t, p, spec.Job); len(left) != 0 {
			t.Errorf("left behind: %+v", left)
		}
		wantStatus(t, p, v, vm.Gone)
	})
	t.Run("is destroyed again without complaint", func(t *testing.T) {
		if err := p.Destroy(t.Context(), v); err != nil {
			t.Error(err)
		}
	})
}

// falseClaims returns VMs that resemble v without being it.
func falseClaims(v vm.VM) map[string]vm.VM {
	anotherJob, anotherOwner, anotherName := v, v, v
	anotherJob.Job, anotherOwner.Owner, anotherName.Name = uuid.NewString(), uuid.NewString(), "another-name"
	return map[string]vm.VM{"job": anotherJob, "owner": anotherOwner, "name": anotherName}
}

func plan(t *testing.T, c Config) {
	p, spec := c.New(t), c.Spec()
	commands, err := p.Plan(t.Context(), spec)
	if err != nil || len(commands) == 0 || slices.Contains(commands, "") {
		t.Errorf("plan = %q, %v", commands, err)
	}
	if left := listed(t, p, spec.Job); len(left) != 0 {
		t.Errorf("a plan made %+v", left)
	}
	spec.Template = "no-such-template"
	_, err = p.Plan(t.Context(), spec)
	wantClass(t, err, job.HostConfig)
}

func unknownTemplate(t *testing.T, c Config) {
	p, spec := c.New(t), c.Spec()
	spec.Template = "no-such-template"
	vm, err := p.Create(t.Context(), spec, func(job.Progress) {})
	destroyAtEnd(t, p, vm)
	wantClass(t, err, job.HostConfig)
	if left := listed(t, p, spec.Job); len(left) != 0 || vm.ID != 0 {
		t.Errorf("left behind: %+v, %+v", vm, left)
	}
}

func unknownStorage(t *testing.T, c Config) {
	if c.NoStorage == nil {
		t.Skip("the provider has no storage to be set")
	}
	p, spec := c.NoStorage(t), c.Spec()
	vm, err := p.Create(t.Context(), spec, func(job.Progress) {})
	destroyAtEnd(t, p, vm)
	wantClass(t, err, job.HostConfig)
	if left := listed(t, c.New(t), spec.Job); len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
	report, err := p.Check(t.Context())
	if err != nil || report.OK {
		t.Errorf("check = %+v, %v", report, err)
	}
}

func foreign(t *testing.T, c Config) {
	if c.Foreign == nil {
		t.Skip("no foreign VM can be planted")
	}
	p, spec := c.New(t), c.Spec()
	id, name, untouched := c.Foreign(t)
	named := vm.VM{ID: id, Name: name, Job: spec.Job, Owner: spec.Owner}
	wantClass(t, p.Destroy(t.Context(), named), job.HostLeftAlone)
	wantStatus(t, p, named, vm.Unproven)
	gone := vm.VM{ID: id, Name: spec.Name, Job: spec.Job, Owner: spec.Owner}
	wantClass(t, p.Destroy(t.Context(), gone), job.HostForeign)
	wantStatus(t, p, gone, vm.Gone)
	untouched(t)
	vms, err := p.List(t.Context())
	if err != nil || slices.ContainsFunc(vms, func(v vm.VM) bool { return v.ID == id }) {
		t.Errorf("list = %+v, %v", vms, err)
	}
}

// cancelled cancels a create at the step at. A create that ends before the host learns of that has
// made a normal VM: the test tries again.
func cancelled(t *testing.T, c Config, at func(job.Progress) bool) {
	for range 10 {
		if cancelledInTime(t, c, at) {
			return
		}
	}
	t.Error("ten creates came to their end, though they were cancelled")
}

func cancelledInTime(t *testing.T, c Config, at func(job.Progress) bool) bool {
	p, spec := c.New(t), c.Spec()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	vm, err := p.Create(ctx, spec, func(s job.Progress) {
		if at(s) {
			cancel()
		}
	})
	destroyAtEnd(t, p, vm)
	if ctx.Err() == nil {
		t.Fatalf("create ended before it came so far: %v", err)
	}
	if err == nil {
		return false
	}
	wantClass(t, err, job.HostCancelled)
	if left := listed(t, p, spec.Job); len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
	return true
}

func cancelledBefore(t *testing.T, c Config) {
	p, spec := c.New(t), c.Spec()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if vm, err := p.Create(ctx, spec, func(job.Progress) {}); err == nil {
		destroyAtEnd(t, p, vm)
		t.Error("a VM was made for nobody")
	}
	if left := listed(t, p, spec.Job); len(left) != 0 {
		t.Errorf("left behind: %+v", left)
	}
}

func severalAtOnce(t *testing.T, c Config) {
	const count = 5
	p := c.New(t)
	var running sync.WaitGroup
	vms, errs := make([]vm.VM, count), make([]error, count)
	for i := range count {
		spec := c.Spec()
		running.Go(func() { vms[i], errs[i] = p.Create(t.Context(), spec, func(job.Progress) {}) })
	}
	running.Wait()
	ids, ips := map[int]bool{}, map[string]bool{}
	for i, v := range vms {
		destroyAtEnd(t, p, v)
		if errs[i] != nil {
			t.Error(errs[i])
			continue
		}
		ids[v.ID], ips[v.IP] = true, true
	}
	if !t.Failed() && (len(ids) != count || len(ips) != count) {
		t.Errorf("%d IDs and %d addresses for %d VMs: %+v", len(ids), len(ips), count, vms)
	}
}

// listed returns the listed VMs of one job.
func listed(t *testing.T, p job.Provider, jobID string) []vm.VM {
	t.Helper()
	vms, err := p.List(t.Context())
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	return slices.DeleteFunc(vms, func(v vm.VM) bool { return v.Job != jobID })
}

func wantStatus(t *testing.T, p job.Provider, v vm.VM, want vm.Status) {
	t.Helper()
	if got, err := p.Status(t.Context(), v); err != nil || got != want {
		t.Errorf("status of VM %d = %q, %v, want %q", v.ID, got, err, want)
	}
}

func wantClass(t *testing.T, err error, class job.HostClass) {
	t.Helper()
	var host *job.HostError
	if !errors.As(err, &host) || host.Class != class {
		t.Errorf("err = %v, want class %s", describe(err), class)
		return
	}
	if host.Op == "" || host.Host == "" || host.Text == "" {
		t.Errorf("the error does not say what was tried, where, or what went wrong: %+v", host)
	}
}

func describe(err error) string {
	if host, ok := errors.AsType[*job.HostError](err); ok {
		return fmt.Sprintf("%v (class %s)", err, host.Class)
	}
	return fmt.Sprint(err)
}

// destroyAtEnd removes what a failed test left on the host.
func destroyAtEnd(t *testing.T, p job.Provider, v vm.VM) {
	if v.ID == 0 {
		return
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		if err := p.Destroy(ctx, v); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
}
