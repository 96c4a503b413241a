package executor

import (
	"context"
	"strings"
	"time"

	"linus/internal/job"
)

// handlePeerNotices handles the notices of other engines.
func (e *Executor) handlePeerNotices(ctx context.Context) {
	err := e.o.Engines.Listen(ctx, func(n job.Notice) {
		if err := e.notice(ctx, n); err != nil && ctx.Err() == nil {
			e.o.Log.Warn("taking up another engine's change failed, will be tried again", "kind", n.Kind, "job_id", n.Job, "err", err)
		}
	})
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("notices from other engines do not arrive: their changes show some seconds late", "err", err)
	}
}

func (e *Executor) notice(ctx context.Context, n job.Notice) error {
	switch n.Kind {
	case job.NoticeWaiting:
		e.mu.Lock()
		if e.runs[n.Job] == nil {
			e.queue.add(n.Job)
		}
		e.mu.Unlock()
		e.poke()
	case job.NoticeTaken:
		e.mu.Lock()
		e.queue.remove(n.Job)
		e.mu.Unlock()
	case job.NoticeChanged:
		e.changed(n.Job)
		if e.runOf(n.Job) != nil {
			return e.applyRequests(ctx, n.Job)
		}
	case job.NoticeSlot:
		e.poke()
	case job.NoticeFree:
		signal(e.reopened)
		e.o.Fleet.DestroySoon()
	case job.NoticeTokens:
		if e.o.Tokens != nil {
			e.o.Tokens.Recheck()
		}
	case job.NoticePools:
		err := e.o.Fleet.LoadPools(ctx)
		return err
	case job.NoticeHeard:
		e.hear(n.Job, n.Progress, n.End)
	case job.NoticeMissed:
		return e.catchUp(ctx)
	}
	return nil
}

// maxPassed bounds the runner's text that is passed on, in bytes.
const maxPassed = 1000

// passOn tells the other engines what a job's runner reported here, at most once a second, so that
// a guest's reports do not slow others down.
func (e *Executor) passOn(ctx context.Context, id, progress, end string) {
	if e.o.Engines == nil {
		return
	}
	key := id
	if end != "" {
		key += " end"
	}
	e.mu.Lock()
	again := time.Since(e.reportsPassed[key]) < noteEvery
	if !again {
		if len(e.reportsPassed) > 10_000 {
			clear(e.reportsPassed)
		}
		e.reportsPassed[key] = time.Now()
	}
	e.mu.Unlock()
	if again {
		return
	}
	if err := e.o.Engines.Tell(ctx, job.Notice{Kind: job.NoticeHeard, Job: id, Progress: strings.ToValidUTF8(progress[:min(len(progress), maxPassed)], ""), End: end}); err != nil && ctx.Err() == nil {
		e.o.Log.Debug("a report was not passed on", "job_id", id, "err", err)
	}
}
