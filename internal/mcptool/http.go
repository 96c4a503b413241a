package mcptool

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
)

// pingTime is between pings on an open stream; idleTime is how long a silent session is kept.
const (
	pingTime = 30 * time.Second
	idleTime = 24 * time.Hour
)

// HTTP is the server as a handler for Streamable HTTP, in both versions of the protocol. The caller
// must authenticate requests and check their origin first.
type HTTP struct {
	server *mcpServer
	http   *server.StreamableHTTPServer

	sessions  *sessions
	numbers   numbers
	challenge func(need job.Role) string
}

// NewHTTP returns a handler; Close stops the work that it has started.
func NewHTTP(o Options, extra ...server.ServerOption) *HTTP {
	s := newServer(o, extra...)
	sessions := &sessions{of: map[string]held{}}
	return &HTTP{server: s, sessions: sessions, numbers: newNumbers(), challenge: o.Challenge, http: server.NewStreamableHTTPServer(s.MCPServer,
		server.WithSessionIdManagerResolver(sessions),
		server.WithHeartbeatInterval(pingTime),
		server.WithSessionIdleTTL(idleTime),
		server.WithDisableLocalhostProtection(true), // the caller does that, since it knows its names
		server.WithStreamableHTTPLogger(o.Log),
	)}
}

// ServeHTTP serves a request or a stream.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(server.HeaderKeySessionID)
	if id != "" && (r.Method == http.MethodGet || r.Method == http.MethodDelete) && !h.sessions.has(id, holderOf(r)) {
		http.Error(w, "Invalid session ID", http.StatusNotFound) // mcp-go checks it for POST
		return
	}
	if r.Method == http.MethodGet && id != "" {
		defer h.server.notices.stream(id)()
	}
	h.enveloped(w, r)
	if begun := w.Header().Get(server.HeaderKeySessionID); begun != "" && begun != id {
		h.endSurplus(r)
	}
}

// one serves a request with at most one message, whose numbers are already hidden from mcp-go.
func (h *HTTP) one(w http.ResponseWriter, r *http.Request) {
	if h.server.tasks != nil {
		h.server.tasks.ServeHTTP(w, r, h.http)
	} else {
		h.http.ServeHTTP(w, r)
	}
}

// endSurplus ends a session, as a client would, if the request's holder has too many.
func (h *HTTP) endSurplus(r *http.Request) {
	if id := h.sessions.surplus(holderOf(r)); id != "" {
		end := (&http.Request{Method: http.MethodDelete, URL: r.URL, Header: http.Header{server.HeaderKeySessionID: {id}}, Body: http.NoBody}).WithContext(r.Context())
		h.http.ServeHTTP(&unheard{http.Header{}}, end)
	}
}

// unheard is a response that is discarded.
type unheard struct{ header http.Header }

func (u *unheard) Header() http.Header          { return u.header }
func (*unheard) Write(data []byte) (int, error) { return len(data), nil }
func (*unheard) WriteHeader(int)                {}

// refuse answers a tool call with an OAuth token that lacks scopes, so that its client can ask the
// issuer for more, and reports whether it did. Other clients get a refusal as the call's result.
func (h *HTTP) refuse(w http.ResponseWriter, r *http.Request, body []byte) bool {
	if p, _ := job.PrincipalFrom(r.Context()); !p.OAuth || h.challenge == nil {
		return false
	}
	var message struct {
		Method string
		Params struct{ Name string }
	}
	if json.Unmarshal(body, &message) != nil || message.Method != string(mcp.MethodToolsCall) || h.server.GetTool(message.Params.Name) == nil {
		return false
	}
	denied, ok := errors.AsType[*job.DeniedError](refusal(r.Context(), message.Params.Name))
	if ok {
		w.Header().Set("WWW-Authenticate", h.challenge(denied.Need))
		http.Error(w, denied.Error(), http.StatusForbidden)
	}
	return ok
}

// Close closes the open streams and stops work that outlived its call.
func (h *HTTP) Close(ctx context.Context) error {
	err := h.http.Shutdown(ctx)
	h.server.close()
	return err
}
