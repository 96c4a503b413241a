package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// silent are the pings of a VM that does not answer.
func silent(times int) []error {
	return slices.Repeat([]error{hostError(job.HostUnreachable, "no answer")}, times)
}

// A pool gets its members two at a time, and each a lease that outlasts an engine that is away.
func TestPool_IsFilled(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Lease = time.Hour
		on := make(chan struct{})
		r.host.Set(providertest.Behaviour{Hold: on})
		r.start()
		if r.Busy() {
			t.Error("there is nothing to do")
		}
		r.pool(job.PoolSize{Warm: 3})
		if !r.Busy() {
			t.Error("there are members to be made")
		}
		r.pass(5 * time.Minute)
		if p := r.info(); len(p.Members) != 2 || p.Count(vm.MemberMaking) != 2 || p.State != "filling" {
			t.Errorf("%+v", p)
		}
		close(on)
		for _, m := range r.filled(3, 0) {
			if m.Own.ReadyAt.IsZero() || m.State != vm.Created || m.Member.LeaseUntil.Before(m.CreatedAt.Add(2*time.Hour)) || m.Member.Generation != providertest.FakeGeneration {
				t.Errorf("%+v, %+v", m, m.Member)
			}
		}
		specs, _ := r.host.seen()
		for _, s := range specs {
			if s.Lease != 2*time.Hour || s.PublicKey == "" {
				t.Errorf("%+v", s)
			}
		}
		if p := r.info(); len(specs) != 3 || p.State != "ready" {
			t.Errorf("%d creates: %s", len(specs), p.State)
		}
		if _, err := r.RemovePool(context.Background(), "p"); err != nil {
			t.Fatal(err)
		}
		r.pass(2 * time.Minute)
		if leaks := r.host.Leaks(); len(leaks) > 0 || r.Busy() {
			t.Errorf("left: %v", leaks)
		}
	})
}

// Members that are not what the pool is to have any more are given up, and others made.
func TestPool_ReplacesMembers(t *testing.T) {
	const tooOld = "it is as old as a member may be"
	for _, tt := range []struct {
		name  string
		begin func(r *rig, m vm.VM)
		why   string
	}{
		{"of another template", func(r *rig, _ vm.VM) {
			r.host.set(func(h *hypervisor) {
				h.room = func(room *job.HostRoom) { room.Generations[job.Origin{Template: providertest.FakeTemplate}] = "2" }
			})
		}, "has changed"},
		{"that are old", func(r *rig, _ vm.VM) { r.pass(15 * time.Minute) }, tooOld},
		{"that are unwanted", func(r *rig, m vm.VM) { r.change(m.Job, func(v *vm.VM) { v.Unwanted = true }) }, ""},
		{"that are doomed and were ready meanwhile", func(r *rig, m vm.VM) {
			r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberDoomed, time.Now()); v.Member.Why = "it was time" })
		}, "it was time"},
		{"whose suspension was interrupted", func(r *rig, m vm.VM) {
			r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberMaking, time.Now()) })
		}, "suspending it was interrupted"},
		{"whose job has ended", func(r *rig, m vm.VM) {
			r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberClaimed, time.Now()); v.Member.Claimer = "job" })
		}, "its job has ended"},
		{"that are gone", func(r *rig, m vm.VM) { r.host.Vanish(m.ID) }, "is gone on the host"},
		{"that are stopped", func(r *rig, m vm.VM) {
			if err := r.host.StopVM(context.Background(), m); err != nil {
				r.t.Fatal(err)
			}
		}, "is stopped on the host"},
		{"that do not answer twice", func(r *rig, _ vm.VM) { r.host.Set(providertest.Behaviour{Pings: silent(2)}) }, "it does not answer"},
		{"whose lease is over", func(r *rig, m vm.VM) { r.leases(job.LeaseOver) }, "it was ended by the host"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.opts.Lease = time.Hour
				r.start()
				size := job.PoolSize{Warm: 1}
				if tt.why == tooOld {
					size.MaxAge = 1000
				}
				r.pool(size)
				m := r.filled(1, 0)[0]
				tt.begin(r, m)
				now := r.filled(1, 0)[0]
				r.given(m.Job, tt.why)
				if now.Job == m.Job {
					t.Error("there is no other")
				}
			})
		})
	}
}

