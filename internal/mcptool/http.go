package mcptool

import (
	"context"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

// Times of HTTP sessions: of the pings on an open stream, and after which a
// client that is silent is forgotten.
const (
	pingTime = 30 * time.Second
	idleTime = 24 * time.Hour
)

// HTTP is the server as a handler for Streamable HTTP, in both eras of the
// protocol. Who may call it, and from where, is for the caller to check first.
type HTTP struct {
	server *mcpServer
	http   *server.StreamableHTTPServer
}

// NewHTTP makes a handler; Close ends what it has running.
func NewHTTP(o Options, extra ...server.ServerOption) *HTTP {
	s := newServer(o, extra...)
	return &HTTP{server: s, http: server.NewStreamableHTTPServer(s.MCPServer,
		server.WithStateful(true),
		server.WithHeartbeatInterval(pingTime),
		server.WithSessionIdleTTL(idleTime),
		server.WithDisableLocalhostProtection(true), // the caller's, which knows the names it goes by
		server.WithStreamableHTTPLogger(o.Log),
	)}
}

// ServeHTTP returns one request, or serves one stream.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id := r.Header.Get(server.HeaderKeySessionID); r.Method == http.MethodGet && id != "" {
		defer h.server.notices.stream(id)()
	}
	h.http.ServeHTTP(w, r)
}

// Close ends the open streams and what calls have left running.
func (h *HTTP) Close(ctx context.Context) error {
	err := h.http.Shutdown(ctx)
	h.server.close()
	return err
}
