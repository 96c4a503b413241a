package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/schedule"
	"linus/internal/vm"
)

// world is a store and an engine.
type world struct {
	mu        sync.Mutex
	schedules map[string]job.Schedule
	jobs      map[string]job.Job
	keys      map[string]string
	submitted []string // when, by whom
	refuse    error    // of Submit
	revoked   bool
	holder    error // of Holder
	follows   bool  // another engine leads
	fail      int   // so many updates
	slow      bool  // what is cancelled has not ended yet
}

func newWorld() *world {
	return &world{schedules: map[string]job.Schedule{}, jobs: map[string]job.Job{}, keys: map[string]string{}}
}

func (w *world) InsertSchedule(_ context.Context, s job.Schedule) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, there := w.schedules[s.Name]; there {
		return false, nil
	}
	w.schedules[s.Name] = s
	return true, nil
}

func (w *world) Schedules(context.Context) (all []job.Schedule, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.schedules {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b job.Schedule) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (w *world) UpdateSchedule(_ context.Context, name string, change func(*job.Schedule) error) (job.Schedule, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail > 0 {
		w.fail--
		return job.Schedule{}, errors.New("the database is away")
	}
	s, there := w.schedules[name]
	if !there {
		return s, job.ErrNotFound
	}
	err := change(&s)
	if err == nil {
		w.schedules[name] = s
	}
	return s, err
}

func (w *world) RemoveSchedule(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.schedules, name)
	return nil
}

func (w *world) Submit(ctx context.Context, s job.Submission) (job.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return job.Job{}, w.refuse
	}
	if id := w.keys[s.IdempotencyKey]; id != "" {
		return w.jobs[id], nil
	}
	p, _ := job.PrincipalFrom(ctx)
	j := job.Job{ID: fmt.Sprintf("job-%d", len(w.jobs)+1), Status: job.Pending}
	w.jobs[j.ID], w.keys[s.IdempotencyKey] = j, j.ID
	w.submitted = append(w.submitted, time.Now().UTC().Format("02 15:04")+" "+p.Name+" "+s.Schedule)
	return j, nil
}

func (w *world) Job(_ context.Context, id string) (job.Job, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.jobs[id], nil
}

func (w *world) Cancel(_ context.Context, id string) error {
	w.mu.Lock()
	slow := w.slow
	w.mu.Unlock()
	if slow {
		return nil
	}
	return w.end(id, job.Failed)
}

func (w *world) end(id string, status job.Status) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	j := w.jobs[id]
	j.Status = status
	w.jobs[id] = j
	return nil
}

func (w *world) Holder(_ context.Context, id string) (job.Principal, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holder != nil {
		return job.Principal{}, w.holder
	}
	if w.revoked || id == "" {
		return job.Principal{}, job.ErrUnauthorized
	}
	return job.Principal{Name: "ci", Role: job.RoleRun, Token: id}, nil
}

func (w *world) Leads(context.Context) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.follows
}

func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// began returns what was submitted.
func (w *world) began() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.submitted)
}

// tend begins to tend the schedules; end ends that.
func tend(w *world) (s *schedule.Schedules, end func()) {
	s = schedule.New(schedule.Options{Store: w, Engine: w})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); s.Tend(ctx) }()
	return s, func() { cancel(); <-done }
}

func as(t *testing.T, name string) context.Context {
	p := job.Principal{Name: name, Role: job.RoleRun, Token: "t1"}
	if name == job.OperatorName {
		p = job.Operator()
	}
	return job.WithPrincipal(t.Context(), p)
}

func spec(change func(*job.ScheduleSpec)) job.ScheduleSpec {
	s := job.ScheduleSpec{Name: "nightly", Cron: "0 3 * * *", Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript}}
	change(&s)
	return s
}

