package executor_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/secret"
	"linus/internal/vm"
)

// newPool adds a pool of the default VM, and waits until its members are ready.
func (r *rig) newPool(warm int) {
	r.t.Helper()
	_, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: warm}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.untilPool("warm members", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == warm })
}

// untilPool waits until the pool is as wanted.
func (r *rig) untilPool(what string, wanted func(job.PoolInfo) bool) job.PoolInfo {
	r.t.Helper()
	var p job.PoolInfo
	for deadline := time.Now().Add(3 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var err error
		if p, err = r.Pool(context.Background(), "p"); err != nil {
			r.t.Fatal(err)
		}
		if wanted(p) {
			return p
		}
	}
	r.t.Fatalf("no %s within 3 minutes: %+v", what, p)
	return p
}

// removePool removes the pool, and waits until no member is left.
func (r *rig) removePool() {
	r.t.Helper()
	if _, err := r.RemovePool(context.Background(), "p"); err != nil {
		r.t.Fatal(err)
	}
	r.noMembers()
}

// tended waits until the pool goes by what the host is now.
func (r *rig) tended() {
	for rooms := r.fake.Stats().Rooms + 2; r.fake.Stats().Rooms < rooms; time.Sleep(time.Millisecond) {
	}
}

func (r *rig) noMembers() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		members, err := r.store.Members(context.Background())
		unfinished, err2 := r.store.InProgress(context.Background())
		if err == nil && err2 == nil && len(members)+len(unfinished) == 0 {
			return
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("left: members %+v, unfinished %+v, %v", members, unfinished, err)
		}
	}
}

// untilVM waits until a VM has a state.
func (r *rig) untilVM(id string, state vm.State) vm.VM {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		v, err := r.store.VM(context.Background(), id)
		if err == nil && v.State == state {
			return v
		}
		if err != nil || time.Now().After(deadline) {
			r.t.Fatalf("VM %s is not %s: %+v, %v", id, state, v, err)
		}
	}
}

// paused lets no pool make members.
func paused(b providertest.Behaviour) providertest.Behaviour {
	b.Room = job.HostRoom{FreeMB: 1 << 20, TotalMB: 1 << 20, Pressure: 15}
	return b
}

func TestPool_JobGetsAMemberAndThePoolAnother(t *testing.T) {
	r := newRig(t, 2)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("out\n")})}, true)
	r.newPool(2)
	before, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	j := r.wait(r.submit())
	if j.Status != job.Success || j.VM.Source != vm.FromPool || j.VM.Job != before.Members[0].Maker || j.VM.State != vm.Destroyed {
		t.Errorf("job %+v, VM %+v", j, j.VM)
	}
	after := r.untilPool("refill", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 2 && len(p.Members) == 2 })
	if after.Hits != 1 || after.Misses != 0 || slices.ContainsFunc(after.Members, func(m vm.MemberInfo) bool { return m.Maker == before.Members[0].Maker }) {
		t.Errorf("pool %+v", after)
	}
	page, err := r.List(context.Background(), job.Filter{})
	if err != nil || len(page.Jobs) != 1 || page.Jobs[0].ID != j.ID {
		t.Errorf("jobs listed: %+v, %v", page.Jobs, err)
	}
	if r.Idle() {
		t.Error("an engine with a pool may end")
	}
	r.removePool()
	r.noLeaks()
}

