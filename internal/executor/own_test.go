package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
	"linus/internal/vm"
)

// failingStore fails, as a store does whose disk is full or which has no descriptors.
type failingStore struct {
	*store.Store
	broken *atomic.Bool
}

var errBroken = &job.OwnFault{Err: errors.New("unable to open database file: too many open files (14)")}

func (s failingStore) Job(ctx context.Context, id string) (job.Job, error) {
	if s.broken.Load() {
		return job.Job{}, errBroken
	}
	return s.Store.Job(ctx, id)
}

func (s failingStore) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	if s.broken.Load() {
		return job.Job{}, errBroken
	}
	return s.Store.Update(ctx, id, change)
}

func (s failingStore) AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error) {
	if s.broken.Load() {
		return 0, syscall.ENOSPC
	}
	return s.Store.AppendOutput(ctx, id, stream, offset, data)
}

// dumbGuest cannot be asked: this machine has no descriptors for a connection.
type dumbGuest struct {
	executor.Runner
	broken *atomic.Bool
}

func (g dumbGuest) Probe(ctx context.Context, j job.Job) (job.RunState, error) {
	if g.broken.Load() {
		return job.RunState{}, &job.HostError{Op: "ask VM 100", Class: job.HostUnreachable, Text: "socket: too many open files", Own: true}
	}
	return g.Runner.Probe(ctx, j)
}

func (g dumbGuest) Stop(ctx context.Context, j job.Job, signal string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return g.Runner.Stop(ctx, j, signal)
}

// ownRig is an engine in a bubble whose own means fail while broken.
func ownRig(t *testing.T, what string) (r *rig, broken *atomic.Bool) {
	t.Helper()
	r, broken = newRigHere(t, 1), &atomic.Bool{}
	r.stop()
	r.opts.CleanupInterval, r.vms.PoolInterval = 30*time.Second, time.Minute
	if what == "descriptors" {
		r.opts.Runner = dumbGuest{r.fake, broken}
	} else {
		r.opts.Stores = executor.StoresOf(failingStore{r.store, broken})
	}
	r.restart()
	return r, broken
}

func (s failingStore) UpdateVM(ctx context.Context, id string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	if s.broken.Load() {
		return vm.VM{}, errBroken
	}
	return s.Store.UpdateVM(ctx, id, change)
}

// breaking is a guest that a job cannot be put into, once, and from then on a store is broken.
type breaking struct {
	executor.Runner
	broken *atomic.Bool
	once   atomic.Bool
}

func (g *breaking) Push(ctx context.Context, j job.Job, p job.Payload) error {
	if g.once.CompareAndSwap(false, true) {
		g.broken.Store(true)
		return &job.HostError{Op: "put the job into VM", Class: job.HostVM, Text: "No space left on device"}
	}
	return g.Runner.Push(ctx, j, p)
}

// untilHeld waits until a job is held up for want of descriptors, which is no event of it, or is as
// it may not be.
func (r *rig) untilHeld(id string, wrong func(job.Job) bool) (j job.Job) {
	r.t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		var err error
		if j, err = r.Job(context.Background(), id); err != nil {
			r.t.Fatal(err)
		}
		if wrong(j) || strings.Contains(j.Progress, "too many open files") {
			return j
		}
	}
	r.t.Fatalf("not held up within 2 minutes: %+v", j)
	return j
}

// A store that fails as a pool's VM is given back does not decide the job: it is held up.
func TestPool_AVMIsGivenBackThoughTheStoreFailsMeanwhile(t *testing.T) {
	r, broken := newRig(t, 1), &atomic.Bool{}
	r.stop()
	r.opts.Runner = &breaking{Runner: r.fake, broken: broken}
	r.vms.Store, r.vms.PoolInterval = failingStore{r.store, broken}, time.Hour
	r.restart()
	r.newPool(1)
	r.behave(paused(providertest.Behaviour{Task: task(providertest.Task{})}), true)
	id := r.submit()
	held := r.untilHeld(id, func(j job.Job) bool { return j.Outcome != nil })
	broken.Store(false)
	if j := r.wait(id); held.Outcome != nil || j.Status != job.Success || j.VM.Source != vm.Cold || len(r.warnings(id, "did not answer and is not used")) != 1 {
		t.Errorf("then %+v; %+v, VM %+v", held.Outcome, j.Outcome, j.VM)
	}
	r.removePool()
	r.noLeaks()
}

// deafGuest answers nobody: this machine has no descriptors for a connection.
type deafGuest struct {
	fleet.Guest
	broken *atomic.Bool
}

func (g deafGuest) Ping(ctx context.Context, j job.Job) error {
	if g.broken.Load() {
		return &job.HostError{Op: "ask VM 100", Class: job.HostUnreachable, Text: "socket: too many open files", Own: true}
	}
	return g.Guest.Ping(ctx, j)
}

// A pool's VM that this engine cannot ask is not given up for that.
func TestPool_AFaultOfTheEnginesOwnLosesNoMember(t *testing.T) {
	r, broken := newRig(t, 1), &atomic.Bool{}
	r.stop()
	r.vms.Guest, r.vms.PoolInterval = deafGuest{r.fake, broken}, time.Hour
	r.restart()
	r.newPool(1)
	r.behave(paused(providertest.Behaviour{Task: task(providertest.Task{})}), true)
	broken.Store(true)
	id := r.submit()
	r.untilHeld(id, func(j job.Job) bool { return j.Outcome != nil || j.VM != nil && j.VM.Source == vm.Cold })
	broken.Store(false)
	if j := r.wait(id); j.Status != job.Success || j.VM.Source != vm.FromPool {
		t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
	}
	r.removePool()
	r.noLeaks()
}

