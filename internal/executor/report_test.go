package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
)

// A slowGuest does not stop tasks before it may.
type slowGuest struct {
	executor.Runner

	may chan struct{}
}

func (g *slowGuest) Stop(ctx context.Context, j job.Job, signal string) error {
	select {
	case <-g.may:
		return g.Runner.Stop(ctx, j, signal)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A countingStore counts what is written of jobs.
type countingStore struct {
	*store.Store

	updates atomic.Int64
}

func (s *countingStore) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	s.updates.Add(1)
	return s.Store.Update(ctx, id, change)
}

// started submits a job whose task runs until the test ends, and returns its token.
func (r *rig) started(change ...func(*job.Manifest)) (id, token string) {
	r.t.Helper()
	tokens := make(chan string, 1)
	r.fake.Set(providertest.Behaviour{
		Task:    task(providertest.Task{Until: make(chan struct{})}),
		OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token },
	})
	id = r.submit(change...)
	token = <-tokens
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	return id, token
}

// eventually waits for what no event tells of.
func (r *rig) eventually(id string, wanted func(job.Job) bool) job.Job {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		switch j, err := r.Job(context.Background(), id); {
		case err != nil:
			r.t.Fatal(err)
		case wanted(j):
			return j
		case time.Now().After(deadline):
			r.t.Fatalf("a minute later: progress %q, heartbeat %v", j.Progress, j.LastHeartbeat)
		}
	}
}

// events returns the texts of a job's events of a kind.
func (r *rig) events(id, kind string) (texts []string) {
	r.t.Helper()
	all, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, e := range all {
		if e.Kind == kind {
			texts = append(texts, e.Text)
		}
	}
	return texts
}

// The first outcome stands: what comes later is recorded, once however often it
// comes, and changes nothing. With the job's end its token ends.
func TestReport_LateAndRepeatedChangeNothing(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	slow := &slowGuest{r.fake, make(chan struct{})}
	r.opts.Runner, r.opts.CollectPatience = slow, time.Hour
	r.restart()
	id, token := r.started()
	ctx := context.Background()
	if err := r.Cancel(ctx, id); err != nil {
		t.Fatal(err)
	}
	r.until(id, func(j job.Job) bool { return j.Phase == "collect" })
	const flood = 5000
	for i := range flood {
		if err := r.Report(ctx, id, token, job.Report{Kind: job.ReportComplete, ExitCode: i % 256}); err != nil {
			t.Fatalf("late report: %v", err)
		}
	}
	close(slow.may)
	if j := r.wait(id); j.Status != job.Failed || j.Outcome.Reason != job.ReasonCancelled {
		t.Errorf("job %+v", j.Outcome)
	}
	want := fmt.Sprintf("%d times complete, the last with exit code %d: the job had ended", flood, (flood-1)%256)
	if got := r.events(id, job.EventIgnored); len(got) != 1 || got[0] != want {
		t.Errorf("ignored: %.3q, want %q", got, want)
	}
	for _, bad := range []struct{ id, token string }{{id, token}, {id, "wrong"}, {id, ""}, {"019aa000-0000-7000-8000-000000000000", token}} {
		if err := r.Report(ctx, bad.id, bad.token, job.Report{Kind: job.ReportHeartbeat}); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("report with %v: %v", bad, err)
		}
		if err := r.Authorize(ctx, bad.id, bad.token); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("authorize with %v: %v", bad, err)
		}
		if _, err := r.AppendOutput(ctx, bad.id, bad.token, job.Stdout, 0, []byte("x")); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("output with %v: %v", bad, err)
		}
	}
}

// Only the token of the job itself, whole, lets anybody speak for a job that runs.
func TestReport_NeedsTheJobsOwnToken(t *testing.T) {
	r := newRig(t, 2)
	id, token := r.started()
	_, others := r.started()
	hash, err := r.store.TokenHash(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"none": "", "a word": "wrong", "another job's": others, "its hash": hash, "half of it": token[:len(token)/2],
		"more than it": token + "0", "in capitals": strings.ToUpper(token), "as long": strings.Repeat("0", len(token)),
	} {
		if err := r.Authorize(t.Context(), id, bad); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("authorized with %s: %v", name, err)
		}
		if err := r.Report(t.Context(), id, bad, job.Report{Kind: job.ReportStatus, Progress: "a lie"}); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("report with %s: %v", name, err)
		}
		if _, err := r.AppendOutput(t.Context(), id, bad, job.Stdout, 0, []byte("a lie")); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("output with %s: %v", name, err)
		}
	}
	if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportStatus, Progress: "the truth"}); err != nil {
		t.Errorf("its own token: %v", err)
	}
	j := r.eventually(id, func(j job.Job) bool { return j.Progress != "" })
	if c, err := r.Output(t.Context(), id, job.Stdout, 0, 100); err != nil || len(c.Data) > 0 || j.Progress != "the truth" {
		t.Errorf("progress %q, output %q, %v", j.Progress, c.Data, err)
	}
}

