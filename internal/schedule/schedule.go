// Package schedule submits jobs at given times. It owns schedules: their validation, the times of
// their runs, and what happens to runs that overlap or were missed. It uses engines only to submit,
// look up and cancel jobs.
package schedule

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"linus/internal/job"
)

// Store stores schedules.
type Store interface {
	// InsertSchedule adds a schedule. It returns false if the name is taken.
	InsertSchedule(ctx context.Context, s job.Schedule) (bool, error)
	// Schedules returns all schedules, by name.
	Schedules(ctx context.Context) ([]job.Schedule, error)
	// UpdateSchedule changes a schedule in a transaction. It returns job.ErrNotFound if there is no
	// such schedule.
	UpdateSchedule(ctx context.Context, name string, change func(*job.Schedule) error) (job.Schedule, error)
	// RemoveSchedule removes a schedule, if it exists.
	RemoveSchedule(ctx context.Context, name string) error
}

// Engine runs the jobs.
type Engine interface {
	Submit(ctx context.Context, s job.Submission) (job.Job, error)
	Job(ctx context.Context, id string) (job.Job, error)
	Cancel(ctx context.Context, id string) error
	// Holder returns the current principal of a token, or job.ErrUnauthorized.
	Holder(ctx context.Context, id string) (job.Principal, error)
	// Leads reports whether this engine does what one engine does for all.
	Leads(ctx context.Context) bool
}

// Options are the options of Schedules.
type Options struct {
	Store  Store
	Engine Engine
	Log    *slog.Logger
}

// Schedules are the schedules of an installation.
type Schedules struct {
	o    Options
	wake chan struct{} // something has changed on this engine

	mu   sync.Mutex
	some bool // there are schedules that are not paused, as of the last look
}

// New returns Schedules. Nothing runs before Tend.
func New(o Options) *Schedules {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	return &Schedules{o: o, wake: make(chan struct{}, 1)}
}

const (
	// looks is how often schedules are examined, in case another engine has changed some, or the
	// clock was set.
	looks = 20 * time.Second
	// late is how late a run may start without counting as missed.
	late = 2 * time.Minute
)

// CreateSchedule adds a schedule owned by the caller.
func (s *Schedules) CreateSchedule(ctx context.Context, spec job.ScheduleSpec) (job.Schedule, error) {
	if err := spec.Check(); err != nil {
		return job.Schedule{}, err
	}
	c, err := newCalendar(spec.Cron, spec.Timezone)
	if err != nil {
		return job.Schedule{}, err
	}
	p, _ := job.PrincipalFrom(ctx)
	if p.Owner() != "" {
		switch _, err := s.o.Engine.Holder(ctx, p.Token); {
		case errors.Is(err, job.ErrUnauthorized):
			return job.Schedule{}, &job.FieldError{Field: "schedule", Problem: "has to run as a token of linus, and the caller has none: what an identity provider's token allows ends with it", Remedy: "make it with a token of linus token create"}
		case err != nil:
			return job.Schedule{}, err
		}
	}
	if text, err := json.Marshal(spec.Manifest); err != nil || len(text) > job.MaxSchedule {
		return job.Schedule{}, &job.FieldError{Field: "manifest", Problem: fmt.Sprintf("is %d bytes, the limit for a schedule is %d", len(text), job.MaxSchedule), Remedy: "have the job fetch what it needs"}
	}
	all, err := s.Schedules(ctx)
	if err != nil {
		return job.Schedule{}, err
	}
	own := 0
	for _, other := range all {
		if other.Principal == p.Owner() {
			own++
		}
	}
	if own >= job.MaxSchedules {
		return job.Schedule{}, &job.FieldError{Field: "name", Problem: fmt.Sprintf("would be the schedule %d, the limit is %d", own+1, job.MaxSchedules), Remedy: "remove one that is not needed", Fault: job.FaultLimit}
	}
	at := now()
	made := job.Schedule{ScheduleSpec: spec, Principal: p.Owner(), TokenID: p.Token, CreatedAt: at, NextAt: c.next(at)}
	isNew, err := s.o.Store.InsertSchedule(ctx, made)
	if err == nil && !isNew {
		err = &job.FieldError{Field: "name", Problem: fmt.Sprintf("%q is taken", spec.Name), Remedy: "choose another, or remove that schedule", Fault: job.FaultState}
	}
	s.changed()
	return made, err
}