func TestPool_OnlyForJobsThatAskForTheSame(t *testing.T) {
	r := newRig(t, 2)
	r.behave(providertest.Behaviour{}, true)
	r.newPool(1)
	r.behave(paused(providertest.Behaviour{}), true)
	for name, change := range map[string]func(*job.Manifest){
		"cold":       func(m *job.Manifest) { m.Start = job.StartCold },
		"kept":       func(m *job.Manifest) { m.Keep = job.KeepOnFailure },
		"cpu":        func(m *job.Manifest) { m.Resources.CPU = 3 },
		"memory":     func(m *job.Manifest) { m.Resources.Memory = "3G" },
		"disk":       func(m *job.Manifest) { m.Resources.Disk = "11G" },
		"template":   func(m *job.Manifest) { m.VMTemplate = "9000" },
		"os":         func(m *job.Manifest) { m.OS = job.Systems[0] },
		"network":    func(m *job.Manifest) { m.Network.Bridge = "vmbr1" },
		"persistent": func(m *job.Manifest) { m.Lifecycle = vm.Persistent },
	} {
		if j := r.wait(r.submit(change)); j.VM.Source != vm.Cold || j.Status != job.Success {
			t.Errorf("%s: %s, VM from %s", name, j.Status, j.VM.Source)
		}
	}
	if j := r.wait(r.submit(func(m *job.Manifest) { m.Resources.Memory = "2048M" })); j.VM.Source != vm.FromPool {
		t.Errorf("the same size, in other words: %+v", j.VM)
	}
}

func TestPool_HundredClaimersTenMembers(t *testing.T) {
	loops.NotInCheck(t)
	r := newRig(t, 100)
	r.behave(providertest.Behaviour{}, true)
	r.newPool(10)
	makers := map[string]bool{}
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range p.Members {
		makers[m.Maker] = true
	}
	r.behave(paused(providertest.Behaviour{}), true)
	r.tended()
	ids := make([]string, 100)
	var submitting sync.WaitGroup
	for i := range ids {
		submitting.Go(func() { ids[i] = r.submit() })
	}
	submitting.Wait()
	pooled, used := 0, map[string]string{}
	for _, id := range ids {
		j := r.wait(id)
		if j.Status != job.Success {
			t.Errorf("job %+v", j.Outcome)
		}
		if other := used[j.VM.Job]; other != "" {
			t.Errorf("VM %d was given to %s and %s", j.VM.ID, other, id)
		}
		used[j.VM.Job] = id
		if j.VM.Source == vm.FromPool {
			pooled++
			if !makers[j.VM.Job] {
				t.Errorf("VM %d was no member", j.VM.ID)
			}
		}
	}
	if p, err := r.Pool(context.Background(), "p"); err != nil || pooled != 10 || p.Hits != 10 || p.Misses != 90 {
		t.Errorf("%d had a member; %+v, %v", pooled, p, err)
	}
	r.removePool()
	r.noLeaks()
}

func TestPool_MemberThatDoesNotAnswerIsNotUsed(t *testing.T) {
	t.Parallel()
	full := &job.HostError{Op: "put the job into VM", Class: job.HostVM, Text: "No space left on device"}
	for _, tt := range []struct {
		name   string
		dies   func(*rig, job.PoolInfo) // what happens to members
		source vm.Source
	}{
		{"the next one", func(r *rig, p job.PoolInfo) { r.fake.Vanish(p.Members[0].VM.ID) }, vm.FromPool},
		{"a VM of its own", func(r *rig, p job.PoolInfo) {
			for _, m := range p.Members {
				r.fake.Vanish(m.VM.ID)
			}
		}, vm.Cold},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.vms.PoolInterval = time.Hour // the job is the first to meet it
			r.stop()
			r.restart()
			begun := 0
			b := paused(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("once\n")})})
			b.Room.Pressure = 0
			b.OnStart = func(job.Job, job.Payload) { begun++ }
			r.fake.Set(b)
			r.newPool(2)
			p, err := r.Pool(context.Background(), "p")
			if err != nil {
				t.Fatal(err)
			}
			tt.dies(r, p)
			j := r.wait(r.submit())
			was := slices.ContainsFunc(p.Members, func(m vm.MemberInfo) bool { return m.VM.ID == j.VM.ID })
			source := j.VM.Source
			if !was { // a VM of its own, or the pool's replacement if that was made first
				source = vm.Cold
			}
			if j.Status != job.Success || source != tt.source || begun != 1 {
				t.Errorf("%+v, VM %+v, begun %d times", j.Outcome, j.VM, begun)
			}
			r.removePool()
			r.noLeaks()
		})
	}
	t.Run("found out by its push", func(t *testing.T) {
		r := newRig(t, 1)
		r.newPool(1)
		r.behave(paused(providertest.Behaviour{Pushes: []error{full}}), true)
		if j := r.wait(r.submit()); j.Status != job.Success || j.VM.Source != vm.Cold {
			t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
		}
		r.removePool()
		r.noLeaks()
	})
}