// What a runner reports is written down once a second at most, its last words too.
func TestReport_AFloodIsWrittenOnceASecond(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	count := &countingStore{Store: r.store}
	r.opts.Jobs, r.opts.HeartbeatInterval = count, time.Hour // nobody else writes meanwhile
	r.restart()
	id, token := r.started()
	before, began := count.updates.Load(), time.Now()
	const flood = 3000
	for i := range flood {
		for _, report := range []job.Report{{Kind: job.ReportHeartbeat}, {Kind: job.ReportStatus, Progress: fmt.Sprint("step ", i)}} {
			if err := r.Report(t.Context(), id, token, report); err != nil {
				t.Fatal(err)
			}
		}
	}
	last := fmt.Sprint("step ", flood-1)
	r.eventually(id, func(j job.Job) bool { return j.Progress == last && !j.LastHeartbeat.IsZero() })
	if n, most := count.updates.Load()-before, int64(time.Since(began)/time.Second)+2; n > most {
		t.Errorf("%d reports were written %d times in %s", 2*flood, n, time.Since(began))
	}
}

// Whatever a guest or a host says, what is kept of it for people is short, and
// has no half of a secret where it was cut.
func TestTexts_AreBounded(t *testing.T) {
	long := strings.Repeat("x", 60_000)
	t.Run("progress", func(t *testing.T) {
		r := newRig(t, 1)
		id, token := r.started()
		if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportStatus, Progress: "at " + long}); err != nil {
			t.Fatal(err)
		}
		wantBounded(t, r.eventually(id, func(j job.Job) bool { return strings.HasPrefix(j.Progress, "at ") }).Progress)
	})
	t.Run("error", func(t *testing.T) {
		r := newRig(t, 1)
		r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3, Text: "because " + long})}, true)
		j := r.wait(r.submit())
		wantBounded(t, j.Outcome.Error)
	})
	t.Run("host", func(t *testing.T) {
		r := newRig(t, 1)
		r.fake.Set(providertest.Behaviour{FailStep: "start_vm", Fail: errors.New(long + " no space left on device"), Warning: "warned of " + long})
		id := r.submit()
		j := r.wait(id)
		wantBounded(t, j.Outcome.Error)
		if !strings.HasSuffix(j.Outcome.Error, "no space left on device") {
			t.Errorf("the cause was cut off: %q", j.Outcome.Error[len(j.Outcome.Error)-50:])
		}
		for _, text := range r.events(id, job.EventWarning) {
			wantBounded(t, text)
		}
	})
	t.Run("answer", func(t *testing.T) {
		r := newRig(t, 1)
		id, _ := r.started(func(m *job.Manifest) { m.Stdin = job.StdinOpen })
		r.fake.Set(providertest.Behaviour{Inputs: []error{errors.New(long)}})
		err := r.Input(t.Context(), id, []byte("x"), false)
		if err == nil {
			t.Fatal("the input was sent")
		}
		wantBounded(t, err.Error())
	})
}

func wantBounded(t *testing.T, text string) {
	t.Helper()
	if len(text) > job.MaxText || !strings.Contains(text, " bytes cut] ") {
		t.Errorf("%d bytes: %.100q", len(text), text)
	}
}

// An agent that says a lot is not written down each time either.
func TestReport_AFloodOfAnAgentsStepsIsWrittenOnceASecond(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	count := &countingStore{Store: r.store}
	r.opts.Jobs, r.opts.HeartbeatInterval = count, time.Hour
	r.restart()
	id, token := r.started(func(m *job.Manifest) { m.AgentType, m.StatusMode = job.AgentClaude, job.StatusStreaming })
	before, began := count.updates.Load(), time.Now()
	var at int64
	for i := range 300 {
		next, err := r.AppendOutput(t.Context(), id, token, job.Stdout, at, []byte(claudeSays(fmt.Sprint("step ", i))))
		if err != nil {
			t.Fatal(err)
		}
		at = next
	}
	r.eventually(id, func(j job.Job) bool { return j.Progress == "step 299" })
	if n, most := count.updates.Load()-before, 2*int64(time.Since(began)/time.Second)+4; n > most {
		t.Errorf("300 steps were written %d times in %s", n, time.Since(began))
	}
}