// Schedules returns the schedules that the caller may see, by name.
func (s *Schedules) Schedules(ctx context.Context) ([]job.Schedule, error) {
	all, err := s.o.Store.Schedules(ctx)
	visible := all[:0]
	for _, one := range all {
		if job.Visible(ctx, one.Principal) {
			visible = append(visible, one)
		}
	}
	return visible, err
}

// Schedule returns a schedule that the caller may see.
func (s *Schedules) Schedule(ctx context.Context, name string) (job.Schedule, error) {
	all, err := s.Schedules(ctx)
	for _, one := range all {
		if one.Name == name {
			return one, nil
		}
	}
	return job.Schedule{}, cmp.Or(err, error(&job.FieldError{Field: "schedule", Problem: fmt.Sprintf("%.80q is unknown", name), Remedy: "linus schedule list shows them", Fault: job.FaultUnknown}))
}

// PauseSchedule pauses or resumes a schedule.
func (s *Schedules) PauseSchedule(ctx context.Context, edit job.ScheduleEdit) (job.Schedule, error) {
	if _, err := s.Schedule(ctx, edit.Schedule); err != nil {
		return job.Schedule{}, err
	}
	changed, err := s.o.Store.UpdateSchedule(ctx, edit.Schedule, func(one *job.Schedule) error {
		one.Paused, one.Waiting = edit.Paused, time.Time{}
		c, err := newCalendar(one.Cron, one.Timezone)
		if one.NextAt = (time.Time{}); !one.Paused && err == nil {
			one.NextAt = c.next(now())
		}
		return err
	})
	s.changed()
	return changed, err
}

// RunSchedule submits a schedule's job now.
func (s *Schedules) RunSchedule(ctx context.Context, name string) (job.Job, error) {
	one, err := s.Schedule(ctx, name)
	if err != nil {
		return job.Job{}, err
	}
	at := now()
	j, err := s.submit(ctx, one, at)
	if errors.Is(err, job.ErrUnauthorized) {
		err = &job.FieldError{Field: "schedule", Problem: "cannot run: its token was revoked or has expired", Remedy: "remove it and add it again", Fault: job.FaultState}
	}
	if err != nil {
		return j, err
	}
	_, err = s.o.Store.UpdateSchedule(ctx, name, func(one *job.Schedule) error {
		one.Note(job.Run{At: at, Job: j.ID, ByHand: true})
		return nil
	})
	return j, err
}

// RemoveSchedule removes a schedule.
func (s *Schedules) RemoveSchedule(ctx context.Context, name string) (job.Schedule, error) {
	one, err := s.Schedule(ctx, name)
	if err == nil {
		err = s.o.Store.RemoveSchedule(ctx, name)
	}
	s.changed()
	return one, err
}

// Busy reports whether there are schedules that need a running engine.
func (s *Schedules) Busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.some
}

