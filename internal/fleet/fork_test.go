package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// source returns the ID of a VM named dev that runs.
func (r *rig) source(change ...func(*vm.VM)) string {
	r.t.Helper()
	id := r.ask("dev", change...)
	r.pass(time.Minute)
	if v := r.vm(id); v.State != vm.Created {
		r.t.Fatalf("dev is %s: %s", v.State, v.Own.Failed)
	}
	return id
}

// fork asks for copies of dev, and returns what has become of them.
func (r *rig) fork(spec job.ForkSpec) (job.Forked, error) {
	spec.VM = "dev"
	return r.ForkVM(context.Background(), spec)
}

// unforked checks that nothing of a fork is left on the host or in the VM's row.
func (r *rig) unforked(id string, vms int) {
	r.t.Helper()
	r.pass(5 * time.Minute)
	if v := r.vm(id); v.Forking.Active() || v.State != vm.Created {
		r.t.Errorf("dev is %s, and being forked: %+v", v.State, v.Forking)
	}
	if points := r.host.ForkPoints(); len(points) != 0 {
		r.t.Errorf("the host has snapshots of %v", points)
	}
	if n := len(r.host.VMs()); n != vms {
		r.t.Errorf("%d VMs on the host, want %d", n, vms)
	}
}

func TestFork_EachIsAVMOfItsOwn(t *testing.T) {
	for name, disk := range map[string]bool{"from memory": false, "from disk": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id := r.source(func(v *vm.VM) { v.Resources.Memory, v.Labels, v.Own.TTL = "4G", map[string]string{"of": "x"}, 36000 })
				r.host.Set(providertest.Behaviour{ForkFromDisk: disk})
				out, err := r.fork(job.ForkSpec{Count: 8, Name: "copy-%d"})
				if err != nil || len(out.VMs) != 8 || out.Live == disk || out.Why == "" || (out.PauseMS > 0) == disk || len(out.Failed) != 0 {
					t.Fatalf("%+v, %v", out, err)
				}
				from := r.vm(id)
				seen := map[string]bool{from.Job: true, from.IP: true, from.HostKey: true}
				for i, v := range out.VMs {
					row := r.vm(v.Job)
					if row.Name != "copy-"+string(rune('1'+i)) || row.Source != vm.Forked || row.From != id || row.State != vm.Created || v.Status != vm.Running {
						t.Errorf("%+v", row)
					}
					if row.Resources != from.Resources || row.Labels["of"] != "x" || row.ExpiresAt.Sub(from.ExpiresAt).Abs() > time.Hour || row.ExpiresAt.IsZero() {
						t.Errorf("%s is not made as dev: %+v, expires %s", row.Name, row.Made, row.ExpiresAt)
					}
					for _, own := range []string{row.Job, row.IP, row.HostKey} {
						if seen[own] {
							t.Errorf("%s has another's %s", row.Name, own)
						}
						seen[own] = true
					}
					if len(r.told(v.Job, "a copy of VM dev")) != 1 {
						t.Errorf("told of it: %v", r.told(v.Job, ""))
					}
				}
				r.unforked(id, 9)
				specs, _ := r.host.seen()
				for _, s := range specs[1:] {
					if s.Fork != (job.ForkOf{VM: from.ID, Job: id, Live: !disk}) || s.Lease != 0 && s.Lease < time.Hour {
						t.Errorf("made by %+v", s)
					}
				}
				// Its own copies have names, and it is no less a VM than dev. What runs in them knows dev's proxy.
				r.host.Set(providertest.Behaviour{})
				again, err := r.ForkVM(context.Background(), job.ForkSpec{VM: "copy-1"})
				if err != nil {
					t.Fatalf("a copy of a copy: %v", err)
				}
				for _, copied := range []string{out.VMs[0].Job, again.VMs[0].Job} {
					if of := r.vm(copied).ProxyOf(); of != id {
						t.Errorf("the proxy of %s is that of %s, not of %s", copied, of, id)
					}
				}
				if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
					t.Error(err)
				}
				r.pass(time.Minute)
				if n := len(r.host.VMs()); n != 9 {
					t.Errorf("%d VMs when dev is gone", n)
				}
			})
		})
	}
}

// What a VM's end is stays so for its copies, where they have one; what is so only while the VM is
// paused or resumed is not theirs.
func TestFork_EndsAsTheVM(t *testing.T) {
	for _, tt := range []struct {
		name      string
		ttl       int
		meanwhile bool
		want      vm.End
	}{{"as it does", 36000, false, vm.EndSuspend}, {"only meanwhile", 36000, true, ""}, {"never", 0, false, ""}} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id, end := r.source(func(v *vm.VM) {
					if v.Own.TTL = tt.ttl; !tt.meanwhile {
						v.AtEnd = vm.EndSuspend
					}
				}), vm.EndSuspend
				if tt.meanwhile {
					if _, err := r.SetVM(context.Background(), id, job.VMChange{AtEnd: &end, Meanwhile: true}); err != nil {
						t.Fatal(err)
					}
				}
				out, err := r.fork(job.ForkSpec{Count: 1, Name: "copy"})
				if err != nil || len(out.VMs) != 1 {
					t.Fatalf("%+v, %v", out, err)
				}
				if got := r.vm(out.VMs[0].Job).AtEnd; got != tt.want {
					t.Errorf("at its end it is to be %q, not %q", got, tt.want)
				}
			})
		})
	}
}

