package executor_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// restarting is a host that restarts at the end of its next creates: what they made
// stays.
type restarting struct {
	*providertest.Fake
	times int
	hides int // the attempt whose VM's ID it does not tell, from 1
	tries int
	away  time.Duration // for which another node is down then

	mu   sync.Mutex
	back time.Time // when it is back
}

func (h *restarting) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	tell := progress
	if h.tries++; h.tries == h.hides {
		tell = func(p job.Progress) {
			p.VMID = 0
			progress(p)
		}
	}
	v, err := h.Fake.Create(ctx, spec, tell)
	if err != nil || h.times == 0 {
		return v, err
	}
	h.times--
	h.mu.Lock()
	h.back = time.Now().Add(h.away)
	h.mu.Unlock()
	return vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}, &job.HostError{
		Op: "create VM " + spec.Name, Host: "root@pve", Class: job.HostInterrupted, Text: "the host was restarted",
	}
}

func (h *restarting) List(ctx context.Context) ([]vm.VM, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().After(h.back) {
		return h.Fake.List(ctx)
	}
	return nil, &job.HostError{Op: "list VMs", Host: "root@pve", Class: job.HostOffline, Text: "node 'pve2' did not list its own"}
}

// A create that its host's restart interrupted is begun again, when what it has left is
// gone; but not for ever.
func TestProvision_BeginsAgainWhatARestartInterrupted(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		host     *restarting
		creates  int
		provided bool
	}{
		{"once", &restarting{times: 1}, 2, true},
		{"before its ID was known", &restarting{times: 1, hides: 1}, 2, true},
		{"while another node is away", &restarting{times: 1, hides: 1, away: 300 * time.Millisecond}, 2, true},
		{"twice", &restarting{times: 2}, 3, true},
		{"twice, the second time before its ID was known", &restarting{times: 2, hides: 2}, 3, true},
		{"always", &restarting{times: 100}, 5, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t, 1)
			test.host.Fake = r.fake
			r.stop()
			r.opts.Provider = test.host
			r.restart()
			j := r.wait(r.submit())
			switch {
			case test.provided && j.Status != job.Success:
				t.Errorf("%s, %+v", j.Status, j.Outcome)
			case !test.provided && (j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "the host was restarted")):
				t.Errorf("%s, %+v", j.Status, j.Outcome)
			}
			if s := r.fake.Stats(); s.Creates != test.creates || s.MostVMs > 1 {
				t.Errorf("%d creates, %d VMs at once", s.Creates, s.MostVMs)
			}
			r.noLeaks()
		})
	}
}

// A create that was refused before its first change has made no VM: the job's row is
// closed at once, although the host does not respond any more, and warns of nothing.
func TestProvision_RefusedBeforeTheFirstChangeLeavesNoVMToDestroy(t *testing.T) {
	for _, step := range []string{"validate_environment", "start_vm"} {
		t.Run(step, func(t *testing.T) {
			r := newRig(t, 1)
			b := providertest.Behaviour{FailStep: step}
			for range 3 {
				b.Destroys = append(b.Destroys, &job.HostError{Op: "destroy", Host: "pve", Class: job.HostAuth, Text: "no key was accepted"})
			}
			r.behave(b, false)
			j := r.wait(r.submit())
			warned := r.warnings(j.ID, "VM not destroyed")
			if made := step == "start_vm"; j.VM.State != vm.Destroyed || (len(warned) > 0) != made {
				t.Errorf("the VM is %s; warnings: %q", j.VM.State, warned)
			}
			r.noLeaks()
		})
	}
}

// taken is a host on which somebody else's VM has the name.
type taken struct {
	*providertest.Fake
	creates atomic.Int64
}

func (h *taken) Create(_ context.Context, spec job.VMSpec, _ func(job.Progress)) (vm.VM, error) {
	h.creates.Add(1)
	return vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}, exists(spec)
}

func (h *taken) Plan(_ context.Context, spec job.VMSpec) ([]string, error) { return nil, exists(spec) }

func exists(spec job.VMSpec) error {
	return &job.HostError{
		Op: "create VM " + spec.Name, Host: "root@pve", Class: job.HostExists, Text: "VM already exists: '" + spec.Name + "' is VM 150 on node 'pve'",
	}
}

// A name that somebody else's VM has stays taken, however often it is tried.
func TestProvision_ATakenNameIsTriedOnce(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	h := &taken{Fake: r.fake}
	r.opts.Provider = h
	r.restart()
	j := r.wait(r.submit())
	if n := h.creates.Load(); n != 1 || j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "VM already exists") {
		t.Errorf("%d creates, %+v", n, j.Outcome)
	}
}

// Whose VM that is, and where, is for the operator and admins.
func TestProvision_ATakenNameSaysNothingOfTheOtherVM(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.opts.Provider = &taken{Fake: r.fake}
	r.restart()
	e := executor.Guarded(r.Executor)
	s := job.Submission{Manifest: job.Manifest{VMName: "dev"}}
	ada, admin := as(t, "ada", job.RoleRun), as(t, "root", job.RoleAdmin)
	v, err := e.CreateVM(ada, s)
	if err != nil {
		t.Fatal(err)
	}
	const says = `VM already exists: the name "dev" is taken; choose another`
	if got := r.wait(v.Job).Outcome.Error; !strings.Contains(got, says) || strings.Contains(got, "150") || strings.Contains(got, "pve") {
		t.Errorf("create: %s", got)
	}
	_, err = e.Plan(ada, s)
	refusal(t, err, says)
	if err == nil || strings.Contains(err.Error(), "150") {
		t.Errorf("plan: %v", err)
	}
	if _, err := e.Plan(admin, s); err == nil || !strings.Contains(err.Error(), "is VM 150 on node 'pve'") {
		t.Errorf("an admin's plan: %v", err)
	}
}
