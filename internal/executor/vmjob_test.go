package executor_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/store"
	"linus/internal/vm"
)

// createVM asks for a VM, and returns what stands for the job that makes it.
func (r *rig) createVM(ctx context.Context, s job.Submission) (job.Job, error) {
	v, err := r.CreateVM(ctx, s)
	if err != nil {
		return job.Job{}, err
	}
	return r.Job(ctx, v.Job)
}

// askVM asks for a VM.
func (r *rig) askVM(name string) job.Job {
	r.t.Helper()
	j, err := r.createVM(context.Background(), job.Submission{Client: "cli", Manifest: job.Manifest{VMName: name}})
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

// hasID waits until a VM has an ID on the host, of which nothing is told.
func (r *rig) hasID(id string) {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		v, err := r.store.VM(context.Background(), id)
		if err == nil && v.ID != 0 {
			return
		}
		if err != nil || time.Now().After(deadline) {
			r.t.Fatalf("VM %s has no ID: %+v, %v", id, v, err)
		}
	}
}

func TestCreateVM_SameKeySameVM(t *testing.T) {
	r := newRig(t, 1)
	ask := func(name, key string) (job.VMInfo, error) {
		return r.CreateVM(t.Context(), job.Submission{IdempotencyKey: key, Manifest: job.Manifest{VMName: name}})
	}
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Hold: hold})
	first, err := ask("dev", "k")
	if err != nil || first.Name != "dev" || first.Status != vm.Provisioning {
		t.Fatalf("%+v, %v", first, err)
	}
	for _, status := range []vm.Status{vm.Provisioning, vm.Running} {
		if again, err := ask("dev", "k"); err != nil || again.Job != first.Job || again.Status != status {
			t.Errorf("%s, %s, %v; want %s, %s", again.Job, again.Status, err, first.Job, status)
		}
		if status == vm.Provisioning {
			close(hold)
			r.wait(first.Job)
		}
	}
	_, err = ask("other", "k")
	refusal(t, err, "idempotency_key: was used for another submission, job "+first.Job)
	_, err = ask("", "")
	refusal(t, err, "manifest.vmName: is required")
	if stats := r.fake.Stats(); stats.Creates != 1 {
		t.Errorf("%d VMs were made", stats.Creates)
	}
}

// between is a store in which something happens between two reads of who watches: of a VM's
// events, once, and of its row.
type between struct {
	*store.Store
	once *sync.Once
	what func()
}

func (s between) VMEvents(ctx context.Context, id string) ([]job.Event, error) {
	events, err := s.Store.VMEvents(ctx, id)
	if ctx.Value(watching{}) != nil {
		s.once.Do(s.what)
	}
	return events, err
}

type watching struct{}

// Who follows a VM's making has all its events by the end.
func TestWatch_AVMsLastEventsComeWithItsEnd(t *testing.T) {
	r := newRig(t, 1)
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Hold: hold})
	j := r.askVM("dev")
	r.hasID(j.ID)
	r.stop()
	r.opts.Stores = executor.StoresOf(between{r.store, &sync.Once{}, func() {
		close(hold)
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if v, err := r.store.VM(t.Context(), j.ID); err == nil && !v.Own.ReadyAt.IsZero() {
				return
			}
		}
		t.Error("the VM is not made")
	}})
	r.restart()
	var all []string
	for after := int64(0); !j.Done(); {
		events, now, err := r.Watch(context.WithValue(t.Context(), watching{}, true), j.ID, after)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			after = e.Seq
			all = append(all, e.Kind)
		}
		j = now
	}
	if !slices.Contains(all, job.EventPhaseEnded) {
		t.Errorf("events: %v", all)
	}
}

func TestCreateVM_OneOfAName(t *testing.T) {
	r := newRig(t, 4)
	var asking sync.WaitGroup
	results := make([]error, 8)
	for i := range results {
		asking.Go(func() {
			_, results[i] = r.createVM(context.Background(), job.Submission{Manifest: job.Manifest{VMName: "dev"}})
		})
	}
	asking.Wait()
	accepted := 0
	for _, err := range results {
		if err == nil {
			accepted++
		} else {
			refusal(t, err, `manifest.vmName: VM already exists: "dev" is`)
		}
	}
	if accepted != 1 {
		t.Errorf("%d of 8 were accepted", accepted)
	}
}

