package fleet_test

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// set changes a VM, and returns its row.
func (r *rig) set(id string, ttl int, at vm.End) vm.VM {
	r.t.Helper()
	change := job.VMChange{TTL: &ttl}
	if at != "" {
		change.AtEnd = &at
	}
	if _, err := r.SetVM(context.Background(), id, change); err != nil {
		r.t.Fatal(err)
	}
	return r.vm(id)
}

// stays makes a VM that stays.
func (r *rig) stays(name string) string {
	r.t.Helper()
	id := r.ask(name)
	r.pass(time.Minute)
	if v := r.vm(id); v.Own.ReadyAt.IsZero() {
		r.t.Fatalf("%+v", v)
	}
	return id
}

func TestSet_EndsAVMWhenItsTimeIsOver(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.stays("dev1")
		r.set(id, 10, "")
		r.pass(9 * time.Second)
		if v := r.vm(id); v.Unwanted {
			t.Error("its time is not over yet")
		}
		r.set(id, 10, "") // from now
		r.pass(9 * time.Second)
		if v := r.vm(id); v.Unwanted {
			t.Error("it was given more time")
		}
		r.pass(3 * time.Second)
		if v := r.vm(id); v.State != vm.Destroyed {
			t.Errorf("it is %s some seconds after its time", v.State)
		}
	})
}

// Of VMs that are kept for something so many stay as each was told: the one that was kept first goes,
// unless somebody has given it time since.
func TestSet_SoManyAreKept(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		ctx, ttl := context.Background(), 36000
		var ids []string
		for i := range 5 {
			id := r.stays("job" + strconv.Itoa(i))
			if _, err := r.SetVM(ctx, id, job.VMChange{TTL: &ttl, KeptOf: "gitlab", KeptMost: 2}); err != nil {
				t.Fatal(err)
			}
			r.pass(time.Minute)
			if ids = append(ids, id); i == 2 {
				r.set(id, ttl, "")
			}
		}
		for i, stay := range []bool{false, false, true, true, true} {
			if v := r.vm(ids[i]); v.Stays() != stay {
				t.Errorf("%s: it is %s", v.Name, v.State)
			}
		}
		if told := r.told(ids[0], "only 2 VMs are kept for gitlab, and it was the least recently used"); len(told) != 1 {
			t.Errorf("told %q", r.told(ids[0], ""))
		}
		for _, bad := range []job.VMChange{{KeptOf: "gitlab"}, {KeptOf: "gitlab", TTL: new(0)}, {TTL: &ttl, KeptOf: "a\nb"}, {TTL: &ttl, KeptOf: "gitlab", KeptMost: job.MaxKeep + 1}} {
			if _, err := r.SetVM(ctx, ids[4], bad); err == nil {
				t.Errorf("%+v is taken", bad)
			}
		}
	})
}

// Of them the one goes that was not used for longest: not one that somebody is logged in to, or was since.
func TestSet_OneThatIsUsedIsKept(t *testing.T) {
	for when, still := range map[string]bool{"now": true, "since": false} {
		t.Run(when, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				ctx, ttl := context.Background(), 36000
				var ids []string
				for i := range 3 {
					id := r.stays("job" + strconv.Itoa(i))
					if _, err := r.SetVM(ctx, id, job.VMChange{TTL: &ttl, KeptOf: "gitlab", KeptMost: 2}); err != nil {
						t.Fatal(err)
					}
					ids = append(ids, id)
					r.pass(10 * time.Minute)
					if still != (i == 0) || i == 2 {
						continue
					}
					tunnel, err := r.LoginVM(ctx, ids[0], "a key")
					if err != nil {
						t.Fatal(err)
					}
					if r.pass(time.Minute); still {
						defer tunnel.Close() //nolint:errcheck // it is over
					} else if err := tunnel.Close(); err != nil {
						t.Fatal(err)
					}
				}
				for i, stay := range []bool{true, false, true} {
					if v := r.vm(ids[i]); v.Stays() != stay {
						t.Errorf("%s is %s", v.Name, v.State)
					}
				}
			})
		})
	}
}

