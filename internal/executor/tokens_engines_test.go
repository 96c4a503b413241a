package executor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/providertest"
	"linus/internal/store"
)

// deaf is a database whose notices an engine does not hear.
type deaf struct{ *store.Store }

func (deaf) Listen(ctx context.Context, _ func(job.Notice)) error {
	<-ctx.Done()
	return ctx.Err()
}

// A token that is revoked at one engine is refused by the others, and what it has open
// there ends; also at one that does not hear of it. One that cannot reach the database
// takes it no longer, either.
func TestToken_RevokedAtAnotherEngine(t *testing.T) {
	t.Parallel()
	var line pgtest.Line
	f := newCohort(t, 4, 4, func(f *cohort, i int, r *rig) {
		switch i {
		case 2:
			r.opts.Engines = deaf{r.store}
		case 3:
			line = pgtest.LineTo(t, f.url)
			s, err := store.Open(context.Background(), store.Options{Dir: t.TempDir(), URL: line.URL(f.url), MaxOutput: maxOutput})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { s.Close() })
			r.store, r.opts.Stores, r.opts.Engines, r.opts.Provider = s, executor.StoresOf(s), s, hostOf{f.fake, f, s}
		}
	})
	t.Cleanup(line.Release) // before the engine behind it is stopped
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: t.Context().Done()})})
	made := f.engines[0].token(job.TokenSpec{Name: "ci", Role: job.RoleRun})
	var id string
	type end struct {
		engine int
		err    error
		after  time.Duration
	}
	ends, revoked := make(chan end), make(chan time.Time, 1)
	for i, r := range f.engines {
		p, err := r.Authenticate(t.Context(), made.Secret)
		if err != nil {
			t.Fatal(err)
		}
		ctx, done := job.ForPrincipal(t.Context(), p)
		t.Cleanup(done)
		e := executor.Guarded(r.Executor)
		if i == 0 {
			j, err := e.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}})
			if err != nil {
				t.Fatal(err)
			}
			id = j.ID
			r.until(id, job.Job.Begun)
		}
		if i == 3 {
			continue
		}
		go func() { // a client that follows the job
			for after := int64(0); ; {
				events, _, err := e.Watch(ctx, id, after)
				if err != nil || ctx.Err() != nil {
					at := <-revoked
					revoked <- at
					ends <- end{i, errors.Join(err, context.Cause(ctx)), time.Since(at)}
					return
				}
				if len(events) > 0 {
					after = events[len(events)-1].Seq
				}
			}
		}()
	}
	line.Hold()
	if _, err := executor.Guarded(f.engines[0].Executor).RevokeToken(job.WithPrincipal(t.Context(), job.Operator()), "ci"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	revoked <- began
	for range 3 {
		select {
		case e := <-ends:
			if !errors.Is(e.err, job.ErrUnauthorized) {
				t.Errorf("engine %d: the stream ended for %v", e.engine, e.err)
			}
			t.Logf("engine %d: the stream ended after %s", e.engine, e.after)
		case <-time.After(time.Minute):
			t.Fatal("what the token has open goes on")
		}
	}
	for i, r := range f.engines[:3] {
		if p, err := r.Authenticate(t.Context(), made.Secret); !errors.Is(err, job.ErrUnauthorized) {
			t.Errorf("engine %d takes the token: %+v, %v", i, p, err)
		}
	}
	cut := f.engines[3]
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := cut.Authenticate(ctx, made.Secret)
		cancel()
		if err != nil {
			t.Logf("engine 3, cut off: refused after %s: %v", time.Since(began), err)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("an engine without the database takes the token")
		}
	}
}

func (r *rig) token(s job.TokenSpec) job.NewToken {
	r.t.Helper()
	t, err := r.CreateToken(job.WithPrincipal(r.t.Context(), job.Operator()), s)
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}
