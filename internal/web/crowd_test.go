package web_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/web"
)

// crowd is a server in a bubble, and connections to it.
type crowd struct {
	*testing.T
	listener memory
	stopped  bool
	server   *web.Server
	served   chan error
}

// inCrowd runs a test with a server.
func inCrowd(t *testing.T, o web.Options, test func(c *crowd)) {
	synctest.Test(t, func(t *testing.T) {
		o.Token, o.Log = token, log
		c := &crowd{T: t, listener: make(memory), served: make(chan error, 1)}
		c.server = web.On(t.Context(), c.listener, o)
		go func() { c.served <- c.server.Serve() }()
		test(c)
		if !c.stopped {
			_ = c.stop()
		}
	})
}

// stop stops the server.
func (c *crowd) stop() error {
	c.stopped = true
	return errors.Join(c.server.Close(c.Context()), <-c.served)
}

// dial returns a connection that has been accepted.
func (c *crowd) dial() net.Conn {
	near, far := net.Pipe()
	c.listener <- far
	synctest.Wait()
	c.Cleanup(func() { _ = near.Close() })
	return near
}

// ask sends a request and returns the response's status, 0: the connection has ended.
func (c *crowd) ask(conn net.Conn, head string) int {
	c.Helper()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	if _, err := fmt.Fprintf(conn, "%s HTTP/1.1\r\nHost: localhost\r\n\r\n", strings.ReplaceAll(head, "TOKEN", "HTTP/1.1\r\nAuthorization: Bearer "+token+"\r\nX:")); err != nil {
		return 0
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return 0
	}
	if resp.ContentLength >= 0 {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// open reports whether the server has kept a connection.
func open(conn net.Conn) bool {
	synctest.Wait()
	_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := conn.Read(make([]byte, 1))
	return err == nil || errors.Is(err, os.ErrDeadlineExceeded)
}

// stream responds at once, and ends with its request.
var stream = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	w.(http.Flusher).Flush()
	<-r.Context().Done()
})

// Connections that say nothing, or have shown no token, go for those who come after them;
// what is being served for a token stays.
func TestServer_StrangersTakeNobodysPlace(t *testing.T) {
	inCrowd(t, web.Options{Engine: sample(), MCP: stream}.Within(8, 6, 100), func(c *crowd) {
		streaming, idle := c.dial(), c.dial()
		if code := c.ask(streaming, "GET /mcp TOKEN"); code != 200 {
			t.Fatalf("a stream: %d", code)
		}
		if code := c.ask(idle, "GET /jobs/"+id+"/output TOKEN"); code != 200 {
			t.Fatalf("an output: %d", code)
		}
		silent := make([]net.Conn, 20)
		for i := range silent {
			silent[i] = c.dial()
			if i%2 == 0 {
				if code := c.ask(silent[i], "GET /health"); code != 200 {
					t.Fatalf("health: %d", code)
				}
			}
		}
		for i, conn := range silent {
			if got, want := open(conn), i >= 16; got != want {
				t.Errorf("connection %d is open: %v", i, got)
			}
		}
		if !open(streaming) || !open(idle) {
			t.Error("a connection that has shown a token was closed for those that have not")
		}
		for range 5 { // more places taken for the token: then those that wait go, too, the oldest first
			if code := c.ask(c.dial(), "GET /mcp TOKEN"); code != 200 {
				t.Errorf("a stream: %d", code)
			}
		}
		if open(idle) || !open(streaming) {
			t.Errorf("idle: %v, streaming: %v", open(idle), open(streaming))
		}
		if conn := c.dial(); open(conn) {
			t.Error("all places of an address are taken, and one more has come in")
		}
	})
}

// A principal whose requests are many has those of nobody else.
func TestServer_BoundsAPrincipalsRequests(t *testing.T) {
	holder := func(context.Context, string) (job.Principal, error) {
		return job.Principal{Name: "ada", Role: job.RoleRun}, nil
	}
	inCrowd(t, web.Options{Engine: sample(), MCP: stream, API: stream, Authenticate: holder}.Within(100, 100, 3), func(c *crowd) {
		const other = "GET /mcp HTTP/1.1\r\nAuthorization: Bearer adas\r\nX:"
		first := c.dial()
		for _, conn := range []net.Conn{first, c.dial(), c.dial()} {
			if code := c.ask(conn, "GET /api/v1/jobs TOKEN"); code != 200 {
				t.Fatalf("a stream: %d", code)
			}
		}
		for _, path := range []string{"/mcp", "/api/v1/jobs", "/jobs/" + id + "/output"} {
			if code := c.ask(c.dial(), "GET "+path+" TOKEN"); code != http.StatusTooManyRequests {
				t.Errorf("a fourth, %s: %d", path, code)
			}
		}
		if code := c.ask(c.dial(), other); code != 200 {
			t.Errorf("another principal: %d", code)
		}
		_ = first.Close()
		synctest.Wait()
		if code := c.ask(c.dial(), "GET /mcp TOKEN"); code != 200 {
			t.Errorf("when there is room: %d", code)
		}
	})
}

// A body that does not arrive ends the connection, and does not hold up the server's end.
func TestServer_EndsBodiesThatStall(t *testing.T) {
	reads := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
		}
	})
	for _, tt := range []struct{ name, head string }{
		{"MCP", "POST /mcp HTTP/1.1\r\nAuthorization: Bearer " + token},
		{"the API", "POST /api/v1/jobs HTTP/1.1\r\nAuthorization: Bearer " + token},
		{"nobody", "POST /login HTTP/1.1\r\nX: x"},
	} {
		stalled := func(c *crowd) net.Conn {
			conn := c.dial()
			if _, err := fmt.Fprintf(conn, "%s\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nx", tt.head); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			return conn
		}
		o := web.Options{Engine: sample(), MCP: reads, API: reads}
		t.Run(tt.name+", in time", func(t *testing.T) {
			inCrowd(t, o, func(c *crowd) {
				conn := stalled(c)
				_ = conn.SetReadDeadline(time.Now().Add(6 * time.Minute))
				if _, err := io.ReadAll(conn); err != nil {
					t.Errorf("the connection is open after 6 minutes: %v", err)
				}
			})
		})
		t.Run(tt.name+", when the server stops", func(t *testing.T) {
			inCrowd(t, o, func(c *crowd) {
				conn := stalled(c)
				go func() { _, _ = io.Copy(io.Discard, conn) }()
				began := time.Now()
				if err := c.stop(); err != nil || time.Since(began) > 2*time.Second {
					t.Errorf("Close = %v after %s", err, time.Since(began))
				}
			})
		})
	}
}
