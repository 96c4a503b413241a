package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// leftAlone makes a kept VM, takes its marker and has it destroyed.
func leftAlone(t *testing.T, sweep time.Duration) (*rig, job.Job) {
	t.Helper()
	r := newRig(t, 1)
	r.stop()
	r.opts.SweepInterval = sweep
	r.restart()
	maker := r.makeVM("dev")
	r.fake.Doubt(maker.VM.ID, true)
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	return r, r.until(maker.ID, func(j job.Job) bool { return j.VM.State == vm.LeftAlone })
}

// often is a sweep's interval.
const often = 10 * time.Millisecond

// swept waits for a whole sweep.
func (r *rig) swept() {
	r.t.Helper()
	began := r.fake.Stats().Lists
	for deadline := time.Now().Add(time.Minute); r.fake.Stats().Lists < began+2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatal("no sweep")
		}
	}
}

// warnings are what the job's events warn of.
func (r *rig) warnings(id, word string) []string {
	r.t.Helper()
	return r.texts(id, job.EventWarning, word)
}

// texts returns those of a job's events of a kind that have a word in them.
func (r *rig) texts(id, kind, word string) []string {
	r.t.Helper()
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	var texts []string
	for _, event := range events {
		if event.Kind == kind && strings.Contains(event.Text, word) {
			texts = append(texts, event.Text)
		}
	}
	return texts
}

// A VM whose marker was taken is on the host: its job ends all the same, and the
// VM is told of, with the reason and what to do.
func TestDestroy_LeavesAVMAloneThatIsNotProven(t *testing.T) {
	r := newRig(t, 1)
	release := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: release})}, true)
	id := r.submit()
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.fake.Doubt(j.VM.ID, true)
	close(release)
	j = r.wait(id)
	if j.Status != job.Success || j.VM.State != vm.LeftAlone || !strings.Contains(j.VM.Reason, "not proven") ||
		!strings.Contains(j.VM.Remedy, string(job.ForgetVM)+" "+j.VM.Name) {
		t.Errorf("job %s, VM %+v", j.Status, j.VM)
	}
	if !r.fake.Has(j.VM.ID) {
		t.Error("the VM is gone")
	}
	if told := r.warnings(id, "is left alone"); len(told) != 1 {
		t.Errorf("warnings: %q", told)
	}
	vms, err := r.VMs(context.Background())
	if err != nil || len(vms) != 1 || vms[0].Status != vm.Unproven || vms[0].Reason != j.VM.Reason || vms[0].Remedy != j.VM.Remedy {
		t.Errorf("VMs = %+v, %v", vms, err)
	}
	if n, err := r.store.Forget(context.Background(), time.Now().Add(time.Hour)); err != nil || n != 0 {
		t.Errorf("%d jobs forgotten, %v", n, err)
	}
}

func TestLeftAlone_IsDestroyedOnceItIsProven(t *testing.T) {
	r, maker := leftAlone(t, often)
	before := r.fake.Stats().Destroys
	// Looked at again and again, it is not tried as long as the host would refuse.
	for range 3 {
		r.swept()
	}
	if after := r.fake.Stats().Destroys; after != before {
		t.Errorf("%d destroys were tried in vain", after-before)
	}
	r.fake.Doubt(maker.VM.ID, false)
	j := r.until(maker.ID, func(j job.Job) bool { return j.VM.State == vm.Destroyed })
	if r.fake.Has(maker.VM.ID) || j.VM.Reason != "" || j.VM.Remedy != "" {
		t.Errorf("VM %+v", j.VM)
	}
}

func TestLeftAlone_IsDestroyedOnceItIsSeenGone(t *testing.T) {
	for _, tt := range []struct {
		name string
		then func(*rig, int)
	}{
		{"no VM has its ID", func(r *rig, id int) { r.fake.Vanish(id) }},
		{"another VM has its ID", func(r *rig, id int) { r.fake.Vanish(id); r.fake.PlantAt(id, "database") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, maker := leftAlone(t, often)
			tt.then(r, maker.VM.ID)
			r.until(maker.ID, func(j job.Job) bool { return j.VM.State == vm.Destroyed })
		})
	}
}