// leases has the host say what became of the leases that were to be renewed, and has them be.
func (r *rig) leases(state job.LeaseState) {
	r.host.set(func(h *hypervisor) {
		h.room = func(room *job.HostRoom) {
			for id := range room.Leases {
				room.Leases[id] = state
			}
		}
	})
	r.pass(35 * time.Minute) // one is renewed half an hour after it was given
	r.host.set(func(h *hypervisor) { h.room = nil })
}

// Nothing that may pass is a reason to give a member up.
func TestPool_KeepsMembers(t *testing.T) {
	for _, tt := range []struct {
		name  string
		begin func(r *rig, m vm.VM)
	}{
		{"that do not answer once", func(r *rig, _ vm.VM) { r.host.Set(providertest.Behaviour{Pings: silent(1)}) }},
		{"that do not answer while the host does not", func(r *rig, _ vm.VM) {
			r.host.Set(providertest.Behaviour{Pings: silent(4)})
			r.host.set(func(h *hypervisor) { h.unsure = true })
		}},
		{"while the host's room cannot be read", func(r *rig, _ vm.VM) {
			r.host.Set(providertest.Behaviour{Rooms: silent(1000), Pings: silent(100)})
		}},
		{"whose template is not seen", func(r *rig, _ vm.VM) {
			r.host.set(func(h *hypervisor) { h.room = func(room *job.HostRoom) { clear(room.Generations) } })
		}},
		{"whose lease is renewed", func(r *rig, _ vm.VM) { r.leases(job.LeaseRenewed) }},
		{"whose lease cannot be renewed now", func(r *rig, _ vm.VM) { r.leases(job.LeaseKept) }},
		{"that are there, though their lease is not", func(r *rig, _ vm.VM) { r.leases(job.LeaseGone) }},
		{"while the host is short of memory, but not very", func(r *rig, _ vm.VM) { r.pressure(20) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.opts.Lease = time.Hour
				r.start()
				r.pool(job.PoolSize{Warm: 1})
				m := r.filled(1, 0)[0]
				tt.begin(r, m)
				r.pass(5 * time.Minute)
				r.kept(m.Job, vm.MemberWarm)
				if len(r.info().Members) != 1 {
					t.Errorf("%+v", r.info())
				}
			})
		})
	}
}

// A member that a job has is the job's, whatever becomes of its pool.
func TestPool_LeavesClaimedMembersToTheirJobs(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.engine.set(func(e *engine) { e.holds["job"] = time.Hour })
		r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberClaimed, time.Now()); v.Member.Claimer = "job" })
		r.host.set(func(h *hypervisor) {
			h.room = func(room *job.HostRoom) { room.Doubts[m.Job] = "it has another name" }
		})
		r.pass(2 * time.Minute)
		if p := r.info(); p.Count(vm.MemberClaimed) != 1 || p.Count(vm.MemberWarm) != 1 {
			t.Errorf("%+v", p)
		}
		r.pressure(50)
		if _, err := r.RemovePool(context.Background(), "p"); err != nil {
			t.Fatal(err)
		}
		r.pass(5 * time.Minute)
		r.kept(m.Job, vm.MemberClaimed)
		r.engine.set(func(e *engine) { delete(e.holds, "job"); e.unread = context.DeadlineExceeded })
		r.pass(5 * time.Minute)
		r.kept(m.Job, vm.MemberClaimed)
		r.engine.set(func(e *engine) { e.unread = nil })
		r.pass(2 * time.Minute)
		r.given(m.Job, "its job has ended")
	})
}

// A member is given up only in the state that this was decided in: one that a job has got
// meanwhile is the job's. Of one that is reserved nothing can exist.
func TestDoom_OnlyInThatState(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.engine.set(func(e *engine) { e.holds["job"] = time.Hour; e.follows = true })
		r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberClaimed, time.Now()); v.Member.Claimer = "job" })
		if err := r.Doom(context.Background(), m.Job, vm.MemberWarm, "it was idle"); err != nil {
			t.Error(err)
		}
		r.kept(m.Job, vm.MemberClaimed)
		next := asked("next")
		next.State, next.Member = vm.Reserved, &vm.Member{Pool: "p", State: vm.MemberMaking}
		r.row(next)
		if err := r.Doom(context.Background(), next.Job, vm.MemberMaking, "the pool keeps fewer"); err != nil || r.vm(next.Job).State != vm.Destroyed {
			t.Errorf("%+v, %v", r.vm(next.Job), err)
		}
	})
}

