package dispatch

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	"github.com/anthropics/anthropic-sdk-go/option"
	"github.com/anthropics/anthropic-sdk-go/packages/param"
)

// How a lease ends.
var (
	errLost    = errors.New("its lease is lost: somebody else has the item, or nobody")
	errStopped = errors.New("the queue has stopped the item")
)

// lease keeps an item claimed until its worker goes on with that. The rules are those of the
// SDK's own worker (lib/environments, runHeartbeat), which continues it from last.
type lease struct {
	work            anthropic.BetaEnvironmentWorkService
	environment, id string
	log             *slog.Logger

	last string    // what the next heartbeat says the queue has seen
	good time.Time // of the last one that succeeded
	ttl  time.Duration
}

const (
	noHeartbeat = "NO_HEARTBEAT" // begins a lease
	leaseTime   = 30 * time.Second
)

func newLease(work anthropic.BetaEnvironmentWorkService, environment, id string, log *slog.Logger) *lease {
	return &lease{work: work, environment: environment, id: id, log: log, last: noHeartbeat, good: time.Now(), ttl: 2 * leaseTime}
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
	resp, err := l.work.Heartbeat(ctx, l.id, anthropic.BetaEnvironmentWorkHeartbeatParams{
		EnvironmentID: l.environment, ExpectedLastHeartbeat: param.NewOpt(l.last),
	}, option.WithRequestTimeout(l.wait()))
	if err == nil {
		l.last, l.good = resp.LastHeartbeat, time.Now()
		if resp.TTLSeconds > 0 {
			l.ttl = time.Duration(resp.TTLSeconds) * time.Second
		}
		switch resp.State {
		case anthropic.BetaSelfHostedWorkHeartbeatResponseStateStopping, anthropic.BetaSelfHostedWorkHeartbeatResponseStateStopped:
			return errStopped
		}
		if !resp.LeaseExtended {
			return errStopped
		}
		return nil
	}
	switch code := status(err); {
	case code == http.StatusPreconditionFailed:
		return errLost
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case code/100 == 4 && code != http.StatusRequestTimeout && code != http.StatusConflict && code != http.StatusTooManyRequests:
		return fmt.Errorf("the queue refuses heartbeats: %w", err)
	case time.Since(l.good) > l.ttl:
		return errLost
	}
	l.log.Warn("a heartbeat has failed; trying again", "err", err)
	return nil
}

// status is the code of an API's error; 0 for others.
func status(err error) int {
	if refused, is := errors.AsType[*anthropic.Error](err); is {
		return refused.StatusCode
	}
	return 0
}
