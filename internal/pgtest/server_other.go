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

// Restart, Launch and Stop are never reached.
func (s *Server) Restart(testing.TB) {}

// Launch does nothing.
func (s *Server) Launch(testing.TB) {}

// Stop does nothing.
func (s *Server) Stop() {}

func (s *Server) remove() {}