func TestDestroyVM_OfOneThatIsLeftAlone(t *testing.T) {
	r, maker := leftAlone(t, time.Hour)
	_, err := r.DestroyVM(context.Background(), "dev")
	var host *job.HostError
	if !errors.As(err, &host) || host.Class != job.HostLeftAlone || !strings.Contains(host.Remedy, string(job.ForgetVM)+" dev") {
		t.Errorf("destroy answered %v", err)
	}
	if _, err := r.StartVM(context.Background(), "dev"); err == nil {
		t.Error("it can be started")
	} else {
		refusal(t, err, "is left alone")
	}
	r.fake.Doubt(maker.VM.ID, false)
	info, err := r.DestroyVM(context.Background(), "dev")
	if err != nil || info.Status != vm.Gone || r.fake.Has(maker.VM.ID) {
		t.Errorf("destroyed: %+v, %v", info, err)
	}
}

func TestForgetVM_LetsGoOfWhatIsLeftAlone(t *testing.T) {
	r, maker := leftAlone(t, often)
	if _, err := r.ForgetVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	j, err := r.Job(context.Background(), maker.ID)
	if err != nil || j.VM.State != vm.Forgotten || !r.fake.Has(maker.VM.ID) || !slices.Contains(r.fake.Stats().Forgotten, "dev") {
		t.Errorf("VM %+v, %v", j.VM, err)
	}
	if vms, err := r.VMs(context.Background()); err != nil || len(vms) != 0 {
		t.Errorf("VMs = %+v, %v", vms, err)
	}
	// It is the operator's now, whatever it carries.
	before := r.fake.Stats().Destroys
	r.fake.Doubt(maker.VM.ID, false)
	for range 2 {
		r.swept()
	}
	if r.fake.Stats().Destroys != before || !r.fake.Has(maker.VM.ID) {
		t.Error("a forgotten VM was destroyed")
	}
	r.fake.Vanish(maker.VM.ID)
	if _, err := r.store.Forget(context.Background(), time.Now().Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if _, err := r.store.VM(context.Background(), maker.ID); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("its row stays: %v", err)
	}
}

// lookedAt is a host whose answer on how a VM is can be held.
type lookedAt struct {
	*providertest.Fake
	look func()
}

func (p *lookedAt) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	p.look()
	return p.Fake.Status(ctx, v)
}

