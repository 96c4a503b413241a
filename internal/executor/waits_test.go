package executor_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/vm"
)

// What a job waits for is told at once, and while it lasts its progress says it.
func TestJob_SaysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		r.opts.Runner = &unreachableGuest{Runner: r.fake}
		r.opts.HeartbeatThreshold = time.Minute
		r.restart()
		id := r.submit()
		r.until(id, func(j job.Job) bool {
			return j.Phase == job.PhasePush && strings.HasPrefix(j.Progress, "waiting for the VM until ") && strings.Contains(j.Progress, "the connection ended")
		})
		j := r.wait(id)
		if told := r.warnings(id, "waiting for the VM until "); j.Status != job.Success || j.Progress != "" || len(told) != 2 { // push and start
			t.Errorf("%s, progress %q, told %q", j.Status, j.Progress, told)
		}
	})
}

// A mutedVM answers nothing while it is suspended: connections to it wait for their end.
type mutedVM struct {
	executor.Runner
	down *bool
}

func (g mutedVM) wait(ctx context.Context, work func() error) error {
	if *g.down {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return work()
}

func (g mutedVM) Warm(ctx context.Context, j job.Job) error {
	return g.wait(ctx, func() error { return g.Runner.Warm(ctx, j) })
}

func (g mutedVM) Push(ctx context.Context, j job.Job, p job.Payload) error {
	return g.wait(ctx, func() error { return g.Runner.Push(ctx, j, p) })
}

func (g mutedVM) Clean(ctx context.Context, j job.Job) error {
	return g.wait(ctx, func() error { return g.Runner.Clean(ctx, j) })
}

// A job for a VM that somebody has had suspended is refused at once; one that was suspended on the
// host, where linus does not see it, ends in seconds.
func TestSubmit_IntoAVMThatIsSuspended(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		down := false
		r.opts.Runner = mutedVM{r.fake, &down}
		r.restart()
		dev := *r.makeVM("dev").VM
		ctx := context.Background()
		if _, err := r.SuspendVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		into := job.Submission{IdempotencyKey: "one", Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, VM: "dev"}}
		began := time.Now()
		_, err := r.Submit(ctx, into)
		refusal(t, err, `"dev" (VM 100) is suspended; resume it first: {vm resume} dev`)
		if took := time.Since(began); took > time.Second {
			t.Errorf("refused after %s", took)
		}
		if _, err := r.ResumeVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		first, err := r.Submit(ctx, into)
		if err != nil {
			t.Fatal(err)
		}
		if j := r.wait(first.ID); j.Status != job.Success {
			t.Errorf("after it was resumed: %+v", j.Outcome)
		}
		if _, err := r.SuspendVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}
		if j, err := r.Submit(ctx, into); err != nil || j.ID != first.ID {
			t.Errorf("the same submission again: %s, %v", j.ID, err)
		}
		if _, err := r.ResumeVM(ctx, "dev"); err != nil {
			t.Fatal(err)
		}

		if err := r.fake.SuspendVM(ctx, vm.VM{ID: dev.ID, Job: dev.Job, Name: dev.Name, Owner: dev.Owner}); err != nil {
			t.Fatal(err)
		}
		down = true
		began = time.Now()
		j := r.wait(r.submit(sharing("dev")))
		if took := time.Since(began); took > 8*time.Second || j.Outcome.Reason != job.ReasonStartFailed || !strings.Contains(j.Outcome.Error, `is suspended; resume it first: {vm resume} dev`) {
			t.Errorf("after %s: %+v", took, j.Outcome)
		}
	})
}

// The last phase of a job whose VM stays is no destruction, and after it there is none.
func TestPhase_OfAVMThatStaysIsRelease(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	keeps := func(m *job.Manifest) { m.Lifecycle = vm.Persistent }
	for name, want := range map[string]struct {
		change func(*job.Manifest)
		last   string
	}{
		"one that it shares": {sharing("dev"), "release"}, "one of its own": {keeps, "release"}, "one that goes": {func(*job.Manifest) {}, "destroy"},
	} {
		id := r.submit(want.change)
		j := r.wait(id)
		last, after := "", int64(0)
		var err error
		for deadline := time.Now().Add(time.Minute); err == nil && last != want.last && time.Now().Before(deadline); {
			var events []job.Event
			events, _, err = r.Watch(t.Context(), id, after)
			for _, e := range events {
				if after = e.Seq; e.Kind == job.EventPhaseEnded {
					last = e.Phase
				}
			}
		}
		if err != nil || j.Phase != "" || last != want.last {
			t.Errorf("%s: its last phase is %q, want %q; then it is in %q, %v", name, last, want.last, j.Phase, err)
		}
	}
}
