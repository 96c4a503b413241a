package dispatch

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"time"
)

// errStopped means that the queue has stopped the item, rather than given it to another worker.
var errStopped = fmt.Errorf("the queue has stopped the item: %w", ErrLost)

// lease keeps an item claimed until its worker takes over the lease, continuing from last. The rules are
// those of the SDK's own worker (lib/environments, runHeartbeat).
type lease struct {
	queue *queue
	id    string
	log   *slog.Logger

	last string    // sent with the next heartbeat as the one that the queue has seen
	good time.Time // time of the last successful heartbeat
	ttl  time.Duration
}

const (
	noHeartbeat = "NO_HEARTBEAT" // starts a lease
	leaseTime   = 30 * time.Second
)

func newLease(q *queue, id string, log *slog.Logger) *lease {
	return &lease{queue: q, id: id, log: log, last: noHeartbeat, good: time.Now(), ttl: 2 * leaseTime}
}

// wait returns the time between heartbeats.
func (l *lease) wait() time.Duration { return max(time.Second, min(l.ttl/2, leaseTime)) }

// keep sends heartbeats until done is closed. An error says how the lease has ended.
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

// beat sends a heartbeat. A transient failure is no error until the lease has expired. If the queue has
// stopped the item, beat stops it for good.
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
			l.stop(ctx)
			return errStopped
		}
		return nil
	}
	switch {
	case Code(err) == http.StatusPreconditionFailed:
		return ErrLost
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case !passes(err):
		return fmt.Errorf("the queue refuses heartbeats: %w", err)
	case time.Since(l.good) > l.ttl:
		return ErrLost
	}
	l.log.Warn("a heartbeat has failed; trying again", "err", err)
	return nil
}

func (l *lease) stop(ctx context.Context) {
	ctx, done := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTime)
	defer done()
	if err := l.queue.stop(ctx, l.id); err != nil {
		l.log.Warn("an item of work cannot be stopped", "err", err)
	}
}
