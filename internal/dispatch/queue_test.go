package dispatch

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"unicode"
)

// What may pass is asked again, three times at most; what is wrong with the request is not, nor
// what somebody else has done meanwhile.
func TestQueue_AsksAgainWhatMayPass(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		fails int // requests, before one is answered
		code  int
		asked int32
		want  int // status of the error
	}{
		{"a fault of the server", 2, 503, 3, 0},
		{"a fault that stays", 9, 503, 3, 503},
		{"no answer", 1, 0, 2, 0},
		{"too many requests", 1, 429, 2, 0},
		{"an unknown key", 9, 401, 1, 401},
		{"another has it", 9, 409, 1, 409},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				switch n := asked.Add(1); {
				case r.URL.Path != "/v1/environments/env_1/work/work_1/ack" || r.URL.Query().Get("beta") != "true" || r.Header.Get("Authorization") != "Bearer key":
					w.WriteHeader(http.StatusTeapot)
				case int(n) > tt.fails:
					_, _ = w.Write([]byte(`{"id":"work_1"}`))
				case tt.code == 0:
					panic(http.ErrAbortHandler)
				default:
					w.WriteHeader(tt.code)
				}
			}))
			defer server.Close()
			err := newQueue(server.URL+"/", "env_1", "key", "here").ack(t.Context(), "work_1")
			if Code(err) != tt.want || tt.want == 0 && err != nil || asked.Load() != tt.asked {
				t.Errorf("after %d requests: %v", asked.Load(), err)
			}
		})
	}
}

// An item that was polled and cannot be claimed is stopped, and says nothing of the queue.
func TestClaude_StopsWhatItCannotClaim(t *testing.T) {
	t.Parallel()
	var stopped atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/environments/env_1/work/poll", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"work_1","data":{"id":"sesn_1","type":"session"}}`))
	})
	mux.HandleFunc("POST /v1/environments/env_1/work/work_1/stop", func(w http.ResponseWriter, _ *http.Request) {
		stopped.Store(true)
		w.WriteHeader(http.StatusNoContent)
	})
	server := httptest.NewServer(mux) // it knows of no ack
	defer server.Close()
	c := newClaude(Options{Log: slog.New(slog.DiscardHandler)}, Claude{API: server.URL, Environment: "env_1", Key: "key"})
	c.queue.retries = 0
	work, err := c.Waiting(t.Context())
	if err != nil || len(work) != 1 {
		t.Fatalf("%v, %v", work, err)
	}
	var fatal *Fatal
	ours, err := c.Claim(t.Context(), work[0])
	if ours || err == nil || errors.As(err, &fatal) || !stopped.Load() {
		t.Errorf("%t, %v; stopped: %t", ours, err, stopped.Load())
	}
}

// The key goes to no server but the queue's own, and what that says is a line of ours.
func TestQueue_KeepsTheKeyAndBoundsWhatIsSaid(t *testing.T) {
	t.Parallel()
	var theirs atomic.Bool
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { theirs.Store(r.Header.Get("Authorization") != "") }))
	defer other.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ack") {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
			return
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"error":{"message":"no\n\u001b[2J` + strings.Repeat("x", 10000) + `"}}`))
	}))
	defer server.Close()
	q := newQueue(server.URL, "env_1", "key", "here")
	q.retries = 0
	if err := q.ack(t.Context(), "work_1"); theirs.Load() || Code(err) != http.StatusTemporaryRedirect {
		t.Errorf("another server got the key: %t; %v", theirs.Load(), err)
	}
	if _, err := q.poll(t.Context()); Code(err) != http.StatusForbidden || len(err.Error()) > 300 || strings.ContainsFunc(err.Error(), unicode.IsControl) {
		t.Errorf("%d bytes: %.100q", len(err.Error()), err)
	}
}

// What is polled and never claimed, as it cannot be, stays in no memory.
func TestClaude_ForgetsWhatIsNotClaimed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"id":"work\n","data":{"id":"sesn_1","type":"session"}}`))
	}))
	defer server.Close()
	c := newClaude(Options{Log: slog.New(slog.DiscardHandler)}, Claude{API: server.URL, Environment: "env_1", Key: "key"})
	for range 10 {
		if _, err := c.Waiting(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.claims); n > 1 {
		t.Errorf("%d are kept", n)
	}
}