func TestFork_WhatCannotBeIsRefusedBefore(t *testing.T) {
	for name, tt := range map[string]struct {
		spec   job.ForkSpec
		before func(r *rig, id string)
		want   string
	}{
		"too many":        {spec: job.ForkSpec{Count: 33}, want: "count: is 33; give a number from 1 to 32"},
		"none":            {spec: job.ForkSpec{Count: -1}, want: "count: is -1"},
		"one name":        {spec: job.ForkSpec{Count: 2, Name: "x"}, want: "name: \"x\" would be the name of all 2; put %d into it"},
		"a pattern":       {spec: job.ForkSpec{Name: "x-%s"}, want: "name: \"x-%s\" is not a pattern for names; use %d once"},
		"no host name":    {spec: job.ForkSpec{Name: "x_%d"}, want: "name: "},
		"a name that is":  {spec: job.ForkSpec{Name: "dev"}, want: "name: VM already exists"},
		"ttl":             {spec: job.ForkSpec{TTL: -5}, want: "ttl: "},
		"one that is off": {before: func(r *rig, id string) { _, _ = r.StopVM(context.Background(), "dev") }, want: "does not run: it is stopped; start it first"},
		"a fixed address": {before: func(r *rig, id string) { r.change(id, func(v *vm.VM) { v.Network.IP = "10.0.0.5/24" }) }, want: "so would its copies"},
		"another's limit": {before: func(r *rig, id string) { r.engine.set(func(e *engine) { e.admits = 5 }) }, spec: job.ForkSpec{Count: 8}, want: "no more than 5"},
		"one that is made": {before: func(r *rig, id string) {
			r.change(id, func(v *vm.VM) { v.Forking = vm.Forking{IDs: []string{"x"}, Begun: true} })
		}, want: "is being forked; try again"},
		"a job in it": {before: func(r *rig, id string) {
			r.engine.set(func(e *engine) { e.inside = []job.Job{{ID: "j", SharedVM: id, Status: job.Running}} })
		}, want: "cannot be forked: jobs run in it: j"},
		"nobody's": {before: func(r *rig, id string) { r.change(id, func(v *vm.VM) { v.Lifecycle = vm.Ephemeral }) }, want: "goes with its job"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id := r.source()
				if tt.before != nil {
					tt.before(r, id)
				}
				_, err := r.fork(tt.spec)
				if err == nil || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%v, want %s", err, tt.want)
				}
				r.pass(5 * time.Minute)
				if specs, _ := r.host.seen(); len(specs) != 1 {
					t.Errorf("%d creates", len(specs))
				}
				if vms, err := r.store.VMs(context.Background()); err != nil || len(vms) != 1 || name != "one that is made" && vms[0].Forking.Active() {
					t.Errorf("rows %+v, %v", vms, err)
				}
			})
		})
	}
}

// One that cannot be made takes the others with it, unless those that were made are to be kept.
func TestFork_AllOrNothingUnlessPartial(t *testing.T) {
	for name, partial := range map[string]bool{"all or nothing": false, "partial": true} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id := r.source()
				r.host.set(func(h *hypervisor) {
					h.failName, h.failWith = "dev-5", hostError(job.HostVM, "no space left on device")
				})
				out, err := r.fork(job.ForkSpec{Count: 6, Partial: partial})
				if partial {
					if err != nil || len(out.VMs) != 5 || len(out.Failed) != 1 || out.Failed[0].Name != "dev-5" || !strings.Contains(out.Failed[0].Error, "no space left") {
						t.Errorf("%+v, %v", out, err)
					}
					r.unforked(id, 6)
					return
				}
				if err == nil || !strings.Contains(err.Error(), "no space left on device") {
					t.Errorf("%+v, %v", out, err)
				}
				r.unforked(id, 1)
			})
		})
	}
}

// What the host cannot be made ready for is not begun.
func TestFork_AHostThatRefuses(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.source()
		r.host.set(func(h *hypervisor) {
			h.forks = hostError(job.HostConfig, "VM 100 has hostpci0, which no copy of it can have")
		})
		if _, err := r.fork(job.ForkSpec{Count: 2, Partial: true}); err == nil || !strings.Contains(err.Error(), "hostpci0") {
			t.Errorf("%v", err)
		}
		r.unforked(id, 1)
	})
}

