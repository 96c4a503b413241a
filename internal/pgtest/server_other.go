//go:build !linux

package pgtest

import (
	"sync"
	"testing"
)

// Server is a running PostgreSQL server.
type Server struct {
	dir  string
	mu   sync.Mutex
	made int
	free []string
}

// Start skips the test.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t)
}

func start(t testing.TB) *Server {
	t.Helper()
	t.Skip("PostgreSQL's server is started on Linux only")
	return nil
}

func (s *Server) remove() {}
