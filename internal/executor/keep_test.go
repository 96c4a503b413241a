package executor_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/vm"
)

func keeping(seconds int) func(*job.Manifest) {
	return func(m *job.Manifest) { m.Keep, m.KeepFor = job.KeepOnFailure, seconds }
}

// leases notes the lease with which VMs are made.
type leases struct {
	job.Provider
	last atomic.Int64
}

func (l *leases) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	l.last.Store(int64(spec.Lease))
	return l.Provider.Create(ctx, spec, progress)
}

func TestKeep_TheVMOfAFailedJobStaysForItsTime(t *testing.T) {
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		l := &leases{Provider: r.fake}
		r.opts.Provider, r.opts.CleanupInterval, r.vms.Lease = l, time.Second, time.Hour
		r.restart()
		ctx := context.Background()
		r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3})}, true)
		j := r.wait(r.submit(keeping(120), func(m *job.Manifest) { m.Timeout = 600 }))
		if got, want := time.Duration(l.last.Load()), 600*time.Second+2*time.Minute+time.Hour; got != want {
			t.Errorf("the host would destroy it after %s, want %s", got, want)
		}
		if left := time.Until(j.VM.ExpiresAt); j.Status != job.Failed || j.VM.State != vm.Created || !j.VM.Kept || left < 110*time.Second || left > 120*time.Second {
			t.Fatalf("%s, VM %+v", j.Status, j.VM)
		}
		said := fmt.Sprintf("VM %s (%d) is kept until %s: %s %s", j.VM.Name, j.VM.ID, j.VM.ExpiresAt.UTC().Format("2006-01-02 15:04:05 UTC"), job.EnterVM, j.VM.Name)
		if got, err := r.Result(ctx, j.ID); err != nil || got.Error != "exit status 3; "+said || *got.ExitCode != 3 {
			t.Errorf("result %+v, %v; want the error to say %s", got, err, said)
		}
		infos, err := r.VMs(ctx)
		if err != nil || len(infos) != 1 || infos[0].Lifecycle != vm.Persistent || infos[0].Status != vm.Running || infos[0].KeptFor != "job "+j.ID+", which failed (exit_status)" {
			t.Errorf("listed as %+v, %v", infos, err)
		}
		r.stop()
		r.restart()
		r.behave(providertest.Behaviour{}, true)
		if in := r.wait(r.submit(sharing(j.VM.Name))); in.Status != job.Success {
			t.Errorf("a job in it: %+v", in.Outcome)
		}
		if len(r.fake.VMs()) != 1 {
			t.Error("it went with the job in it")
		}
		time.Sleep(2 * time.Minute)
		r.gone()
		if j = r.wait(j.ID); j.VM.State != vm.Destroyed {
			t.Errorf("in the end: %+v", j.VM)
		}
	})
}

// Of the VMs that are kept for a queue's sessions, so many stay as its dispatcher says: the one that was
// not used for longest goes. Those of others, and one that was given a time by itself, are not counted.
func TestKeep_SoManyOfAQueue(t *testing.T) {
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		r.opts.CleanupInterval = time.Second
		r.restart()
		r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3})}, true)
		ctx, n := job.WithPrincipal(context.Background(), job.Operator()), 0
		fails := func(queue string) job.Job {
			t.Helper()
			n++
			s := &job.Session{Kind: "memory", Queue: queue, Dispatcher: "here", Name: fmt.Sprint("session", n), Work: job.Work{ID: fmt.Sprint(n)}, Keep: 2}
			j, err := r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "echo hello", AgentType: job.AgentScript, Keep: job.KeepOnFailure}, Session: s})
			if err != nil {
				t.Fatal(err)
			}
			j = r.wait(j.ID)
			time.Sleep(10 * time.Second)
			return j
		}
		stay := func(want ...job.Job) {
			t.Helper()
			time.Sleep(10 * time.Second)
			infos, err := r.VMs(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var got, ids []string
			for _, i := range infos {
				got = append(got, i.Name)
			}
			for _, j := range want {
				ids = append(ids, j.VM.Name)
			}
			slices.Sort(got)
			slices.Sort(ids)
			if !slices.Equal(got, ids) {
				t.Errorf("there are %v, want %v", got, ids)
			}
		}
		first, other, second := fails("one"), fails("other"), fails("one")
		stay(first, other, second)
		third := fails("one")
		stay(other, second, third)
		ttl := 7200
		if _, err := r.SetVM(ctx, second.VM.Name, job.VMChange{TTL: &ttl}); err != nil {
			t.Fatal(err)
		}
		fourth := fails("one")
		stay(other, second, third, fourth)
		fifth := fails("one")
		stay(other, second, fourth, fifth)
	})
}