// A job with secrets or credentials does not get a VM whose host key is not known.
func TestPool_SecretsNeedAHostKey(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.opts.Secrets = func(names []string) (values []secret.Value, err error) {
		for _, name := range names {
			values = append(values, secret.NewValue(name, "hush hush"))
		}
		return values, nil
	}
	r.restart()
	b := providertest.Behaviour{Reach: func(v vm.VM) vm.VM { v.HostKey = ""; return v }}
	r.behave(b, true)
	r.newPool(1)
	b.Reach = nil
	r.behave(paused(b), true)
	r.addCredential("api", "")
	for name, with := range map[string]func(*job.Manifest){"secrets": naming("TOKEN"), "credentials": using("api")} {
		if j := r.wait(r.submit(with)); j.Status != job.Success || j.VM.Source != vm.Cold {
			t.Errorf("with %s: %+v, %+v", name, j.Outcome, j.VM)
		}
	}
	if j := r.wait(r.submit()); j.Status != job.Success || j.VM.Source != vm.FromPool {
		t.Errorf("without: %+v, %+v", j.Outcome, j.VM)
	}
	r.removePool()
	r.noLeaks()
}

// A member's VM that was ready just after the member was given up is destroyed all the
// same, at the latest by the next engine.
func TestPool_MemberGivenUpAsItGetsReadyIsDestroyed(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(1)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	_, err = r.store.UpdateVM(context.Background(), p.Members[0].Maker, func(v *vm.VM) ([]job.Event, error) {
		v.Member.Become(vm.MemberDoomed, time.Now())
		return nil, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	r.restart()
	r.untilVM(p.Members[0].Maker, vm.Destroyed)
	r.removePool()
	r.noLeaks()
}

func TestPool_MemberDestroyedByAnOperatorIsReplaced(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(2)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	r.fake.Vanish(p.Members[0].VM.ID)
	r.untilPool("replacement", func(now job.PoolInfo) bool {
		return now.Count(vm.MemberWarm) == 2 && !slices.ContainsFunc(now.Members, func(m vm.MemberInfo) bool { return m.Maker == p.Members[0].Maker })
	})
	if gone := r.untilVM(p.Members[0].Maker, vm.Destroyed); !strings.Contains(gone.Member.Why, "gone") {
		t.Errorf("%+v, %+v", gone, gone.Member)
	}
	r.removePool()
	r.noLeaks()
}

// A host that does not answer proves nothing against its VMs.
func TestPool_KeepsItsMembersWhileTheHostIsAway(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(2)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	away := &job.HostError{Op: "check", Class: job.HostUnreachable, Text: "no route to host"}
	r.fake.Set(providertest.Behaviour{Rooms: slices.Repeat([]error{away}, 5), Pings: slices.Repeat([]error{away}, 4), Statuses: slices.Repeat([]error{away}, 4)})
	for rooms := r.fake.Stats().Rooms + 8; r.fake.Stats().Rooms < rooms; time.Sleep(time.Millisecond) {
	}
	now, err := r.Pool(context.Background(), "p")
	if err != nil || len(now.Members) != 2 || now.Members[0].Maker != p.Members[0].Maker || now.Members[1].Maker != p.Members[1].Maker {
		t.Errorf("members %+v, %v", now.Members, err)
	}
	r.removePool()
	r.noLeaks()
}

func TestPool_AnotherTemplateReplacesItsMembers(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(2)
	b := providertest.Behaviour{}
	b.Room = job.HostRoom{FreeMB: 1 << 20, TotalMB: 1 << 20, Generations: map[job.Origin]string{{Template: providertest.FakeTemplate}: "2"}}
	r.fake.Set(b)
	p := r.untilPool("members of the new template", func(p job.PoolInfo) bool {
		return p.Count(vm.MemberWarm) == 2 && len(p.Members) == 2 && p.Members[0].Generation == "2" && p.Members[1].Generation == "2"
	})
	if p.Failure != nil {
		t.Errorf("failure %+v", p.Failure)
	}
	r.removePool()
	r.noLeaks()
}

func TestPool_MakesNothingWhere(t *testing.T) {
	for name, tt := range map[string]struct {
		room job.HostRoom
		text string
	}{
		"memory is short":          {job.HostRoom{FreeMB: 3 << 10, TotalMB: 16 << 10}, "MiB free"},
		"memory is under pressure": {job.HostRoom{FreeMB: 64 << 10, TotalMB: 64 << 10, Pressure: 10.5}, "short of memory"},
		"there is no template": {job.HostRoom{FreeMB: 64 << 10, TotalMB: 64 << 10, Generations: map[job.Origin]string{
			{Template: providertest.FakeTemplate}: ""}}, "is not on the host"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.fake.Set(providertest.Behaviour{Room: tt.room})
			if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 2}}); err != nil {
				t.Fatal(err)
			}
			p := r.untilPool("reason", func(p job.PoolInfo) bool { return strings.Contains(p.State, tt.text) })
			if len(p.Members) != 0 || r.fake.Stats().Creates != 0 {
				t.Errorf("pool %+v", p)
			}
			r.removePool()
		})
	}
}

