package control_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"linus/internal/control"
	"linus/internal/job"
)

// spring is an engine whose streams have more to give than anybody reads. It counts what
// is taken of each: of a terminal and an artifact by the job's ID, of a port by the VM's.
type spring struct {
	engine

	mu    sync.Mutex
	taken map[string]int64
	more  chan struct{} // closed at the next change
}

func (s *spring) take(of string, n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken[of] += int64(n)
	close(s.more)
	s.more = make(chan struct{})
}

func (s *spring) count(of string) (int64, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken[of], s.more
}

func (s *spring) Job(_ context.Context, id string) (job.Job, error) {
	return job.Job{ID: id, Status: job.Running, Manifest: job.Manifest{TTY: true, Stdin: job.StdinOpen}}, nil
}

func (s *spring) Output(_ context.Context, id, _ string, offset, limit int64) (job.Chunk, error) {
	s.take(id, int(limit))
	return job.Chunk{Data: make([]byte, limit), Offset: offset, Next: offset + limit}, nil
}

func (s *spring) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	return s.stream(ctx, id), job.Artifact{Path: path, Size: 1 << 40}, nil
}

func (s *spring) DialVM(ctx context.Context, vm string, _ int) (job.Tunnel, error) {
	return s.stream(ctx, vm), nil
}

func (s *spring) stream(ctx context.Context, of string) *flow {
	ctx, end := context.WithCancel(ctx)
	return &flow{s: s, of: of, ended: ctx.Done(), end: end}
}

// flow is a file, or a connection that takes nothing.
type flow struct {
	s     *spring
	of    string
	ended <-chan struct{}
	end   context.CancelFunc
}

func (e *flow) Read(p []byte) (int, error) {
	select {
	case <-e.ended:
		return 0, errors.New("closed")
	default:
	}
	e.s.take(e.of, len(p))
	clear(p)
	return len(p), nil
}

func (e *flow) Write([]byte) (int, error) {
	<-e.ended
	return 0, errors.New("closed")
}

func (e *flow) CloseWrite() error { return nil }

func (e *flow) Close() error {
	e.end()
	return nil
}

// A client that does not read what it has asked for is not read ahead for, whatever there
// is: memory is bounded. Others are served meanwhile, and nothing is left when it goes.
func TestStreams_OfAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	const (
		deaf  = 10       // clients of each stream that read nothing
		ample = 64 << 20 // bytes that the one that reads gets
		bound = 16 << 20 // bytes that may be on their way: the kernel's buffers, and a message
	)
	e := &spring{taken: map[string]int64{}, more: make(chan struct{})}
	s := httptest.NewServer(control.API(e, control.APIOptions{Version: "v1"}))
	transport := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return conn, err
	}}
	client := &http.Client{Transport: transport}
	get := func(ctx context.Context, path string) (io.ReadCloser, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+control.APIPrefix+path, nil)
		if err != nil {
			return nil, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return nil, err
		}
		return resp.Body, nil
	}
	connect := func(ctx context.Context, path string) (io.ReadCloser, error) {
		ws, _, err := websocket.Dial(ctx, s.URL+control.APIPrefix+path, &websocket.DialOptions{HTTPClient: client})
		if err != nil {
			return nil, err
		}
		ws.SetReadLimit(1 << 20)
		return &messages{ctx: ctx, ws: ws}, nil
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	within, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	streams := []struct {
		name string
		open func(ctx context.Context, path string) (io.ReadCloser, error)
		path func(of string) string
	}{
		{"terminal", connect, func(of string) string { return "/v1/jobs/" + of + "/terminal" }},
		{"artifact", get, func(of string) string { return "/v1/jobs/" + of + "/artifacts/x" }},
		{"port", connect, func(of string) string { return "/v1/vms/" + of + "/ports/80" }},
	}
	for _, stream := range streams {
		of := "deaf-" + stream.name
		for range deaf {
			body, err := stream.open(ctx, stream.path(of))
			if err != nil {
				t.Fatal(err)
			}
			defer body.Close() //nolint:errcheck // never read
		}
		for n, more := e.count(of); n < deaf<<16; n, more = e.count(of) { // they have begun
			select {
			case <-more:
			case <-within.Done():
				t.Fatalf("%s: %d bytes were taken", stream.name, n)
			}
		}
	}
	for _, stream := range streams {
		body, err := stream.open(within, stream.path("reader-"+stream.name))
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.CopyN(io.Discard, body, ample); err != nil {
			t.Errorf("%s: who reads gets %d bytes, %v", stream.name, n, err)
		}
		_ = body.Close()
		if n, _ := e.count("deaf-" + stream.name); n > deaf*bound {
			t.Errorf("%s: %d bytes were taken for %d clients that read nothing", stream.name, n, deaf)
		}
	}

	leave()
	transport.CloseIdleConnections()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.Close() // waits for the requests' handlers
	}()
	select {
	case <-closed:
	case <-within.Done():
		t.Fatal("what served the clients that have left goes on")
	}
}

// messages is what comes on a WebSocket, one message after another.
type messages struct {
	ctx     context.Context //nolint:containedctx // of the connection
	ws      *websocket.Conn
	message io.Reader
}

func (m *messages) Read(p []byte) (n int, err error) {
	for {
		if m.message == nil {
			if _, m.message, err = m.ws.Reader(m.ctx); err != nil {
				return 0, err
			}
		}
		if n, err = m.message.Read(p); errors.Is(err, io.EOF) {
			m.message, err = nil, nil
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

func (m *messages) Close() error { return m.ws.CloseNow() }

// pipes is a listener of connections in memory.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}
func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// A body that stops arriving ends its connection: nobody waits for the rest.
func TestAPI_EndsBodiesThatStall(t *testing.T) {
	for name, head := range map[string]string{
		"in memory": "POST /api/v1/jobs",
		"streamed":  "PUT /api/v1/vms/dev/tree?path=/tmp",
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := make(pipes)
				server := &http.Server{Handler: control.API(&drain{}, control.APIOptions{}), ReadHeaderTimeout: time.Minute}
				go func() { _ = server.Serve(listener) }()
				near, far := net.Pipe()
				listener <- far
				if _, err := io.WriteString(near, head+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"); err != nil {
					t.Fatal(err)
				}
				_ = near.SetReadDeadline(time.Now().Add(2 * time.Minute))
				if _, err := io.ReadAll(near); err != nil {
					t.Errorf("after two minutes: %v", err)
				}
				close(listener)
				_ = errors.Join(near.Close(), server.Close())
				synctest.Wait()
			})
		})
	}
}

// drain is an engine that reads what it is sent.
type drain struct{ engine }

func (*drain) WriteTree(_ context.Context, _ job.FileRef, archive io.Reader) error {
	_, err := io.Copy(io.Discard, archive)
	return err
}
