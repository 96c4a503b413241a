package providertest

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// powered is a VM of a test that turns it off and on.
type powered struct {
	t     *testing.T
	p     job.Provider
	v     vm.VM
	steps []string // reported by the last call that boots it
}

func newPowered(t *testing.T, c Config) *powered {
	t.Helper()
	p := c.New(t)
	v, err := p.Create(t.Context(), c.Spec(), func(job.Progress) {})
	destroyAtEnd(t, p, v)
	if err != nil {
		t.Fatal(err)
	}
	return &powered{t: t, p: p, v: v}
}

func (m *powered) tell(s job.Progress) { m.steps = append(m.steps, s.Step) }

// up is called before a call after which the VM runs. The function it returns checks that call's
// result and returns the ID of the VM's boot.
func (m *powered) up(what string) func(vm.VM, error) (boot string) {
	m.steps = nil
	return func(got vm.VM, err error) string {
		m.t.Helper()
		if err != nil {
			m.t.Fatalf("%s: %v", what, err)
		}
		want := m.v
		want.IP = got.IP // may change with a boot
		if !cmp.Equal(got, want) || got.IP == "" {
			m.t.Errorf("%s: %s", what, cmp.Diff(want, got))
		}
		if len(m.steps) == 0 {
			m.t.Errorf("%s: no step was told", what)
		}
		m.v = got
		wantStatus(m.t, m.p, m.v, vm.Running)
		return bootOf(m.t, m.p, m.v)
	}
}

// reaches changes what the VM can reach, and checks that the host reports it.
func (m *powered) reaches(mode vm.Egress) {
	m.t.Helper()
	m.done(m.p.SetNetwork(m.t.Context(), m.v, vm.Network{Egress: mode}))
	rules, _, err := m.p.NetworkRules(m.t.Context(), m.v, nil)
	if err != nil || rules.Mode != mode || (len(rules.Rules) == 0) != (mode == vm.EgressLAN) {
		m.t.Errorf("egress %s: %+v, %v", mode, rules, err)
	}
}