func TestPool_GivesMembersUpUnderHighPressure(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(3)
	r.fake.Set(providertest.Behaviour{Room: job.HostRoom{FreeMB: 64 << 10, TotalMB: 64 << 10, Pressure: 25}})
	r.untilPool("ease", func(p job.PoolInfo) bool { return len(p.Members) == 0 })
	r.fake.Set(providertest.Behaviour{})
	r.untilPool("refill", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 3 })
	r.removePool()
	r.noLeaks()
}

// The jobs that make a pool's VMs take none of the slots of others.
func TestPool_ItsMakersTakeNoSlot(t *testing.T) {
	r := newRig(t, 1)
	on := make(chan struct{})
	r.behave(providertest.Behaviour{Hold: on}, false)
	if _, err := r.CreatePool(t.Context(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 1}}); err != nil {
		t.Fatal(err)
	}
	r.untilPool("a member that is being made", func(p job.PoolInfo) bool { return len(p.Members) == 1 && p.Members[0].VM.ID != 0 })
	r.behave(providertest.Behaviour{}, true)
	if j := r.wait(r.submit()); j.Status != job.Success {
		t.Errorf("%+v", j.Outcome)
	}
	close(on)
	r.removePool()
}

func TestPool_StopsAfterEqualFailures(t *testing.T) {
	t.Parallel()
	again := map[string]func(*rig){
		"resized": func(r *rig) {
			r.fake.Set(providertest.Behaviour{})
			if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{Warm: 2}.Change()); err != nil {
				r.t.Error(err)
			}
		},
		"another template": func(r *rig) {
			r.fake.Set(providertest.Behaviour{Room: job.HostRoom{FreeMB: 1 << 20, TotalMB: 1 << 20, Generations: map[job.Origin]string{{Template: providertest.FakeTemplate}: "2"}}})
		},
	}
	for _, name := range slices.Sorted(maps.Keys(again)) {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.stop()
			r.vms.Store = earlierFailure{r.store}
			r.restart()
			r.fake.Set(providertest.Behaviour{FailStep: "start_vm"})
			if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 2}}); err != nil {
				t.Fatal(err)
			}
			p := r.untilPool("stop", func(p job.PoolInfo) bool { return strings.HasPrefix(p.State, "stopped") && len(p.Members) == 0 })
			creates := r.fake.Stats().Creates
			if p.Failure.Count < job.MostFailures || creates > job.MostFailures+1 || !strings.Contains(p.State, "made to fail at start_vm; do not ask for it") {
				t.Errorf("%d creates, %+v, %s", creates, p.Failure, p.State)
			}
			for rooms := r.fake.Stats().Rooms + 5; r.fake.Stats().Rooms < rooms; time.Sleep(time.Millisecond) {
			}
			if now := r.fake.Stats().Creates; now != creates {
				t.Errorf("%d creates after it stopped", now-creates)
			}
			// Looked up while it stops, it is as it was or as it is: not stopped, with the failures it had before.
			if p, err := r.Pool(context.WithValue(t.Context(), earlier{}, true), "p"); err != nil || !strings.HasPrefix(p.State, "waiting after a failure: create VM") {
				t.Errorf("%+v, %v", p, err)
			}
			again[name](r)
			p = r.untilPool("members", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 2 && p.Failure == nil })
			r.removePool()
			r.noLeaks()
		})
	}
}

