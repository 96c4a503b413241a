package job_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"linus/internal/job"
)

// A request ends when its token is revoked or expires, whichever comes first, and a token
// that is valid ends none.
func TestForPrincipal_EndsWithItsToken(t *testing.T) {
	alive, revoke := context.WithCancelCause(t.Context())
	for _, p := range []job.Principal{{}, {Life: alive}, {Until: time.Now().Add(time.Hour)}, {Life: alive, Until: time.Now().Add(time.Hour)}} {
		ctx, end := job.ForPrincipal(t.Context(), p)
		if ctx.Err() != nil || p.Ended() {
			t.Errorf("%+v has ended", p)
		}
		end()
	}
	expired := job.Principal{Life: alive, Until: time.Now().Add(-time.Second)}
	revoke(job.ErrUnauthorized)
	for _, p := range []job.Principal{expired, {Until: expired.Until}, {Life: alive}, {Life: alive, Until: time.Now().Add(time.Hour)}} {
		ctx, end := job.ForPrincipal(t.Context(), p)
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, job.ErrUnauthorized) || !p.Ended() {
			t.Errorf("%+v: ended by %v", p, cause)
		}
		end()
	}
}