// As many as jobs may have a VM are made at a time. One that waits is listed, says so, and can
// be had destroyed, which asks nothing of the host.
func TestCreateVM_WaitsForOthers(t *testing.T) {
	r := newRig(t, 2)
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Hold: hold})
	for i := range 2 {
		j := r.askVM(fmt.Sprintf("dev%d", i))
		r.until(j.ID, func(j job.Job) bool { return j.Status == job.Provisioning })
	}
	third, fourth := r.askVM("dev2"), r.askVM("dev3")
	for _, id := range []string{third.ID, fourth.ID} {
		r.until(id, func(j job.Job) bool {
			return j.Status == job.Pending && strings.Contains(j.Progress, "2 VMs are being made")
		})
	}
	if info := r.vm("dev2"); info.Status != vm.Provisioning || info.ID != 0 {
		t.Errorf("it is listed as %+v", info)
	}
	_, err := r.Submit(t.Context(), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, VM: "dev2"}})
	refusal(t, err, "is not ready yet")
	if info, err := r.DestroyVM(t.Context(), "dev2"); err != nil || info.Status != vm.Gone {
		t.Errorf("%+v, %v", info, err)
	}
	if j := r.wait(third.ID); j.Outcome.Reason != job.ReasonCancelled || j.VM.State != vm.Destroyed {
		t.Errorf("%+v, %+v", j.Outcome, j.VM)
	}
	close(hold)
	if j := r.wait(fourth.ID); j.Status != job.Success || j.VM.State != vm.Created {
		t.Errorf("the next one: %+v", j.Outcome)
	}
	if stats := r.fake.Stats(); stats.Creates != 3 || stats.Destroys != 0 {
		t.Errorf("%d creates, %d destroys", stats.Creates, stats.Destroys)
	}
}

// Who knows a VM by what used to be its job's ID can do with that what he could.
func TestCreateVM_AnswersAsAJobDid(t *testing.T) {
	r := newRig(t, 1)
	ctx, made := t.Context(), r.makeVM("dev")
	if j, err := r.Job(ctx, made.ID); err != nil || j.Kind != job.KindMake || j.Manifest.VMName != "dev" || j.Manifest.Task != "create VM dev" {
		t.Errorf("%+v, %v", j, err)
	}
	if got, err := r.Result(ctx, made.ID); err != nil || got.Status != job.Success || *got.ExitCode != 0 {
		t.Errorf("result: %+v, %v", got, err)
	}
	if m, err := r.Manifest(ctx, made.ID); err != nil || m.VMName != "dev" {
		t.Errorf("manifest: %+v, %v", m, err)
	}
	if err := r.Cancel(ctx, made.ID); !errors.Is(err, job.ErrCompleted) {
		t.Errorf("cancel: %v", err)
	}
	if got, err := r.Kill(ctx, made.ID, ""); got != job.AlreadyTerminated || err != nil {
		t.Errorf("kill: %v, %v", got, err)
	}
	if page, err := r.List(ctx, job.Filter{}); err != nil || len(page.Jobs) != 0 {
		t.Errorf("jobs: %+v, %v", page, err)
	}
	events, _, err := r.Watch(ctx, made.ID, 0)
	var kinds []string
	for _, e := range events {
		if e.Kind != job.EventProgress {
			kinds = append(kinds, strings.TrimSpace(e.Kind+" "+e.Phase+e.Text))
		}
	}
	if got := strings.Join(kinds, ", "); err != nil || got != "status provisioning, phase_started provision, phase_ended provision, status success" {
		t.Errorf("events: %s, %v", got, err)
	}
	r.fake.Set(providertest.Behaviour{Hold: make(chan struct{})})
	for name, end := range map[string]func(string) error{
		"cancelled": func(id string) error { return r.Cancel(ctx, id) },
		"killed":    func(id string) error { _, err := r.Kill(ctx, id, ""); return err },
	} {
		j := r.askVM(name)
		r.hasID(j.ID)
		if err := end(j.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if j = r.wait(j.ID); j.Outcome.Reason != job.ReasonCancelled || j.VM.State != vm.Destroyed {
			t.Errorf("%s: %+v, VM %+v", name, j.Outcome, j.VM)
		}
	}
	if vms := r.fake.VMs(); len(vms) != 1 {
		t.Errorf("on the host: %+v", vms)
	}
}

// A create that the host refuses before its first change leaves nothing to destroy, on a host
// that does not respond: neither a VM that somebody has asked for, nor a pool's.
func TestCreateVM_RefusedBeforeTheFirstChange(t *testing.T) {
	r := newRig(t, 1)
	unreachable := &job.HostError{Op: "destroy", Host: "pve", Class: job.HostAuth, Text: "no key was accepted"}
	r.behave(providertest.Behaviour{FailStep: "validate_environment", Destroys: []error{unreachable, unreachable, unreachable}}, false)
	j := r.wait(r.askVM("dev").ID)
	told, err := r.store.VMEvents(t.Context(), j.ID)
	if err != nil || j.Outcome.Reason != job.ReasonProvisionFailed || j.VM.State != vm.Destroyed || slices.ContainsFunc(told, func(e job.Event) bool { return e.Kind == job.EventWarning }) {
		t.Errorf("%+v, VM %+v, events %+v, %v", j.Outcome, j.VM, told, err)
	}
	if vms, err := r.VMs(t.Context()); err != nil || len(vms) != 0 {
		t.Errorf("VMs: %+v, %v", vms, err)
	}
	if _, err := r.createVM(t.Context(), job.Submission{Manifest: job.Manifest{VMName: "dev"}}); err != nil {
		t.Errorf("its name is not free: %v", err)
	}
}

// A VM that was asked for is made though the engine ends meanwhile, once.
func TestCreateVM_OutlastsTheEngine(t *testing.T) {
	r := newRig(t, 1)
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Hold: hold})
	j := r.askVM("dev")
	r.hasID(j.ID)
	waiting := r.askVM("next")
	r.stop()
	close(hold)
	r.restart()
	for _, id := range []string{j.ID, waiting.ID} {
		if j := r.wait(id); j.Status != job.Success || j.VM.State != vm.Created {
			t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
		}
	}
	if vms := r.fake.VMs(); len(vms) != 2 {
		t.Errorf("on the host: %+v", vms)
	}
}