// An end for the meantime is one that has taken another's place, until somebody sets one.
func TestSet_AnEndForTheMeantime(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.stays("dev1")
		for i, c := range []struct {
			at         vm.End
			meanwhile  bool
			remembered bool
		}{{vm.EndSuspend, true, true}, {vm.EndSuspend, true, true}, {vm.EndDestroy, false, false}, {vm.EndSuspend, true, true}, {vm.EndSuspend, false, false}, {vm.EndSuspend, true, false}} {
			if _, err := r.SetVM(context.Background(), id, job.VMChange{AtEnd: &c.at, Meanwhile: c.meanwhile}); err != nil {
				t.Fatal(err)
			}
			if v := r.vm(id); v.AtEnd != c.at || v.Meanwhile != c.remembered {
				t.Errorf("%d: %q, for the meantime: %t", i, v.AtEnd, v.Meanwhile)
			}
		}
	})
}

// While the VMs cannot be read, a time that is over is looked at from time to time, and not at once again.
func TestSet_WhileTheStoreFails(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		id := r.stays("dev1")
		r.set(id, 10, "")
		var fails bool
		reads := 0
		s.before("VMs", 0, func() error {
			if reads++; !fails || reads > 1000 {
				return nil
			}
			return errors.New("disk I/O error")
		})
		r.pass(9 * time.Second)
		fails, reads = true, 0
		r.pass(10 * time.Minute)
		if reads > 200 {
			t.Errorf("the VMs were read %d times in ten minutes", reads)
		}
		fails = false
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Destroyed {
			t.Errorf("it is %s when they can be read again", v.State)
		}
	})
}

func TestSet_TakesTheTimeAway(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.ask("dev1", func(v *vm.VM) { v.Own.TTL = 120 })
		r.pass(time.Minute)
		if v := r.set(id, 0, ""); !v.ExpiresAt.IsZero() {
			t.Errorf("it expires at %v", v.ExpiresAt)
		}
		r.pass(24 * time.Hour)
		if v := r.vm(id); !v.Stays() || len(r.told(id, "no longer has a time limit, and stays")) != 1 {
			t.Errorf("%+v", v)
		}
	})
}

// A job that runs in a VM has it to its end, whatever the VM's time is.
func TestSet_AJobInItGoesFirst(t *testing.T) {
	for _, at := range []vm.End{vm.EndDestroy, vm.EndSuspend} {
		t.Run(string(at), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id := r.stays("dev1")
				v := r.vm(id)
				r.engine.set(func(e *engine) { e.inside = []job.Job{{ID: "j", Status: job.Running, VM: &v}} })
				r.set(id, 10, at)
				r.pass(10 * time.Minute)
				if v := r.vm(id); !v.Stays() || v.Off != "" {
					t.Errorf("while a job runs in it: %+v", v)
				}
				r.engine.set(func(e *engine) { e.inside = nil })
				r.pass(time.Minute)
				if v := r.vm(id); at == vm.EndDestroy && v.State != vm.Destroyed || at == vm.EndSuspend && v.Off != vm.Suspended {
					t.Errorf("after the job: %+v", v)
				}
			})
		})
	}
}

// A VM that is suspended at its end has no time any more, and goes on when somebody resumes it.
func TestSet_SuspendsAVMAtItsEnd(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.stays("dev1")
		r.set(id, 10, vm.EndSuspend)
		r.pass(15 * time.Second)
		v := r.vm(id)
		if status, err := r.host.Status(context.Background(), v); err != nil || status != vm.Suspended || v.Off != vm.Suspended || !v.ExpiresAt.IsZero() || !v.Stored("") {
			t.Errorf("%s, %v: %+v", status, err, v)
		}
		r.pass(48 * time.Hour)
		if v := r.vm(id); !v.Stays() || len(r.told(id, "is suspended: its ttl has expired")) != 1 {
			t.Errorf("two days after that: %+v", v)
		}
		if _, err := r.ResumeVM(context.Background(), strconv.Itoa(v.ID)); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Hour)
		if v := r.vm(id); v.Off != "" || !v.ExpiresAt.IsZero() {
			t.Errorf("once it is resumed: %+v", v)
		}
	})
}

