package executor_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
)

// slyGuest is a guest of bad will. What is nil is as it should be.
type slyGuest struct {
	executor.Runner

	read      func(ctx context.Context, stream string, offset, limit int64) ([]byte, error)
	artifact  func(ctx context.Context, source string, offset, limit int64) ([]byte, error)
	push      func(context.Context) error
	start     func(context.Context) error
	callbacks func(context.Context) error
	stops     atomic.Int32
}

// never is what a VM does that does not answer.
func never(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func (g *slyGuest) ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	if g.read != nil {
		return g.read(ctx, stream, offset, limit)
	}
	return g.Runner.ReadOutput(ctx, j, stream, offset, limit)
}

func (g *slyGuest) ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) ([]byte, error) {
	if g.artifact != nil {
		return g.artifact(ctx, source, offset, limit)
	}
	return g.Runner.ReadArtifact(ctx, j, source, offset, limit)
}

func (g *slyGuest) Push(ctx context.Context, j job.Job, p job.Payload) error {
	if g.push != nil {
		return g.push(ctx)
	}
	return g.Runner.Push(ctx, j, p)
}

func (g *slyGuest) Start(ctx context.Context, j job.Job) (string, error) {
	if g.start != nil {
		return "", g.start(ctx)
	}
	return g.Runner.Start(ctx, j)
}

func (g *slyGuest) Callbacks(ctx context.Context, j job.Job, url, local string) (job.CallbackWay, error) {
	if g.callbacks != nil {
		return "", g.callbacks(ctx)
	}
	return g.Runner.Callbacks(ctx, j, url, local)
}

func (g *slyGuest) Stop(ctx context.Context, j job.Job, signal string) error {
	g.stops.Add(1)
	return g.Runner.Stop(ctx, j, signal)
}

// trickle returns one byte at a time.
func trickle(ctx context.Context, _ string, _, _ int64) ([]byte, error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(20 * time.Millisecond):
		return []byte("x"), nil
	}
}

// with makes the engine anew over a guest, and with other options.
func (r *rig) with(g *slyGuest, change func(*executor.Options)) {
	r.t.Helper()
	r.stop()
	g.Runner, r.opts.Runner = r.fake, g
	if change != nil {
		change(&r.opts)
	}
	r.restart()
}

// A VM that trickles, or does not answer, is given up: by file, and in all.
func TestCollect_OfASlyVMEnds(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	silent := func(ctx context.Context, _ string, _, _ int64) ([]byte, error) { return nil, never(ctx) }
	for name, read := range map[string]func(context.Context, string, int64, int64) ([]byte, error){"trickle": trickle, "silence": silent} {
		t.Run("artifacts, "+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRigHere(t, 1, hasty)
				r.with(&slyGuest{artifact: read}, nil)
				big := make([]byte, 64<<10)
				r.behave(providertest.Behaviour{Task: task(providertest.Task{
					Stdout: []byte("out"), Artifacts: map[string][]byte{"a": big, "b": big, "c": big, "d": big},
				})}, true)
				id := r.submit(wanting("**"))
				j := r.wait(id)
				if j.Status != job.Success || j.Stdout.Incomplete || len(j.Artifacts) != 0 {
					t.Errorf("job %+v", j)
				}
				_, warnings := r.artifacts(id)
				for _, name := range []string{"a", "b", "c", "d"} {
					if !strings.Contains(warnings, "no artifact: "+name+": the VM was given up, too little data arrived in time") {
						t.Errorf("nothing is said of %s:\n%s", name, warnings)
					}
				}
				r.noLeaks()
			})
		})
		t.Run("output, "+name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRigHere(t, 1, hasty)
				r.with(&slyGuest{read: read}, nil)
				r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: make([]byte, maxOutput)})}, true)
				j := r.wait(r.submit())
				if j.Status != job.Success || !j.Stdout.Incomplete || !strings.Contains(j.Stdout.Why, "too little data arrived in time") {
					t.Errorf("job %+v", j)
				}
				r.noLeaks()
			})
		})
	}
}