func TestPool_WaitsBehindJobs(t *testing.T) {
	r := newRig(t, 1)
	release := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: release})})
	first := r.submit()
	r.until(first, func(j job.Job) bool { return j.Status == job.Running })
	second := r.submit()
	if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 2}}); err != nil {
		t.Fatal(err)
	}
	p := r.untilPool("pause", func(p job.PoolInfo) bool { return strings.Contains(p.State, "jobs wait") })
	if len(p.Members) != 0 {
		t.Errorf("members %+v", p.Members)
	}
	close(release)
	r.wait(first)
	r.wait(second)
	r.untilPool("members", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 2 })
	r.removePool()
	r.noLeaks()
}

// Members are nobody's: they take no slot and count against no client.
func TestPool_CountsAgainstNoLimit(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.opts.Admit = func(has []job.Job, _ job.Manifest) error {
		if len(has) > 0 {
			return fmt.Errorf("%d jobs count", len(has))
		}
		return nil
	}
	r.restart()
	made := make(chan struct{})
	r.behave(providertest.Behaviour{Hold: made}, true)
	if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 2}}); err != nil {
		t.Fatal(err)
	}
	r.untilPool("making", func(p job.PoolInfo) bool { return p.Count(vm.MemberMaking) == 2 })
	close(made)
	for range 2 {
		if j := r.wait(r.submit()); j.Status != job.Success {
			t.Errorf("job %+v", j.Outcome)
		}
	}
	r.removePool()
	r.noLeaks()
}

func TestPool_DrainsAndSleeps(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{}, true)
	r.newPool(3)
	if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{Warm: 1}.Change()); err != nil {
		t.Fatal(err)
	}
	r.untilPool("fewer", func(p job.PoolInfo) bool { return len(p.Members) == 1 })
	if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{}.Change()); err != nil {
		t.Fatal(err)
	}
	r.untilPool("none", func(p job.PoolInfo) bool { return len(p.Members) == 0 })
	if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{Warm: 1, IdleLimit: 60}.Change()); err != nil {
		t.Fatal(err)
	}
	r.untilPool("one", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 1 })
	_, err := r.store.UpdatePool(context.Background(), "p", func(p *job.Pool) error { p.AskedAt = p.AskedAt.Add(-time.Hour); return nil })
	if err != nil {
		t.Fatal(err)
	}
	r.untilPool("sleep", func(p job.PoolInfo) bool { return len(p.Members) == 0 && strings.HasPrefix(p.State, "asleep") })
	if j := r.wait(r.submit()); j.VM.Source != vm.Cold {
		t.Errorf("VM %+v", j.VM)
	}
	r.untilPool("one again", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 1 })
	r.removePool()
	r.noLeaks()
}

