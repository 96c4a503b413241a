package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/job"
)

const (
	// patience is how long a call waits for a database that is away or in which others are in the
	// way, unless its context ends before; openPatience is how long Open waits.
	patience     = 30 * time.Second
	openPatience = 10 * time.Second
	// answerTime is how long a transaction or a query may take before its connection is given up:
	// there may be nobody at its other end.
	answerTime = 20 * time.Second
)

// persist calls try until it succeeds, fails permanently, or s.patience has passed. Faults of the
// database are returned as *job.OwnFault.
func (s *Store) persist(ctx context.Context, try func() error) error {
	err := s.persistent(ctx, try)
	var unknown *unknownError
	if err != nil && ctx.Err() == nil && (s.dialect.own(err) || errors.As(err, &unknown)) {
		return &job.OwnFault{Err: err}
	}
	return err
}

func (s *Store) persistent(ctx context.Context, try func() error) error {
	err := try()
	if err == nil || !s.dialect.passing(err) || ctx.Err() != nil {
		return err
	}
	began, tries := time.Now(), 1
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = 20*time.Millisecond, time.Second
	_, stopped := backoff.Retry(ctx, func() (struct{}, error) {
		tries++
		if err = try(); err != nil && !s.dialect.passing(err) {
			return struct{}{}, backoff.Permanent(err)
		}
		return struct{}{}, err
	}, backoff.WithBackOff(wait), backoff.WithMaxElapsedTime(s.patience))
	switch {
	case stopped == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w, while waiting for %s: %w", ctx.Err(), s.name, err)
	case s.dialect.passing(err):
		return fmt.Errorf("%s: tried %d times in %s: %w; see that it runs and can be reached from here (LINUS_DATABASE_URL)",
			s.name, tries, time.Since(began).Round(time.Second), err)
	}
	return err
}

// limited returns a context for one query or transaction, with answerTime as its limit.
func (s *Store) limited(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.answerTime == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.answerTime)
}