// A VM that is not proven is given up by its pool, and left alone on the host.
func TestPool_LeavesAloneWhatIsNotProven(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.host.Doubt(m.ID, true)
		r.pass(3 * time.Minute)
		v := r.vm(m.Job)
		if v.Member.State != vm.MemberDoomed || v.State != vm.LeftAlone || v.Reason == "" || !r.host.Has(m.ID) {
			t.Errorf("%+v, %+v", v, v.Member)
		}
		if r.Busy() != true || r.Working() {
			t.Error("it is not tried again and again")
		}
	})
}

// So is one that does not answer, if the host does not prove it when it is asked for that.
func TestPool_GivesUpWhatDoesNotAnswerAndIsNotProven(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.room(func(h *job.HostRoom) { clear(h.Doubts) })
		r.host.Doubt(m.ID, true)
		r.host.Set(providertest.Behaviour{Pings: silent(1)})
		r.pass(3 * time.Minute)
		if v := r.vm(m.Job); v.Member.State != vm.MemberDoomed || v.State != vm.LeftAlone || !strings.Contains(v.Member.Why, "its VM is left_alone on the host") {
			t.Errorf("%+v, %+v", v, v.Member)
		}
	})
}

// Members that are known by their address only are not logged in to, and not given up.
func TestPool_DoesNotAskMembersWithoutAHostKey(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{Reach: func(v vm.VM) vm.VM { v.HostKey = ""; return v }, Pings: silent(100)})
		r.start()
		r.pool(job.PoolSize{Warm: 2})
		members := r.filled(2, 0)
		r.pass(5 * time.Minute)
		for _, m := range members {
			r.kept(m.Job, vm.MemberWarm)
		}
		if len(r.host.pinged) > 0 {
			t.Errorf("%d pings", len(r.host.pinged))
		}
	})
}

// A member that answers is asked again after a while only.
func TestPool_AsksMembersNowAndThen(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		r.filled(1, 0)
		before := len(r.host.pinged)
		r.pass(5 * time.Minute)
		if n := len(r.host.pinged) - before; n < 8 || n > 11 {
			t.Errorf("%d pings in five minutes", n)
		}
	})
}

// pressure sets how short of memory the host is.
func (r *rig) pressure(percent float64) {
	r.host.set(func(h *hypervisor) { h.room = func(room *job.HostRoom) { room.Pressure = percent } })
}

// A host that is very short of memory gets members' back, one at each look, the oldest first.
func TestPool_EasesAHost(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 5})
		members := r.filled(5, 0)
		r.pressure(20.5)
		for range 20 {
			r.TendSoon() // looks at the host are no more for that
			r.pass(time.Second)
		}
		p := r.info()
		if n := len(members) - p.Count(vm.MemberWarm); n < 1 || n > 3 || !strings.Contains(p.State, "short of memory (pressure 20 %)") && !strings.Contains(p.State, "short of memory") {
			t.Errorf("%d given up in twenty seconds: %s", n, p.State)
		}
		r.given(members[0].Job, "short of memory")
		r.kept(members[4].Job, vm.MemberWarm)
		r.pressure(0)
		r.filled(5, 0)
	})
}