// Whoever asks is told that there are no copies while the host is away with what is left of that.
func TestFork_AHostThatGoesAway(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.source()
		away := hostError(job.HostOffline, "node 'pve' is offline")
		r.host.set(func(h *hypervisor) { h.forks, h.ends = away, away })
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := r.ForkVM(ctx, job.ForkSpec{VM: "dev", Count: 2}); err == nil || !strings.Contains(err.Error(), "no copy was kept: dev-1") || !strings.Contains(err.Error(), "is offline") {
			t.Errorf("told: %v", err)
		}
		r.pass(time.Hour)
		if !r.vm(id).Forking.Active() {
			t.Error("it is forgotten that a snapshot may be left")
		}
		r.host.set(func(h *hypervisor) { h.forks, h.ends = nil, nil })
		r.unforked(id, 1)
	})
}

// Copies that are made are told of though the host does not let go of what they were made from, and
// so is that.
func TestFork_ASnapshotThatCannotBeRemoved(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.source()
		r.host.set(func(h *hypervisor) { h.ends = hostError(job.HostVM, "lvremove failed") })
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		out, err := r.ForkVM(ctx, job.ForkSpec{VM: "dev", Count: 2})
		if err != nil || len(out.VMs) != 2 {
			t.Errorf("%+v, %v", out, err)
		}
		r.pass(time.Hour)
		if told := r.told(id, "its snapshot linus-fork is not removed"); len(told) != 1 {
			t.Errorf("told %v", told)
		}
		if _, err := r.StopVM(context.Background(), "dev"); err == nil || !strings.Contains(err.Error(), "lvremove failed") {
			t.Errorf("what keeps it: %v", err)
		}
		r.host.set(func(h *hypervisor) { h.ends = nil })
		r.unforked(id, 3)
	})
}

// An engine that is killed at any of its steps leaves nothing half: the next one goes on.
func TestFork_EngineKilledAtEveryStep(t *testing.T) {
	for _, step := range []string{"asked", "snapshot", "recorded", "made", "removed"} {
		t.Run(step, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id := r.source()
				hold := make(chan struct{})
				held := errors.New("the engine is killed")
				want := 3
				switch step {
				case "asked": // in the middle of storing the copies
					r.stop()
					r.change(id, func(v *vm.VM) {
						v.Forking = vm.Forking{IDs: []string{"01900000-0000-7000-8000-00000000000a", "01900000-0000-7000-8000-00000000000b"}}
					})
					v := asked("dev-1")
					v.Job, v.State, v.From, v.Own.Fork = "01900000-0000-7000-8000-00000000000a", vm.Reserved, id, &vm.Fork{}
					r.row(v)
					want = 1
				case "snapshot": // it is taken, and not recorded
					r.host.set(func(h *hypervisor) { h.forkHold = hold })
				case "recorded":
					r.host.set(func(h *hypervisor) { h.failName, h.hold = "dev-", hold })
				case "made":
					r.host.set(func(h *hypervisor) { h.failName, h.hold = "dev-2", hold })
				case "removed": // it is not
					r.host.set(func(h *hypervisor) { h.ends = held })
				}
				ended := make(chan struct{})
				ctx, cancel := context.WithCancel(context.Background())
				if step != "asked" {
					go func() {
						defer close(ended)
						_, _ = r.ForkVM(ctx, job.ForkSpec{VM: "dev", Count: 2})
					}()
					r.pass(2 * time.Minute)
					r.stop()
					cancel()
					close(hold)
					<-ended
				}
				cancel()
				r.host.set(func(h *hypervisor) { h.forks, h.ends, h.failName, h.hold, h.forkHold = nil, nil, "", nil, nil })
				r.start()
				r.unforked(id, want)
				vms, err := r.store.VMs(context.Background())
				if err != nil || len(vms) != want || slices.ContainsFunc(vms, func(v vm.VM) bool { return v.State != vm.Created }) {
					t.Errorf("rows %+v, %v", vms, err)
				}
			})
		})
	}
}

// While copies are made nothing else is done to the VM; once its host is ready for them others
// may work in it.
func TestFork_TheVMMeanwhile(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.source()
		hold := make(chan struct{})
		r.host.set(func(h *hypervisor) { h.failName, h.hold = "dev-1", hold })
		done := make(chan error)
		go func() {
			_, err := r.fork(job.ForkSpec{})
			done <- err
		}()
		r.pass(time.Minute)
		for what, err := range map[string]error{
			"stopped": errOf(r.StopVM(context.Background(), "dev")), "snapshotted": errOf(r.SnapshotVM(context.Background(), "dev", "clean", false)),
		} {
			if err == nil || !strings.Contains(err.Error(), "is being forked") {
				t.Errorf("it is %s: %v", what, err)
			}
		}
		end, err := r.Decide(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Enter(context.Background(), "dev"); err != nil {
			t.Errorf("a job: %v", err)
		}
		end()
		if err := errOf(r.SnapshotVM(context.Background(), "dev", "linus-fork", false)); err == nil || !strings.Contains(err.Error(), "snapshot: ") {
			t.Errorf("a snapshot of the reserved name: %v", err)
		}
		close(hold)
		if err := <-done; err != nil {
			t.Error(err)
		}
		r.unforked(id, 2)
	})
}

func errOf(_ job.VMInfo, err error) error { return err }
