package dispatch_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/dispatch"
	"linus/internal/handover"
	"linus/internal/job"
	"linus/internal/queuetest"
)

// inMemory is a queue whose work is done by whoever gets it first, as runners' are.
type inMemory struct {
	mu       sync.Mutex
	waits    []dispatch.Work
	asked    []time.Time
	released map[string]int // by the sessions' names
	names    []string       // of sessions that were handed over
	err      error          // of Waiting
	silent   bool           // Waiting does not answer
	keeps    int            // so many times Release takes nothing back
	hangs    bool           // Release does not answer
	resumed  []string       // sessions that it was told of
	woken    chan struct{}
}

func newInMemory(ids ...string) *inMemory {
	q := &inMemory{released: map[string]int{}, woken: make(chan struct{}, 1)}
	for _, id := range ids {
		q.waits = append(q.waits, dispatch.Work{ID: id, Labels: []string{"linus", id}})
	}
	return q
}

func (q *inMemory) add(w ...dispatch.Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits = append(q.waits, w...)
}

func (*inMemory) Task() string { return "true # $name\n" }

func (q *inMemory) Waiting(ctx context.Context) ([]dispatch.Work, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.asked = append(q.asked, time.Now())
	if q.silent {
		q.mu.Unlock()
		<-ctx.Done()
		q.mu.Lock()
		return nil, ctx.Err()
	}
	return slices.Clone(q.waits), q.err
}

func (*inMemory) Claim(context.Context, dispatch.Work) (bool, error) { return true, nil }

func (*inMemory) Hold(context.Context, dispatch.Session, <-chan struct{}) error { return nil }

func (q *inMemory) Handover(_ context.Context, s dispatch.Session) (dispatch.Handover, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.names = append(q.names, s.Name)
	return dispatch.Handover{Secret: []byte(s.Work.ID)}, nil
}

func (q *inMemory) Continue(s dispatch.Session) { q.resumed = append(q.resumed, s.Name) }

func (q *inMemory) Release(ctx context.Context, s dispatch.Session, _ *job.Outcome) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.hangs {
		q.mu.Unlock()
		<-ctx.Done()
		q.mu.Lock()
		return ctx.Err()
	}
	if q.keeps--; q.keeps >= 0 {
		return errors.New("the service is away")
	}
	q.released[s.Name]++
	return nil
}

func (*inMemory) Hook() http.Handler       { return http.NotFoundHandler() }
func (q *inMemory) Woken() <-chan struct{} { return q.woken }

// done is what a VM does: the work waits no more.
func (q *inMemory) done(_ context.Context, vm queuetest.VM) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waits = slices.DeleteFunc(q.waits, func(w dispatch.Work) bool { return w.ID == string(vm.Secret) })
	return 0
}

// serves runs a dispatcher in a bubble, until then.
func serves(t *testing.T, o dispatch.Options, q dispatch.Queue, e *queuetest.Engine, until func()) error {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	if o.Sessions == 0 {
		o.Sessions = 2
	}
	if o.Engine == nil {
		o.Engine = e
	}
	o.Name, o.Drain, o.Log = "here", time.Hour, quiet
	go func() { ended <- dispatch.Serve(ctx, o, "memory", "one", q) }()
	until()
	stop()
	return <-ended
}

// The first of a work's labels that has a shape chooses its VM; work without any is not ours.
func TestServe_ShapesByLabel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("small", "BIG", "foreign"), queuetest.NewEngine(t)
		e.Run = q.done
		shape := func(label, memory string) dispatch.Shape {
			m := job.Manifest{}
			m.Resources.Memory = memory
			return dispatch.Shape{Label: label, Manifest: m}
		}
		err := serves(t, dispatch.Options{Shapes: []dispatch.Shape{shape("big", "8G"), shape("small", "1G")}}, q, e, func() { time.Sleep(time.Minute) })
		got := map[string]string{}
		for _, vm := range e.VMs() {
			got[vm.Session.Work.ID] = vm.Manifest.Resources.Memory
			if vm.Session.Dispatcher != "here" || vm.Manifest.Labels["dispatch/work"] != vm.Session.Work.ID || !strings.Contains(vm.Manifest.Task, "name="+vm.Session.Name+"\n") {
				t.Errorf("%+v", vm)
			}
		}
		if err != nil || !maps.Equal(got, map[string]string{"small": "1G", "BIG": "8G"}) || len(q.waits) != 1 {
			t.Errorf("%v, %v, waiting %v", err, got, q.waits)
		}
	})
}