func TestKeep_OnlyWhatFailedByItself(t *testing.T) {
	t.Parallel()
	running := func(j job.Job) bool { return j.Status == job.Running }
	for _, tt := range []struct {
		name   string
		limit  int // seconds
		task   providertest.Task
		end    func(*rig, string)
		always bool
		kept   bool
		change []func(*executor.Options)
	}{
		{name: "success"},
		{name: "failure", task: providertest.Task{ExitCode: 1}, kept: true},
		{name: "timeout", limit: 1, task: providertest.Task{Until: make(chan struct{})}, kept: true},
		{name: "success that is kept", always: true, kept: true},
		{name: "cancel in any case", always: true, task: providertest.Task{Until: make(chan struct{})}, end: func(r *rig, id string) { _ = r.Cancel(context.Background(), id) }},
		{name: "cancel", task: providertest.Task{Until: make(chan struct{})}, end: func(r *rig, id string) { _ = r.Cancel(context.Background(), id) }},
		{name: "kill", task: providertest.Task{Until: make(chan struct{})}, end: func(r *rig, id string) { _, _ = r.Kill(context.Background(), id, "") }},
		{name: "lost", task: providertest.Task{Until: make(chan struct{})}, end: func(r *rig, id string) { r.fake.Vanish(r.until(id, running).VM.ID) }, change: []func(*executor.Options){hasty}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRigHere(t, 1, tt.change...)
			r.behave(providertest.Behaviour{Task: task(tt.task)}, tt.task.Until == nil)
			id := r.submit(keeping(60), func(m *job.Manifest) {
				if m.Timeout = tt.limit; tt.always {
					m.Keep = job.KeepAlways
				}
			})
			if tt.end != nil {
				r.until(id, running)
				tt.end(r, id)
			}
			j := r.wait(id)
			if kept := j.VM.State == vm.Created && j.VM.Kept; kept != tt.kept || kept != (j.KeptText() != "") {
				t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
			}
			if tt.kept {
				if _, err := r.DestroyVM(context.Background(), j.VM.Name); err != nil {
					t.Error(err)
				}
				r.gone()
			}
			r.noLeaks()
		})
	}
}

func TestKeep_InAnyCase(t *testing.T) {
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		r.opts.CleanupInterval, r.vms.PoolInterval = time.Second, time.Second
		r.restart()
		ctx := context.Background()
		keep := func(m *job.Manifest) { m.Keep, m.KeepFor = job.KeepAlways, 3600 }
		j := r.wait(r.submit(keep))
		if j.Status != job.Success || !j.VM.Kept || j.VM.KeptFor != "job "+j.ID+", which succeeded" || j.KeptText() == "" {
			t.Fatalf("%+v, VM %+v", j.Outcome, j.VM)
		}
		status := func() vm.Status {
			info, err := r.VM(ctx, j.VM.Name)
			if err != nil {
				t.Fatal(err)
			}
			return info.Status
		}
		time.Sleep(9 * time.Minute)
		if s := status(); s != vm.Running {
			t.Errorf("soon after its job it is %s", s)
		}
		time.Sleep(2 * time.Minute)
		if s := status(); s != vm.Suspended {
			t.Errorf("idle for 10 minutes it is %s", s)
		}
		if in := r.wait(r.submit(sharing(j.VM.Name))); in.Status != job.Success || status() != vm.Running {
			t.Errorf("a job in it: %+v, and then it is %s", in.Outcome, status())
		}
		time.Sleep(11 * time.Minute)
		if s := status(); s != vm.Suspended {
			t.Errorf("idle again it is %s", s)
		}
		time.Sleep(40 * time.Minute)
		r.gone()
	})
}

// The engine is killed between every two steps from the failure on: the VM is kept, and its
// time is its own.
func TestKeep_EngineKilledAtEveryStep(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	steps := 0
	live := func(t *testing.T, m *mortal) {
		r := newRigHere(t, 1)
		r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3})}, false)
		r.stop()
		whole := r.opts
		r.vms.Store = mortalStore{r.store, m}
		r.opts.Stores, r.opts.Provider, r.opts.Runner = executor.StoresOf(mortalStore{r.store, m}), mortalProvider{r.fake, m}, mortalRunner{r.fake, m}
		r.restart()
		ctx := context.Background()
		s := job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, Keep: job.KeepOnFailure}, IdempotencyKey: "key"}
		j, err := r.Submit(ctx, s)
		if err == nil {
			over, end := context.WithCancel(ctx)
			go func() {
				select {
				case <-m.died:
				case <-over.Done():
				}
				end()
			}()
			for after := int64(0); over.Err() == nil && !j.Done(); {
				var events []job.Event
				if events, j, err = r.Watch(over, j.ID, after); err != nil {
					break
				}
				if len(events) > 0 {
					after = events[len(events)-1].Seq
				}
			}
			end()
		}
		r.stop()
		r.opts, r.vms.Store = whole, r.store
		r.restart()
		if j, err = r.Submit(ctx, s); err != nil {
			t.Fatal(err)
		}
		j = r.wait(j.ID)
		if left := time.Until(j.VM.ExpiresAt); !j.VM.Kept || j.VM.State != vm.Created || j.KeptText() == "" || left < 50*time.Minute || left > time.Hour {
			t.Errorf("died at step %d: %+v, VM %+v", m.at, j.Outcome, j.VM)
		}
		if len(r.fake.VMs()) != 1 {
			t.Errorf("died at step %d: VMs %+v", m.at, r.fake.VMs())
		}
		if _, err := r.DestroyVM(ctx, j.VM.Name); err != nil {
			t.Error(err)
		}
		r.gone()
		r.noLeaks()
	}
	t.Run("never", func(t *testing.T) {
		m := &mortal{died: make(chan struct{})}
		live(t, m)
		steps = m.steps
	})
	t.Run("at", func(t *testing.T) {
		for step := range steps {
			at := step + 1
			t.Run(fmt.Sprint(at), func(t *testing.T) {
				t.Parallel()
				live(t, &mortal{at: at, died: make(chan struct{})})
			})
		}
	})
}
