package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// napping has a VM made that is suspended when it was idle for 10 minutes.
func (r *rig) napping(name string) string {
	id := r.ask(name, func(v *vm.VM) { v.IdleSuspend = 600 })
	r.pass(time.Minute)
	return id
}

// sleeps checks whether a VM is suspended, on the host and by its row.
func (r *rig) sleeps(id string, want bool) {
	r.t.Helper()
	v := r.vm(id)
	status, err := r.host.Fake.Status(context.Background(), v)
	if got := status == vm.Suspended; err != nil || got != want || v.SuspendedAt.IsZero() == want {
		r.t.Errorf("%s, %v, suspended at %v; want it suspended: %v", status, err, v.SuspendedAt, want)
	}
}

// look is a use of a VM.
func (r *rig) look(name string) error {
	_, err := r.ListFiles(context.Background(), job.FileList{VM: name, Path: "/"})
	return err
}

func TestIdleSuspend_SuspendsAndTheNextUseResumes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id, other := r.napping("dev"), r.ask("other")
		r.pass(8 * time.Minute)
		if err := r.look("dev"); err != nil {
			t.Fatal(err)
		}
		r.pass(9 * time.Minute)
		r.sleeps(id, false)
		r.pass(90 * time.Second)
		r.sleeps(id, true)
		r.sleeps(other, false)
		info, err := r.VM(context.Background(), "dev")
		if err != nil || info.Status != vm.Suspended || info.SuspendedAt.IsZero() || info.IdleSuspend != 600 || r.Busy() {
			t.Errorf("%+v, %v; busy: %v", info, err, r.Busy())
		}
		r.stop()
		r.start() // another engine
		r.pass(time.Hour)
		r.sleeps(id, true)
		var heard []string
		listening := job.WithListener(context.Background(), func(p job.Progress) { heard = append(heard, p.Line()) })
		for range 2 {
			if _, err := r.ListFiles(listening, job.FileList{VM: "dev", Path: "/"}); err != nil {
				t.Fatal(err)
			}
		}
		if len(heard) != 1 || !strings.HasPrefix(heard[0], "resuming VM dev (") {
			t.Errorf("heard %q", heard)
		}
		r.sleeps(id, false)
		if len(r.told(id, "is suspended: not used for 10m0s")) != 1 || len(r.told(id, "is resumed: it is used again")) != 1 {
			t.Errorf("told %q", r.told(id, ""))
		}
		r.pass(11 * time.Minute)
		r.sleeps(id, true)
	})
}

func TestIdleSuspend_NotWhileItIsUsed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		tunnel, err := r.DialVM(context.Background(), "dev", 80)
		if err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		r.sleeps(id, false)
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
		r.host.Set(providertest.Behaviour{LoggedIn: true}) // around the engine
		r.pass(time.Hour)
		r.sleeps(id, false)
		r.host.Set(providertest.Behaviour{})
		r.pass(9 * time.Minute)
		r.sleeps(id, false)
		r.pass(12 * time.Minute)
		r.sleeps(id, true)
	})
}

// Uses begin at every instant around that of the suspension: each finds the VM running, and the
// VM is not suspended before it was idle for its time after that.
func TestIdleSuspend_UsesThatBeginMeanwhile(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.set(func(h *hypervisor) { h.suspends = 5 * time.Second })
		r.start()
		id := r.napping("dev")
		for range 3 {
			for r.vm(id).SuspendedAt.IsZero() {
				r.pass(time.Second)
			}
			used := make(chan error, 20)
			for i := range cap(used) {
				go func() {
					time.Sleep(time.Duration(i) * 500 * time.Millisecond)
					dial := func() (job.Tunnel, error) { return r.DialVM(context.Background(), "dev", 80) }
					if i%2 == 1 {
						dial = func() (job.Tunnel, error) { return r.LoginVM(context.Background(), "dev", "a key") }
					}
					tunnel, err := dial()
					if err == nil {
						r.sleeps(id, false)
						time.Sleep(3 * time.Second)
						r.sleeps(id, false)
						err = tunnel.Close()
					}
					used <- err
				}()
			}
			for range cap(used) {
				if err := <-used; err != nil {
					t.Error(err)
				}
			}
			r.pass(9 * time.Minute)
			r.sleeps(id, false)
		}
	})
}

// The use is recorded by another engine between this one's look at the VM and its decision.
func TestIdleSuspend_AnotherEngineUsesIt(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		looks := 0
		r.host.set(func(h *hypervisor) {
			h.inUse = func() {
				looks++
				r.change(id, func(v *vm.VM) { v.UsedAt = time.Now().UTC() })
			}
		})
		r.pass(35 * time.Minute)
		r.sleeps(id, false)
		if looks != 3 {
			t.Errorf("%d attempts", looks)
		}
	})
}

