package fleet_test

import (
	"fmt"
	"testing"
	"time"

	"linus/internal/vm"
)

// outside runs functions outside of the bubbles of tests, in which no time passes while one waits
// for a mutex.
func outside(t *testing.T) (answers func(f func()) bool) {
	t.Helper()
	calls, answered := make(chan func()), make(chan bool)
	go func() {
		for f := range calls {
			done := make(chan struct{})
			go func() { defer close(done); f() }()
			select {
			case <-done:
				answered <- true
			case <-time.After(10 * time.Second):
				answered <- false
			}
		}
	}()
	t.Cleanup(func() { close(calls) })
	return func(f func()) bool {
		calls <- f
		return <-answered
	}
}

// Whether the fleet has work is answered at once, whatever it waits for.
func TestTend_AnswersWhetherItWorksWhileItWaitsForOthers(t *testing.T) {
	answers := outside(t)
	faulty(t, func(r *rig, s *steps) {
		ask := func(of string) {
			if !t.Failed() && !answers(func() { r.Busy(); r.Working() }) {
				t.Errorf("it does not say whether it works while it waits for %s", of)
			}
		}
		s.before("UpdateVM", 0, func() error { ask("the store"); return nil })
		r.start()
		for n := range 8 {
			r.ask(fmt.Sprintf("dev%d", n), func(v *vm.VM) {
				if n == 7 {
					v.Lifecycle, v.Checkpoint = vm.Checkpointed, &vm.Checkpoint{Asked: true}
				}
			})
		}
		r.pass(time.Minute)
	})
}

// What is recorded while it looks may not be in what it has read: it counts until the next look.
func TestTend_IsBusyWithWhatItWasToldOfWhileItLooked(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		looks := 0
		s.after("VMs", 1, func() error { r.DestroySoon(); return nil })
		s.before("VMs", 2, func() error {
			if looks++; !r.Busy() {
				t.Error("not busy, though it was told of more")
			}
			return nil
		})
		r.DestroySoon()
		r.pass(time.Second)
		if looks != 1 || r.Busy() {
			t.Errorf("%d looks, busy: %v", looks, r.Busy())
		}
	})
}

// What was settled since the rows were read is not tried again: each attempt is audited.
func TestTend_DestroysNothingThatWasSettledMeanwhile(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		v := r.persistent("dev")
		r.change(v.Job, func(v *vm.VM) { v.Unwanted = true })
		s.after("VMs", 1, func() error {
			r.change(v.Job, func(v *vm.VM) { v.State, v.Reason = vm.LeftAlone, "its tag is missing" })
			return nil
		})
		before := r.host.Stats().Destroys
		r.DestroySoon()
		r.pass(time.Second)
		if n := r.host.Stats().Destroys - before; n != 0 || r.vm(v.Job).State != vm.LeftAlone {
			t.Errorf("%d destroys, the VM is %s", n, r.vm(v.Job).State)
		}
	})
}