// What a token may have counts VMs that were asked for beside those of jobs, from when they
// are asked for until they are gone.
func TestCreateVM_CountsForItsPrincipal(t *testing.T) {
	r := newRig(t, 4)
	ctx := job.WithPrincipal(t.Context(), job.Principal{Name: "ada", Role: job.RoleRun, Limits: job.Limits{VMs: 2, PerHour: 3}})
	ask := func(name string) (job.Job, error) {
		return r.createVM(ctx, job.Submission{Manifest: job.Manifest{VMName: name}})
	}
	first, err := ask("one")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ask("two"); err != nil {
		t.Fatal(err)
	}
	_, err = ask("three")
	refusal(t, err, "limit vms of this token is 2 VMs; 2 are in use, and this VM asks for 1")
	_, err = r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}})
	refusal(t, err, "limit vms of this token is 2 VMs; 2 are in use, and this job asks for 1")
	r.wait(first.ID)
	if _, err := r.DestroyVM(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	r.untilVM(first.ID, vm.Destroyed)
	if _, err = ask("three"); err != nil {
		t.Error(err)
	}
	_, err = r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}})
	refusal(t, err, "limit jobs_per_hour of this token is 3 jobs and VMs within an hour; 3 are")
}

// The host is searched for what was left there also where there were VMs and never a job.
func TestSweep_WithoutAJob(t *testing.T) {
	r := newRig(t, 1, func(o *executor.Options) { o.SweepInterval = often })
	v := r.makeVM("dev").VM
	if _, err := r.DestroyVM(t.Context(), "dev"); err != nil {
		t.Fatal(err)
	}
	r.untilVM(v.Job, vm.Destroyed)
	before := r.fake.Stats().Lists
	for deadline := time.Now().Add(time.Minute); r.fake.Stats().Lists == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no sweep")
		}
	}
}

// The engine is killed between every two steps of storing, making and destroying a VM that
// somebody has asked for: it is made once, and nothing is left.
func TestCreateVM_EngineKilledAtEveryStep(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	for _, of := range []struct {
		name string
		pool job.PoolSize // from which it comes
		deaf bool         // and does not answer
	}{{name: "booted"}, {"warm", job.PoolSize{Warm: 1}, false}, {"deaf", job.PoolSize{Warm: 1}, true}, {"hibernated", job.PoolSize{Hibernated: 1}, false}} {
		steps := 0
		t.Run(of.name+", never", func(t *testing.T) {
			m := &mortal{died: make(chan struct{})}
			makeWith(t, m, of.pool, of.deaf)
			if steps = m.steps; steps < 10 {
				t.Errorf("only %d steps", steps)
			}
		})
		t.Run(of.name, func(t *testing.T) {
			for _, n := range loops.Every(steps+2, 3, "TestPool_EngineKilledAtEveryStep has other steps of such a VM") {
				t.Run(fmt.Sprint(n+1), func(t *testing.T) {
					t.Parallel()
					makeWith(t, &mortal{at: n + 1, died: make(chan struct{})}, of.pool, of.deaf)
				})
			}
		})
	}
}

