package pgtest

import (
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// Line is a line to a server. While it is held it passes no bytes: connections on it
// hang, and new ones are not answered, as with a network that drops everything.
type Line struct {
	server, dir string
	listener    net.Listener
	passing     sync.WaitGroup

	mu    sync.Mutex
	held  chan struct{} // closed when bytes pass again; nil: they pass
	conns map[net.Conn]bool
	over  bool
}

// Line returns a new line to the server, which ends with the test.
func (s *Server) Line(t testing.TB) *Line {
	t.Helper()
	return newLine(t, s.dir)
}

// LineTo returns a new line to the server of a database, which ends with the test.
func LineTo(t testing.TB, database string) *Line {
	t.Helper()
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	return newLine(t, u.Query().Get("host"))
}

func newLine(t testing.TB, server string) *Line {
	t.Helper()
	dir, err := os.MkdirTemp("", "linus-pg-line-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	l := &Line{server: server, dir: dir, conns: map[net.Conn]bool{}}
	if l.listener, err = net.Listen("unix", filepath.Join(dir, socket)); err != nil {
		t.Fatal(err)
	}
	l.passing.Go(l.accept)
	t.Cleanup(func() {
		_ = l.listener.Close()
		l.mu.Lock()
		l.over = true
		for c := range l.conns {
			_ = c.Close()
		}
		l.mu.Unlock()
		l.Release()
		l.passing.Wait()
		_ = os.RemoveAll(dir)
	})
	return l
}

// socket is the name of a server's socket in its directory.
const socket = ".s.PGSQL.5432"

// URL returns the URL of a database of the server, by this line.
func (l *Line) URL(database string) string {
	u, err := url.Parse(database)
	if err != nil {
		panic(err)
	}
	u.RawQuery = url.Values{"host": {l.dir}}.Encode()
	return u.String()
}

// Hold makes the line pass nothing until Release.
func (l *Line) Hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held == nil {
		l.held = make(chan struct{})
	}
}

// Release lets the line pass everything again, also what it was given meanwhile.
func (l *Line) Release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held != nil {
		close(l.held)
		l.held = nil
	}
}

// passes waits until the line is not held.
func (l *Line) passes() {
	l.mu.Lock()
	held := l.held
	l.mu.Unlock()
	if held != nil {
		<-held
	}
}

func (l *Line) accept() {
	for {
		near, err := l.listener.Accept()
		if err != nil {
			return
		}
		l.passing.Go(func() { l.carry(near) })
	}
}

// carry passes a connection on until one side ends it.
func (l *Line) carry(near net.Conn) {
	if !l.keep(near) {
		return
	}
	defer l.drop(near)
	l.passes()
	far, err := net.Dial("unix", filepath.Join(l.server, socket))
	if err != nil || !l.keep(far) {
		return
	}
	var both sync.WaitGroup
	both.Go(func() { l.copy(far, near) })
	both.Go(func() { l.copy(near, far) })
	both.Wait()
	l.drop(far)
}

// copy passes bytes in one direction; the end of it is that of both.
func (l *Line) copy(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		l.passes()
		if n > 0 {
			if _, writeErr := to.Write(buffer[:n]); writeErr != nil {
				err = io.EOF
			}
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// keep has a connection closed with the line; false: that is closed.
func (l *Line) keep(c net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		_ = c.Close()
		return false
	}
	l.conns[c] = true
	return true
}

func (l *Line) drop(c net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c)
	_ = c.Close()
}