func (s *Schedules) changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Tend submits jobs that are due, until ctx ends, if this engine leads.
func (s *Schedules) Tend(ctx context.Context) {
	for {
		next, err := s.look(ctx)
		if err != nil && ctx.Err() == nil {
			s.o.Log.Error("looking at schedules failed, will be tried again", "err", err)
		}
		wait := time.NewTimer(next)
		select {
		case <-ctx.Done():
		case <-wait.C:
		case <-s.wake:
		}
		wait.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// look submits the jobs that are due, and returns when to look again.
func (s *Schedules) look(ctx context.Context) (time.Duration, error) {
	all, err := s.o.Store.Schedules(ctx)
	if err != nil {
		return looks, err
	}
	some, next := false, looks
	leads := len(all) > 0 && s.o.Engine.Leads(ctx)
	for _, one := range all {
		some = some || !one.Paused
		if one.Paused || !leads {
			continue
		}
		after, failed := s.run(ctx, one)
		err = errors.Join(err, failed)
		if failed == nil && !after.NextAt.IsZero() {
			next = max(0, min(next, time.Until(after.NextAt)))
		}
	}
	s.mu.Lock()
	s.some = some
	s.mu.Unlock()
	return next, err
}

// run submits the job of a schedule that is due, and returns the updated schedule. It may be
// interrupted anywhere: its key makes the run one job, and the new state is stored after that.
func (s *Schedules) run(ctx context.Context, one job.Schedule) (job.Schedule, error) {
	at := now()
	c, err := newCalendar(one.Cron, one.Timezone)
	if err != nil {
		return one, err
	}
	due := !one.NextAt.IsZero() && !one.NextAt.After(at)
	if !due && one.Waiting.IsZero() {
		return one, nil
	}
	run, waiting := job.Run{At: one.NextAt}, time.Time{}
	if !due {
		run.At = one.Waiting
	}
	running, err := s.running(ctx, one)
	if err != nil {
		return one, err
	}
	switch {
	case due && one.Missed == job.MissedSkip && at.Sub(one.NextAt) > late:
		run.Why, waiting = "missed: no engine worked at that time", one.Waiting
	case len(running) > 0 && !due:
		return one, nil
	case len(running) > 0 && one.Overlap == job.OverlapQueue:
		run.Why, waiting = "waits for the end of job "+running[0], run.At
	case len(running) > 0 && one.Overlap == job.OverlapSkip:
		run.Why = "left out: job " + running[0] + " had not ended"
	}
	problem := ""
	if run.Why == "" {
		if run.Job, run.Why, problem, err = s.begin(ctx, one, run.At, running); err != nil {
			return one, err
		}
	}
	return s.o.Store.UpdateSchedule(ctx, one.Name, func(is *job.Schedule) error {
		if !is.NextAt.Equal(one.NextAt) || !is.Waiting.Equal(one.Waiting) || !is.CreatedAt.Equal(one.CreatedAt) {
			return nil // the schedule was changed meanwhile
		}
		is.Problem, is.Waiting = problem, waiting
		if due {
			is.NextAt = c.next(at)
		}
		is.Note(run)
		return nil
	})
}

// running returns the schedule's jobs that have not ended. Of the jobs of the calendar, only the
// last one can be among them; jobs started by hand may be running, too.
func (s *Schedules) running(ctx context.Context, one job.Schedule) (ids []string, err error) {
	for _, r := range one.Runs {
		is, err := s.latest(ctx, r.Job)
		if err != nil {
			return nil, err
		}
		if is != "" {
			ids = append(ids, is)
		}
		if r.Job != "" && !r.ByHand {
			return ids, nil
		}
	}
	return ids, nil
}

// latest returns a job that has not ended, or the last retry of it; empty if that has ended.
func (s *Schedules) latest(ctx context.Context, id string) (string, error) {
	for id != "" {
		j, err := s.o.Engine.Job(ctx, id)
		switch {
		case errors.Is(err, job.ErrNotFound):
			return "", nil
		case err != nil:
			return "", err
		case !j.Status.Terminal(), j.MayRunAgain():
			return id, nil
		}
		id = j.RetriedAs
	}
	return "", nil
}

// begin submits the job of a run, after cancelling the jobs of earlier runs. why says what is wrong
// with the job if there is none. A problem ends the schedule. Errors are worth another try.
func (s *Schedules) begin(ctx context.Context, one job.Schedule, at time.Time, running []string) (id, why, problem string, err error) {
	for _, before := range running {
		if err := s.o.Engine.Cancel(ctx, before); err != nil && !errors.Is(err, job.ErrCompleted) && !errors.Is(err, job.ErrNotFound) {
			return "", "", "", err
		}
	}
	j, err := s.submit(ctx, one, at)
	bad, refused := errors.AsType[*job.FieldError](err)
	_, invalid := errors.AsType[*job.InvalidError](err)
	switch {
	case errors.Is(err, job.ErrUnauthorized), errors.Is(err, job.ErrNotAllowed):
		problem = "its token was revoked, has expired or may not submit jobs any more: remove it and add it again"
		return "", problem, problem, nil
	case refused && bad.Fault == job.FaultLimit && len(running) > 0: // the cancelled job counts until it has ended
		return "", "", "", err
	case refused || invalid:
		return "", err.Error(), "", nil
	case err != nil:
		return "", "", "", err
	}
	s.o.Log.Info("job submitted by a schedule", "job_id", j.ID, "schedule", one.Name)
	return j.ID, "", "", nil
}

// submit submits the job of a run with the rights that the schedule's creator has now.
func (s *Schedules) submit(ctx context.Context, one job.Schedule, at time.Time) (job.Job, error) {
	p := job.Operator()
	if one.Principal != "" || one.TokenID != "" {
		var err error
		if p, err = s.o.Engine.Holder(ctx, one.TokenID); err != nil {
			return job.Job{}, err
		}
	}
	if err := p.Refusal(job.VerbSubmit); err != nil {
		return job.Job{}, err
	}
	return s.o.Engine.Submit(job.WithPrincipal(ctx, p), job.Submission{
		Manifest: one.Manifest, IdempotencyKey: one.ScheduleKey(at), Client: "schedule", Schedule: one.Name,
	})
}

func now() time.Time { return time.Now().UTC() }