// The engine ends between the row and the host's suspension, or before that has ended.
func TestIdleSuspend_EngineEndsMeanwhile(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id, used := r.napping("dev"), r.napping("used")
		r.stop()
		at := time.Now().UTC()
		for _, of := range []string{id, used} {
			r.change(of, func(v *vm.VM) { v.SuspendedAt = at })
		}
		r.start()
		if err := r.look("used"); err != nil { // it runs
			t.Error(err)
		}
		r.sleeps(used, false)
		r.pass(2 * time.Minute)
		r.sleeps(id, true)
		r.stop()
		r.change(id, func(v *vm.VM) { v.SuspendedAt = at.Add(time.Second) }) // and after it
		r.start()
		r.pass(2 * time.Minute)
		r.sleeps(id, true)
	})
}

// One that is not proven to be ours as the next engine looks is resumed by its next use, once it is.
func TestIdleSuspend_NotProvenMeanwhile(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		r.pass(11 * time.Minute)
		r.sleeps(id, true)
		r.stop()
		r.host.Doubt(r.vm(id).ID, true)
		r.start()
		r.pass(5 * time.Minute)
		r.host.Doubt(r.vm(id).ID, false)
		if err := r.look("dev"); err != nil {
			t.Error(err)
		}
		r.sleeps(id, false)
	})
}

func TestIdleSuspend_ThatFailsIsToldAndTriedLater(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		fails := make([]error, 5)
		for i := range fails {
			fails[i] = hostError(job.HostVM, "no space left on device")
		}
		r.host.set(func(h *hypervisor) { h.noSuspend = fails })
		r.pass(9*time.Minute + 50*time.Second)
		r.sleeps(id, false)
		if told := r.told(id, "not suspended, will be tried again: "); len(told) != 1 || !strings.Contains(told[0], "no space left") {
			t.Errorf("told %q", told)
		}
		r.pass(10 * time.Minute)
		if told := r.told(id, "will be tried again"); len(told) < 3 || len(told) > 4 {
			t.Errorf("tried %d times in 10 minutes", len(told))
		}
		r.pass(time.Hour)
		r.sleeps(id, true)
	})
}

// A suspension that the host has come to the end of, though it is said to have failed, is one.
func TestIdleSuspend_ThatOnlySeemsToFail(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		r.host.set(func(h *hypervisor) { h.suspended = hostError(job.HostUnreachable, "the connection is lost") })
		r.pass(11 * time.Minute)
		r.sleeps(id, true)
		if err := r.look("dev"); err != nil {
			t.Error(err)
		}
		r.sleeps(id, false)
	})
}

func TestIdleSuspend_WhatSomebodyHasAskedForStaysSo(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		ctx := context.Background()
		if _, err := r.SuspendVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		var wrong *job.FieldError
		if err := r.look("dev"); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "is suspended") {
			t.Errorf("a use: %v", err)
		}
		if v := r.vm(id); !v.SuspendedAt.IsZero() {
			t.Errorf("suspended as idle at %v", v.SuspendedAt)
		}
		if _, err := r.ResumeVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		r.pass(11 * time.Minute)
		r.sleeps(id, true)
		if _, err := r.StartVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		r.sleeps(id, false)
	})
}

func TestIdleSuspend_ExpiresAsEver(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.ask("dev", func(v *vm.VM) { v.IdleSuspend, v.Own.TTL = 600, 3600 })
		r.pass(30 * time.Minute)
		r.sleeps(id, true)
		r.pass(32 * time.Minute)
		if v := r.vm(id); v.State != vm.Destroyed {
			t.Errorf("it is %s", v.State)
		}
		synctest.Wait()
	})
}

