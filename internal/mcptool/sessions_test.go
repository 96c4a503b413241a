package mcptool

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

const (
	initialize = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`
	ping       = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
)

// asking returns a function that makes a request with a token in a session, and returns its
// status and session.
func asking(t *testing.T) func(method, body, name, token, session string) (int, string) {
	t.Helper()
	h := NewHTTP(options(&engine{}))
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := job.Principal{Name: r.Header.Get("Name"), Token: r.Header.Get("Token"), Role: job.RoleRun}
		h.ServeHTTP(w, r.WithContext(job.WithPrincipal(r.Context(), p)))
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		if err := h.Close(context.Background()); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return func(method, body, name, token, session string) (int, string) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, method, s.URL, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		for header, value := range map[string]string{"Name": name, "Token": token, server.HeaderKeySessionID: session, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"} {
			if value != "" {
				req.Header.Set(header, value)
			}
		}
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // not read
		return resp.StatusCode, resp.Header.Get(server.HeaderKeySessionID)
	}
}

// A session is its token's: whoever knows its ID has nothing of it.
func TestHTTP_SessionsBelongToATokenAlone(t *testing.T) {
	ask := asking(t)
	code, id := ask(http.MethodPost, initialize, "alice", "a1", "")
	if code != http.StatusOK || id == "" {
		t.Fatalf("initialize: %d, session %q", code, id)
	}
	for who, of := range map[string][2]string{"another principal": {"bob", "b1"}, "another token of hers": {"alice", "a2"}, "nobody": {"", ""}} {
		for method, body := range map[string]string{http.MethodPost: ping, http.MethodGet: "", http.MethodDelete: ""} {
			if code, _ := ask(method, body, of[0], of[1], id); code != http.StatusNotFound {
				t.Errorf("%s of her session by %s: %d", method, who, code)
			}
		}
	}
	if code, _ := ask(http.MethodGet, "", "bob", "b1", "mcp-session-made-up"); code != http.StatusNotFound {
		t.Errorf("a session that was never begun: %d", code)
	}
	for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
		body := ""
		if method == http.MethodPost {
			body = ping
		}
		if code, _ := ask(method, body, "alice", "a1", id); code != http.StatusOK {
			t.Errorf("%s of her own session: %d", method, code)
		}
	}
	if code, _ := ask(http.MethodPost, ping, "alice", "a1", id); code != http.StatusNotFound {
		t.Errorf("a session that was ended: %d", code)
	}
}

// A token has so many sessions: of more, the one that was not used for the longest time ends.
// Each costs memory for a day.
func TestHTTP_SessionsOfATokenAreBounded(t *testing.T) {
	t.Parallel()
	ask := asking(t)
	session := "" // that a request to begin another is made in
	begin := func(name string) string {
		t.Helper()
		code, id := ask(http.MethodPost, initialize, name, name+"1", session)
		if code != http.StatusOK || id == "" {
			t.Fatalf("initialize: %d, session %q", code, id)
		}
		return id
	}
	others, used, idle := begin("bob"), begin("alice"), begin("alice")
	for range maxSessions - 2 {
		begin("alice")
	}
	if code, _ := ask(http.MethodPost, ping, "alice", "alice1", used); code != http.StatusOK {
		t.Errorf("as many as there may be: %d", code)
	}
	session = used
	last := begin("alice")
	for _, tt := range []struct {
		name, id string
		want     int
	}{{"alice", idle, http.StatusNotFound}, {"alice", used, http.StatusOK}, {"alice", last, http.StatusOK}, {"bob", others, http.StatusOK}} {
		if code, _ := ask(http.MethodPost, ping, tt.name, tt.name+"1", tt.id); code != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, code, tt.want)
		}
	}
}
