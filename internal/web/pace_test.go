package web_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"linus/internal/web"
)

// pacedRecorder notes until when the body may be read.
type pacedRecorder struct {
	*httptest.ResponseRecorder
	until []time.Time
}

func (r *pacedRecorder) SetReadDeadline(at time.Time) error {
	r.until = append(r.until, at)
	return nil
}

func TestBody_HasATimeToArrive(t *testing.T) {
	mcp := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
	h := web.Handler(web.Options{Engine: sample(), MCP: mcp, API: mcp, Token: token, Log: log})
	send := func(method, path, bearer, body string) []time.Time {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		r.Host = "127.0.0.1"
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if bearer != "" {
			r.Header.Set("Authorization", "Bearer "+bearer)
		}
		w := &pacedRecorder{ResponseRecorder: httptest.NewRecorder()}
		h.ServeHTTP(w, r)
		return w.until
	}
	soon := time.Now().Add(time.Minute)
	for _, path := range []string{"/login", "/logout", "/mcp", "/api/v1/jobs", "/jobs/new", "/jobs/" + id + "/cancel", "/nothing", "/health"} {
		if until := send(http.MethodPost, path, "wrong", "token=x"); len(until) == 0 || until[0].IsZero() || until[0].After(soon) {
			t.Errorf("POST %s of anybody: %v", path, until)
		}
	}
	for _, path := range []string{"/mcp", "/api/v1/jobs"} {
		until := send(http.MethodPost, path, token, "{}")
		if len(until) < 3 || !until[1].After(soon) || !until[len(until)-1].IsZero() {
			t.Errorf("POST %s: %v", path, until)
		}
	}
	if until := send(http.MethodGet, "/mcp", token, ""); len(until) > 0 {
		t.Errorf("a stream would end: %v", until)
	}
}
