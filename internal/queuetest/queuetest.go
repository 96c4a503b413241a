// Package queuetest stands in for the server's side of a self-hosted environment of Claude Managed
// Agents: its queue of work, and the sessions that are served. It speaks the protocol as anthropic-sdk-go
// v1.84.0 describes it (betaenvironmentwork.go, lib/environments and its tests), and refuses what that
// says is refused: other keys, wrong heartbeats, missing beta headers. There is no model: a session's
// agent asks for the tools that a test names, one after the other, and then the session ends or waits.
package queuetest

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// The environment of a Queue, and the key for polling it.
const (
	Environment = "env_01AbCdEf" // as in the document
	Key         = "sk-env-the-key-that-no-vm-has"
)

// Queue is the server.
type Queue struct {
	URL string

	ttl time.Duration

	mu      sync.Mutex
	changed chan struct{} // closed at each change
	items   []*Item
	refused []string
	silly   int // how many of the next answers are nonsense
}

// Item is an item of work and its session. Only the method Item reads the fields.
type Item struct {
	ID, Session string
	Kind        string // session or healthcheck
	State       string // queued, starting, active, stopping, stopped
	Claims      int
	Claimed     []string // who has polled it, in order
	Beats       int
	Stops       int      // forced stops that ended it
	Asked       int      // tools the agent has asked for so far
	Results     []string // of its tools
	Keys        []string // that authorized requests about the session

	secret string
	tools  []string // commands of the tool bash
	stays  bool     // the session does not end after the last tool
	last   string   // last heartbeat
	seen   time.Time
	polled time.Time
}

// New starts a server whose leases last for ttl.
func New(t testing.TB, ttl time.Duration) *Queue {
	t.Helper()
	q := &Queue{ttl: ttl, changed: make(chan struct{})}
	mux := http.NewServeMux()
	work := "/v1/environments/" + Environment + "/work/"
	mux.HandleFunc("GET "+work+"poll", q.poll)
	mux.HandleFunc("POST "+work+"{id}/ack", q.of(q.ack))
	mux.HandleFunc("POST "+work+"{id}/heartbeat", q.of(q.heartbeat))
	mux.HandleFunc("POST "+work+"{id}/stop", q.of(q.stop))
	mux.HandleFunc("GET /v1/sessions/{session}", q.of(q.session))
	mux.HandleFunc("GET /v1/sessions/{session}/events", q.of(q.list))
	mux.HandleFunc("POST /v1/sessions/{session}/events", q.of(q.send))
	mux.HandleFunc("GET /v1/sessions/{session}/events/stream", q.of(q.stream))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { q.fail(w, r, http.StatusNotFound, "no such endpoint") })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q.mu.Lock()
		silly := q.silly > 0
		if silly {
			q.silly--
		}
		q.mu.Unlock()
		if silly {
			_, _ = w.Write([]byte("<html>not what was asked for</html>"))
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(func() {
		q.mu.Lock()
		for _, it := range q.items {
			it.State = "stopped" // ends streams
		}
		q.change()
		q.mu.Unlock()
		server.CloseClientConnections()
		server.Close()
	})
	q.URL = server.URL
	return q
}

// Add queues a session whose agent asks for these commands. With stays, the session does not end after
// them. Add returns the session's token.
func (q *Queue) Add(session string, stays bool, commands ...string) (token string) {
	token = "sessions-token-of-" + session
	secret, _ := json.Marshal(map[string]string{"sessions_token": token}) // strings can always be encoded
	q.add(&Item{Session: session, Kind: "session", secret: base64.RawURLEncoding.EncodeToString(secret), tools: commands, stays: stays})
	return token
}

// AddHealthCheck queues a health check, which has no session.
func (q *Queue) AddHealthCheck() { q.add(&Item{Session: "check", Kind: "healthcheck"}) }

// AddBare queues a session without a secret of its own.
func (q *Queue) AddBare(session string) { q.add(&Item{Session: session, Kind: "session"}) }

func (q *Queue) add(it *Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it.ID, it.State = "work_"+it.Session, "queued"
	q.items = append(q.items, it)
	q.change()
}

// Lose queues a session's item again, as if its lease had expired.
func (q *Queue) Lose(session string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.requeue(q.find(session))
}

// Finish ends a session that stays.
func (q *Queue) Finish(session string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.find(session).stays = false
	q.change()
}

// Item returns the current state of a session's item.
func (q *Queue) Item(session string) Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lapse()
	it := *q.find(session)
	it.Claimed, it.Results, it.Keys = slices.Clone(it.Claimed), slices.Clone(it.Results), slices.Clone(it.Keys)
	return it
}

// Nonsense makes the next n answers violate the protocol.
func (q *Queue) Nonsense(n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.silly = n
}

// Refused returns the requests that a correct client would not have made.
func (q *Queue) Refused() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.refused)
}

func (q *Queue) find(session string) *Item {
	for _, it := range q.items {
		if it.Session == session {
			return it
		}
	}
	panic("queuetest: no session " + session)
}

func (q *Queue) change() {
	close(q.changed)
	q.changed = make(chan struct{})
}

func (q *Queue) requeue(it *Item) {
	it.State, it.last, it.polled = "queued", "", time.Time{}
	q.change()
}

// lapse queues items with an expired lease again.
func (q *Queue) lapse() {
	for _, it := range q.items {
		if (it.State == "starting" || it.State == "active") && time.Since(it.seen) > q.ttl {
			q.requeue(it)
		}
	}
}

// of returns a handler of requests about an item, with the environment's key or the session's token.
func (q *Queue) of(handle func(http.ResponseWriter, *http.Request, *Item)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.lapse()
		at := slices.IndexFunc(q.items, func(it *Item) bool { return it.ID == r.PathValue("id") || it.Session == r.PathValue("session") })
		if at < 0 {
			q.fail(w, r, http.StatusNotFound, "no such item or session")
			return
		}
		it := q.items[at]
		if !q.allowed(w, r, Key, "sessions-token-of-"+it.Session) {
			return
		}
		if key := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "); r.PathValue("session") != "" && !slices.Contains(it.Keys, key) {
			it.Keys = append(it.Keys, key)
		}
		handle(w, r, it)
	}
}

// allowed checks what every request must have.
func (q *Queue) allowed(w http.ResponseWriter, r *http.Request, keys ...string) bool {
	switch {
	case !strings.Contains(r.Header.Get("Anthropic-Beta"), "managed-agents-2026-04-01"), r.URL.Query().Get("beta") != "true":
		q.fail(w, r, http.StatusBadRequest, "the beta is not asked for")
	case r.Header.Get("X-Api-Key") != "" || !slices.Contains(keys, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")):
		q.fail(w, r, http.StatusUnauthorized, "the key is unknown here")
	default:
		return true
	}
	return false
}

// fail refuses a request. It records requests that a correct client would not make.
func (q *Queue) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	if code != http.StatusConflict {
		q.refused = append(q.refused, fmt.Sprintf("%s %s: %d %s", r.Method, r.URL.Path, code, why))
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]any{"type": "api_error", "message": why}})
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339Nano) }

func orNull(text string) any {
	if text == "" {
		return nil
	}
	return text
}