func TestPool_ReplacesMembersOfAge(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(1)
	p, err := r.store.UpdatePool(context.Background(), "p", func(p *job.Pool) error { p.MaxAge = 1; return nil })
	if err != nil {
		t.Fatal(err)
	}
	old := r.untilPool("one", func(p job.PoolInfo) bool { return len(p.Members) > 0 }).Members[0].Maker
	r.untilPool("a younger one", func(p job.PoolInfo) bool {
		return p.Count(vm.MemberWarm) == 1 && p.Members[len(p.Members)-1].Maker != old
	})
	_ = p
	r.removePool()
	r.noLeaks()
}

// The host ends a member that no engine looks after; a job's for no shorter than it may
// run.
func TestPool_Leases(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.vms.Lease = 24 * time.Hour
	r.restart()
	release := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: release})})
	r.newPool(1)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	maker := p.Members[0].Maker
	m, err := r.store.VM(context.Background(), maker)
	if left := time.Until(m.Member.LeaseUntil); err != nil || left < 24*time.Hour || left > 25*time.Hour {
		t.Errorf("a member's lease lasts %s, %v", left, err)
	}
	id := r.submit(func(m *job.Manifest) { m.Timeout = 7200 })
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	for deadline := time.Now().Add(time.Minute); r.fake.Lease(j.VM.ID) < 26*time.Hour; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the lease of a claimed VM is %s", r.fake.Lease(j.VM.ID))
		}
	}
	close(release)
	r.wait(id)
	r.removePool()
	r.noLeaks()
}

// A member that the host does not prove ours is left alone, and said to be, by both its
// jobs.
func TestPool_MemberThatIsNotProvenIsLeftAlone(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{}, true)
	r.newPool(1)
	p, err := r.Pool(context.Background(), "p")
	if err != nil {
		t.Fatal(err)
	}
	member := p.Members[0]
	release := make(chan struct{})
	r.fake.Set(paused(providertest.Behaviour{Task: task(providertest.Task{Until: release})}))
	id := r.submit()
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.fake.Doubt(member.VM.ID, true)
	close(release)
	j := r.wait(id)
	m, err := r.store.VM(context.Background(), member.Maker)
	if err != nil || j.VM.State != vm.Released || m.State != vm.LeftAlone || !r.fake.Has(member.VM.ID) {
		t.Errorf("job's VM %+v, the pool's %+v, %v", j.VM, m, err)
	}
	r.fake.Doubt(member.VM.ID, false)
	if _, err := r.DestroyVM(context.Background(), member.VM.Name); err != nil {
		t.Error(err)
	}
	r.removePool()
	r.noLeaks()
}

// A member that the host does not prove ours any more goes to no job: it is left alone, and
// the pool makes another.
func TestPool_MemberThatIsAnothersByNowGoesToNoJob(t *testing.T) {
	t.Parallel()
	for name, size := range map[string]job.PoolSize{"warm": {Warm: 1}, "hibernated": {Hibernated: 1}} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1)
			r.behave(providertest.Behaviour{}, true)
			if _, err := r.CreatePool(t.Context(), job.Pool{Name: "p", PoolSize: size}); err != nil {
				t.Fatal(err)
			}
			ready := func(p job.PoolInfo) bool {
				return p.Count(vm.MemberWarm) == size.Warm && p.Count(vm.MemberHibernated) == size.Hibernated
			}
			taken := r.untilPool("member", ready).Members[0]
			r.fake.Doubt(taken.VM.ID, true)
			m := r.untilVM(taken.Maker, vm.LeftAlone)
			if m.Reason == "" || m.Remedy == "" || !strings.Contains(m.Member.Why, "no longer proven ours: its description does not carry") {
				t.Errorf("%+v, %+v", m.Member, m)
			}
			r.untilPool("another member", ready)
			if j := r.wait(r.submit()); j.Status != job.Success || j.VM.ID == taken.VM.ID || j.VM.Source == vm.Cold {
				t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
			}
			told, err := r.store.VMEvents(t.Context(), taken.Maker)
			told = slices.DeleteFunc(told, func(e job.Event) bool { return !strings.Contains(e.Text, "is left alone") })
			if err != nil || len(told) != 1 || !r.fake.Has(taken.VM.ID) {
				t.Errorf("warnings %v; on the host: %t", told, r.fake.Has(taken.VM.ID))
			}
			r.fake.Doubt(taken.VM.ID, false)
			if _, err := r.DestroyVM(t.Context(), taken.VM.Name); err != nil {
				t.Error(err)
			}
			r.removePool()
			r.noLeaks()
		})
	}
}

