package executor

import (
	"context"
	"errors"
	"time"

	"linus/internal/job"
)

// endGrace is how long a check waits for a task's end, which a callback reported, to arrive on the
// task's channel.
const endGrace = time.Second

// attendance follows a task by its channel, in addition to callbacks and checks.
type attendance struct {
	came  chan struct{}     // output was stored
	ended chan job.RunState // the task's end arrived; buffered
	done  chan struct{}     // closed when nothing more comes
	stop  func()            // ends the following and waits for its end
}

// attend stores what a task's channel delivers until the channel breaks; callbacks and checks work
// independently of it. Its report of the task's end counts as shown by SSH.
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

// reported returns the task's end that a callback reported, if it arrives within endGrace.
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