// sleep lets time pass, and all that is due be done. A bubble begins on 2000-01-01.
func sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestSchedule_MakesAJobAtEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		made, err := s.CreateSchedule(as(t, "ci"), spec(func(s *job.ScheduleSpec) { s.Timezone = "Europe/Berlin" }))
		if err != nil || made.NextAt.Format(time.RFC3339) != "2000-01-01T02:00:00Z" || made.Principal != "ci" {
			t.Fatalf("%+v, %v", made, err)
		}
		sleep(time.Second)
		if !s.Busy() {
			t.Error("no engine is needed for it")
		}
		for range 2 {
			sleep(24 * time.Hour)
			w.change(func() {
				for id, j := range w.jobs {
					j.Status = job.Success
					w.jobs[id] = j
				}
			})
		}
		w.change(func() { w.follows = true }) // another engine does it
		sleep(24 * time.Hour)
		if diff := cmp.Diff([]string{"01 02:00 ci nightly", "02 02:00 ci nightly"}, w.began()); diff != "" {
			t.Error(diff)
		}
		if _, err := s.Schedule(as(t, "bob"), "nightly"); err == nil {
			t.Error("another sees it")
		}
		if all, err := s.Schedules(as(t, job.OperatorName)); err != nil || len(all) != 1 || len(all[0].Runs) != 2 {
			t.Errorf("%+v, %v", all, err)
		}
	})
}

func TestSchedule_Overlap(t *testing.T) {
	for _, tt := range []struct {
		overlap job.Overlap
		want    []string
		cancels bool
	}{
		{job.OverlapSkip, []string{"01 01:00", "01 05:00"}, false},
		{job.OverlapQueue, []string{"01 01:00", "01 04:30", "01 05:00"}, false},
		{job.OverlapReplace, []string{"01 01:00", "01 02:00", "01 03:00", "01 04:00", "01 05:00"}, true},
	} {
		t.Run(string(tt.overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				s, end := tend(w)
				defer end()
				if _, err := s.CreateSchedule(as(t, job.OperatorName), spec(func(s *job.ScheduleSpec) { s.Cron, s.Overlap = "@hourly", tt.overlap })); err != nil {
					t.Fatal(err)
				}
				sleep(4*time.Hour + 29*time.Minute + 50*time.Second)
				if first, _ := w.Job(t.Context(), "job-1"); first.Status.Terminal() != tt.cancels {
					t.Errorf("the first job is %s", first.Status)
				}
				_ = w.end("job-1", job.Success)
				sleep(20 * time.Second)
				_ = w.end("job-2", job.Success)
				sleep(30 * time.Minute)
				var got []string
				for _, at := range w.began() {
					got = append(got, strings.TrimSuffix(at, " operator nightly"))
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A job is not forgotten over the runs that were left out because of it, however many they are.
func TestSchedule_AJobThatOutlastsManyRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		if _, err := s.CreateSchedule(as(t, job.OperatorName), spec(func(s *job.ScheduleSpec) { s.Cron = "* * * * *" })); err != nil {
			t.Fatal(err)
		}
		sleep(3 * time.Hour)
		if diff := cmp.Diff([]string{"01 00:01 operator nightly"}, w.began()); diff != "" {
			t.Error(diff)
		}
		if one, err := s.Schedule(t.Context(), "nightly"); err != nil || len(one.Runs) != job.MostRuns || one.LastJob() != "job-1" {
			t.Errorf("%d runs, the last job is %q, %v", len(one.Runs), one.LastJob(), err)
		}
	})
}

// A job that somebody asks for beside those of the calendar hides none of these, whenever it ends.
func TestSchedule_AJobByHandBesideOneThatRuns(t *testing.T) {
	for overlap, want := range map[job.Overlap][]string{
		job.OverlapSkip:    {"01 01:00 operator nightly", "01 01:01 operator nightly"},
		job.OverlapReplace: {"01 01:00 operator nightly", "01 01:01 operator nightly", "01 02:00 operator nightly"},
	} {
		t.Run(string(overlap), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				s, end := tend(w)
				defer end()
				ctx := as(t, job.OperatorName)
				if _, err := s.CreateSchedule(ctx, spec(func(s *job.ScheduleSpec) { s.Cron, s.Overlap = "@hourly", overlap })); err != nil {
					t.Fatal(err)
				}
				sleep(61 * time.Minute)
				if _, err := s.RunSchedule(ctx, "nightly"); err != nil {
					t.Fatal(err)
				}
				if overlap == job.OverlapSkip {
					_ = w.end("job-2", job.Success)
				}
				sleep(time.Hour)
				if diff := cmp.Diff(want, w.began()); diff != "" {
					t.Error(diff)
				}
				for _, id := range []string{"job-1", "job-2"} {
					if j, err := w.Job(ctx, id); err != nil || j.Status.Terminal() != (overlap == job.OverlapReplace || id == "job-2") {
						t.Errorf("%s: %s, %v", id, j.Status, err)
					}
				}
			})
		})
	}
}