func TestPool_RefusesNonsense(t *testing.T) {
	r := newRig(t, 1)
	for _, tt := range []struct {
		pool job.Pool
		want string
	}{
		{job.Pool{Name: "A b"}, "pool.name"},
		{job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: -1}}, "pool.warm"},
		{job.Pool{Name: "p", PoolSize: job.PoolSize{MaxAge: 5}}, "pool.max_age"},
		{job.Pool{Name: "p", Resources: vm.Resources{CPU: 99}}, "pool.resources.cpu"},
		{job.Pool{Name: "p", Network: vm.Network{IP: "10.0.0.5/24"}}, "pool.network.ip"},
	} {
		if _, err := r.CreatePool(context.Background(), tt.pool); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: %v", tt.pool, err)
		}
	}
	if _, err := r.ResizePool(context.Background(), "none", job.PoolSize{}.Change()); err == nil || !strings.Contains(err.Error(), "is not a pool") {
		t.Error(err)
	}
	_, err := r.Submit(context.Background(), job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, Lifecycle: vm.Pooled}})
	if err == nil {
		t.Error("a client's job may be a member")
	}
}

func TestCheckHost_SaysWhatPoolsCost(t *testing.T) {
	r := newRig(t, 1)
	check := func() job.Check {
		t.Helper()
		report, err := r.CheckHost(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		at := slices.IndexFunc(report.Checks, func(c job.Check) bool { return c.Name == "pools" })
		if at < 0 {
			t.Fatalf("no word of pools: %+v", report.Checks)
		}
		return report.Checks[at]
	}
	if c := check(); c.Level != "ok" || c.Text != "no pools; one of 2 warm VMs like a job's by default would take 4096 MiB, and 65536 of 65536 MiB are free" {
		t.Errorf("%+v", c)
	}
	r.newPool(2)
	if c := check(); c.Level != "ok" || !strings.HasPrefix(c.Text, "pool p: 2 warm VMs take 4096 MiB, and ") || !strings.HasSuffix(c.Text, " of 65536 MiB are free") { // they are being made meanwhile
		t.Errorf("%+v", c)
	}
	r.fake.Set(providertest.Behaviour{Room: job.HostRoom{FreeMB: 4 << 10, TotalMB: 16 << 10}})
	if _, err := r.ResizePool(context.Background(), "p", job.PoolSize{Warm: 4}.Change()); err != nil {
		t.Fatal(err)
	}
	if c := check(); c.Level != "warn" || !strings.Contains(c.Text, "it does not fit, for 1638 MiB stay free") || c.Remedy == "" {
		t.Errorf("%+v", c)
	}
	r.removePool()
	r.noLeaks()
}

// What happens to pools is told to observers: the metrics and the audit log.
func TestPool_IsObserved(t *testing.T) {
	r, w := observed(t)
	r.behave(providertest.Behaviour{}, true)
	r.newPool(1)
	hit := r.wait(r.submit())
	r.behave(paused(providertest.Behaviour{FailStep: "create_vm"}), true)
	r.removePool()
	w.mu.Lock()
	defer w.mu.Unlock()
	kinds := map[job.PoolEventKind]job.PoolEvent{}
	for _, e := range w.pooled {
		kinds[e.Kind] = e
	}
	if e := kinds[job.PoolHit]; e.Pool != "p" || e.Job != hit.ID || e.VM.ID != hit.VM.ID || e.Took <= 0 {
		t.Errorf("hit %+v", e)
	}
	if e := kinds[job.PoolCreated]; e.Pool != "p" || e.Detail == "" {
		t.Errorf("created %+v", e)
	}
	if _, told := kinds[job.PoolRemoved]; !told {
		t.Error("its end was not told")
	}
}

// Members take, sooner or later, all the memory they may: a pool is filled up to what the
// host has, however much of it is not used yet, and says so.
func TestPool_IsFilledUpToTheMemoryPromised(t *testing.T) {
	r := newRig(t, 1)
	r.fake.Set(providertest.Behaviour{Room: job.HostRoom{FreeMB: 64 << 10, TotalMB: 10 << 10}})
	if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 100}}); err != nil {
		t.Fatal(err)
	}
	p := r.untilPool("pause", func(p job.PoolInfo) bool { return strings.Contains(p.State, "promised") && p.Count(vm.MemberWarm) > 3 })
	if n := len(p.Members); n != 4 || !strings.Contains(p.State, "10240 MiB 8192 MiB are promised to VMs of linus and 1024 MiB stay free") {
		t.Errorf("%d members; %s", n, p.State)
	}
	report, err := r.CheckHost(t.Context())
	if err != nil || !slices.ContainsFunc(report.Checks, func(c job.Check) bool {
		return c.Name == "pools" && c.Level == "warn" && strings.Contains(c.Text, "8192 MiB are promised")
	}) {
		t.Errorf("%+v, %v", report, err)
	}
	r.removePool()
	r.behave(paused(providertest.Behaviour{}), false)
	for _, name := range []string{"p", "q"} { // each of them fits alone, into the 943719 MiB that are not reserved
		p := job.Pool{Name: name, Resources: vm.Resources{Memory: "256G"}, PoolSize: job.PoolSize{Warm: 2}}
		if _, err := r.CreatePool(t.Context(), p); err != nil {
			t.Fatal(err)
		}
	}
	report, err = r.CheckHost(t.Context())
	checks := slices.DeleteFunc(report.Checks, func(c job.Check) bool { return c.Name != "pools" })
	if err != nil || len(checks) != 2 || checks[0].Level != "ok" || checks[1].Level != "warn" || !strings.Contains(checks[1].Text, "524288 MiB are for the pools before it") {
		t.Errorf("%+v, %v", checks, err)
	}
}