// No member is made where there is a reason not to; the pool says it.
func TestPool_Pauses(t *testing.T) {
	origin := job.Origin{Template: providertest.FakeTemplate}
	for _, tt := range []struct {
		name  string
		begin func(r *rig)
		want  string
	}{
		{"the host does not answer", func(r *rig) { r.host.Set(providertest.Behaviour{Rooms: silent(1000)}) }, "paused: the host does not answer"},
		{"no template", func(r *rig) { r.room(func(h *job.HostRoom) { delete(h.Generations, origin) }) }, "is not on the host"},
		{"jobs wait", func(r *rig) { r.before = func() { r.Expect(job.Demand{Waits: true}) } }, "paused: jobs wait, and go first"},
		{"pressure", func(r *rig) { r.pressure(10.5) }, "short of memory (pressure"},
		{"no memory free", func(r *rig) { r.room(func(h *job.HostRoom) { h.TotalMB, h.FreeMB = 20<<10, 4<<10-1 }) }, "has 4095 MiB free, of which 2048 MiB stay free and 0 MiB are for VMs being created"},
		{"memory for VMs being created", func(r *rig) {
			r.room(func(h *job.HostRoom) { h.TotalMB, h.FreeMB = 20<<10, 6<<10-1 })
			r.before = func() { r.makes("2G", job.Provisioning) }
		}, "and 2048 MiB are for VMs being created"},
		{"memory promised", func(r *rig) {
			r.room(func(h *job.HostRoom) { h.TotalMB, h.FreeMB = 5<<10, 5<<10 })
			r.before = func() { r.makes("2049M", job.Pending) }
		}, "2049 MiB are promised to VMs of linus"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				tt.begin(r)
				r.start()
				r.pool(job.PoolSize{Warm: 1})
				r.pass(5 * time.Minute)
				specs, _ := r.host.seen()
				if p := r.info(); len(p.Members) > 0 || len(specs) > 0 || !strings.Contains(p.State, tt.want) {
					t.Errorf("%d creates, %d members: %s", len(specs), len(p.Members), p.State)
				}
				r.Expect(job.Demand{})
				r.host.set(func(h *hypervisor) { h.room = nil })
				r.host.Set(providertest.Behaviour{})
				r.filled(1, 0)
			})
		})
	}
}

// room changes what the host has left.
func (r *rig) room(change func(*job.HostRoom)) {
	r.host.set(func(h *hypervisor) { h.room = change })
}

// Members are made up to the last that there is memory for.
func TestPool_IsFilledUpToTheMemory(t *testing.T) {
	for _, tt := range []struct {
		name        string
		total, free int // MiB; of which each member takes 2048
		spread      bool
		warm        int
		step        time.Duration // of a create; 3 s is longer than what is read of the host is used
	}{
		{"that is promised", 7 << 10, 1 << 20, false, 3, 3 * time.Second},
		{"that nodes have", 7 << 10, 1 << 20, true, 4, 3 * time.Second},
		{"that is free", 20 << 10, 2048 + 3*2048, false, 3, 3 * time.Second},
		{"that is free, at once", 20 << 10, 2048 + 3*2048, false, 3, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				if tt.spread {
					r.onNodes(func(job.Placement) (string, error) { return "pve", nil })
				}
				r.host.Set(providertest.Behaviour{StepDelay: tt.step})
				r.room(func(h *job.HostRoom) {
					h.TotalMB = tt.total
					h.FreeMB = min(1<<20, tt.free-2048*len(r.host.VMs()))
				})
				r.start()
				r.pool(job.PoolSize{Warm: 4})
				r.filled(tt.warm, 0)
			})
		})
	}
}

// After a failure one member is tried at a time, the longer after the last the more there
// were; after three equal ones none, until the pool is resized or its template another.
func TestPool_StopsAfterEqualFailures(t *testing.T) {
	for _, again := range []string{"resized", "another template"} {
		t.Run(again, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.host.Set(providertest.Behaviour{FailStep: "start_vm"})
				r.opts.Store = earlierFailure{r.opts.Store}
				r.start()
				r.pool(job.PoolSize{Warm: 2})
				r.pass(10 * time.Minute)
				p := r.info()
				specs, _ := r.host.seen()
				if !p.Stopped() || p.Failure.Count < job.MostFailures || !strings.Contains(p.State, "stopped after") || len(p.Members) > 0 || len(specs) > 4 {
					t.Errorf("%d creates: %+v, %+v", len(specs), p, p.Failure)
				}
				// Looked up while it stops, it is as it was or as it is: not stopped, with the failures it had before.
				if p, err := r.Pool(context.WithValue(context.Background(), earlier{}, true), "p"); err != nil || !strings.HasPrefix(p.State, "waiting after a failure: create VM") {
					t.Errorf("%+v, %v", p, err)
				}
				r.host.Set(providertest.Behaviour{})
				r.pass(20 * time.Minute)
				if now, _ := r.host.seen(); len(now) != len(specs) {
					t.Errorf("%d creates since it has stopped", len(now)-len(specs))
				}
				if again == "resized" {
					r.resize(job.PoolSize{Warm: 2})
				} else {
					r.room(func(h *job.HostRoom) { h.Generations[job.Origin{Template: providertest.FakeTemplate}] = "2" })
				}
				r.filled(2, 0)
				if p := r.info(); p.Failure != nil {
					t.Errorf("%+v", p.Failure)
				}
			})
		})
	}
}

