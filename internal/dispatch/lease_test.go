package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"
)

// What a heartbeat's answer means for the lease: one that the queue does not extend has ended,
// though the item is active; one that cannot be extended is kept as long as it may last, and no
// longer.
func TestLease_EndsAsTheQueueSays(t *testing.T) {
	t.Parallel()
	const failing = 0
	for _, tt := range []struct {
		name     string
		code     int
		extended bool
		state    string
		silent   time.Duration // since the last heartbeat that succeeded; the lease lasts a minute
		want     error
	}{
		{"extended", 200, true, "active", 0, nil},
		{"not extended", 200, false, "active", 0, errStopped},
		{"stopping", 200, true, "stopping", 0, errStopped},
		{"stopped", 200, true, "stopped", 0, errStopped},
		{"another has it", 412, false, "", 0, ErrLost},
		{"a fault of the queue, in time", 500, false, "", 30 * time.Second, nil},
		{"a fault of the queue, beyond it", 500, false, "", 61 * time.Second, ErrLost},
		{"too many requests, in time", 429, false, "", 30 * time.Second, nil},
		{"too many requests, beyond it", 429, false, "", 61 * time.Second, ErrLost},
		{"no answer, beyond it", failing, false, "", 61 * time.Second, ErrLost},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if tt.code == failing {
					panic(http.ErrAbortHandler)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.code)
				_, _ = fmt.Fprintf(w, `{"type":"work_heartbeat","last_heartbeat":"now","lease_extended":%t,"state":%q,"ttl_seconds":60}`, tt.extended, tt.state)
			}))
			defer server.Close()
			q := newQueue(server.URL, "env_1", "key", "here")
			q.retries = 0
			l := newLease(q, "work_1", slog.New(slog.DiscardHandler))
			l.good = time.Now().Add(-tt.silent)
			before := l.good
			if err := l.beat(t.Context()); !errors.Is(err, tt.want) || tt.want == nil && err != nil {
				t.Errorf("the heartbeat returned %v, not %v", err, tt.want)
			}
			if extended := tt.code == 200; l.good.Equal(before) == extended {
				t.Errorf("it counts as extended: %t", !l.good.Equal(before))
			}
		})
	}
}

// An answer that is none ends no session: it is a heartbeat that has failed, and what is polled so is
// neither claimed nor stopped.
func TestClaude_NonsenseStopsNoWork(t *testing.T) {
	t.Parallel()
	for _, nonsense := range []string{"", "{}", "null", `{"id":"work_1"}`, `{"id":"work_1","data":{"id":"sesn_1"}}`} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if path.Base(r.URL.Path) != "poll" && path.Base(r.URL.Path) != "heartbeat" {
				t.Errorf("%q is answered by %s", nonsense, r.URL.Path)
			}
			_, _ = io.WriteString(w, nonsense)
		}))
		defer server.Close()
		c := newClaude(Options{Log: slog.New(slog.DiscardHandler)}, Claude{API: server.URL, Environment: "env_1", Key: "key"})
		if works, _ := c.Waiting(t.Context()); len(works) > 0 {
			t.Errorf("%q is %+v", nonsense, works)
		}
		if err := newLease(c.queue, "work_1", c.log).beat(t.Context()); err != nil {
			t.Errorf("%q, in time: %v", nonsense, err)
		}
	}
}

// A lease that is not extended ends what is made under it.
func TestLease_KeepEndsWithIt(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type":"work_heartbeat","last_heartbeat":"now","lease_extended":false,"state":"active","ttl_seconds":60}`)
	}))
	defer server.Close()
	q := newQueue(server.URL, "env_1", "key", "here")
	q.retries = 0
	l := newLease(q, "work_1", slog.New(slog.DiscardHandler))
	l.ttl = time.Second
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.keep(ctx, make(chan struct{})); !errors.Is(err, errStopped) {
		t.Errorf("keeping it returned %v", err)
	}
}