// What fails of the engine's own says nothing of the task: when it has passed, the job
// goes on, and says that it was held up.
func TestJob_OutlastsFaultsOfTheEnginesOwn(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	for _, what := range []string{"store", "descriptors"} {
		for _, when := range []string{"while the task runs", "when it ends"} {
			t.Run(what+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					r, broken := ownRig(t, what)
					do, release := hold(t, providertest.Task{Stdout: []byte("whole\n")})
					r.behave(providertest.Behaviour{Task: do}, false)
					id := r.submit()
					r.until(id, func(j job.Job) bool { return j.Status == job.Running })
					broken.Store(true)
					if when == "when it ends" {
						release()
					}
					time.Sleep(10 * time.Minute) // far longer than the heartbeat threshold
					broken.Store(false)
					time.Sleep(time.Minute)
					release()
					j := r.wait(id)
					if j.Status != job.Success || j.Stdout.Total != 6 || j.Stdout.Incomplete {
						t.Errorf("%+v, %+v, %+v", j, j.Outcome, j.Stdout)
					}
					if what == "store" || when == "while the task runs" {
						said := strings.Join(r.warnings(id, "held up for 10m"), "\n")
						if strings.Count(said, "held up") != 1 || !strings.Contains(said, "too many open files") {
							t.Errorf("it says %q", said)
						}
					}
					r.noLeaks()
				})
			})
		}
	}
}

// Who watches a job is told that a fault of the engine's own holds it up, which is no event; where the
// fault is the store's, whose rows nobody can read, the watcher waits on.
func TestWatch_AFaultOfTheEnginesOwnBegins(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	for _, what := range []string{"store", "descriptors"} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, broken := ownRig(t, what)
				do, release := hold(t, providertest.Task{})
				defer release()
				r.behave(providertest.Behaviour{Task: do}, false)
				id := r.submit()
				r.until(id, func(j job.Job) bool { return j.Status == job.Running })
				time.Sleep(time.Second) // its task is followed
				events, err := r.store.Events(t.Context(), id, 0)
				if err != nil {
					t.Fatal(err)
				}
				timed := within(t, 5*time.Minute)
				time.AfterFunc(time.Second, func() { broken.Store(true) })
				none, j, err := r.Watch(timed, id, events[len(events)-1].Seq)
				if told := strings.Contains(j.Progress, "too many open files"); len(none) != 0 || err != nil || told != (what == "descriptors") || told != (timed.Err() == nil) {
					t.Errorf("%+v, %q, %v, %v", none, j.Progress, err, timed.Err())
				}
				broken.Store(false)
				release()
				r.wait(id)
			})
		})
	}
}

// A job that has ended, and whose output the engine cannot get, is given up when it is cancelled (again).
func TestCancel_WhileAFaultHoldsTheEndUp(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	for reason, end := range map[job.Reason]func(*rig, string) error{
		job.ReasonCancelled: func(r *rig, id string) error { return r.Cancel(context.Background(), id) },
		job.ReasonKilled: func(r *rig, id string) error {
			_, err := r.Kill(context.Background(), id, "")
			return err
		},
	} {
		t.Run(string(reason), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, broken := ownRig(t, "descriptors")
				do, release := hold(t, providertest.Task{})
				defer release()
				r.behave(providertest.Behaviour{Task: do}, false)
				id := r.submit()
				r.until(id, func(j job.Job) bool { return j.Status == job.Running })
				time.Sleep(time.Second) // its task is followed
				broken.Store(true)
				for range 2 { // as by a client that has got no answer
					if err := end(r, id); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(10 * time.Minute)
				if j, err := r.Job(t.Context(), id); err != nil || j.Status.Terminal() || j.SkipCollect {
					t.Errorf("%s, %v, %v", j.Status, j.SkipCollect, err)
				}
				if err := r.Cancel(t.Context(), id); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Minute)
				if j, err := r.Job(t.Context(), id); err != nil || !j.Done() || j.Outcome.Reason != reason || !j.Stdout.Incomplete {
					t.Errorf("%s, %+v, %+v, %v", j.Status, j.Outcome, j.Stdout, err)
				}
				broken.Store(false)
				r.wait(id)
			})
		})
	}
}

// It is bounded: a job that cannot be gone on with until its task must have ended ends,
// and not as lost. Meanwhile its progress says why.
func TestJob_EndsWhenAFaultOfTheEnginesOwnDoesNotPass(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r, broken := ownRig(t, "descriptors")
		do, release := hold(t, providertest.Task{})
		defer release()
		r.behave(providertest.Behaviour{Task: do}, false)
		id := r.submit(func(m *job.Manifest) { m.Timeout = 600 })
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
		broken.Store(true)
		time.Sleep(time.Minute)
		if j, err := r.Job(t.Context(), id); err != nil || !strings.Contains(j.Progress, "waiting: this engine cannot continue it: ") || !strings.Contains(j.Progress, "too many open files") {
			t.Errorf("progress %q, %v", j.Progress, err)
		}
		time.Sleep(15 * time.Minute)
		if j, err := r.store.Job(t.Context(), id); err != nil || j.Outcome == nil || j.Outcome.Reason != job.ReasonInternal || !strings.Contains(j.Outcome.Error, "too many open files") {
			t.Errorf("%+v, %v", j.Outcome, err)
		}
		broken.Store(false)
		r.wait(id)
	})
}