// earlierFailure is a store that answers whoever asks under such a context with the
// pools' rows as they were before their last failure.
type earlierFailure struct{ fleet.Store }

type earlier struct{}

func (s earlierFailure) Pools(ctx context.Context) ([]job.Pool, error) {
	rows, err := s.Store.Pools(ctx)
	if ctx.Value(earlier{}) != nil {
		for _, p := range rows {
			p.Failure.Count--
		}
	}
	return rows, err
}

// Failures that differ do not stop a pool, but it waits the longer between them, and forgets
// them when a member was made.
func TestPool_WaitsAfterFailures(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.fails = []error{hostError(job.HostConfig, "one thing"), hostError(job.HostConfig, "another"), hostError(job.HostConfig, "one thing"), hostError(job.HostConfig, "another")}
		r.start()
		var at []time.Time
		r.host.set(func(h *hypervisor) { h.before = func(job.VMSpec) { at = append(at, time.Now()) } })
		r.pool(job.PoolSize{Warm: 1})
		r.pass(25 * time.Second)
		if p := r.info(); p.Failure == nil || !strings.Contains(p.State, "waiting after a failure: ") {
			t.Errorf("%+v, %+v", p, p.Failure)
		}
		r.pass(10 * time.Minute)
		if len(at) != 5 {
			t.Fatalf("%d creates", len(at))
		}
		for n, least := range []time.Duration{20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second} {
			if waited := at[n+1].Sub(at[n]); waited < least || waited > least+25*time.Second {
				t.Errorf("after failure %d it has waited %s", n+1, waited)
			}
		}
		r.filled(1, 0)
		if p := r.info(); p.Failure != nil || p.State != "ready" {
			t.Errorf("%+v, %+v", p, p.Failure)
		}
	})
}

// A pool that is made smaller gives up its oldest members; one for which nobody asks sleeps.
func TestPool_Shrinks(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 3})
		members := r.filled(3, 0)
		r.resize(job.PoolSize{Warm: 1})
		r.filled(1, 0)
		r.given(members[0].Job, "the pool keeps fewer")
		r.given(members[1].Job, "the pool keeps fewer")
		r.kept(members[2].Job, vm.MemberWarm)
		r.resize(job.PoolSize{Warm: 2, IdleLimit: 600})
		r.filled(2, 0)
		r.pass(10 * time.Minute)
		r.filled(0, 0)
		if p := r.info(); !strings.HasPrefix(p.State, "asleep") {
			t.Error(p.State)
		}
		r.resize(job.PoolSize{Warm: 2, IdleLimit: 600})
		r.filled(2, 0)
	})
}

// A member that is given up before anything of it exists is gone, however its create ends.
func TestPool_GivesUpWhatIsNotBegun(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{StepDelay: time.Minute})
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		r.pass(30 * time.Second)
		id := r.info().Members[0].Maker
		if _, err := r.RemovePool(context.Background(), "p"); err != nil {
			t.Fatal(err)
		}
		r.pass(2 * time.Minute)
		if v := r.vm(id); v.State != vm.Destroyed || r.Busy() {
			t.Errorf("%+v", v)
		}
	})
}

// Members are suspended one after the other, and warm ones last as they were.
func TestPool_Hibernates(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.suspends = 25 * time.Second // the pool is looked at meanwhile
		r.start()
		r.pool(job.PoolSize{Warm: 1, Hibernated: 2})
		r.pass(3 * time.Minute)
		for _, m := range r.filled(1, 2) {
			status, err := r.host.Status(context.Background(), m)
			if want := map[vm.MemberState]vm.Status{vm.MemberWarm: vm.Running, vm.MemberHibernated: vm.Suspended}[m.Member.State]; err != nil || status != want {
				t.Errorf("a %s one is %s, %v", m.Member.State, status, err)
			}
		}
		if specs, destroyed := r.host.seen(); len(specs) != 3 || len(destroyed) > 0 {
			t.Errorf("%d creates, destroyed %v", len(specs), destroyed)
		}
		r.resize(job.PoolSize{Warm: 1, Hibernated: 1})
		r.filled(1, 1)
		r.resize(job.PoolSize{})
		r.filled(0, 0)
	})
}