// A job that was lost has not ended as long as it may be run again: that is the same job.
func TestSchedule_AJobThatIsRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		if _, err := s.CreateSchedule(as(t, job.OperatorName), spec(func(s *job.ScheduleSpec) { s.Cron = "@hourly" })); err != nil {
			t.Fatal(err)
		}
		sleep(61 * time.Minute)
		lost := job.Job{ID: "job-1", Status: job.Failed, Outcome: &job.Outcome{Status: job.Failed, Reason: job.ReasonLost}, VM: &vm.VM{Job: "job-1", State: vm.Created}}
		lost.Manifest.Retry, lost.Manifest.Retries = job.RetryLost, 1
		w.change(func() { w.jobs["job-1"] = lost })
		sleep(time.Hour)
		lost.VM, lost.RetriedAs = nil, "again"
		w.change(func() {
			w.jobs["job-1"], w.jobs["again"] = lost, job.Job{ID: "again", Status: job.Running, Attempt: 1, Manifest: lost.Manifest}
		})
		sleep(time.Hour)
		_ = w.end("again", job.Success)
		sleep(time.Hour)
		if diff := cmp.Diff([]string{"01 01:00 operator nightly", "01 04:00 operator nightly"}, w.began()); diff != "" {
			t.Error(diff)
		}
	})
}

// The job that a run replaces may take the last place that there is, until it has ended.
func TestSchedule_ReplacesWithinALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		if _, err := s.CreateSchedule(as(t, job.OperatorName), spec(func(s *job.ScheduleSpec) { s.Cron, s.Overlap = "@hourly", job.OverlapReplace })); err != nil {
			t.Fatal(err)
		}
		sleep(119 * time.Minute)
		w.change(func() {
			w.slow, w.refuse = true, &job.FieldError{Field: "jobs", Problem: "are as many as there may be", Fault: job.FaultLimit}
		})
		sleep(90 * time.Second)
		_ = w.end("job-1", job.Failed)
		w.change(func() { w.refuse = nil })
		sleep(time.Minute)
		if diff := cmp.Diff([]string{"01 01:00 operator nightly", "01 02:00 operator nightly"}, w.began()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSchedule_MissedTimes(t *testing.T) {
	for missed, want := range map[job.Missed][]string{
		job.MissedOnce: {"04 00:00 operator nightly", "04 03:00 operator nightly"},
		job.MissedSkip: {"04 03:00 operator nightly"},
	} {
		t.Run(string(missed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				s, end := tend(w)
				if _, err := s.CreateSchedule(as(t, job.OperatorName), spec(func(s *job.ScheduleSpec) { s.Missed, s.Overlap = missed, job.OverlapReplace })); err != nil {
					t.Fatal(err)
				}
				end() // no engine runs
				time.Sleep(72 * time.Hour)
				_, end = tend(w)
				defer end()
				sleep(4 * time.Hour)
				if diff := cmp.Diff(want, w.began()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A run is one job, though the engine dies, or the store is away, after it was submitted.
func TestSchedule_RunsNoneTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		if _, err := s.CreateSchedule(as(t, job.OperatorName), spec(func(*job.ScheduleSpec) {})); err != nil {
			t.Fatal(err)
		}
		w.change(func() { w.fail = 3 })
		_, other := tend(w) // that believes to lead, too
		defer other()
		sleep(4 * time.Hour)
		if diff := cmp.Diff([]string{"01 03:00 operator nightly"}, w.began()); diff != "" {
			t.Error(diff)
		}
		one, err := s.Schedule(t.Context(), "nightly")
		if err != nil || len(one.Runs) != 1 || one.Runs[0].Job != "job-1" || one.NextAt.Format("02 15:04") != "02 03:00" {
			t.Errorf("%+v, %v", one, err)
		}
	})
}

func TestSchedule_StopsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		if _, err := s.CreateSchedule(as(t, "ci"), spec(func(*job.ScheduleSpec) {})); err != nil {
			t.Fatal(err)
		}
		w.change(func() { w.revoked = true })
		sleep(4 * time.Hour)
		one, err := s.Schedule(as(t, "ci"), "nightly")
		if err != nil || one.State() != "stopped" || !strings.Contains(one.Problem, "revoked") || len(w.began()) != 0 {
			t.Errorf("%+v, %v", one, err)
		}
		if _, err := s.RunSchedule(as(t, "ci"), "nightly"); err == nil || errors.Is(err, job.ErrUnauthorized) {
			t.Errorf("run now: %v", err)
		}
		w.change(func() { w.revoked, w.refuse = false, &job.FieldError{Field: "manifest", Problem: "is too much"} })
		sleep(24 * time.Hour)
		if one, _ = s.Schedule(as(t, "ci"), "nightly"); one.Problem != "" || !strings.Contains(one.Runs[0].Why, "is too much") {
			t.Errorf("%+v", one)
		}
	})
}

