package executor_test

import (
	"context"
	"errors"
	"fmt"
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
		"os":         func(m *job.Manifest) { m.OS = vm.Systems[0] },
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
	r.vms.Admit = func(has []job.Job, _ job.Manifest) error {
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

// A pool that sleeps wakes up as a job asks for one of its members, which itself gets a new VM.
func TestPool_WakesUpForAJob(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{}, true)
	if _, err := r.CreatePool(t.Context(), job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 1, IdleLimit: 60}}); err != nil {
		t.Fatal(err)
	}
	r.untilPool("one", func(p job.PoolInfo) bool { return p.Count(vm.MemberWarm) == 1 })
	_, err := r.store.UpdatePool(t.Context(), "p", func(p *job.Pool) error { p.AskedAt = p.AskedAt.Add(-time.Hour); return nil })
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