// Where members cannot be suspended, the pool stops, for all that they can be made.
func TestPool_StopsWhereMembersCannotBeSuspended(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{Powers: slices.Repeat([]error{hostError(job.HostVM, "no space for its memory")}, 100)})
		r.start()
		r.pool(job.PoolSize{Hibernated: 1})
		r.pass(10 * time.Minute)
		specs, _ := r.host.seen()
		p := r.info()
		if !p.Stopped() || !p.Failure.Suspending || !strings.Contains(p.Failure.Error, "no space") || len(specs) != job.MostFailures || p.Count(vm.MemberHibernated) > 0 {
			t.Errorf("%d creates: %+v, %+v", len(specs), p, p.Failure)
		}
		for _, s := range specs {
			r.given(s.Job, "it could not be suspended")
		}
	})
}

// Leases of members are renewed while they are idle; one of a job's is for the job's time.
func TestPool_RenewsLeases(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Lease = time.Hour
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		if r.host.Lease(m.ID) != 0 {
			t.Error("its lease is long enough")
		}
		r.pass(time.Hour)
		if v := r.vm(m.Job); r.host.Lease(m.ID) != 2*time.Hour || time.Until(v.Member.LeaseUntil) < time.Hour {
			t.Errorf("%s on the host, %v here", r.host.Lease(m.ID), v.Member.LeaseUntil)
		}
		r.engine.set(func(e *engine) { e.holds["job"] = 10 * time.Hour })
		r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberClaimed, time.Now()); v.Member.Claimer = "job" })
		r.pass(time.Minute)
		if v := r.vm(m.Job); r.host.Lease(m.ID) != 12*time.Hour || time.Until(v.Member.LeaseUntil) < 11*time.Hour {
			t.Errorf("%s on the host, %v here", r.host.Lease(m.ID), v.Member.LeaseUntil)
		}
	})
	t.Run("none", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.start()
			r.pool(job.PoolSize{Warm: 1})
			m := r.filled(1, 0)[0]
			r.pass(time.Hour)
			if v := r.vm(m.Job); r.host.Lease(m.ID) != 0 || !v.Member.LeaseUntil.IsZero() {
				t.Errorf("%s on the host, %v here", r.host.Lease(m.ID), v.Member.LeaseUntil)
			}
		})
	})
}

// Who does not lead touches nothing, but knows what it can give to its jobs.
func TestPool_OfWhoFollows(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.stop()
		r.engine.follows = true
		r.start()
		r.resize(job.PoolSize{Warm: 3})
		r.pass(5 * time.Minute)
		r.kept(m.Job, vm.MemberWarm)
		if specs, _ := r.host.seen(); len(specs) != 1 {
			t.Errorf("%d creates", len(specs))
		}
		p := r.info()
		wants := p.Maker()
		wants.Lifecycle = vm.Ephemeral
		offering := r.Offering(wants)
		if len(offering) != 1 || r.Pick(offering[0], wants, func(node string) bool { return node == m.Node }, []vm.VM{m}) != 0 || r.Pick(offering[0], wants, func(node string) bool { return node != m.Node }, []vm.VM{m}) != -1 {
			t.Errorf("offered: %+v", offering)
		}
		wants.Resources.CPU = 7
		if offering := r.Offering(wants); len(offering) > 0 {
			t.Errorf("offered: %+v", offering)
		}
	})
}

// An engine that ends while it makes members has not failed to: the next one goes on with them.
func TestPool_OutlastsTheFleet(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{Hold: make(chan struct{})})
		r.start()
		r.pool(job.PoolSize{Warm: 2})
		r.pass(time.Minute)
		before := r.info()
		r.stop()
		r.host.Set(providertest.Behaviour{})
		r.start()
		for n, m := range r.filled(2, 0) {
			if m.Job != before.Members[n].Maker {
				t.Errorf("another member was made: %+v", m)
			}
		}
		if p := r.info(); p.Failure != nil {
			t.Errorf("%+v", p.Failure)
		}
	})
}

