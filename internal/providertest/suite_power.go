package providertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// power does to a VM what an owner does to a persistent one.
func power(t *testing.T, c Config) {
	p, ctx := c.New(t), t.Context()
	v, err := p.Create(ctx, c.Spec(), func(job.Progress) {})
	destroyAtEnd(t, p, v)
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	tell := func(s job.Progress) { steps = append(steps, s.Step) }
	// up checks the result of a call that boots a VM, and empties steps.
	up := func(what string, got vm.VM, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want := v
		want.IP = got.IP // may change with a boot
		if !cmp.Equal(got, want) || got.IP == "" {
			t.Errorf("%s: %s", what, cmp.Diff(want, got))
		}
		if len(steps) == 0 {
			t.Errorf("%s: no step was told", what)
		}
		v, steps = got, nil
		wantStatus(t, p, v, vm.Running)
	}
	first := bootOf(t, p, v)

	for range 2 {
		if err := p.StopVM(ctx, v); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, p, v, vm.Stopped)
	}
	if seen, err := p.Look(ctx, v); err != nil || seen != (job.Seen{Status: vm.Stopped}) {
		t.Errorf("looked into a stopped VM: %+v, %v", seen, err)
	}
	if got := listed(t, p, v.Job); len(got) != 1 || got[0].Status != vm.Stopped {
		t.Errorf("a stopped VM is listed as %+v", got)
	}
	if err := p.SnapshotVM(ctx, v, "clean", false); err != nil {
		t.Fatal(err)
	}
	wantClass(t, p.SnapshotVM(ctx, v, "clean", false), job.HostVM)
	for range 2 {
		got, err := p.StartVM(ctx, v, tell)
		up("start", got, err)
	}
	if second := bootOf(t, p, v); second == first || second != bootOf(t, p, v) {
		t.Errorf("boot %s, after a restart %s", first, second)
	}
	got, err := p.RevertVM(ctx, v, "clean", tell)
	up("revert", got, err)
	_, err = p.RevertVM(ctx, v, "never-taken", tell)
	wantClass(t, err, job.HostVM)
	wantStatus(t, p, v, vm.Running)

	for what, claim := range falseClaims(v) {
		t.Run("nothing is done with the wrong "+what, func(t *testing.T) {
			_, startErr := p.StartVM(t.Context(), claim, tell)
			_, revertErr := p.RevertVM(t.Context(), claim, "clean", tell)
			for _, err := range []error{startErr, revertErr, p.StopVM(t.Context(), claim), p.SnapshotVM(t.Context(), claim, "mine", false)} {
				wantClass(t, err, job.HostVM)
			}
			wantStatus(t, p, v, vm.Running)
		})
	}
	if _, err := p.RevertVM(ctx, v, "mine", tell); err == nil {
		t.Error("a snapshot was taken of a VM that was not proven")
	}
	if err := p.Destroy(ctx, v); err != nil {
		t.Errorf("destroy of a VM with a snapshot: %v", err)
	}
	wantClass(t, p.StopVM(ctx, v), job.HostVM)
}

// suspend turns a VM off with its memory kept, and on again.
func suspend(t *testing.T, c Config) {
	p, ctx := c.New(t), t.Context()
	v, err := p.Create(ctx, c.Spec(), func(job.Progress) {})
	destroyAtEnd(t, p, v)
	if err != nil {
		t.Fatal(err)
	}
	var steps []string
	tell := func(s job.Progress) { steps = append(steps, s.Step) }
	// back checks the result of a call after which the VM runs on, in the same boot.
	before := bootOf(t, p, v)
	back := func(what string, got vm.VM, err error, same bool) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		want := v
		want.IP = got.IP
		if !cmp.Equal(got, want) || got.IP == "" {
			t.Errorf("%s: %s", what, cmp.Diff(want, got))
		}
		if len(steps) == 0 {
			t.Errorf("%s: no step was told", what)
		}
		v, steps = got, nil
		if now := bootOf(t, p, v); (now == before) != same {
			t.Errorf("%s: boot %s, before %s", what, now, before)
		}
	}

	got, err := p.ResumeVM(ctx, v, tell)
	back("resume of a VM that runs", got, err, true)
	for range 2 {
		if err := p.SuspendVM(ctx, v); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, p, v, vm.Suspended)
	}
	if got := listed(t, p, v.Job); len(got) != 1 || got[0].Status != vm.Suspended {
		t.Errorf("a suspended VM is listed as %+v", got)
	}
	if seen, err := p.Look(ctx, v); err != nil || seen != (job.Seen{Status: vm.Suspended}) {
		t.Errorf("looked into a suspended VM: %+v, %v", seen, err)
	}
	for what, claim := range falseClaims(v) {
		_, err := p.ResumeVM(ctx, claim, tell)
		wantClass(t, err, job.HostVM)
		wantClass(t, p.SuspendVM(ctx, claim), job.HostVM)
		if wantStatus(t, p, v, vm.Suspended); t.Failed() {
			t.Errorf("with the wrong %s", what)
		}
	}
	_, err = p.RevertVM(ctx, v, "live", tell)
	for _, err := range []error{err, p.StopVM(ctx, v), p.SnapshotVM(ctx, v, "off", true)} {
		wantClass(t, err, job.HostVM)
	}
	wantStatus(t, p, v, vm.Suspended)
	steps = nil
	got, err = p.ResumeVM(ctx, v, tell)
	back("resume", got, err, true)

	if err := p.SnapshotVM(ctx, v, "live", true); err != nil {
		t.Fatal(err)
	}
	if err := p.SuspendVM(ctx, v); err != nil {
		t.Fatal(err)
	}
	got, err = p.StartVM(ctx, v, tell)
	back("start of a suspended VM", got, err, true)
	if err := p.StopVM(ctx, v); err != nil {
		t.Fatal(err)
	}
	_, err = p.ResumeVM(ctx, v, tell)
	for _, err := range []error{err, p.SuspendVM(ctx, v), p.SnapshotVM(ctx, v, "off", true)} {
		wantClass(t, err, job.HostVM)
	}
	wantStatus(t, p, v, vm.Stopped)
	steps = nil
	got, err = p.RevertVM(ctx, v, "live", tell)
	back("revert to a snapshot with memory", got, err, !c.Memoryless)

	if err := p.SuspendVM(ctx, v); err != nil {
		t.Fatal(err)
	}
	if err := p.Destroy(ctx, v); err != nil {
		t.Errorf("destroy of a suspended VM: %v", err)
	}
	wantStatus(t, p, v, vm.Gone)
	wantClass(t, p.SuspendVM(ctx, v), job.HostVM)
}

// bootOf checks what the guest of a running VM reports, and returns its boot ID.
func bootOf(t *testing.T, p job.Provider, v vm.VM) string {
	t.Helper()
	seen, err := p.Look(t.Context(), v)
	if err != nil || seen.Status != vm.Running || seen.IP != v.IP || seen.BootID == "" {
		t.Errorf("looked into VM %d at %s: %+v, %v", v.ID, v.IP, seen, err)
	}
	return seen.BootID
}