// What is shorter than the VM has said is not waited for.
func TestCollect_AShortReadIsTheEnd(t *testing.T) {
	r := newRig(t, 1)
	var reads atomic.Int32
	short := func(_ context.Context, _ string, offset, _ int64) ([]byte, error) {
		reads.Add(1)
		return []byte("half")[min(offset, 4):], nil
	}
	r.with(&slyGuest{read: short, artifact: short}, func(o *executor.Options) { o.CollectPatience = time.Hour })
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: make([]byte, 8)})}, true)
	j := r.wait(r.submit())
	if !j.Stdout.Incomplete || j.Stdout.Why != "stdout ends at 4 of 8 bytes" || j.Stdout.Total != 4 || reads.Load() > 2 {
		t.Errorf("stdout %+v after %d reads", j.Stdout, reads.Load())
	}
	reads.Store(0)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Artifacts: map[string][]byte{"a": make([]byte, 8)}})}, true)
	id := r.submit(wanting("a"))
	r.wait(id)
	if _, warnings := r.artifacts(id); !strings.Contains(warnings, "no artifact: a: it was changed: it ends at 4 of 8 bytes") || reads.Load() != 2 {
		t.Errorf("after %d reads: %q", reads.Load(), warnings)
	}
}

// A job that has ended and whose output is being collected can be cancelled:
// that ends the collecting, at once, and nothing else about the job changes.
func TestCancel_EndsCollecting(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		sly  func(stuck func()) *slyGuest
		out  string // kept of stdout
	}{
		{"output", func(stuck func()) *slyGuest {
			return &slyGuest{read: func(ctx context.Context, _ string, offset, _ int64) ([]byte, error) {
				if offset == 0 {
					return []byte("half "), nil
				}
				stuck()
				return nil, never(ctx)
			}}
		}, "half "},
		{"artifacts", func(stuck func()) *slyGuest {
			return &slyGuest{artifact: func(ctx context.Context, _ string, _, _ int64) ([]byte, error) {
				stuck()
				return nil, never(ctx)
			}}
		}, "half and half"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			stuck := make(chan struct{})
			r.with(tt.sly(sync.OnceFunc(func() { close(stuck) })), func(o *executor.Options) { o.CollectPatience = time.Hour })
			r.behave(providertest.Behaviour{Task: task(providertest.Task{
				Stdout: []byte("half and half"), Artifacts: map[string][]byte{"a": []byte("x")}, ExitCode: 3,
			})}, true)
			id := r.submit(wanting("a"))
			<-stuck
			if killed, err := r.Kill(t.Context(), id, ""); err != nil || killed != job.AlreadyTerminated {
				t.Errorf("kill of a task that has ended: %q, %v", killed, err)
			}
			for range 2 {
				if err := r.Cancel(t.Context(), id); err != nil && !errors.Is(err, job.ErrCompleted) {
					t.Fatal(err)
				}
			}
			j := r.wait(id)
			if j.Status != job.Failed || j.Outcome.Reason != job.ReasonExitStatus || *j.Outcome.ExitCode != 3 || !j.SkipCollect || len(j.Artifacts) != 0 {
				t.Errorf("job %+v", j)
			}
			whole := tt.out == "half and half"
			if got, err := r.Result(t.Context(), id); err != nil || string(got.Stdout) != tt.out || got.StdoutInfo.Incomplete == whole {
				t.Errorf("stdout %q, %+v, %v", got.Stdout, got.StdoutInfo, err)
			}
			if !whole && j.Stdout.Why != "collecting was cancelled by user" {
				t.Errorf("why: %q", j.Stdout.Why)
			}
			if _, warnings := r.artifacts(id); strings.Count(warnings, "collecting was cancelled by user: what has arrived is kept") != 1 {
				t.Errorf("warnings %q", warnings)
			}
			if err := r.Cancel(t.Context(), id); !errors.Is(err, job.ErrCompleted) {
				t.Errorf("cancel after the end: %v", err)
			}
			r.noLeaks()
		})
	}
}