// A VM that is not proven to be ours when its time is over is suspended once it is.
func TestSet_SuspendsAVMOnceItIsProven(t *testing.T) {
	for name, doubt := range map[string]func(r *rig, v vm.VM, doubted bool){
		"no marker": func(r *rig, v vm.VM, doubted bool) { r.host.Doubt(v.ID, doubted) },
		"unknown":   func(r *rig, _ vm.VM, doubted bool) { r.host.set(func(h *hypervisor) { h.unsure = doubted }) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				id := r.stays("dev1")
				r.set(id, 10, vm.EndSuspend)
				doubt(r, r.vm(id), true)
				r.pass(10 * time.Minute)
				if v := r.vm(id); v.Off != "" || v.ExpiresAt.IsZero() {
					t.Errorf("not proven: %+v", v)
				}
				doubt(r, r.vm(id), false)
				r.pass(2 * time.Minute)
				if v := r.vm(id); v.Off != vm.Suspended || !v.ExpiresAt.IsZero() {
					t.Errorf("proven again: %+v", v)
				}
			})
		})
	}
}

// A sandbox that is to forget what runs in it is stopped.
func TestSet_StopsASandboxThatForgets(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.stays("dev1")
		r.change(id, func(v *vm.VM) { v.Own = &vm.Own{ReadyAt: time.Now(), Sandbox: &vm.Sandbox{Forgets: true}} })
		r.set(id, 10, vm.EndSuspend)
		r.pass(15 * time.Second)
		v := r.vm(id)
		if status, err := r.host.Status(context.Background(), v); err != nil || status != vm.Stopped || v.Off != vm.Stopped || !v.ExpiresAt.IsZero() {
			t.Errorf("%s, %v: %+v", status, err, v)
		}
	})
}

// An engine that ends in the middle of it leaves a VM that is suspended and whose row has its time
// still; or one that somebody has resumed by then.
func TestSet_SuspendedByAnEngineThatEnds(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.stays("dev1")
		r.stop()
		v := r.vm(id)
		if err := r.host.SuspendVM(context.Background(), v); err != nil {
			t.Fatal(err)
		}
		r.change(id, func(v *vm.VM) {
			v.ExpiresAt, v.AtEnd = time.Now().Add(-time.Second), vm.EndSuspend
		})
		r.start()
		r.pass(2 * time.Minute)
		if v := r.vm(id); !v.Stays() || !v.ExpiresAt.IsZero() || v.Off != vm.Suspended {
			t.Errorf("%+v", v)
		}
		r.change(id, func(v *vm.VM) { v.ExpiresAt = time.Now().Add(-time.Second) })
		if _, err := r.ResumeVM(context.Background(), strconv.Itoa(v.ID)); err != nil {
			t.Fatal(err)
		}
		r.pass(2 * time.Minute)
		if v := r.vm(id); v.Off != "" || !v.ExpiresAt.IsZero() {
			t.Errorf("it was resumed, and is suspended once more: %+v", v)
		}
	})
}

// The host is told when to end a VM if no engine does, as soon as that is otherwise by much.
func TestSet_TheHostIsToldOfItsEnd(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Lease = 30 * time.Minute
		r.start()
		id := r.stays("dev1")
		lease := func(what string, want time.Duration, calls int) {
			t.Helper()
			v := r.vm(id)
			if got := r.host.Lease(v.ID); got.Round(time.Minute) != want || r.host.Stats().Rooms != calls {
				t.Errorf("%s: the lease is %s after %d calls, want %s after %d", what, got, r.host.Stats().Rooms, want, calls)
			}
			if want == 0 != v.LeaseUntil.IsZero() {
				t.Errorf("%s: its row says %v", what, v.LeaseUntil)
			}
		}
		before := r.host.Stats().Rooms
		lease("made", 0, before)
		r.set(id, 3600, "")
		lease("with a time", 90*time.Minute, before+1)
		r.set(id, 3700, "")
		lease("with a little more", 90*time.Minute, before+1)
		r.set(id, 7200, "")
		lease("with much more", 150*time.Minute, before+2)
		r.set(id, 600, "")
		lease("with less", 40*time.Minute, before+3)
		r.set(id, 600, vm.EndSuspend)
		lease("when it is only suspended then", 0, before+4)
		r.set(id, 3600, vm.EndDestroy)
		lease("when it is destroyed after all", 90*time.Minute, before+5)
		r.host.Set(providertest.Behaviour{Rooms: []error{hostError(job.HostUnreachable, "no route to host")}})
		r.set(id, 0, "")
		lease("while the host is away", 90*time.Minute, before+6)
	})
}