// A pool whose members wait for a node has no others begun; those of another pool are.
func TestPool_WaitsForANode(t *testing.T) {
	bubble(t, func(r *rig) {
		big := func(spec job.VMSpec) bool { return spec.MemoryMB > 2048 }
		r.onNodes(func(want job.Placement) (string, error) {
			if big(want.Spec) {
				return "", noRoom(false)
			}
			return "pve", nil
		})
		r.start()
		r.pool(job.PoolSize{Warm: 3}, func(p *job.Pool) { p.Resources.Memory = "4G" })
		if _, err := r.CreatePool(context.Background(), job.Pool{Name: "q", PoolSize: job.PoolSize{Warm: 3}}); err != nil {
			t.Fatal(err)
		}
		r.pass(5 * time.Minute)
		q, err := r.Pool(context.Background(), "q")
		if p := r.info(); err != nil || len(p.Members) != 2 || !strings.Contains(p.State, "paused: its next VM is waiting: no node can take it") || q.Count(vm.MemberWarm) != 3 {
			t.Errorf("%s with %d members; %s with %d warm, %v", p.State, len(p.Members), q.State, q.Count(vm.MemberWarm), err)
		}
	})
}

// Of what a policy forbids no pool is made, and none has the name of another.
func TestCreatePool_Refuses(t *testing.T) {
	bubble(t, func(r *rig) {
		refuses := &job.FieldError{Field: "manifest.os", Problem: "is not allowed"}
		r.opts.Allow = func(s job.Submission) error {
			if s.Manifest.OS != "" && s.Manifest.Task == "" {
				return refuses
			}
			return nil
		}
		r.start()
		r.pool(job.PoolSize{})
		for says, p := range map[string]job.Pool{
			"there is a pool":    {Name: "p"},
			"is not a pool's":    {Name: "P"},
			"is not allowed":     {Name: "q", OS: "debian"},
			"pool.name":          {Name: "A b"},
			"pool.warm":          {Name: "q", PoolSize: job.PoolSize{Warm: -1}},
			"pool.max_age":       {Name: "q", PoolSize: job.PoolSize{MaxAge: 5}},
			"pool.resources.cpu": {Name: "q", Resources: vm.Resources{CPU: 99}},
			"pool.network.ip":    {Name: "q", Network: vm.Network{IP: "10.0.0.5/24"}},
		} {
			if _, err := r.CreatePool(context.Background(), p); err == nil || !strings.Contains(err.Error(), says) {
				t.Errorf("%v; want %q", err, says)
			}
		}
		if _, err := r.ResizePool(context.Background(), "q", job.PoolSize{}.Change()); err == nil || !strings.Contains(err.Error(), `"q" is not a pool`) {
			t.Error(err)
		}
		if _, err := r.RemovePool(context.Background(), "q"); err == nil || !strings.Contains(err.Error(), `"q" is not a pool`) {
			t.Error(err)
		}
		if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{Warm: -1}.Change()); err == nil {
			t.Error("a negative size")
		}
		all, err := r.Pools(context.Background())
		if err != nil || len(all) != 1 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

// What pools cost is compared with what the host has, beside those before them.
func TestCheckPools(t *testing.T) {
	check := func(r *rig, total, free int) (lines []string) {
		r.room(func(h *job.HostRoom) { h.TotalMB, h.FreeMB = total, free })
		for _, c := range r.CheckPools(context.Background()) {
			lines = append(lines, c.Level+" "+c.Text)
		}
		return lines
	}
	bubble(t, func(r *rig) {
		r.Fleet = fleet.New(r.opts)
		if got := check(r, 20<<10, 20<<10); len(got) != 1 || !strings.Contains(got[0], "no pools; one of 2 warm VMs") || !strings.HasPrefix(got[0], "ok") {
			t.Errorf("without pools: %q", got)
		}
		r.pool(job.PoolSize{Warm: 2})
		if _, err := r.CreatePool(context.Background(), job.Pool{Name: "q", PoolSize: job.PoolSize{Warm: 1, Hibernated: 1}}); err != nil {
			t.Fatal(err)
		}
		for _, tt := range []struct {
			name        string
			total, free int
			p, q        string // what the lines begin with, and what is in them
		}{
			{"room for all", 20 << 10, 2<<10 + 8<<10, "ok pool p: 2 warm VMs take 4096 MiB", "ok pool q: 1 warm VMs take 2048 MiB"},
			{"not for the second", 20 << 10, 2<<10 + 8<<10 - 1, "ok", "warn pool q: 1 warm VMs take 2048 MiB, and 10239 of 20480 MiB are free: it does not fit, for 2048 MiB stay free and 4096 MiB are for the pools before it"},
			{"not for the first", 20 << 10, 2<<10 + 4<<10 - 1, "warn", "warn"},
			{"promised to all", 1024 + 8<<10, 1 << 20, "ok", "ok"},
			{"too much promised", 1024 + 8<<10 - 1, 1 << 20, "ok", "warn"},
		} {
			got := check(r, tt.total, tt.free)
			if len(got) != 2 || !strings.HasPrefix(got[0], tt.p) || !strings.HasPrefix(got[1], tt.q) {
				t.Errorf("%s: %q", tt.name, got)
			}
		}
		r.makes("1G", job.Provisioning)
		if got := check(r, 20<<10, 2<<10+8<<10); !strings.HasPrefix(got[1], "warn") {
			t.Errorf("beside a VM that is being made: %q", got)
		}
		r.host.Set(providertest.Behaviour{Rooms: silent(1)})
		if got := check(r, 20<<10, 20<<10); len(got) != 1 || !strings.HasPrefix(got[0], "warn") || !strings.Contains(got[0], "no answer") {
			t.Errorf("of a host that does not answer: %q", got)
		}
	})
}

// Who asks an engine that has just begun has the pool's VM: it waits until the host has said what the
// pool's VMs are made from now. Who no pool can serve waits for nothing.
func TestPool_ServesAnEnginesFirstJobs(t *testing.T) {
	for name, tt := range map[string]struct {
		takes  time.Duration // the host, to say it
		deaf   bool          // it says nothing
		lacks  func(*vm.VM)  // what the pool's VM is not as it should be; nil: nothing
		memory string        // that is asked for
		source vm.Source
		wait   bool
	}{
		"its VM":                {takes: 2 * time.Second, source: vm.FromPool, wait: true},
		"a host that is deaf":   {takes: 2 * time.Second, deaf: true, source: vm.Cold, wait: true},
		"a host that is silent": {takes: time.Hour, source: vm.Cold, wait: true},
		"another VM":            {takes: time.Hour, memory: "3G", source: vm.Cold},
		"one that is given up":  {takes: time.Hour, lacks: func(v *vm.VM) { v.Member.State = vm.MemberDoomed }, source: vm.Cold},
		"another pool's":        {takes: time.Hour, lacks: func(v *vm.VM) { v.Member.Pool = "q" }, source: vm.Cold},
		"one that is too old":   {takes: time.Hour, lacks: func(v *vm.VM) { v.CreatedAt = v.CreatedAt.Add(-1000 * time.Hour) }, source: vm.Cold},
	} {
		for who, ask := range map[string]func(r *rig) vm.VM{
			"a job": func(r *rig) vm.VM {
				j, err := r.acquire(context.Background(), job.Manifest{Resources: vm.Resources{Memory: tt.memory}})
				if err != nil {
					r.t.Fatal(err)
				}
				return *j.VM
			},
			"who asks for a VM": func(r *rig) vm.VM {
				return r.vm(r.wants("dev1", func(s *job.Submission) { s.Manifest.Resources.Memory = tt.memory }))
			},
		} {
			t.Run(name+", "+who, func(t *testing.T) {
				bubble(t, func(r *rig) {
					r.start()
					r.pool(job.PoolSize{Warm: 1})
					m := r.filled(1, 0)[0]
					r.stop()
					if tt.lacks != nil {
						r.change(m.Job, tt.lacks)
					}
					r.host.set(func(h *hypervisor) { h.roomTakes = tt.takes })
					if tt.deaf {
						r.host.Set(providertest.Behaviour{Rooms: silent(1)})
					}
					r.start()
					began := time.Now()
					v := ask(r)
					if has := v.Source == vm.FromPool && v.ID == m.ID; v.Source != tt.source || has != (tt.source == vm.FromPool) {
						t.Errorf("%+v; the pool's VM is %d", v, m.ID)
					}
					if waited := time.Since(began); (waited > time.Second) != tt.wait || waited > time.Minute {
						t.Errorf("it waited for %s", waited)
					}
					r.host.set(func(h *hypervisor) { h.roomTakes = 0 })
				})
			})
		}
	}
}