// A queue that does not answer is asked again, work that is none is left out, and work that always
// fails holds no other and is tried ever more slowly.
func TestServe_BadQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("", "a\nb", strings.Repeat("x", 64), "bad", "well", "well"), queuetest.NewEngine(t)
		q.silent = true
		e.Run = func(ctx context.Context, vm queuetest.VM) int {
			if string(vm.Secret) == "bad" {
				return 1
			}
			return q.done(ctx, vm)
		}
		err := serves(t, dispatch.Options{Sessions: 1}, q, e, func() {
			time.Sleep(2 * time.Minute)
			q.mu.Lock()
			if len(q.asked) != 2 {
				t.Errorf("asked at %v", q.asked)
			}
			q.silent = false
			q.mu.Unlock()
			time.Sleep(time.Hour)
			q.add(dispatch.Work{ID: "later"})
			time.Sleep(2 * time.Minute)
		})
		tries := map[string]int{}
		for _, vm := range e.VMs() {
			tries[vm.Session.Work.ID]++
		}
		if err != nil || tries["well"] != 1 || tries["later"] != 1 || tries["bad"] < 5 || tries["bad"] > 15 || len(tries) != 3 {
			t.Errorf("%v, %v", err, tries)
		}
		if len(q.released) != len(e.VMs()) {
			t.Errorf("%d sessions, %d taken back", len(e.VMs()), len(q.released))
		}
	})
}

// unclaimable is a queue that does not answer when most of its work is claimed.
type unclaimable struct{ *inMemory }

func (q unclaimable) Claim(ctx context.Context, w dispatch.Work) (bool, error) {
	if w.ID == "well" {
		return true, nil
	}
	<-ctx.Done()
	return false, ctx.Err()
}

// slow is a queue in which a claim takes its time.
type slow struct{ *inMemory }

func (slow) Claim(context.Context, dispatch.Work) (bool, error) {
	time.Sleep(2 * time.Second) //nolint:forbidigo // its answer's way
	return true, nil
}

// Of several pieces of work that wait none is claimed any more once the dispatcher is to end.
func TestServe_AnInterruptStopsTheClaiming(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("one", "two", "three"), queuetest.NewEngine(t)
		e.Run = q.done
		err := serves(t, dispatch.Options{Sessions: 3}, slow{q}, e, func() { time.Sleep(time.Second) })
		if n := len(e.VMs()); err != nil || n != 1 {
			t.Errorf("%v, %d VMs", err, n)
		}
	})
}

// Claims that are not answered hold the look at what waits for minutes, not for hours.
func TestServe_ClaimsThatAreNotAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory(), queuetest.NewEngine(t)
		for i := range 100 {
			q.add(dispatch.Work{ID: fmt.Sprint(i)})
		}
		e.Run = q.done
		err := serves(t, dispatch.Options{}, unclaimable{q}, e, func() {
			time.Sleep(time.Minute)
			q.mu.Lock()
			q.waits = append([]dispatch.Work{{ID: "well"}}, q.waits...)
			q.mu.Unlock()
			time.Sleep(10 * time.Minute)
		})
		if err != nil || len(e.VMs()) != 1 {
			t.Errorf("%v, VMs %v", err, e.VMs())
		}
	})
}

// What a queue says that cannot be fills no log.
func TestServe_WorkThatCannotBeIsSaidOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory(), queuetest.NewEngine(t)
		for i := range 1000 {
			q.add(dispatch.Work{ID: fmt.Sprint(i, "\n")})
		}
		var said bytes.Buffer
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- dispatch.Serve(ctx, dispatch.Options{Engine: e, Name: "here", Sessions: 1, Log: slog.New(slog.NewTextHandler(&said, nil))}, "memory", "one", q)
		}()
		time.Sleep(time.Hour)
		stop()
		if err := <-ended; err != nil || strings.Count(said.String(), "invalid work") != 1 {
			t.Errorf("%v, %d bytes said", err, said.Len())
		}
	})
}

