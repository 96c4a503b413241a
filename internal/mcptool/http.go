package mcptool

import (
	"context"
	"net/http"
	"time"

	"github.com/mark3labs/mcp-go/server"
)

// Times of HTTP sessions: between pings on an open stream, and after which a
// silent client is forgotten.
const (
	pingTime = 30 * time.Second
	idleTime = 24 * time.Hour
)

// HTTP is the server as a handler for Streamable HTTP, in both versions of the
// protocol. The caller must check first who may call it, and from where.
type HTTP struct {
	server *mcpServer
	http   *server.StreamableHTTPServer
}

// NewHTTP returns a handler; Close stops what it has running.
func NewHTTP(o Options, extra ...server.ServerOption) *HTTP {
	s := newServer(o, extra...)
	return &HTTP{server: s, http: server.NewStreamableHTTPServer(s.MCPServer,
		server.WithStateful(true),
		server.WithHeartbeatInterval(pingTime),
		server.WithSessionIdleTTL(idleTime),
		server.WithDisableLocalhostProtection(true), // the caller does that, since it knows its names
		server.WithStreamableHTTPLogger(o.Log),
	)}
}

// ServeHTTP serves one request or one stream.
func (h *HTTP) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id := r.Header.Get(server.HeaderKeySessionID); r.Method == http.MethodGet && id != "" {
		defer h.server.notices.stream(id)()
	}
	h.http.ServeHTTP(w, r)
}

// Close closes the open streams and stops work that outlived its call.
func (h *HTTP) Close(ctx context.Context) error {
	err := h.http.Shutdown(ctx)
	h.server.close()
	return err
}
