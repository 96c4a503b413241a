package executor_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/providertest"
	"linus/internal/store"
	"linus/internal/vm"
)

// mortal ends an engine at one of its steps: from then on nothing it does has an effect,
// as after kill -9. A step is before or after each thing it writes or does to a VM.
type mortal struct {
	mu    sync.Mutex
	at    int // the step at which it dies; 0: never
	steps int
	dead  bool
	died  chan struct{}
}

var errDead = errors.New("this engine is dead")

func (m *mortal) step() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dead {
		return errDead
	}
	if m.steps++; m.steps == m.at {
		m.dead = true
		close(m.died)
		return errDead
	}
	return nil
}

func (m *mortal) do(work func() error) error {
	if err := m.step(); err != nil {
		return err
	}
	err := work()
	if dead := m.step(); dead != nil {
		return dead
	}
	return err
}

func have[T any](m *mortal, work func() (T, error)) (v T, err error) {
	err = m.do(func() error { v, err = work(); return err })
	return v, err
}

type mortalStore struct {
	*store.Store
	m *mortal
}

func (s mortalStore) Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (got job.Job, created bool, err error) {
	err = s.m.do(func() error { got, created, err = s.Store.Insert(ctx, j, key, within, children...); return err })
	return got, created, err
}

func (s mortalStore) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	return have(s.m, func() (job.Job, error) { return s.Store.Update(ctx, id, change) })
}

func (s mortalStore) InsertPool(ctx context.Context, p job.Pool) (bool, error) {
	return have(s.m, func() (bool, error) { return s.Store.InsertPool(ctx, p) })
}

func (s mortalStore) UpdatePool(ctx context.Context, name string, change func(*job.Pool) error) (job.Pool, error) {
	return have(s.m, func() (job.Pool, error) { return s.Store.UpdatePool(ctx, name, change) })
}

func (s mortalStore) Claim(ctx context.Context, id, pool string, choose func(*job.Job, []vm.VM) (int, []job.Event)) (j job.Job, claimed bool, err error) {
	err = s.m.do(func() error { j, claimed, err = s.Store.Claim(ctx, id, pool, choose); return err })
	return j, claimed, err
}

func (s mortalStore) InsertVM(ctx context.Context, v vm.VM, key string, within job.Limits) (_ vm.VM, created bool, err error) {
	err = s.m.do(func() (err error) {
		v, created, err = s.Store.InsertVM(ctx, v, key, within)
		return err
	})
	return v, created, err
}

func (s mortalStore) GiveVM(ctx context.Context, v vm.VM, key string, within job.Limits, pools []string, choose func(string, []vm.VM) (int, []job.Event)) (_ vm.VM, created bool, missed []string, err error) {
	err = s.m.do(func() (err error) {
		v, created, missed, err = s.Store.GiveVM(ctx, v, key, within, pools, choose)
		return err
	})
	return v, created, missed, err
}

func (s mortalStore) UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	return have(s.m, func() (vm.VM, error) { return s.Store.UpdateVM(ctx, id, change) })
}

type mortalProvider struct {
	job.Provider
	m *mortal
}

func (p mortalProvider) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	return have(p.m, func() (vm.VM, error) { return p.Provider.Create(ctx, spec, progress) })
}

func (p mortalProvider) Destroy(ctx context.Context, v vm.VM) error {
	return p.m.do(func() error { return p.Provider.Destroy(ctx, v) })
}

func (p mortalProvider) SuspendVM(ctx context.Context, v vm.VM) error {
	return p.m.do(func() error { return p.Provider.SuspendVM(ctx, v) })
}

func (p mortalProvider) ResumeVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	return have(p.m, func() (vm.VM, error) { return p.Provider.ResumeVM(ctx, v, progress) })
}

// deafMembers do not answer the jobs that claim them, nor whoever is given one.
type deafMembers struct{ fleet.Guest }

func (g deafMembers) Ping(ctx context.Context, j job.Job) error {
	if j.Claims() || j.VM.Given() {
		return errors.New("no answer")
	}
	return g.Guest.Ping(ctx, j)
}

type mortalRunner struct {
	executor.Runner
	m *mortal
}

func (r mortalRunner) Push(ctx context.Context, j job.Job, p job.Payload) error {
	return r.m.do(func() error { return r.Runner.Push(ctx, j, p) })
}

func (r mortalRunner) Start(ctx context.Context, j job.Job) (string, error) {
	return have(r.m, func() (string, error) { return r.Runner.Start(ctx, j) })
}

