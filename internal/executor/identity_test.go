package executor_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// posing makes every VM but the one named say what change makes of the truth.
func (r *rig) posing(name string, change func(*vm.VM)) {
	r.behave(providertest.Behaviour{Reach: func(v vm.VM) vm.VM {
		if v.Name != name {
			change(&v)
		}
		return v
	}}, true)
}

// A VM whose guest says that it is reached as another is gets nothing of what is
// meant for either: not when it is made, not when it is started, not reverted.
func TestClaim_NoVMPassesForAnother(t *testing.T) {
	r := newRig(t, 2)
	ctx := context.Background()
	victim, kept := r.makeVM("victim"), r.makeVM("kept")
	if _, err := r.SnapshotVM(ctx, "kept", "clean", false); err != nil {
		t.Fatal(err)
	}
	for what, lie := range map[string]func(*vm.VM){
		"address " + victim.VM.IP: func(v *vm.VM) { v.IP = victim.VM.IP },
		"address ::ffff:":         func(v *vm.VM) { v.IP = "::ffff:" + victim.VM.IP },
		"SSH host key":            func(v *vm.VM) { v.HostKey = victim.VM.HostKey },
	} {
		r.posing("victim", lie)
		refused := func(err error) {
			t.Helper()
			var host *job.HostError
			if !errors.As(err, &host) || host.Class != job.HostVM || !strings.Contains(host.Text, "it shows the "+what) ||
				!strings.Contains(host.Text, "of VM 100 (victim)") || host.Remedy == "" {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := r.StartVM(ctx, "kept")
		refused(err)
		_, err = r.RevertVM(ctx, "kept", "clean")
		refused(err)
		if v := r.vm("kept"); v.IP != kept.VM.IP || v.HostKey != kept.VM.HostKey {
			t.Errorf("%s: the row says %s, %s", what, v.IP, v.HostKey)
		}
		j := r.wait(r.submit())
		if j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "it shows the "+what) {
			t.Errorf("%s: job %+v", what, j.Outcome)
		}
		if stats := r.fake.Stats(); stats.Pushes != 0 {
			t.Errorf("%s: %d pushes", what, stats.Pushes)
		}
	}
}

// madeTogether is a host whose VMs are ready all at the same instant.
type madeTogether struct {
	*providertest.Fake
	left sync.WaitGroup
}

func (p *madeTogether) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	v, err := p.Fake.Create(ctx, spec, progress)
	p.left.Done()
	p.left.Wait()
	return v, err
}

// Of VMs that show one host key at the same instant, one is accepted.
func TestClaim_OneAtATime(t *testing.T) {
	const n = 32
	r := newRig(t, n)
	r.stop()
	together := &madeTogether{Fake: r.fake}
	together.left.Add(n)
	r.opts.Provider = together
	r.restart()
	r.posing("", func(v *vm.VM) { v.HostKey = "ssh-ed25519 AAAAsame" })
	var ids []string
	for i := range n {
		j, err := r.createVM(t.Context(), job.Submission{Manifest: job.Manifest{VMName: "vm-" + strconv.Itoa(i)}})
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, j.ID)
	}
	made := 0
	for _, id := range ids {
		if j := r.wait(id); j.Status == job.Success {
			made++
		} else if !strings.Contains(j.Outcome.Error, "it shows the SSH host key of VM") {
			t.Errorf("job %+v", j.Outcome)
		}
	}
	if made != 1 {
		t.Errorf("%d VMs with one host key were accepted", made)
	}
}

// Networks give the address of a VM that is stopped to the next one.
func TestClaim_TheAddressOfAStoppedVMIsFree(t *testing.T) {
	r := newRig(t, 2)
	ctx := context.Background()
	old := r.makeVM("old")
	r.posing("old", func(v *vm.VM) { v.IP = old.VM.IP })
	if _, err := r.StopVM(ctx, "old"); err != nil {
		t.Fatal(err)
	}
	if next := r.makeVM("next"); next.VM.IP != old.VM.IP {
		t.Errorf("the next VM has %s", next.VM.IP)
	}
	if v := r.vm("old"); v.IP != "" {
		t.Errorf("the stopped VM has still %s", v.IP)
	}
	if v, err := r.StartVM(ctx, "old"); err != nil || v.IP == "" || v.IP == old.VM.IP {
		t.Errorf("started again: %+v, %v", v, err)
	}
}

// While the host does not say how the other VM is, nothing is taken from it.
func TestClaim_AHostThatDoesNotSayFreesNothing(t *testing.T) {
	r := newRig(t, 2)
	old := r.makeVM("old")
	r.behave(providertest.Behaviour{
		Reach:    func(v vm.VM) vm.VM { v.IP = old.VM.IP; return v },
		Statuses: []error{errUnreachable},
	}, true)
	if j := r.wait(r.submit()); j.Outcome.Reason != job.ReasonProvisionFailed {
		t.Errorf("job %+v", j.Outcome)
	}
}

// A VM whose host key nobody has vouched for runs jobs, and gets no secrets: not
// by a job of its own, nor by one in it, nor a claude job's key that nobody named.
func TestSecrets_NeverGoToAVMWithoutAPinnedKey(t *testing.T) {
	r, _ := withSecrets(t, 2, map[string]string{"KEY": planted, "ANTHROPIC_API_KEY": planted})
	r.behave(providertest.Behaviour{Reach: func(v vm.VM) vm.VM { v.HostKey = ""; return v }}, true)
	kept := r.makeVM("kept")
	if j := r.wait(r.submit()); j.Status != job.Success {
		t.Errorf("without secrets: %+v", j.Outcome)
	}
	pushes := r.fake.Stats().Pushes
	for _, with := range []func(*job.Manifest){
		func(m *job.Manifest) { m.Secrets = []string{"KEY"} },
		func(m *job.Manifest) { m.AgentType, m.Agent = job.AgentClaude, job.Agent{} },
	} {
		j := r.wait(r.submit(with))
		if j.Outcome.Reason != job.ReasonStartFailed || !strings.Contains(j.Outcome.Error, "gets none: its SSH host key was not read through the hypervisor") {
			t.Errorf("in its own VM: %+v", j.Outcome)
		}
		m := job.Manifest{Task: "x", AgentType: job.AgentScript, VM: kept.VM.Name}
		with(&m)
		_, err := r.Submit(t.Context(), job.Submission{Manifest: m})
		refusal(t, err, "gets none")
	}
	if now := r.fake.Stats().Pushes; now != pushes {
		t.Errorf("%d pushes", now-pushes)
	}
}