// A session that ends without its work being done costs no VM after the other, however it ends.
func TestServe_WhatEndsAtOnceIsTriedEverMoreSlowly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		reason job.Reason
		code   int
	}{
		{job.ReasonLost, 0}, // the VM is off
		{job.ReasonExitStatus, handover.LeaseLost},
		{job.ReasonExitStatus, dispatch.WorkFailed},
		{job.ReasonKilled, 137},
		{job.ReasonTimeout, 0},
		{"", 0}, // it says that it has done it
	} {
		t.Run(string(tt.reason), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q, e := newInMemory("one"), queuetest.NewEngine(t)
				e.Run = func(_ context.Context, vm queuetest.VM) int {
					if tt.reason == "" {
						return 0
					}
					e.End(vm.ID, job.Failed, tt.reason, tt.code)
					return 0
				}
				err := serves(t, dispatch.Options{}, q, e, func() { time.Sleep(time.Hour) })
				if n := len(e.VMs()); err != nil || n < 5 || n > 15 {
					t.Errorf("%v, %d VMs in an hour", err, n)
				}
			})
		})
	}
}

// Work that was done and has failed keeps no place from the next.
func TestServe_WorkThatFailsHoldsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("one", "two", "three"), queuetest.NewEngine(t)
		e.Run = func(ctx context.Context, vm queuetest.VM) int {
			q.done(ctx, vm)
			return dispatch.WorkFailed
		}
		err := serves(t, dispatch.Options{Sessions: 1}, q, e, func() { time.Sleep(10 * time.Second) })
		if n := len(e.VMs()); err != nil || n != 3 {
			t.Errorf("%v, %d of 3 were served in 10 s", err, n)
		}
	})
}

// mute is an engine whose answers to what is written are lost; or that was killed before it wrote.
type mute struct {
	*queuetest.Engine

	before bool
}

func (e mute) WriteFile(ctx context.Context, w job.FileWrite) (job.FileWritten, error) {
	if !e.before {
		_, _ = e.Engine.WriteFile(ctx, w)
	}
	return job.FileWritten{}, errors.New("the connection is lost")
}

// A VM that may have its work is not cancelled: it goes on, or ends by itself as nothing comes.
func TestServe_TheAnswerThatTheWorkIsHandedOverIsLost(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		t.Run(fmt.Sprintf("before %v", before), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q, e := newInMemory("one"), queuetest.NewEngine(t)
				e.Run = func(ctx context.Context, vm queuetest.VM) int {
					select {
					case <-ctx.Done():
						return 1
					case <-time.After(20 * time.Minute):
						return q.done(ctx, vm)
					}
				}
				err := serves(t, dispatch.Options{Engine: mute{e, before}}, q, e, func() { time.Sleep(30 * time.Minute) })
				for _, vm := range e.VMs() {
					if o := vm.Outcome; o == nil || o.Reason == job.ReasonCancelled {
						t.Errorf("%+v", o)
					}
				}
				if n := len(e.VMs()); err != nil || n == 0 || !before && n != 1 {
					t.Errorf("%v, %d VMs", err, n)
				}
			})
		})
	}
}

