package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// How a lease ends.
var (
	errLost    = ErrLost
	errStopped = fmt.Errorf("the queue has stopped the item: %w", ErrLost)
)

// lease keeps an item claimed until its worker goes on with that. The rules are those of the
// SDK's own worker (lib/environments, runHeartbeat), which continues it from last.
type lease struct {
	queue *queue
	id    string
	log   *slog.Logger

	last string    // what the next heartbeat says the queue has seen
	good time.Time // of the last one that succeeded
	ttl  time.Duration
}

const (
	noHeartbeat = "NO_HEARTBEAT" // begins a lease
	leaseTime   = 30 * time.Second
)

func newLease(q *queue, id string, log *slog.Logger) *lease {
	return &lease{queue: q, id: id, log: log, last: noHeartbeat, good: time.Now(), ttl: 2 * leaseTime}
}

// wait is the time between heartbeats.
func (l *lease) wait() time.Duration { return max(time.Second, min(l.ttl/2, leaseTime)) }

// keep sends heartbeats until done; an error says how the lease has ended.
func (l *lease) keep(ctx context.Context, done <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-done:
			return nil
		case <-time.After(l.wait()):
		}
		if err := l.beat(ctx); err != nil {
			return err
		}
	}
}

// beat sends a heartbeat. One that fails for a while is no error, as long as the lease may last.
func (l *lease) beat(ctx context.Context) error {
	within, done := context.WithTimeout(ctx, l.wait())
	resp, err := l.queue.beat(within, l.id, l.last)
	done()
	if err == nil {
		l.last, l.good = resp.LastHeartbeat, time.Now()
		if resp.TTLSeconds > 0 {
			l.ttl = time.Duration(resp.TTLSeconds) * time.Second
		}
		if resp.State == "stopping" || resp.State == "stopped" || !resp.LeaseExtended {
			return errStopped
		}
		return nil
	}
	switch {
	case Code(err) == http.StatusPreconditionFailed:
		return errLost
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !passes(err):
		return fmt.Errorf("the queue refuses heartbeats: %w", err)
	case time.Since(l.good) > l.ttl:
		return errLost
	}
	l.log.Warn("a heartbeat has failed; trying again", "err", err)
	return nil
}
