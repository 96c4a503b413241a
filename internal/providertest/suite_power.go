package providertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

// power does to a VM what an owner does to a persistent one.
func power(t *testing.T, c Config) {
	p, ctx := c.New(t), t.Context()
	vm, err := p.Create(ctx, c.Spec(), func(job.Progress) {})
	destroyAtEnd(t, p, vm)
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	tell := func(s job.Progress) { steps = append(steps, s.Step) }
	// up checks the result of a call that boots a VM, and empties steps.
	up := func(what string, got job.VM, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want := vm
		want.IP = got.IP // may change with a boot
		if !cmp.Equal(got, want) || got.IP == "" {
			t.Errorf("%s: %s", what, cmp.Diff(want, got))
		}
		if len(steps) == 0 {
			t.Errorf("%s: no step was told", what)
		}
		vm, steps = got, nil
		wantStatus(t, p, vm, job.VMRunning)
	}
	first := bootOf(t, p, vm)

	for range 2 {
		if err := p.StopVM(ctx, vm); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, p, vm, job.VMStopped)
	}
	if seen, err := p.Look(ctx, vm); err != nil || seen != (job.Seen{Status: job.VMStopped}) {
		t.Errorf("looked into a stopped VM: %+v, %v", seen, err)
	}
	if got := listed(t, p, vm.Job); len(got) != 1 || got[0].Status != job.VMStopped {
		t.Errorf("a stopped VM is listed as %+v", got)
	}
	if err := p.SnapshotVM(ctx, vm, "clean", false); err != nil {
		t.Fatal(err)
	}
	wantClass(t, p.SnapshotVM(ctx, vm, "clean", false), job.HostVM)
	for range 2 {
		got, err := p.StartVM(ctx, vm, tell)
		up("start", got, err)
	}
	if second := bootOf(t, p, vm); second == first || second != bootOf(t, p, vm) {
		t.Errorf("boot %s, after a restart %s", first, second)
	}
	got, err := p.RevertVM(ctx, vm, "clean", tell)
	up("revert", got, err)
	_, err = p.RevertVM(ctx, vm, "never-taken", tell)
	wantClass(t, err, job.HostVM)
	wantStatus(t, p, vm, job.VMRunning)

	for what, claim := range falseClaims(vm) {
		t.Run("nothing is done with the wrong "+what, func(t *testing.T) {
			_, startErr := p.StartVM(t.Context(), claim, tell)
			_, revertErr := p.RevertVM(t.Context(), claim, "clean", tell)
			for _, err := range []error{startErr, revertErr, p.StopVM(t.Context(), claim), p.SnapshotVM(t.Context(), claim, "mine", false)} {
				wantClass(t, err, job.HostVM)
			}
			wantStatus(t, p, vm, job.VMRunning)
		})
	}
	if _, err := p.RevertVM(ctx, vm, "mine", tell); err == nil {
		t.Error("a snapshot was taken of a VM that was not proven")
	}
	if err := p.Destroy(ctx, vm); err != nil {
		t.Errorf("destroy of a VM with a snapshot: %v", err)
	}
	wantClass(t, p.StopVM(ctx, vm), job.HostVM)
}

// suspend turns a VM off with its memory kept, and on again.
func suspend(t *testing.T, c Config) {
	p, ctx := c.New(t), t.Context()
	vm, err := p.Create(ctx, c.Spec(), func(job.Progress) {})
	destroyAtEnd(t, p, vm)
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	tell := func(s job.Progress) { steps = append(steps, s.Step) }
	// back checks the result of a call after which the VM runs on, in the same boot.
	before := bootOf(t, p, vm)
	back := func(what string, got job.VM, err error, same bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want := vm
		want.IP = got.IP
		if !cmp.Equal(got, want) || got.IP == "" {
			t.Errorf("%s: %s", what, cmp.Diff(want, got))
		}
		if len(steps) == 0 {
			t.Errorf("%s: no step was told", what)
		}
		vm, steps = got, nil
		if now := bootOf(t, p, vm); (now == before) != same {
			t.Errorf("%s: boot %s, before %s", what, now, before)
		}
	}

	got, err := p.ResumeVM(ctx, vm, tell)
	back("resume of a VM that runs", got, err, true)
	for range 2 {
		if err := p.SuspendVM(ctx, vm); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, p, vm, job.VMSuspended)
	}
	if got := listed(t, p, vm.Job); len(got) != 1 || got[0].Status != job.VMSuspended {
		t.Errorf("a suspended VM is listed as %+v", got)
	}
	if seen, err := p.Look(ctx, vm); err != nil || seen != (job.Seen{Status: job.VMSuspended}) {
		t.Errorf("looked into a suspended VM: %+v, %v", seen, err)
	}
	for what, claim := range falseClaims(vm) {
		_, err := p.ResumeVM(ctx, claim, tell)
		wantClass(t, err, job.HostVM)
		wantClass(t, p.SuspendVM(ctx, claim), job.HostVM)
		if wantStatus(t, p, vm, job.VMSuspended); t.Failed() {
			t.Errorf("with the wrong %s", what)
		}
	}
	_, err = p.RevertVM(ctx, vm, "live", tell)
	for _, err := range []error{err, p.StopVM(ctx, vm), p.SnapshotVM(ctx, vm, "off", true)} {
		wantClass(t, err, job.HostVM)
	}
	wantStatus(t, p, vm, job.VMSuspended)
	steps = nil
	got, err = p.ResumeVM(ctx, vm, tell)
	back("resume", got, err, true)

	if err := p.SnapshotVM(ctx, vm, "live", true); err != nil {
		t.Fatal(err)
	}
	if err := p.SuspendVM(ctx, vm); err != nil {
		t.Fatal(err)
	}
	got, err = p.StartVM(ctx, vm, tell)
	back("start of a suspended VM", got, err, true)
	if err := p.StopVM(ctx, vm); err != nil {
		t.Fatal(err)
	}
	_, err = p.ResumeVM(ctx, vm, tell)
	for _, err := range []error{err, p.SuspendVM(ctx, vm), p.SnapshotVM(ctx, vm, "off", true)} {
		wantClass(t, err, job.HostVM)
	}
	wantStatus(t, p, vm, job.VMStopped)
	steps = nil
	got, err = p.RevertVM(ctx, vm, "live", tell)
	back("revert to a snapshot with memory", got, err, !c.Memoryless)

	if err := p.SuspendVM(ctx, vm); err != nil {
		t.Fatal(err)
	}
	if err := p.Destroy(ctx, vm); err != nil {
		t.Errorf("destroy of a suspended VM: %v", err)
	}
	wantStatus(t, p, vm, job.VMGone)
	wantClass(t, p.SuspendVM(ctx, vm), job.HostVM)
}

// bootOf checks what the guest of a running VM reports, and returns its boot ID.
func bootOf(t *testing.T, p job.Provider, vm job.VM) string {
	t.Helper()
	seen, err := p.Look(t.Context(), vm)
	if err != nil || seen.Status != job.VMRunning || seen.IP != vm.IP || seen.BootID == "" {
		t.Errorf("looked into VM %d at %s: %+v, %v", vm.ID, vm.IP, seen, err)
	}
	return seen.BootID
}