// A queue that tells of work is asked at once; its error ends the dispatcher if it does not pass.
func TestServe_WokenAndFatal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory(), queuetest.NewEngine(t)
		e.Run = q.done
		err := serves(t, dispatch.Options{Every: time.Hour}, q, e, func() {
			time.Sleep(time.Minute)
			q.add(dispatch.Work{ID: "one", Title: "an \x1b[2J escape", URL: "javascript:x"})
			q.woken <- struct{}{}
			time.Sleep(time.Minute)
			q.mu.Lock()
			if len(e.VMs()) != 1 || len(q.asked) != 3 { // once more after what there was
				t.Errorf("VMs %v, asked at %v", e.VMs(), q.asked)
			}
			q.err = &dispatch.Fatal{Err: errors.New("the key is refused")}
			q.mu.Unlock()
			q.woken <- struct{}{}
			synctest.Wait()
		})
		if err == nil || err.Error() != "the key is refused" {
			t.Errorf("it ended with %v", err)
		}
		for _, vm := range e.VMs() {
			if w := vm.Session.Work; w.Title != "an  [2J escape" || w.URL != "" {
				t.Errorf("%+v", w)
			}
		}
	})
}

// After a restart a session that was being made goes on, one that runs is followed, and what one has
// left that has ended meanwhile is taken back.
func TestServe_SessionsFromBefore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("made", "runs", "ended", "just", "others"), queuetest.NewEngine(t)
		e.Run = q.done
		for id, status := range map[string]job.Status{"made": job.Provisioning, "runs": job.Running, "ended": job.Failed, "just": job.Failed, "others": job.Running} {
			s := &job.Session{Kind: "memory", Queue: "one", Dispatcher: "here", Name: "session-" + id, Work: job.Work{ID: id}}
			j := job.Job{ID: "job-" + id, Session: s, Status: status, CreatedAt: time.Now()}
			if id == "others" {
				s.Dispatcher = "another"
			}
			if status == job.Failed {
				j.Outcome = &job.Outcome{Status: status, Reason: job.ReasonLost}
			}
			if id == "just" {
				j.CompletedAt = time.Now()
			}
			e.Put(j)
		}
		q.waits = nil
		err := serves(t, dispatch.Options{}, q, e, func() {
			time.Sleep(time.Second)
			e.Set("job-made", job.Running)
			time.Sleep(time.Second)
			e.End("job-runs", job.Success, job.ReasonExitStatus, 0)
		})
		// Twice what a dispatcher that was killed may still have been working on: its last request may come late.
		want := map[string]int{"session-made": 2, "session-runs": 2, "session-ended": 1, "session-just": 2}
		if err != nil || !maps.Equal(q.released, want) || !slices.Equal(q.names, []string{"session-made"}) || !slices.Equal(q.resumed, []string{"session-runs"}) {
			t.Errorf("%v, taken back %v, handed over %v, continued %v", err, q.released, q.names, q.resumed)
		}
	})
}

// moving is an engine in which a job begins to run between two lists.
type moving struct{ *queuetest.Engine }

func (e moving) List(ctx context.Context, f job.Filter) (job.Page, error) {
	page, err := e.Engine.List(ctx, f)
	if f.Status == job.Provisioning {
		e.Set("made", job.Running)
	}
	return page, err
}

// A session that is found twice, as it began to run meanwhile, is one, which gets its work.
func TestServe_ASessionThatBeginsToRunAsTheyAreListed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory(), queuetest.NewEngine(t)
		e.Run = q.done
		e.Put(job.Job{ID: "made", Status: job.Provisioning, Session: &job.Session{Kind: "memory", Queue: "one", Dispatcher: "here", Name: "one", Work: job.Work{ID: "one"}}})
		err := serves(t, dispatch.Options{Engine: moving{e}}, q, e, func() { time.Sleep(time.Minute) })
		if o := e.VMs()["made"].Outcome; err != nil || len(q.resumed) > 0 || o == nil || o.Status != job.Success {
			t.Errorf("%v, continued %v, it ended with %+v", err, q.resumed, o)
		}
	})
}