func TestSchedule_RefusesWhoHasNoTokenOfItsOwn(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		away       error
	}{
		{"an access token of an issuer", "linus token create", job.ErrUnauthorized},
		{"a database that is away", "is away", errors.New("the database is away")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.holder = tt.away
			s := schedule.New(schedule.Options{Store: w, Engine: w})
			ctx := job.WithPrincipal(t.Context(), job.Principal{Name: "oauth:12345678:ann", Role: job.RoleRun, Token: "jti:1"})
			_, err := s.CreateSchedule(ctx, spec(func(*job.ScheduleSpec) {}))
			if err == nil || !strings.Contains(err.Error(), tt.want) || len(w.schedules) != 0 {
				t.Errorf("%v, and there are %v", err, w.schedules)
			}
		})
	}
}

func TestSchedule_PausedAndRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		s, end := tend(w)
		defer end()
		ctx := as(t, job.OperatorName)
		if _, err := s.CreateSchedule(ctx, spec(func(*job.ScheduleSpec) {})); err != nil {
			t.Fatal(err)
		}
		if _, err := s.CreateSchedule(ctx, spec(func(*job.ScheduleSpec) {})); err == nil {
			t.Error("a name is there twice")
		}
		if one, err := s.PauseSchedule(ctx, job.ScheduleEdit{Schedule: "nightly", Paused: true}); err != nil || !one.NextAt.IsZero() {
			t.Errorf("%+v, %v", one, err)
		}
		sleep(48 * time.Hour)
		if len(w.began()) != 0 || s.Busy() {
			t.Errorf("paused: %v", w.began())
		}
		if j, err := s.RunSchedule(ctx, "nightly"); err != nil || j.ID != "job-1" {
			t.Errorf("%+v, %v", j, err)
		}
		_ = w.end("job-1", job.Success)
		if one, err := s.PauseSchedule(ctx, job.ScheduleEdit{Schedule: "nightly"}); err != nil || one.NextAt.Format("02 15:04") != "03 03:00" {
			t.Errorf("%+v, %v", one, err)
		}
		if _, err := s.PauseSchedule(as(t, "ci"), job.ScheduleEdit{Schedule: "nightly", Paused: true}); err == nil {
			t.Error("another has paused it")
		}
		if _, err := s.RemoveSchedule(ctx, "nightly"); err != nil {
			t.Error(err)
		}
		sleep(48 * time.Hour)
		if len(w.began()) != 1 {
			t.Errorf("%v", w.began())
		}
	})
}
