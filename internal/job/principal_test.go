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

// What belongs to another is seen by admins only; nobody without a role sees anything.
func TestSees_IsOwnOrAdmins(t *testing.T) {
	for _, tt := range []struct {
		name  string
		role  job.Role
		owner string
		want  bool
	}{
		{"ada", job.RoleRead, "ada", true},
		{"ada", job.RoleRun, "ada", true},
		{"ada", job.RoleRun, "bob", false},
		{"ada", job.RoleRun, "", false},
		{"ada", job.RoleAdmin, "bob", true},
		{"ada", job.RoleAdmin, "", true},
		{"ada", "", "ada", false},
		{"ada", "owner", "ada", false},
		{job.OperatorName, job.RoleRun, "", true},
		{job.OperatorName, job.RoleRun, "ada", false},
		{"", job.RoleRun, "", false},
	} {
		if got := (job.Principal{Name: tt.name, Role: tt.role}).Sees(tt.owner); got != tt.want {
			t.Errorf("%q, %q sees what is of %q: %v", tt.name, tt.role, tt.owner, got)
		}
	}
}