// A task that is told that no work comes ends at once, and one that has its work goes on.
func TestServe_ATaskThatIsToldThatNoWorkComes(t *testing.T) {
	t.Parallel()
	q, e := newInMemory("one"), queuetest.NewEngine(t)
	tasks := make(chan string, 1)
	e.Run = func(ctx context.Context, vm queuetest.VM) int {
		tasks <- vm.Manifest.Task
		return q.done(ctx, vm)
	}
	var task string
	if err := serves(t, dispatch.Options{}, q, e, func() { task = <-tasks }); err != nil {
		t.Fatal(err)
	}
	item := filepath.Join(t.TempDir(), "item")
	task = regexp.MustCompile(`(?m)^item=.*`).ReplaceAllLiteralString(task, "item="+item)
	within, done := context.WithTimeout(t.Context(), time.Minute) // it waits for five
	defer done()
	for _, tt := range []struct {
		name string
		code int
	}{{item + ".over", 75}, {item, 0}} {
		if err := os.WriteFile(tt.name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(within, "bash", "-c", task)
		if out, _ := cmd.CombinedOutput(); cmd.ProcessState.ExitCode() != tt.code {
			t.Errorf("%s: %d, %s", filepath.Base(tt.name), cmd.ProcessState.ExitCode(), out)
		}
	}
}

// What a session has left is taken back however long the service is away.
func TestServe_TakesBackUntilItSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("one"), queuetest.NewEngine(t)
		e.Run, q.keeps = q.done, 60
		err := serves(t, dispatch.Options{}, q, e, func() { time.Sleep(2 * time.Hour) })
		if err != nil || len(q.released) != 1 || len(q.names) != 1 {
			t.Errorf("%v, taken back %v of %v", err, q.released, q.names)
		}
	})
}

// A dispatcher that is to end at once does not try for each session from before whether the queue answers.
func TestServe_EndsThoughNothingIsTakenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory(), queuetest.NewEngine(t)
		q.hangs = true
		for i := range 100 {
			id := fmt.Sprint("ended-", i)
			e.Put(job.Job{ID: id, Session: &job.Session{Kind: "memory", Queue: "one", Dispatcher: "here", Name: id, Work: job.Work{ID: id}}, Status: job.Failed, Outcome: &job.Outcome{Status: job.Failed, Reason: job.ReasonLost}})
		}
		hurry := make(chan struct{})
		var at time.Time
		err := serves(t, dispatch.Options{Hurry: hurry}, q, e, func() {
			time.Sleep(time.Second)
			at = time.Now()
			close(hurry)
		})
		if took := time.Since(at); err != nil || took > time.Minute {
			t.Errorf("it ended after %s with %v", took, err)
		}
	})
}

// lost is an engine of which the answer to one submission is lost.
type lost struct {
	*queuetest.Engine

	once sync.Once
}

func (e *lost) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	j, err := e.Engine.Submit(ctx, s)
	if err == nil {
		e.once.Do(func() { err = errors.New("the connection is lost") })
	}
	return j, err
}

// How long there was no room says nothing of answers that are lost then: the job is there.
func TestServe_TheAnswerThatThereIsRoomIsLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("one"), queuetest.NewEngine(t)
		e.Run, e.Full = q.done, 10
		err := serves(t, dispatch.Options{Engine: &lost{Engine: e}}, q, e, func() { time.Sleep(2 * time.Minute) })
		if n := len(e.VMs()); err != nil || n != 1 || len(q.waits) > 0 {
			t.Errorf("%v, %d VMs, waiting %v", err, n, q.waits)
		}
	})
}

// The engine is told how a dispatcher is, also what waits while no place is free, and has it drain.
func TestServe_Reports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory(), queuetest.NewEngine(t)
		since := time.Now().Add(-time.Hour)
		q.add(dispatch.Work{ID: "fails", Since: since.Add(-time.Hour)}, dispatch.Work{ID: "long", Since: since}, dispatch.Work{ID: "waits", Since: since})
		e.Run = func(ctx context.Context, vm queuetest.VM) int {
			q.done(ctx, vm)
			if string(vm.Secret) == "fails" {
				return 1
			}
			<-ctx.Done()
			return 0
		}
		last := func() job.Dispatcher {
			r := e.Reports()
			return r[len(r)-1]
		}
		err := serves(t, dispatch.Options{Sessions: 1}, q, e, func() {
			time.Sleep(5 * time.Minute)
			want := job.Dispatcher{
				Queue: "memory:one", Name: "here", StartedAt: last().StartedAt, Sessions: 1, Places: 1, Waiting: 1, Oldest: since,
				Failed: []job.Failing{{Reason: job.ReasonExitStatus, Count: 1}},
			}
			if got := last(); !reflect.DeepEqual(got, want) {
				t.Errorf("it says %+v", got)
			}
			q.mu.Lock()
			q.err = errors.New("the service\nis away")
			q.mu.Unlock()
			time.Sleep(time.Minute)
			if got := last(); got.Problem != "the service is away" {
				t.Errorf("it says %+v", got)
			}
			e.Drain(true)
			time.Sleep(time.Minute)
			if got := last(); !got.Draining || got.Sessions != 1 {
				t.Errorf("it says %+v", got)
			}
			for id := range e.VMs() {
				e.End(id, job.Success, job.ReasonExitStatus, 0)
			}
			time.Sleep(time.Minute)
		})
		if err != nil || !last().Ended || len(e.VMs()) != 2 {
			t.Errorf("%v, it says %+v", err, last())
		}
	})
}

