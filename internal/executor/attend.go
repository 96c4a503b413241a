package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// endGrace is how long the end of a task that a callback has reported may still be on
// its way on the task's channel, before a check asks for it.
const endGrace = time.Second

// attendance is the following of a task by its channel, beside callbacks and checks.
type attendance struct {
	came  chan struct{}     // output was stored
	ended chan job.RunState // the task's end came; it has room for that
	done  chan struct{}     // closed when nothing more comes
	stop  func()            // ends it, and waits for that
}

// attend stores what a task's channel brings, until that breaks: callbacks and checks
// go on as if there were none. What it says of the task's end is what SSH shows.
func (e *Executor) attend(ctx context.Context, r *run, j job.Job) attendance {
	ctx, cancel := context.WithCancel(ctx)
	a := attendance{came: make(chan struct{}, 1), ended: make(chan job.RunState, 1), done: make(chan struct{})}
	a.stop = func() {
		cancel()
		<-a.done
	}
	go func() {
		defer close(a.done)
		err := e.o.Runner.Follow(ctx, j, func(p job.Piece) error {
			if p.End != nil {
				err := r.capture.FollowEnd(ctx, *p.End)
				a.ended <- *p.End
				return err
			}
			if err := r.capture.Follow(ctx, p); err != nil {
				return err
			}
			e.mu.Lock()
			r.heard.at = now()
			e.mu.Unlock()
			signal(a.came)
			return nil
		})
		if err != nil && !errors.Is(err, job.ErrNoChannel) && ctx.Err() == nil {
			e.o.Log.Debug("the task's channel is given up", "job_id", j.ID, "err", r.capture.ShownError(err))
		}
	}()
	return a
}

// reported returns the task's end, which a callback has reported, if it comes soon.
func (a attendance) reported(ctx context.Context) *job.RunState {
	grace := time.NewTimer(endGrace)
	defer grace.Stop()
	select {
	case <-ctx.Done():
	case <-grace.C:
	case <-a.done:
	case state := <-a.ended:
		return &state
	}
	select {
	case state := <-a.ended:
		return &state
	default:
		return nil
	}
}
