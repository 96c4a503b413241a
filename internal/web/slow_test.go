package web_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/tlstest"
	"linus/internal/web"
)

// endless is an engine whose running job always has more output than anybody reads. It
// counts what is taken of it.
type endless struct {
	*engine
	taken *atomic.Int64
}

func (e endless) Output(_ context.Context, jobID, _ string, offset, limit int64) (job.Chunk, error) {
	if offset < 0 || jobID != id {
		offset = 1 << 20
	}
	e.taken.Add(limit)
	return job.Chunk{Data: []byte(strings.Repeat("a line\n", int(limit)/7+1)[:limit]), Offset: offset, Next: offset + limit}, nil
}

// memory is a listener whose connections have no buffers: what is written is read at once,
// or not at all.
type memory chan net.Conn

func (m memory) Accept() (net.Conn, error) {
	conn, open := <-m
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

// Close is called once, by the server.
func (m memory) Close() error {
	close(m)
	return nil
}

func (m memory) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// inMemory runs a test with a server whose clock is not the world's. dial returns a new
// connection, and ended one that reports whether the server has closed it.
func inMemory(t *testing.T, o web.Options, test func(dial func() net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		listener := make(memory)
		server := &http.Server{Handler: web.Handler(o), ReadHeaderTimeout: time.Minute}
		go func() { _ = server.Serve(listener) }()
		var all []net.Conn
		test(func() net.Conn {
			near, far := net.Pipe()
			listener <- far
			all = append(all, near)
			return near
		})
		_ = server.Close()
		for _, conn := range all {
			_ = conn.Close()
		}
		synctest.Wait()
	})
}

// cut waits, and reports whether the server has given a connection up.
func cut(conn net.Conn) bool {
	time.Sleep(3 * time.Minute)
	synctest.Wait()
	_ = conn.SetReadDeadline(time.Now().Add(time.Second))
	const most = 32 << 20
	n, err := io.CopyN(io.Discard, conn, most) // what was on its way, and then its end
	return errors.Is(err, io.EOF) && n < most
}

// A client that does not read what it has asked for is given up, whoever it is. What it is
// not sent is not read ahead for it, and others are served meanwhile.
func TestAnswers_OfAClientThatDoesNotRead(t *testing.T) {
	login := visit(t, sample())
	login.get(web.LoginPath(token))
	at, err := url.Parse(login.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	cookie := login.client.Jar.Cookies(at)[0].String()
	for _, tt := range []struct{ name, head, path string }{
		{"the job's page", "Cookie: " + cookie, "/jobs/" + id},
		{"the job's stream", "Cookie: " + cookie, "/jobs/" + id + "/live"},
		{"the stream of jobs", "Cookie: " + cookie, "/jobs/live"},
		{"the stream of VMs", "Cookie: " + cookie, "/vms/live"},
		{"an output", "Authorization: Bearer " + token, "/jobs/" + id + "/output"},
		{"MCP", "Authorization: Bearer " + token, "/mcp"},
		{"the API", "Authorization: Bearer " + token, "/api/v1/jobs"},
		{"the login", "X: x", "/login"},
		{"nothing", "X: x", "/health"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := endless{sample(), &atomic.Int64{}}
			answers := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					if _, err := w.Write(make([]byte, 1<<10)); err != nil {
						return
					}
					w.(http.Flusher).Flush()
				}
			})
			inMemory(t, web.Options{Engine: e, MCP: answers, API: answers, Token: token, Log: log}, func(dial func() net.Conn) {
				ask := "GET " + tt.path + " HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n" + tt.head + "\r\n\r\n"
				const deaf = 5
				var conns []net.Conn
				for range deaf {
					conn := dial()
					if _, err := io.WriteString(conn, ask); err != nil {
						t.Fatal(err)
					}
					conns = append(conns, conn)
				}
				synctest.Wait()
				reader := dial()
				go func() { _, _ = io.WriteString(reader, ask) }()
				resp, err := http.ReadResponse(bufio.NewReader(reader), nil)
				if err != nil || resp.StatusCode >= 500 {
					t.Errorf("who reads: %+v, %v", resp, err)
				}
				_ = reader.Close()
				synctest.Wait()
				for i, conn := range conns {
					if !cut(conn) {
						t.Errorf("connection %d is kept", i)
					}
				}
				if n := e.taken.Load(); n > (deaf+1)*(17<<20) {
					t.Errorf("%d bytes were read for them", n)
				}
			})
		})
	}
}

// A response may be silent for longer than a client may take to read a part of it, over
// HTTP/2 as well, where a deadline ends the stream even when nothing is being written.
func TestAnswers_ThatAreSilentInBetween(t *testing.T) {
	pair := tlstest.New(t, "localhost")
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted, made := x509.NewCertPool(), time.Now() // the clock in the bubble is not the certificate's
	trusted.AppendCertsFromPEM(pair.Cert)
	mcp := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first, ")
		w.(http.Flusher).Flush()
		time.Sleep(10 * time.Minute)
		_, _ = io.WriteString(w, "last")
	})
	synctest.Test(t, func(t *testing.T) {
		listener := make(memory)
		server := &http.Server{Handler: web.Handler(web.Options{Engine: sample(), MCP: mcp, Token: token, Log: log}), ReadHeaderTimeout: time.Minute, TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
		go func() { _ = server.ServeTLS(listener, "", "") }()
		transport := &http.Transport{
			ForceAttemptHTTP2: true,
			TLSClientConfig:   &tls.Config{RootCAs: trusted, Time: func() time.Time { return made }},
			DialContext: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				listener <- far
				return near, nil
			},
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://localhost/mcp", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := transport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(resp.Body)
		if err != nil || string(data) != "first, last" || resp.ProtoMajor != 2 {
			t.Errorf("%s: %q, %v", resp.Proto, data, err)
		}
		_ = resp.Body.Close()
		transport.CloseIdleConnections()
		_ = server.Close()
		synctest.Wait()
	})
}
