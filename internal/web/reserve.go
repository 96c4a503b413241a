package web

import (
	"net"
	"net/http"
	"sync"
)

// reserve has the connections on which no request has begun, as browsers open them ahead.
// http.Server.Shutdown would wait five seconds for them.
type reserve struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	ended bool
}

// follow is a server's ConnState.
func (r *reserve) follow(conn net.Conn, state http.ConnState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case state != http.StateNew:
		delete(r.conns, conn)
	case r.ended:
		_ = conn.Close()
	default:
		if r.conns == nil {
			r.conns = map[net.Conn]bool{}
		}
		r.conns[conn] = true
	}
}

// end closes them, and those that still come.
func (r *reserve) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for conn := range r.conns {
		_ = conn.Close()
	}
}
