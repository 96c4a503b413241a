package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
)

// notingStore notes which jobs are read one by one, and how many rows are
// read otherwise.
type notingStore struct {
	*store.Store
	mu       sync.Mutex
	jobs     []string // read by Job, each once
	waiting  int      // IDs from Waiting
	begun    int      // jobs from InProgress
	unstored int      // Insert reports so many failures, after it has stored the job
}

func (s *notingStore) Job(ctx context.Context, id string) (job.Job, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.jobs, id) {
		s.jobs = append(s.jobs, id)
	}
	return s.Store.Job(ctx, id)
}

func (s *notingStore) Waiting(ctx context.Context) ([]string, error) {
	ids, err := s.Store.Waiting(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting += len(ids)
	return ids, err
}

func (s *notingStore) InProgress(ctx context.Context) ([]job.Job, error) {
	jobs, err := s.Store.InProgress(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun = max(s.begun, len(jobs))
	return jobs, err
}

func (s *notingStore) Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (job.Job, bool, error) {
	j, isNew, err := s.Store.Insert(ctx, j, key, within, children...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unstored > 0 {
		s.unstored--
		return job.Job{}, false, errors.New("the response was lost")
	}
	return j, isNew, err
}

// since returns what was read since the last call.
func (s *notingStore) since() (jobs []string, waiting, begun int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.jobs, s.waiting, s.begun = nil, 0, 0 }()
	return s.jobs, s.waiting, s.begun
}

func notingRig(t *testing.T) (*rig, *notingStore) {
	r := newRig(t, 1)
	r.stop()
	s := &notingStore{Store: r.store}
	r.opts.Stores = executor.StoresOf(s)
	r.restart()
	return r, s
}

// submitMany submits jobs, many at a time.
func submitMany(r *rig, jobs int) {
	var submitting sync.WaitGroup
	turn := make(chan struct{}, 32)
	for range jobs {
		turn <- struct{}{}
		submitting.Go(func() {
			r.submit()
			<-turn
		})
	}
	submitting.Wait()
}

func TestDispatch_ReadsOnlyWhatItStarts(t *testing.T) {
	r, s := notingRig(t)
	release := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: release})}, false)
	first, second := r.submit(), r.submit()
	r.until(first, func(j job.Job) bool { return j.Status == job.Running })
	const others = 1000
	submitMany(r, others)
	last := r.submit()
	s.since()
	ctx := context.Background()

	submitMany(r, 100)
	if jobs, waiting, begun := s.since(); len(jobs) > 1 || waiting > 0 || begun > 1 {
		t.Errorf("submits read the jobs %v, %d that wait and %d that have begun", jobs, waiting, begun)
	}
	if err := r.Cancel(ctx, last); err != nil { // it need not wait for a slot
		t.Fatal(err)
	}
	j := r.wait(last)
	if jobs, waiting, begun := s.since(); j.Outcome.Reason != job.ReasonCancelled || slices.Contains(jobs, second) || len(jobs) > 2 || waiting > 0 || begun > 2 {
		t.Errorf("a cancel (%s) read the jobs %v, %d that wait and %d that have begun", j.Outcome.Reason, jobs, waiting, begun)
	}
	if _, err := r.List(ctx, job.Filter{}); err != nil {
		t.Fatal(err)
	}

	r.stop()
	r.restart()
	if j, err := r.Job(ctx, second); err != nil || j.Progress == "" {
		t.Errorf("after a restart job %s waits with %q, %v", second, j.Progress, err)
	}
	jobs, waiting, begun := s.since()
	jobs = slices.DeleteFunc(jobs, func(id string) bool { return id == last }) // whose run may have ended after the job was done
	if len(jobs) > 2 || waiting != others+101 || begun > 2 {
		t.Errorf("a restart read the jobs %v, %d that wait and %d that have begun", jobs, waiting, begun)
	}
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: make(chan struct{})})}, false)
	close(release)
	r.until(second, func(j job.Job) bool { return j.Status == job.Running })
	if jobs, waiting, _ := s.since(); !slices.Contains(jobs, first) || !slices.Contains(jobs, second) || len(jobs) > 2 || waiting > 0 {
		t.Errorf("a dispatch read the jobs %v and %d that wait", jobs, waiting)
	}
}

// A submit that fails may have stored its job: it is found, and runs.
func TestSubmit_WhatWasStoredNeverthelessRuns(t *testing.T) {
	r, s := notingRig(t)
	r.behave(providertest.Behaviour{}, true)
	s.mu.Lock()
	s.unstored = 1
	s.mu.Unlock()
	if _, err := r.Submit(context.Background(), job.Submission{Manifest: job.Manifest{Task: "echo", AgentType: job.AgentScript}}); err == nil {
		t.Fatal("the lost response is no error")
	}
	page, err := r.List(context.Background(), job.Filter{})
	if err != nil || len(page.Jobs) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	if j := r.wait(page.Jobs[0].ID); j.Status != job.Success {
		t.Errorf("job %+v", j.Outcome)
	}
}

// Who submits one job does not wait for all of those that another has submitted before,
// also after a restart, and when another engine shares the line.
func TestDispatch_PrincipalsTakeTurns(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{})
	r.behave(providertest.Behaviour{Task: do}, false)
	first := r.submit()
	r.until(first, func(j job.Job) bool { return j.Status == job.Running })
	ada, bob := as(t, "ada", job.RoleRun), as(t, "bob", job.RoleRun)
	ids := []string{r.submitAs(ada), r.submitAs(ada), r.submitAs(ada), r.submitAs(bob)}
	r.stop()
	r.restart()
	if j, err := r.Job(t.Context(), ids[3]); err != nil || !strings.Contains(j.Progress, "jobs ahead") {
		t.Errorf("progress %q, %v", j.Progress, err)
	}
	r.behave(providertest.Behaviour{}, true)
	release()
	var began []time.Time
	for _, id := range ids {
		began = append(began, r.wait(id).StartedAt)
	}
	if !began[3].Before(began[1]) || !began[1].Before(began[2]) || !began[0].Before(began[3]) {
		t.Errorf("began at %v", began)
	}
}