// done fails the test if a call that turns the VM off, or takes a snapshot, failed.
func (m *powered) done(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// refused checks the errors of calls that do nothing.
func (m *powered) refused(errs ...error) {
	m.t.Helper()
	for _, err := range errs {
		wantClass(m.t, err, job.HostVM)
	}
}

// off checks what is reported about a VM that does not run.
func (m *powered) off(status vm.Status) {
	m.t.Helper()
	wantStatus(m.t, m.p, m.v, status)
	if seen, err := m.p.Look(m.t.Context(), m.v); err != nil || seen != (job.Seen{Status: status}) {
		m.t.Errorf("looked into a %s VM: %+v, %v", status, seen, err)
	}
	if got := listed(m.t, m.p, m.v.Job); len(got) != 1 || got[0].Status != status {
		m.t.Errorf("a %s VM is listed as %+v", status, got)
	}
}

// snapshots checks which snapshots exist, and which of them the VM is based on. It does not check
// the latter after a removal, where hosts differ.
func (m *powered) snapshots(want ...string) {
	m.t.Helper()
	all, err := m.p.Snapshots(m.t.Context(), m.v)
	m.done(err)
	got := []string{}
	for _, s := range all {
		word := s.Name
		if s.Current && len(want) > 1 {
			word += " current"
		}
		got = append(got, word)
		if s.CreatedAt.IsZero() || s.Memory || s.Incomplete || s.MemoryBytes != 0 {
			m.t.Errorf("snapshot of a disk: %+v", s)
		}
	}
	if !cmp.Equal(got, want) {
		m.t.Errorf("snapshots %q, want %q", got, want)
	}
}

// power does to a VM what an owner does to a persistent one.
func power(t *testing.T, c Config) {
	m, ctx := newPowered(t, c), t.Context()
	p, first := m.p, bootOf(t, m.p, m.v)
	for range 2 {
		m.done(p.StopVM(ctx, m.v))
		m.off(vm.Stopped)
	}
	m.done(p.SnapshotVM(ctx, m.v, "clean", false))
	m.refused(p.SnapshotVM(ctx, m.v, "clean", false))
	second := m.up("start")(p.StartVM(ctx, m.v, m.tell))
	if again := m.up("start")(p.StartVM(ctx, m.v, m.tell)); second == first || second != again {
		t.Errorf("boot %s, after a restart %s, then %s", first, second, again)
	}
	m.up("revert")(p.RevertVM(ctx, m.v, "clean", m.tell))
	m.done(p.SnapshotVM(ctx, m.v, "later", false))
	m.snapshots("clean", "later current")
	_, err := p.RevertVM(ctx, m.v, "never-taken", m.tell)
	m.refused(err)
	wantStatus(t, p, m.v, vm.Running)

	m.reaches(vm.EgressNone)
	for what, claim := range falseClaims(m.v) {
		t.Run("nothing is done with the wrong "+what, func(t *testing.T) {
			_, startErr := p.StartVM(t.Context(), claim, m.tell)
			_, revertErr := p.RevertVM(t.Context(), claim, "clean", m.tell)
			for _, err := range []error{startErr, revertErr, p.StopVM(t.Context(), claim), p.SnapshotVM(t.Context(), claim, "mine", false), p.DeleteSnapshot(t.Context(), claim, "clean"), p.SetNetwork(t.Context(), claim, vm.Network{})} {
				wantClass(t, err, job.HostVM)
			}
			if all, err := p.Snapshots(t.Context(), claim); err == nil {
				t.Errorf("they have the snapshots %+v", all)
			}
			wantStatus(t, p, m.v, vm.Running)
		})
	}
	m.snapshots("clean", "later current")
	m.reaches(vm.EgressNone)
	m.reaches(vm.EgressLAN)
	m.done(p.DeleteSnapshot(ctx, m.v, "later"))
	m.refused(p.DeleteSnapshot(ctx, m.v, "later"))
	m.snapshots("clean")
	wantStatus(t, p, m.v, vm.Running)
	if _, err := p.RevertVM(ctx, m.v, "mine", m.tell); err == nil {
		t.Error("a snapshot was taken of a VM that was not proven")
	}
	if err := p.Destroy(ctx, m.v); err != nil {
		t.Errorf("destroy of a VM with a snapshot: %v", err)
	}
	m.refused(p.StopVM(ctx, m.v))
}

// suspend turns a VM off with its memory kept, and on again.
func suspend(t *testing.T, c Config) {
	m, ctx := newPowered(t, c), t.Context()
	p, first := m.p, bootOf(t, m.p, m.v)
	same := func(what, boot string, want bool) {
		t.Helper()
		if (boot == first) != want {
			t.Errorf("%s: boot %s, before %s", what, boot, first)
		}
	}
	same("resume of a VM that runs", m.up("resume of a VM that runs")(p.ResumeVM(ctx, m.v, m.tell)), true)
	for range 2 {
		m.done(p.SuspendVM(ctx, m.v))
		m.off(vm.Suspended)
	}
	for what, claim := range falseClaims(m.v) {
		_, err := p.ResumeVM(ctx, claim, m.tell)
		m.refused(err, p.SuspendVM(ctx, claim))
		if wantStatus(t, p, m.v, vm.Suspended); t.Failed() {
			t.Errorf("with the wrong %s", what)
		}
	}
	_, err := p.RevertVM(ctx, m.v, "live", m.tell)
	m.refused(err, p.StopVM(ctx, m.v), p.SnapshotVM(ctx, m.v, "off", true), p.SetNetwork(ctx, m.v, vm.Network{Egress: vm.EgressNone}))
	wantStatus(t, p, m.v, vm.Suspended)
	same("resume", m.up("resume")(p.ResumeVM(ctx, m.v, m.tell)), true)

	m.done(p.SnapshotVM(ctx, m.v, "live", true))
	if all, err := p.Snapshots(ctx, m.v); err != nil || len(all) != 1 || !all[0].Memory {
		t.Errorf("snapshots %+v, %v", all, err)
	}
	m.done(p.SuspendVM(ctx, m.v))
	m.refused(p.DeleteSnapshot(ctx, m.v, "live"))
	same("start of a suspended VM", m.up("start of a suspended VM")(p.StartVM(ctx, m.v, m.tell)), true)
	m.done(p.StopVM(ctx, m.v))
	_, err = p.ResumeVM(ctx, m.v, m.tell)
	m.refused(err, p.SuspendVM(ctx, m.v), p.SnapshotVM(ctx, m.v, "off", true))
	wantStatus(t, p, m.v, vm.Stopped)
	same("revert to a snapshot with memory", m.up("revert to a snapshot with memory")(p.RevertVM(ctx, m.v, "live", m.tell)), !c.Memoryless)

	m.done(p.SuspendVM(ctx, m.v))
	if err := p.Destroy(ctx, m.v); err != nil {
		t.Errorf("destroy of a suspended VM: %v", err)
	}
	wantStatus(t, p, m.v, vm.Gone)
	m.refused(p.SuspendVM(ctx, m.v))
}

// fork makes copies of a running VM, with its memory and without.
func fork(t *testing.T, c Config) {
	m, ctx := newPowered(t, c), t.Context()
	boot := bootOf(t, m.p, m.v)
	at, err := m.p.ForkVM(ctx, m.v, m.tell)
	if err != nil || at.Why == "" || len(m.steps) == 0 {
		t.Fatalf("%+v, %v", at, err)
	}
	for _, live := range []bool{at.Live, false} {
		spec := c.Spec()
		spec.Template, spec.CPU, spec.Fork = "", 7, job.ForkOf{VM: m.v.ID, Job: m.v.Job, Live: live}
		copied, err := m.p.Create(ctx, spec, func(job.Progress) {})
		destroyAtEnd(t, m.p, copied)
		if err != nil || copied.ID == m.v.ID || copied.HostKey == m.v.HostKey || copied.IP == m.v.IP {
			t.Fatalf("a copy %+v of %+v: %v", copied, m.v, err)
		}
		wantStatus(t, m.p, copied, vm.Running)
		spec = c.Spec()
		spec.Template, spec.Fork = "", job.ForkOf{VM: m.v.ID, Job: spec.Job, Live: live}
		if none, err := m.p.Create(ctx, spec, func(job.Progress) {}); err == nil {
			destroyAtEnd(t, m.p, none)
			t.Error("another VM than the one meant was copied")
		}
	}
	for range 2 {
		m.done(m.p.EndFork(ctx, m.v))
	}
	if got := bootOf(t, m.p, m.v); got != boot {
		t.Errorf("boot %s, before it was copied %s", got, boot)
	}
	for _, claim := range falseClaims(m.v) {
		_, err := m.p.ForkVM(ctx, claim, m.tell)
		m.refused(err, m.p.EndFork(ctx, claim))
	}
	m.done(m.p.StopVM(ctx, m.v))
	_, err = m.p.ForkVM(ctx, m.v, m.tell)
	m.refused(err)
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
