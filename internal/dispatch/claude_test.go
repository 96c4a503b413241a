package dispatch_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/handover"
	"linus/internal/job"
	"linus/internal/queuetest"
	"linus/internal/worker"
)

// newEngine returns one whose VMs' workers run in this process, as soon as their work is there.
func newEngine(t *testing.T) *queuetest.Engine {
	t.Helper()
	e, dir := queuetest.NewEngine(t), t.TempDir()
	e.Run = func(ctx context.Context, vm queuetest.VM) int { return work(ctx, dir, vm) }
	return e
}

// work runs a worker for what a VM was given, and returns its exit code.
func work(ctx context.Context, dir string, vm queuetest.VM) int {
	file := filepath.Join(dir, vm.ID)
	if err := os.WriteFile(file, vm.Secret, 0o600); err != nil {
		return 1
	}
	switch err := worker.Serve(ctx, file, quiet); {
	case errors.Is(err, worker.ErrLeaseLost):
		return handover.LeaseLost
	case err != nil:
		return 1
	}
	return 0
}

// watchEnd waits for a job's end.
func watchEnd(e *queuetest.Engine, id string) (job.Job, error) {
	for deadline := time.Now().Add(time.Minute); ; {
		_, j, err := e.Watch(context.Background(), id, 0)
		if err != nil || j.Outcome != nil {
			return j, err
		}
		if time.Now().After(deadline) {
			return j, errors.New("the job does not end")
		}
	}
}

var quiet = slog.New(slog.DiscardHandler)

// serving is a dispatcher that runs.
type serving struct {
	t     *testing.T
	stop  context.CancelFunc
	hurry func()
	ended chan struct{}
	err   error // once it has ended
}

