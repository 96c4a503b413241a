package control_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/control"
	"linus/internal/job"
)

// quiet is an engine with a job that writes nothing; it counts the looks.
type quiet struct {
	*manners
	looks atomic.Int64
}

func (q *quiet) Output(_ context.Context, _, _ string, offset, _ int64) (job.Chunk, error) {
	q.looks.Add(1)
	return job.Chunk{Offset: offset, Next: offset}, nil
}

// However many follow an output, one of them looks at it.
func TestAPI_OneLooksForAllThatFollowAnOutput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &quiet{manners: newManners()}
		api := control.API(e, control.APIOptions{})
		ctx, cancel := context.WithTimeout(job.WithPrincipal(t.Context(), job.Principal{Name: "ann", Role: job.RoleRead}), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/jobs/j1/output?stream=stdout", nil)
				r.Header.Set("Accept", "text/event-stream")
				api.ServeHTTP(httptest.NewRecorder(), r)
			})
			time.Sleep(7 * time.Millisecond)
		}
		all.Wait()
		if n := e.looks.Load(); n > 100 {
			t.Errorf("50 that follow for 10 s look %d times", n)
		}
	})
}