// makeWith has a VM made and destroyed with an engine that dies, and then with one that does
// not.
func makeWith(t *testing.T, m *mortal, pool job.PoolSize, deaf bool) {
	r := newRigHere(t, 1, hasty)
	pooled := pool != job.PoolSize{}
	if pooled {
		if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: pool}); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
			p, err := r.Pool(context.Background(), "p")
			if err == nil && p.Count(vm.MemberWarm) == pool.Warm && p.Count(vm.MemberHibernated) == pool.Hibernated {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("the pool is not filled: %+v, %v", p, err)
			}
		}
	}
	r.stop()
	whole, heard, ctx := r.opts, r.vms.Guest, context.Background()
	if deaf {
		r.vms.Guest = deafMembers{r.fake}
	}
	r.vms.Store = mortalStore{r.store, m}
	r.opts.Stores, r.opts.Provider = executor.StoresOf(mortalStore{r.store, m}), mortalProvider{r.fake, m}
	ask := job.Submission{IdempotencyKey: "key", Manifest: job.Manifest{VMName: "dev"}}
	live := func(over <-chan struct{}) (j job.Job) {
		for {
			select {
			case <-over:
				return j
			case <-time.After(5 * time.Millisecond):
			}
			asked, err := r.createVM(ctx, ask)
			if err != nil {
				continue
			}
			switch j = asked; {
			case j.VM.State == vm.Destroyed:
				return j
			case j.Status == job.Success && !j.VM.Unwanted:
				if n := r.marked(j.ID); n != 1 {
					t.Errorf("died at step %d: %d VMs have its mark", m.at, n)
				}
				_, _ = r.DestroyVM(ctx, "dev")
			}
		}
	}
	r.restart()
	live(m.died)
	r.stop()
	r.opts, r.vms.Store, r.vms.Guest = whole, r.store, heard
	r.restart()
	ended := make(chan struct{})
	timer := time.AfterFunc(time.Minute, func() { close(ended) })
	j := live(ended)
	timer.Stop()
	if j.Status != job.Success || j.VM.State != vm.Destroyed {
		t.Errorf("died at step %d: %s %+v, VM %+v", m.at, j.Status, j.Outcome, j.VM)
	}
	if pooled {
		if m.at == 0 && (j.VM.Source == vm.Cold) != deaf {
			t.Errorf("it began %s", j.VM.Source)
		}
		r.removePool()
	}
	if vms := r.fake.VMs(); len(vms) > 0 {
		t.Errorf("died at step %d: on the host: %+v", m.at, vms)
	}
	r.noLeaks()
}

// marked returns how many VMs of the host have the mark of an ID.
func (r *rig) marked(id string) (n int) {
	for _, v := range r.fake.VMs() {
		if v.Job == id {
			n++
		}
	}
	return n
}

// What a program says of the VM that it uses as a sandbox is kept with the VM, and is part of what
// a key stands for. No host is told of it.
func TestCreateVM_KeepsWhatIsSaidOfASandbox(t *testing.T) {
	r := newRig(t, 1)
	said := vm.Sandbox{Metadata: map[string]string{"user": "Ada\x00 Lovelace", "purpose": "<b>"}, Env: []string{"API_KEY"}}
	ask := func(user string) (job.VMInfo, error) {
		of := said
		of.Metadata = map[string]string{"user": user, "purpose": "<b>"}
		return r.CreateVM(t.Context(), job.Submission{IdempotencyKey: "k", Manifest: job.Manifest{VMName: "box"}, Sandbox: &of})
	}
	v, err := ask(said.Metadata["user"])
	if err != nil || !reflect.DeepEqual(v.Sandbox, &said) {
		t.Fatalf("%+v, %v", v.Sandbox, err)
	}
	r.wait(v.Job)
	if got := r.vm("box"); !reflect.DeepEqual(got.Sandbox, &said) {
		t.Errorf("when it is made: %+v", got.Sandbox)
	}
	if again, err := ask(said.Metadata["user"]); err != nil || again.Job != v.Job {
		t.Errorf("the same once more: %v", err)
	}
	if _, err := ask("Grace"); err == nil {
		t.Error("another's is the same by its key")
	}
	if _, err := r.CreateVM(t.Context(), job.Submission{Manifest: job.Manifest{VMName: "other"}, Sandbox: &vm.Sandbox{Env: []string{"A=secret"}}}); err == nil {
		t.Error("a value is stored as a variable's name")
	}
}