func serve(t *testing.T, e *queuetest.Engine, q *queuetest.Queue, with func(o *dispatch.Options, c *dispatch.Claude)) *serving {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	hurry := make(chan struct{})
	s := &serving{t: t, stop: stop, hurry: sync.OnceFunc(func() { close(hurry) }), ended: make(chan struct{})}
	o := dispatch.Options{Engine: e, Name: "here", Sessions: 2, Drain: time.Minute, Hurry: hurry, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
	c := dispatch.Claude{API: q.URL, Environment: queuetest.Environment, Key: queuetest.Key, Worker: []byte("the worker")}
	if with != nil {
		with(&o, &c)
	}
	go func() {
		defer close(s.ended)
		s.err = dispatch.ServeClaude(ctx, o, c)
	}()
	t.Cleanup(func() { // it writes to the test's output
		s.hurry()
		_ = s.ends()
	})
	return s
}

// ends stops the dispatcher and waits for its end.
func (s *serving) ends() error {
	s.t.Helper()
	s.stop()
	return s.itself()
}

// itself waits for the dispatcher's end.
func (s *serving) itself() error {
	s.t.Helper()
	select {
	case <-s.ended:
		return s.err
	case <-time.After(time.Minute):
		s.t.Fatal("the dispatcher does not end")
		return nil
	}
}

// until waits for a session's item.
func until(t *testing.T, q *queuetest.Queue, session string, is func(queuetest.Item) bool) queuetest.Item {
	t.Helper()
	for deadline := time.After(time.Minute); ; {
		it := q.Item(session)
		if is(it) {
			return it
		}
		select {
		case <-deadline:
			t.Fatalf("waited a minute; %+v, refused %q", it, q.Refused())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func stopped(it queuetest.Item) bool { return it.State == "stopped" }
func served(it queuetest.Item) bool  { return len(it.Results) > 0 }

// A session is served by a job, with its own secret; the environment's key stays here.
func TestClaude_ServesASession(t *testing.T) {
	t.Parallel()
	q, e := queuetest.New(t, time.Minute), newEngine(t)
	e.Full = 1
	token := q.Add("sesn_1", false, "echo one", "echo two")
	q.AddHealthCheck()
	q.AddBare("sesn_bare")
	s := serve(t, e, q, func(o *dispatch.Options, _ *dispatch.Claude) { o.Manifest.Labels = map[string]string{"team": "web"} })
	it := until(t, q, "sesn_1", stopped)
	if !slices.Equal(it.Results, []string{"one", "two"}) || it.Stops != 1 || it.Claims != 1 || !slices.Equal(it.Keys, []string{token}) {
		t.Errorf("%+v", it)
	}
	until(t, q, "check", stopped)
	until(t, q, "sesn_bare", stopped)
	if err := s.ends(); err != nil || len(q.Refused()) > 0 {
		t.Errorf("%v, refused %q", err, q.Refused())
	}
	vms := e.VMs()
	if len(vms) != 1 {
		t.Fatalf("jobs %v", vms)
	}
	r := vms["job-sesn_1"]
	for key, value := range map[string]string{
		"team": "web", "dispatch/by": "here", "dispatch/environment": queuetest.Environment, "dispatch/session": "sesn_1", "dispatch/work": "work_sesn_1",
	} {
		if r.Manifest.Labels[key] != value {
			t.Errorf("label %s is %q", key, r.Manifest.Labels[key])
		}
	}
	if r.Manifest.Timeout != job.MaxTimeout || strings.Contains(r.Manifest.Task, "NAME") || strings.Contains(r.Manifest.Task, "sesn") {
		t.Errorf("manifest %+v", r.Manifest)
	}
	secrets := 0
	for path, content := range r.Files {
		if strings.Contains(content, queuetest.Key) {
			t.Errorf("the key is in %s", path)
		}
		if strings.Contains(content, `"secret"`) {
			secrets++
			if !strings.HasPrefix(path, "/dev/shm/") {
				t.Errorf("the secret is in %s", path)
			}
		}
	}
	if secrets != 1 || len(r.Files) != 3 {
		t.Errorf("files %v", r.Files)
	}
}

// While the VM is made the lease is kept, and the worker goes on with it.
func TestClaude_KeepsTheLeaseWhileTheVMIsMade(t *testing.T) {
	t.Parallel()
	q, e := queuetest.New(t, 5*time.Second), newEngine(t)
	slow := make(chan struct{})
	e.Slow = slow
	q.Add("sesn_1", false, "echo one")
	serve(t, e, q, nil)
	until(t, q, "sesn_1", func(it queuetest.Item) bool { return it.Beats >= 4 }) // longer than a lease
	close(slow)
	if it := until(t, q, "sesn_1", stopped); it.Claims != 1 || !served(it) {
		t.Errorf("%+v", it)
	}
}

// A lease that is lost ends the job: in the making by the dispatcher, afterwards by the worker,
// and nobody stops the item, which is somebody else's.
func TestClaude_LosesALease(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		made     bool
		sessions int
		want     job.Reason
	}{
		{"while the VM is made", false, 1, job.ReasonCancelled}, {"while it is served", true, 1, job.ReasonExitStatus},
		{"and claims it again at once", true, 2, job.ReasonExitStatus},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			q, e := queuetest.New(t, 2*time.Second), newEngine(t)
			slow := make(chan struct{})
			if !tt.made {
				e.Slow = slow
			}
			q.Add("sesn_1", true, "echo one")
			s := serve(t, e, q, func(o *dispatch.Options, _ *dispatch.Claude) { o.Sessions = tt.sessions })
			until(t, q, "sesn_1", func(it queuetest.Item) bool { return it.Beats > 0 && (!tt.made || served(it)) })
			q.Lose("sesn_1")
			again := until(t, q, "sesn_1", func(it queuetest.Item) bool { return it.Claims == 2 && it.Beats > 1 })
			if again.Stops != 0 {
				t.Errorf("%+v", again)
			}
			if _, err := watchEnd(e, "job-sesn_1"); err != nil {
				t.Fatal(err)
			}
			first := e.VMs()["job-sesn_1"]
			if first.Outcome == nil || first.Outcome.Reason != tt.want || tt.made && *first.Outcome.ExitCode != handover.LeaseLost {
				t.Errorf("the first job: %+v", first)
			}
			if !tt.made {
				close(slow)
			}
			q.Finish("sesn_1")
			if it := until(t, q, "sesn_1", stopped); it.Stops != 1 || it.Claims != 2 {
				t.Errorf("%+v", it)
			}
			if err := s.ends(); err != nil {
				t.Error(err)
			}
		})
	}
}

// One that is interrupted claims no more and waits; one that has no time says what goes on, and
// the next takes that up.
func TestClaude_DrainsAndTakesUp(t *testing.T) {
	t.Parallel()
	q, e := queuetest.New(t, time.Minute), newEngine(t)
	q.Add("sesn_1", true, "echo one")
	s := serve(t, e, q, nil)
	until(t, q, "sesn_1", served)
	s.stop()
	s.hurry()
	var stay *dispatch.StayError
	if err := s.ends(); !errors.As(err, &stay) || !slices.Equal(stay.Jobs, []string{"job-sesn_1"}) {
		t.Fatalf("it ended with %v", err)
	}
	q.Add("sesn_2", false, "echo two")
	next := serve(t, e, q, func(o *dispatch.Options, _ *dispatch.Claude) { o.Sessions = 1 })
	select { // its one place is the first session's
	case <-next.ended:
		t.Fatal(next.err)
	case <-time.After(500 * time.Millisecond):
	}
	if it := q.Item("sesn_2"); it.Claims != 0 {
		t.Errorf("a second session beside one that goes on: %+v", it)
	}
	q.Finish("sesn_1")
	until(t, q, "sesn_1", stopped)
	until(t, q, "sesn_2", stopped)
	q.Add("sesn_3", true, "echo three")
	until(t, q, "sesn_3", served)
	next.stop()
	q.Add("sesn_4", false, "echo four")
	q.Finish("sesn_3")
	if err := next.ends(); err != nil || q.Item("sesn_4").Claims != 0 || !stopped(q.Item("sesn_3")) {
		t.Errorf("%v, %+v", err, q.Item("sesn_4"))
	}
}

// Two dispatchers share a queue: each item is served once.
func TestClaude_ShareAQueue(t *testing.T) {
	t.Parallel()
	q, e := queuetest.New(t, time.Minute), newEngine(t)
	for _, name := range []string{"one", "two"} {
		serve(t, e, q, func(o *dispatch.Options, _ *dispatch.Claude) { o.Name, o.Sessions = name, 1 })
	}
	q.Add("sesn_1", true, "echo one")
	until(t, q, "sesn_1", served)
	q.Add("sesn_2", true, "echo two")
	until(t, q, "sesn_2", served)
	if first, second := q.Item("sesn_1"), q.Item("sesn_2"); first.Claims != 1 || second.Claims != 1 || first.Claimed[0] == second.Claimed[0] {
		t.Errorf("%v and %v", first.Claimed, second.Claimed)
	}
}

// Whoever may submit a job may give it a dispatcher's labels: it takes no place, is not followed
// and not cancelled.
func TestClaude_JobsOfOthersAreNotItsSessions(t *testing.T) {
	t.Parallel()
	q, e := queuetest.New(t, time.Minute), newEngine(t)
	foreign := job.Manifest{Labels: map[string]string{
		"dispatch/by": "here", "dispatch/environment": queuetest.Environment, "dispatch/session": "sesn_1", "dispatch/work": "work_sesn_1",
	}}
	session := &job.Session{Kind: "claude", Queue: queuetest.Environment, Dispatcher: "here", Name: "linus-dispatch-1", Work: job.Work{ID: "work_sesn_1"}}
	for id, status := range map[string]job.Status{"forged-running": job.Running, "forged-pending": job.Pending} {
		e.Put(job.Job{ID: id, Manifest: foreign, Session: session, Status: status, Principal: "mallory"})
	}
	e.Put(job.Job{ID: "labelled", Manifest: foreign, Status: job.Running}) // its own principal's, and no session
	q.Add("sesn_1", false, "echo one")
	s := serve(t, e, q, func(o *dispatch.Options, _ *dispatch.Claude) { o.Name, o.Sessions = "here", 1 })
	until(t, q, "sesn_1", stopped)
	if err := s.ends(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	for _, id := range []string{"forged-running", "forged-pending", "labelled"} {
		if r := e.VMs()[id]; r.Outcome != nil {
			t.Errorf("%s, which is another's, has ended: %+v", id, r.Outcome)
		}
	}
}

// What can never work ends the dispatcher before it claims anything.
func TestClaude_EndsWhereNothingCanBeServed(t *testing.T) {
	t.Parallel()
	q, e := queuetest.New(t, time.Minute), newEngine(t)
	q.Add("sesn_1", false)
	e.Refuses = &job.FieldError{Field: "manifest.vmTemplate", Problem: "does not exist"}
	if err := serve(t, e, q, nil).itself(); !errors.Is(err, e.Refuses) {
		t.Errorf("a template that is missing: %v", err)
	}
	wrong := serve(t, newEngine(t), q, func(_ *dispatch.Options, c *dispatch.Claude) { c.Key = "another" })
	if err := wrong.itself(); err == nil || !strings.Contains(err.Error(), "claim work of environment "+queuetest.Environment) || !strings.Contains(err.Error(), "401") {
		t.Errorf("a wrong key: %v", err)
	}
	if it := q.Item("sesn_1"); it.Claims != 0 {
		t.Errorf("%+v", it)
	}
}