// A search under way has read that the VM is left alone before it was let go of,
// and sees its proof whole again afterwards.
func TestForgetVM_WhileItIsLookedAt(t *testing.T) {
	r, maker := leftAlone(t, often)
	r.stop()
	looks, held := make(chan struct{}), make(chan struct{})
	var looked atomic.Bool
	r.opts.Provider = &lookedAt{Fake: r.fake, look: func() {
		if looked.CompareAndSwap(false, true) {
			close(looks)
			<-held
		}
	}}
	r.restart()
	<-looks
	if _, err := r.ForgetVM(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	before := r.fake.Stats().Destroys
	r.fake.Doubt(maker.VM.ID, false)
	close(held)
	for range 2 {
		r.swept()
	}
	if r.fake.Stats().Destroys != before || !r.fake.Has(maker.VM.ID) {
		t.Error("a forgotten VM was destroyed")
	}
}

func TestForgetVM_OnlyWhatIsLeftAlone(t *testing.T) {
	r := newRig(t, 1)
	maker := r.makeVM("dev")
	_, err := r.ForgetVM(context.Background(), "dev")
	refusal(t, err, "is not left alone")
	_, err = r.ForgetVM(context.Background(), "nope")
	refusal(t, err, "is not a VM of ours")
	if j, err := r.Job(context.Background(), maker.ID); err != nil || j.VM.State != vm.Created {
		t.Errorf("VM %+v, %v", j.VM, err)
	}
}

// A kept VM whose marker was taken is not in the host's list, and is not gone.
func TestVMs_OneWithoutItsMarkerIsNotGone(t *testing.T) {
	r := newRig(t, 1)
	maker := r.makeVM("dev")
	r.fake.Doubt(maker.VM.ID, true)
	if info := r.vm("dev"); info.Status != vm.Unproven || info.Reason == "" || info.Remedy == "" {
		t.Errorf("VM %+v", info)
	}
	if vms, err := r.VMs(context.Background()); err != nil || len(vms) != 1 || vms[0].Status != vm.Unproven {
		t.Errorf("VMs = %+v, %v", vms, err)
	}
	r.fake.Vanish(maker.VM.ID)
	if info := r.vm("dev"); info.Status != vm.Gone {
		t.Errorf("VM %+v", info)
	}
}

// A VM that has the ID of one that was destroyed is not of this installation's doing:
// somebody has restored it from a backup, with all that proves it.
func TestSweep_LeavesAloneWhatWasRestored(t *testing.T) {
	r := newRig(t, 1)
	done := r.wait(r.submit())
	r.stop()
	r.fake.Return(*done.VM)
	r.opts.SweepInterval = often
	r.restart()
	r.swept()
	r.swept()
	if !r.fake.Has(done.VM.ID) {
		t.Error("the restored VM was destroyed")
	}
	if told := r.warnings(done.ID, "found"); len(told) > 0 {
		t.Errorf("warnings: %q", told)
	}
}

// A VM that carries the job's marker under another name is a copy that somebody has made
// and named: it is not destroyed in place of the job's, whose ID another VM has by now.
func TestDestroy_LeavesAloneANamedCopy(t *testing.T) {
	r := newRig(t, 1, hasty)
	release := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: release})}, true)
	id := r.submit()
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	kept := *j.VM
	kept.ID, kept.Name = 900, "kept"
	r.fake.Return(kept)
	r.fake.Vanish(j.VM.ID)
	r.fake.PlantAt(j.VM.ID, "another")
	close(release)
	j = r.until(id, func(j job.Job) bool { return j.VM.State.Settled() || j.VM.State == vm.LeftAlone })
	if !r.fake.Has(900) || j.VM.State != vm.LeftAlone || j.VM.ID != 900 {
		t.Errorf("VM %+v, on the host: %v", j.VM, r.fake.VMs())
	}
}

// A job whose VM is destroyed under its ID searches for no other: that is the sweep's.
func TestDestroy_OfAKnownIDTouchesNoOther(t *testing.T) {
	r := newRig(t, 1)
	release := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: release})}, true)
	id := r.submit()
	other := *r.until(id, func(j job.Job) bool { return j.Status == job.Running }).VM
	other.ID = 900
	r.fake.Return(other)
	close(release)
	if r.wait(id); !r.fake.Has(900) {
		t.Error("the other VM was destroyed")
	}
}

// A VM without its tag, come back after its job's end, is listed again.
func TestSweep_WhatCameBackUnprovenIsLeftAlone(t *testing.T) {
	r := newRig(t, 1)
	refused := &job.HostError{Op: "destroy", Host: "pve", Class: job.HostLeftAlone, Text: "it does not carry the tag 'linus'", Remedy: "look"}
	done := r.wait(r.submit())
	r.stop()
	r.fake.Set(providertest.Behaviour{Destroys: []error{refused}, Statuses: slices.Repeat([]error{errUnreachable}, 100_000)})
	back := *done.VM
	back.ID = 900
	r.fake.Return(back)
	r.opts.SweepInterval = often
	r.restart()
	j := r.until(done.ID, func(j job.Job) bool { return j.VM.State == vm.LeftAlone })
	if j.VM.ID != 900 || j.VM.Reason != refused.Text {
		t.Errorf("VM %+v", j.VM)
	}
	r.fake.Set(providertest.Behaviour{})
	r.until(done.ID, func(j job.Job) bool { return j.VM.State == vm.Destroyed && !r.fake.Has(900) })
}