func TestSetVM_ChangesWhenAVMIsSuspended(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.ask("dev")
		r.pass(time.Hour)
		r.sleeps(id, false)
		set := func(seconds int) {
			t.Helper()
			info, err := r.SetVM(context.Background(), "dev", job.VMChange{IdleSuspend: &seconds})
			if err != nil || info.IdleSuspend != seconds {
				t.Fatalf("%+v, %v", info, err)
			}
		}
		tunnel, err := r.DialVM(context.Background(), "dev", 80) // before it naps
		if err != nil {
			t.Fatal(err)
		}
		set(600)
		r.pass(time.Hour)
		r.sleeps(id, false)
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
		r.pass(9 * time.Minute)
		r.sleeps(id, false)
		set(1200) // begins anew
		r.pass(19 * time.Minute)
		r.sleeps(id, false)
		r.pass(2 * time.Minute)
		r.sleeps(id, true)
		if info, err := r.SetVM(context.Background(), "dev", job.VMChange{}); err != nil || info.IdleSuspend != 1200 {
			t.Errorf("without a change: %+v, %v", info, err)
		}
		set(0)
		r.sleeps(id, true)
		if err := r.look("dev"); err != nil {
			t.Fatal(err)
		}
		r.sleeps(id, false)
		r.pass(24 * time.Hour)
		r.sleeps(id, false)
		if len(r.told(id, "will be suspended whenever it is not used for 20m0s")) != 1 || len(r.told(id, "is no longer suspended when idle")) != 1 {
			t.Errorf("told %q", r.told(id, ""))
		}
	})
}

// One that was suspended as it was idle, and naps no more, is what somebody makes of it.
func TestSetVM_OffWhileItIsSuspended(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id, off := r.napping("dev"), 0
		r.pass(12 * time.Minute)
		r.sleeps(id, true)
		if _, err := r.SetVM(context.Background(), "dev", job.VMChange{IdleSuspend: &off}); err != nil {
			t.Fatal(err)
		}
		if info, err := r.ResumeVM(context.Background(), "dev"); err != nil || info.Status != vm.Running {
			t.Fatalf("%+v, %v", info, err)
		}
		r.sleeps(id, false)
	})
}

// One that somebody resumes on the host runs by the next look at that, and naps again when it was idle
// for its time since; one whose engine has not come to suspend it yet is not taken for that.
func TestIdleSuspend_ResumedOnTheHost(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id, off := r.napping("dev"), 0
		look := func() {
			r.Sweep(context.Background())
			synctest.Wait()
		}
		resume := func() {
			t.Helper()
			if _, err := r.host.ResumeVM(context.Background(), r.vm(id), func(job.Progress) {}); err != nil {
				t.Fatal(err)
			}
			r.host.set(func(h *hypervisor) { h.unsure = true })
			look() // the list may be older than the row
			if r.vm(id).Counts() {
				t.Error("it is taken for one that runs, which the host does not say of it")
			}
			r.host.set(func(h *hypervisor) { h.unsure = false })
			look()
			r.sleeps(id, false)
			if !r.vm(id).Counts() {
				t.Error("usage does not count it")
			}
		}
		r.pass(11 * time.Minute)
		r.host.Set(providertest.Behaviour{Statuses: []error{errors.New("asked")}})
		look()
		if _, err := r.host.Status(context.Background(), r.vm(id)); err == nil {
			t.Error("the host is asked for one that it lists as suspended")
		}
		r.sleeps(id, true)
		resume()
		r.pass(9 * time.Minute)
		r.sleeps(id, false)
		r.pass(2 * time.Minute)
		r.sleeps(id, true)
		if _, err := r.SetVM(context.Background(), "dev", job.VMChange{IdleSuspend: &off}); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		resume()
		r.change(id, func(v *vm.VM) { v.IdleSuspend, v.SuspendedAt = 600, time.Now() }) // as by an engine before
		look()
		if r.vm(id).SuspendedAt.IsZero() {
			t.Error("it is not suspended any more, and is to be")
		}
	})
}

func TestSetVM_Refusals(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.ask("dev")
		for _, c := range []struct {
			ref, want string
			seconds   int
		}{
			{"none", "is not a VM of ours", 600},
			{"dev", "59 is out of range; give seconds from 60 to 31536000, or 0 for never", 59},
			{"dev", "-1 is out of range", -1},
			{"dev", "31536001 is out of range", 31536001},
		} {
			if _, err := r.SetVM(context.Background(), c.ref, job.VMChange{IdleSuspend: &c.seconds}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s %d: %v", c.ref, c.seconds, err)
			}
		}
	})
}

// An engine that leads later than others knows nothing of their VMs that would hold it up.
func TestIdleSuspend_ByTheEngineThatLeadsLater(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		follows := func(is bool) { r.engine.set(func(e *engine) { e.follows = is }) }
		follows(true)
		r.pass(time.Hour)
		r.sleeps(id, false)
		follows(false)
		r.pass(2 * time.Minute)
		r.sleeps(id, true)
		// What it could not do it tries at once when it leads again.
		if err := r.look("dev"); err != nil {
			r.t.Fatal(err)
		}
		r.host.set(func(h *hypervisor) { h.noSuspend = slices.Repeat([]error{errors.New("no space")}, 7) })
		r.until(func() bool { return len(r.told(id, "no space")) == 7 })
		follows(true)
		r.pass(time.Minute)
		if n := r.KnownNaps(); n != 0 {
			t.Errorf("%d things are known of what another engine suspends", n)
		}
		follows(false)
		r.pass(time.Minute)
		r.sleeps(id, true)
		if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
			t.Error(err)
		}
		r.pass(2 * time.Minute)
		if n := r.KnownNaps(); n != 0 {
			t.Errorf("%d things are known of a VM that is gone", n)
		}
	})
}