// Who follows a pool's VM by the ID in its marker, as by that of a job, sees how it is made and
// how it ends, and can have it destroyed.
func TestPool_MemberIsFollowedLikeAJob(t *testing.T) {
	r := newRig(t, 1)
	r.newPool(1)
	p, err := r.Pool(t.Context(), "p")
	if err != nil {
		t.Fatal(err)
	}
	id := p.Members[0].Maker
	events, j, err := r.Watch(t.Context(), id, 0)
	if err != nil || j.Status != job.Success || j.Kind != job.KindMake || j.Manifest.Lifecycle != vm.Pooled || !j.Done() || len(events) == 0 {
		t.Errorf("%+v, events %v, %v", j, events, err)
	}
	if _, err := r.DestroyVM(t.Context(), p.Members[0].VM.Name); err != nil {
		t.Fatal(err)
	}
	for ended := false; !ended; {
		more, j, err := r.Watch(t.Context(), id, events[len(events)-1].Seq)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, more...)
		ended = len(more) == 0 && j.VM.State.Settled() // what came before the end was read before it
	}
	if !slices.ContainsFunc(events, func(e job.Event) bool { return strings.Contains(e.Text, "is destroyed") }) {
		t.Errorf("told %v", events)
	}
	if _, err := r.Job(t.Context(), "019aa000-0000-7000-8000-000000000000"); !errors.Is(err, job.ErrNotFound) {
		t.Error(err)
	}
	r.removePool()
	r.noLeaks()
}
