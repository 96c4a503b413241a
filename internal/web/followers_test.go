package web_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/web"
)

// counted is an engine that counts the looks at outputs.
type counted struct {
	*engine
	looks atomic.Int64
}

func (c *counted) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	c.looks.Add(1)
	return c.engine.Output(ctx, id, stream, offset, limit)
}

// However many have a job's page open, one of them looks at its output.
func TestJobPage_OneLooksForAllThatFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &counted{engine: sample()}
		h := web.Handler(web.Options{Engine: e, Token: token})
		login := httptest.NewRecorder()
		h.ServeHTTP(login, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://127.0.0.1"+web.LoginPath(token), nil))
		cookies := login.Result().Cookies()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				w := httptest.NewRecorder()
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1/jobs/"+id+"/live", nil)
				for _, c := range cookies {
					r.AddCookie(c)
				}
				h.ServeHTTP(w, r)
				if w.Code != http.StatusOK {
					t.Errorf("%d %.200s", w.Code, w.Body)
				}
			})
			time.Sleep(7 * time.Millisecond)
		}
		all.Wait()
		if n := e.looks.Load(); n == 0 || n > 200 {
			t.Errorf("50 pages look %d times in 10 s", n)
		}
	})
}