// Copies of a VM are a use of it, until the last one is made.
func TestIdleSuspend_NotWhileItIsForked(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.napping("dev")
		hold := make(chan struct{})
		r.host.set(func(h *hypervisor) { h.failName, h.hold = "copy", hold })
		forked := make(chan error, 1)
		go func() {
			_, err := r.fork(job.ForkSpec{Name: "copy"})
			forked <- err
		}()
		r.pass(time.Hour)
		r.sleeps(id, false)
		close(hold)
		if err := <-forked; err != nil {
			t.Error(err)
		}
		r.pass(9 * time.Minute)
		r.sleeps(id, false)
		r.pass(3 * time.Minute)
		r.sleeps(id, true)
	})
}

// A VM that was suspended as it was idle is resumed by who has it copied; one that somebody has
// suspended is not.
func TestIdleSuspend_AForkResumes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.set(func(h *hypervisor) { h.suspends = 5 * time.Second })
		r.start()
		id := r.napping("dev")
		for i, moment := range []time.Duration{0, time.Minute} { // while it is suspended, and after that
			for r.vm(id).SuspendedAt.IsZero() {
				r.pass(time.Second)
			}
			r.pass(moment)
			if _, err := r.fork(job.ForkSpec{Name: "copy-" + string(rune('a'+i))}); err != nil {
				t.Error(err)
			}
			r.sleeps(id, false)
		}
		if _, err := r.SuspendVM(context.Background(), "dev"); err != nil {
			t.Fatal(err)
		}
		if _, err := r.fork(job.ForkSpec{}); err == nil || !strings.Contains(err.Error(), "it is suspended; resume it first") {
			t.Error(err)
		}
	})
}

// What begins while it is looked who is logged in keeps the VM up, too, whoever begins it.
func TestIdleSuspend_WhatBeginsAtTheLastMoment(t *testing.T) {
	for name, begins := range map[string]func(r *rig, s *steps, p *peers, id string){
		"a fork": func(r *rig, _ *steps, _ *peers, id string) {
			r.host.set(func(h *hypervisor) { h.ends = errors.New("locked") }) // else it would end at once
			r.change(id, func(v *vm.VM) { v.Forking = vm.Forking{IDs: []string{id}, Begun: true} })
		},
		"this engine's work": func(r *rig, s *steps, _ *peers, _ string) {
			begun, goOn := make(chan struct{}), make(chan struct{})
			s.before("SaveVM", 1, func() error { close(begun); <-goOn; return nil })
			go func() {
				if _, err := r.SaveVM(context.Background(), "dev", "setup", false); err != nil {
					r.t.Error(err)
				}
			}()
			<-begun
			time.AfterFunc(30*time.Second, func() { close(goOn) })
		},
		"another engine's work": func(_ *rig, _ *steps, p *peers, id string) { p.take("vm "+id, "snapshotted") },
		"a job": func(r *rig, _ *steps, _ *peers, id string) {
			r.engine.set(func(e *engine) { e.inside = []job.Job{{ID: "j", SharedVM: id, Status: job.Running}} })
		},
		"that nobody wants it": func(r *rig, _ *steps, _ *peers, id string) { r.change(id, func(v *vm.VM) { v.Unwanted = true }) },
		"a use":                func(r *rig, _ *steps, _ *peers, id string) { r.change(id, func(v *vm.VM) { v.UsedAt = time.Now() }) },
	} {
		t.Run(name, func(t *testing.T) {
			faulty(t, func(r *rig, s *steps) {
				p := newPeers(r, s)
				r.opts.Engines = p
				var looks atomic.Int64
				s.before("SuspendVM", 0, func() error {
					if looks.Load() == 1 { // by the next look, what has begun may have ended
						t.Error("it is suspended")
					}
					return nil
				})
				r.start()
				id := r.napping("dev")
				r.host.set(func(h *hypervisor) {
					h.inUse = func() {
						if looks.Add(1) == 1 {
							begins(r, s, p, id)
						}
					}
				})
				r.until(func() bool { return looks.Load() > 0 })
				r.pass(time.Minute)
			})
		})
	}
}