// A dispatcher whose token makes no sessions claims no work, for which nobody would be there.
func TestServe_ATokenThatMakesNoSessions(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("one"), queuetest.NewEngine(t)
		e.As = job.Principal{Name: "alice", Role: job.RoleRun}
		err := serves(t, dispatch.Options{}, q, e, synctest.Wait)
		if !errors.Is(err, job.ErrNotAllowed) || !strings.Contains(err.Error(), "toolset dispatch, and this token was not given it") || len(q.asked) != 0 {
			t.Errorf("%v, asked at %v", err, q.asked)
		}
	})
}

// unheard is an engine that a dispatcher's first reports do not reach.
type unheard struct {
	*queuetest.Engine

	times int
}

func (e *unheard) ReportDispatcher(ctx context.Context, d job.Dispatcher) (job.Dispatcher, error) {
	if e.times--; e.times >= 0 {
		return d, errors.New("the connection is lost")
	}
	return e.Engine.ReportDispatcher(ctx, d)
}

// A dispatcher that starts while its name is drained follows the sessions there are, and takes work
// once that is undone: also if the engine cannot say so at first.
func TestServe_StartsDrained(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("waits"), queuetest.NewEngine(t)
		e.Run = q.done
		e.Put(job.Job{ID: "before", Status: job.Running, Session: &job.Session{Kind: "memory", Queue: "one", Dispatcher: "here", Name: "from-before", Work: job.Work{ID: "it"}}})
		e.Drain(true)
		err := serves(t, dispatch.Options{Engine: &unheard{Engine: e, times: 2}}, q, e, func() {
			time.Sleep(time.Minute)
			e.End("before", job.Failed, job.ReasonLost, 1)
			time.Sleep(time.Hour)
			q.mu.Lock()
			if len(q.asked) != 0 || len(e.VMs()) != 1 || q.released["from-before"] != 1 {
				t.Errorf("asked at %v, VMs %v, taken back %v", q.asked, e.VMs(), q.released)
			}
			q.mu.Unlock()
			e.Drain(false)
			time.Sleep(time.Minute)
		})
		if err != nil || len(q.names) != 1 {
			t.Errorf("%v, handed over %v", err, q.names)
		}
	})
}

// Work that another dispatcher's session serves is left to that.
func TestServe_WorkThatIsServed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, e := newInMemory("one"), queuetest.NewEngine(t)
		e.Run = q.done
		e.Put(job.Job{ID: "other", Status: job.Running, Session: &job.Session{Kind: "memory", Queue: "one", Dispatcher: "another", Name: "n", Work: job.Work{ID: "one"}}})
		err := serves(t, dispatch.Options{}, q, e, func() {
			time.Sleep(time.Hour)
			if len(e.VMs()) != 1 {
				t.Errorf("VMs %v", e.VMs())
			}
			e.End("other", job.Failed, job.ReasonLost, 1)
			time.Sleep(time.Hour)
		})
		if err != nil || len(e.VMs()) != 2 || len(q.names) != 1 {
			t.Errorf("%v, VMs %v, handed over %v", err, e.VMs(), q.names)
		}
	})
}