// The engine is killed between every two steps of making, suspending, claiming, giving
// back and destroying a member: the job runs once and succeeds, and nothing is left.
func TestPool_EngineKilledAtEveryStep(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	for _, tt := range []struct {
		size job.PoolSize
		deaf bool // and the member answers the next engine again
	}{
		{size: job.PoolSize{Warm: 1}},
		{size: job.PoolSize{Warm: 1}, deaf: true},
		{size: job.PoolSize{Hibernated: 1}},
	} {
		size := tt.size
		name := fmt.Sprintf("warm %d hibernated %d deaf %t", size.Warm, size.Hibernated, tt.deaf)
		steps := 0
		t.Run(name, func(t *testing.T) {
			m := &mortal{died: make(chan struct{})}
			liveWith(t, m, size, tt.deaf)
			if steps = m.steps; steps < 40 {
				t.Errorf("only %d steps", steps)
			}
		})
		t.Run(name, func(t *testing.T) {
			for _, n := range loops.Every(steps+4, 7, "TestEngines_KilledAtEveryStep has all steps of a job, TestCreateVM_EngineKilledAtEveryStep others of its VM") {
				at := n + 1
				t.Run(fmt.Sprint(at), func(t *testing.T) {
					t.Parallel()
					liveWith(t, &mortal{at: at, died: make(chan struct{})}, size, tt.deaf)
				})
			}
		})
	}
}

// keepsMembers is a host that destroys no pool's VM for a while.
type keepsMembers struct {
	*providertest.Fake
	store *store.Store
	until time.Time
}

func (p *keepsMembers) Destroy(ctx context.Context, v vm.VM) error {
	if row, err := p.store.VM(ctx, v.Job); err == nil && row.Member != nil && time.Now().Before(p.until) {
		return errUnreachable
	}
	return p.Fake.Destroy(ctx, v)
}

// liveWith has a job go through a pool with an engine that dies, and then with one that
// does not.
func liveWith(t *testing.T, m *mortal, size job.PoolSize, deaf bool) {
	r := newRigHere(t, 1, hasty)
	var mu sync.Mutex
	begun := 0
	r.fake.Set(providertest.Behaviour{
		Task: task(providertest.Task{Stdout: []byte("once\n"), For: 5 * time.Millisecond}),
		OnStart: func(j job.Job, _ job.Payload) {
			mu.Lock()
			defer mu.Unlock()
			begun++
			if v, err := r.store.VM(context.Background(), j.VM.Job); err != nil || j.Claims() && (v.Member.Claimer != j.ID || v.Member.State != vm.MemberClaimed) {
				t.Errorf("died at step %d: the job begins in a VM that is not its own: %+v, %v", m.at, v.Member, err)
			}
		},
	})
	r.stop()
	whole := r.opts
	r.vms.Store = mortalStore{r.store, m}
	r.opts.Stores, r.opts.Provider, r.opts.Runner = executor.StoresOf(mortalStore{r.store, m}), mortalProvider{r.fake, m}, mortalRunner{r.fake, m}
	if deaf {
		r.vms.Guest = deafMembers{r.fake}
	}
	ctx := context.Background()
	ready := func(p job.PoolInfo) bool {
		return p.Count(vm.MemberWarm) >= size.Warm && p.Count(vm.MemberHibernated) >= size.Hibernated
	}
	pool := job.Pool{Name: "p", PoolSize: size}
	submission := job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript}, IdempotencyKey: "key"}
	live := func(over <-chan struct{}) {
		filled, done := false, false
		id := ""
		for !done {
			select {
			case <-over:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if _, err := r.Pool(ctx, "p"); err != nil {
				if _, err := r.CreatePool(ctx, pool); err != nil && !errors.Is(err, errDead) {
					t.Error(err)
				}
				continue
			}
			p, err := r.Pool(ctx, "p")
			if filled = filled || err == nil && ready(p); !filled {
				continue
			}
			if id == "" {
				if j, err := r.Submit(ctx, submission); err == nil {
					id = j.ID
				}
				continue
			}
			j, err := r.Job(ctx, id)
			done = err == nil && j.Done()
		}
	}
	r.restart()
	live(m.died)
	r.stop()
	r.opts, r.vms.Store = whole, r.store
	if deaf { // what is given up is still there when the next engine looks
		r.opts.Provider = &keepsMembers{r.fake, r.store, time.Now().Add(100 * time.Millisecond)}
	}
	r.restart()
	ended := make(chan struct{})
	timer := time.AfterFunc(time.Minute, func() { close(ended) })
	live(ended)
	timer.Stop()
	j, err := r.Submit(ctx, submission)
	if err != nil || j.Status != job.Success || begun != 1 {
		p, _ := r.Pool(ctx, "p")
		t.Errorf("died at step %d: %s %+v, VM %+v, begun %d times, %v; pool %+v", m.at, j.Status, j.Outcome, j.VM, begun, err, p)
	}
	if m.at == 0 && (j.VM.Source == vm.Cold) != deaf {
		t.Errorf("the job's VM: %+v", j.VM)
	}
	r.removePool()
	r.noLeaks()
}