// The wish not to wait any longer outlives the engine it was said to, and a
// task that was to be ended is not left running in a VM that stays.
func TestCancel_OfCollectingAfterARestartInAKeptVM(t *testing.T) {
	r := newRig(t, 2)
	do, _ := hold(t, providertest.Task{Stdout: []byte("out")})
	gate, stuck := make(chan struct{}), make(chan struct{})
	first := sync.OnceFunc(func() { close(stuck) })
	g := &slyGuest{read: func(context.Context, string, int64, int64) ([]byte, error) {
		first()
		<-gate // whatever the engine wants
		return nil, errUnreachable
	}}
	r.with(g, func(o *executor.Options) { o.CollectPatience = time.Hour })
	r.behave(providertest.Behaviour{Task: do}, false)
	r.makeVM("dev")
	id := r.submit(func(m *job.Manifest) { m.VM = "dev" })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	if _, err := r.Kill(t.Context(), id, ""); err != nil {
		t.Fatal(err)
	}
	<-stuck
	if err := r.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	close(gate)
	r.stop()
	r.restart()
	if j := r.wait(id); j.Outcome.Reason != job.ReasonKilled || !j.SkipCollect {
		t.Errorf("job %+v", j)
	}
	if g.stops.Load() == 0 {
		t.Error("the task runs on in the VM")
	}
	if _, err := r.DestroyVM(t.Context(), "dev"); err != nil {
		t.Errorf("the VM cannot be destroyed: %v", err)
	}
}

// An honest VM at the end of a slow line is waited for: each try of collecting
// is over long before all has come.
func TestCollect_ASlowLineIsWaitedFor(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		data := bytes.Repeat([]byte("0123456789abcdef"), 64<<10)
		g := &slyGuest{artifact: func(ctx context.Context, _ string, offset, _ int64) ([]byte, error) {
			select {
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			case <-time.After(300 * time.Millisecond):
				return data[offset:min(offset+64<<10, int64(len(data)))], nil
			}
		}}
		r.with(g, func(o *executor.Options) { o.CollectPatience = time.Second })
		r.behave(providertest.Behaviour{Task: task(providertest.Task{Artifacts: map[string][]byte{"a": data}})}, true)
		id := r.submit(wanting("a"))
		r.wait(id)
		if files, warnings := r.artifacts(id); files["a"] != string(data) {
			t.Errorf("%d bytes, warnings %q", len(files["a"]), warnings)
		}
	})
}

// Neither being given the job nor starting it takes a VM for ever.
func TestPush_AndStartEnd(t *testing.T) {
	t.Parallel()
	for phase, g := range map[string]*slyGuest{"push": {push: never}, "start": {start: never}} {
		t.Run(phase, func(t *testing.T) {
			r := newRig(t, 1)
			r.with(g, func(o *executor.Options) { o.PushTimeout = time.Second })
			r.behave(providertest.Behaviour{}, false)
			j := r.wait(r.submit())
			if j.Outcome.Reason != job.ReasonStartFailed || !strings.Contains(j.Outcome.Error, "did not finish within 1s") {
				t.Errorf("outcome %+v", j.Outcome)
			}
			r.noLeaks()
		})
	}
}

// While a VM keeps silent on how callbacks could arrive, its task is looked at
// all the same.
func TestFollow_GoesOnWhileAWayIsLookedFor(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		do, release := hold(t, providertest.Task{ExitCode: 4})
		looking := make(chan struct{})
		first := sync.OnceFunc(func() { close(looking) })
		r.with(&slyGuest{callbacks: func(ctx context.Context) error { first(); return never(ctx) }},
			func(o *executor.Options) { o.HeartbeatThreshold = time.Second })
		r.behave(providertest.Behaviour{Task: do}, false)
		id := r.submit()
		<-looking
		release()
		if j := r.wait(id); j.Outcome.ExitCode == nil || *j.Outcome.ExitCode != 4 {
			t.Errorf("outcome %+v", j.Outcome)
		}
	})
}

// Output that a full disk in the VM has cost is said to be missing.
func TestCollect_TellsOfAFullDisk(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("half a li"), DiskFull: true})}, true)
	j := r.wait(r.submit())
	if j.Status != job.Success || !j.Stdout.Incomplete || !j.Stderr.Incomplete || !strings.Contains(j.Stdout.Why, "disk was full") || j.Stdout.Total != 9 {
		t.Errorf("stdout %+v, stderr %+v", j.Stdout, j.Stderr)
	}
}
