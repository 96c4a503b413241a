package control_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"linus/internal/control"
	"linus/internal/job"
)

// tty is an engine with one job: a terminal that shows what is typed.
type tty struct {
	engine

	mu      sync.Mutex
	job     job.Job
	screen  []byte
	gone    int // bytes of screen that are not kept
	sizes   []string
	signals []string
	fail    error         // of Input, once
	seq     int64         // of the last change
	changed chan struct{} // closed at the next
}

func newTTY() *tty {
	return &tty{changed: make(chan struct{}), job: job.Job{ID: "j1", Status: job.Running, Manifest: job.Manifest{TTY: true, Stdin: job.StdinOpen}}}
}

// change changes the job and tells who watches it.
func (e *tty) change(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
	e.seq++
	close(e.changed)
	e.changed = make(chan struct{})
}

func (e *tty) Job(_ context.Context, id string) (job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id != "j1" {
		return job.Job{}, job.ErrNotFound
	}
	return e.job, nil
}

func (e *tty) Watch(ctx context.Context, _ string, after int64) ([]job.Event, job.Job, error) {
	for {
		e.mu.Lock()
		changed, seq, j := e.changed, e.seq, e.job
		e.mu.Unlock()
		if seq > after {
			return []job.Event{{Seq: seq}}, j, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, j, nil
		}
	}
}

func (e *tty) Output(_ context.Context, _, stream string, offset, limit int64) (job.Chunk, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if stream != job.Stdout {
		return job.Chunk{}, errors.New("a terminal has one stream")
	}
	all := int64(len(e.screen))
	if offset < 0 {
		offset = max(0, all+offset)
	}
	from := min(max(offset, int64(e.gone)), all)
	to := min(from+limit, all)
	return job.Chunk{Data: bytes.Clone(e.screen[from:to]), Offset: from, Next: to, Dropped: from - offset, Complete: e.job.Status.Terminal() && to == all}, nil
}

func (e *tty) Input(_ context.Context, _ string, data []byte, closed bool) error {
	var err error
	e.change(func() {
		if err, e.fail = e.fail, nil; err != nil {
			return
		}
		if e.job.Status.Terminal() {
			err = job.ErrCompleted
			return
		}
		e.screen = append(e.screen, data...)
		e.job.Stdin.Bytes += int64(len(data))
		if closed {
			e.job.Status = job.Success
		}
	})
	return err
}

func (e *tty) Resize(_ context.Context, _ string, rows, columns int) error {
	e.change(func() { e.sizes = append(e.sizes, fmt.Sprint(rows, "x", columns)) })
	return nil
}

func (e *tty) Kill(_ context.Context, _, signal string) (job.Killed, error) {
	if signal != "INT" {
		return "", &job.FieldError{Field: "signal", Problem: "is unknown"}
	}
	e.change(func() { e.signals = append(e.signals, signal) })
	return job.KilledNow, nil
}

// until reads the terminal until what it has shown satisfies enough.
func until(t *testing.T, term *control.Terminal, shown *bytes.Buffer, enough func(control.TerminalState) bool) control.TerminalState {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		data, state, err := term.Read(ctx)
		if err != nil {
			t.Fatalf("%v; shown: %.200q", err, shown)
		}
		shown.Write(data)
		if enough(state) {
			return state
		}
	}
}

func shows(shown *bytes.Buffer, text string) func(control.TerminalState) bool {
	return func(control.TerminalState) bool { return strings.HasSuffix(shown.String(), text) }
}

func done(s control.TerminalState) bool { return s.Done }

func TestTerminal_IsATerminal(t *testing.T) {
	for _, over := range []string{"socket", "API"} {
		t.Run(over, func(t *testing.T) {
			e := newTTY()
			var c *control.Client
			if over == "API" {
				_, r := serveAPI(t, e)
				c = dialRemote(t, r)
			} else {
				dir := t.TempDir()
				serve(t, dir, e, func() {})
				c = dial(t, dir)
			}
			e.job.Status, e.screen = job.Pending, []byte("before ")
			term, err := c.Terminal(t.Context(), "j1", -3)
			if err != nil {
				t.Fatal(err)
			}
			defer term.Close()
			refused := make(chan string, 1)
			term.OnRefused = func(reason string) { refused <- reason }
			if _, err := term.Write([]byte("typed")); err != nil {
				t.Fatal(err)
			}
			term.Resize(50, 132)
			e.change(func() { e.job.Status = job.Provisioning })
			var shown bytes.Buffer
			until(t, term, &shown, func(s control.TerminalState) bool { return s.Status == job.Provisioning })
			if shown.Len() > 0 || len(e.sizes) > 0 || e.job.Stdin.Bytes > 0 {
				t.Error("something reached a task that does not run")
			}
			e.change(func() { e.job.Status = job.Running })
			until(t, term, &shown, shows(&shown, "re typed"))
			term.CloseInput()
			state := until(t, term, &shown, done)
			if state.Status != job.Success || shown.String() != "re typed" || len(e.sizes) != 1 || e.sizes[0] != "50x132" {
				t.Errorf("%+v, %q, sizes %v", state, &shown, e.sizes)
			}
			if len(refused) > 0 {
				t.Errorf("refused: %s", <-refused)
			}
		})
	}
}

// What is cut is taken up where it was: nothing is shown twice, or typed twice, or lost.
func TestTerminal_SurvivesItsConnection(t *testing.T) {
	e := newTTY()
	s, r := serveAPI(t, e)
	p := newProxy(t, s.Listener.Addr().String())
	r.URL = "https://" + p.addr
	c := dialRemote(t, r)
	term, err := c.Terminal(t.Context(), "j1", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	typed := make([]byte, 300_000)
	for i := range typed {
		typed[i] = byte(rand.IntN(256)) //nolint:gosec // any bytes
	}
	go func() {
		for rest := typed; len(rest) > 0; {
			n := min(len(rest), 1+rand.IntN(3000)) //nolint:gosec // any size
			if _, err := term.Write(rest[:n]); err != nil {
				return
			}
			rest = rest[n:]
		}
		term.CloseInput()
	}()
	var shown bytes.Buffer
	cut := 0
	until(t, term, &shown, func(s control.TerminalState) bool {
		if shown.Len() > (cut+1)*60_000 {
			cut++
			p.cut()
			if cut == 2 {
				e.mu.Lock()
				e.fail = errors.New("the host cannot be reached")
				e.mu.Unlock()
			}
		}
		return s.Done
	})
	if sha256.Sum256(shown.Bytes()) != sha256.Sum256(typed) || cut < 3 {
		t.Errorf("%d bytes shown, %d typed, %d cuts", shown.Len(), len(typed), cut)
	}
}

// Output that is not kept is left out, and counted.
func TestTerminal_TellsWhatIsNotKept(t *testing.T) {
	e := newTTY()
	e.screen, e.gone, e.job.Status = []byte("0123456789"), 7, job.Failed
	_, r := serveAPI(t, e)
	term, err := dialRemote(t, r).Terminal(t.Context(), "j1", 2)
	if err != nil {
		t.Fatal(err)
	}
	defer term.Close()
	var shown bytes.Buffer
	var jumped int64
	state := until(t, term, &shown, func(s control.TerminalState) bool {
		if s.Offset == 7 && shown.Len() == 0 {
			jumped = s.Offset
		}
		return s.Done
	})
	if shown.String() != "789" || jumped != 7 || state.Status != job.Failed || state.Offset != 10 {
		t.Errorf("%q, jumped to %d, %+v", &shown, jumped, state)
	}
}

func TestTerminal_Refuses(t *testing.T) {
	e := newTTY()
	s, r := serveAPI(t, e)
	c := dialRemote(t, r)
	if _, err := c.Terminal(t.Context(), "j2", 0); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("no job: %v", err)
	}
	if code, body := ask(t, s, "GET", "/api/v1/jobs/j1/terminal", "", nil); code != http.StatusUpgradeRequired || !strings.Contains(body, "WebSocket") {
		t.Errorf("no WebSocket: %d %s", code, body)
	}
	open := func(change func(http.Header)) (*websocket.Conn, error) {
		h := http.Header{"Authorization": {bearer}}
		if change != nil {
			change(h)
		}
		ws, resp, err := websocket.Dial(t.Context(), s.URL+"/api/v1/jobs/j1/terminal", &websocket.DialOptions{HTTPClient: s.Client(), HTTPHeader: h})
		if err != nil && resp != nil {
			err = fmt.Errorf("%d: %w", resp.StatusCode, err)
		}
		return ws, err
	}
	if _, err := open(func(h http.Header) { h.Set("Origin", "https://evil.example") }); err == nil || !strings.HasPrefix(err.Error(), "403") {
		t.Errorf("another site's page: %v", err)
	}
	if _, err := open(func(h http.Header) { h.Del("Authorization") }); err == nil || !strings.HasPrefix(err.Error(), "401") {
		t.Errorf("no token: %v", err)
	}
	tests := []struct {
		name string
		kind websocket.MessageType
		data string
		says string // the error told; empty: the connection ends
	}{
		{"no JSON", websocket.MessageText, "resize", "not a request"},
		{"an unknown request", websocket.MessageText, `{"reboot":true}`, "reboot"},
		{"an unknown signal", websocket.MessageText, `{"signal":"STOP"}`, "is unknown"},
		{"a huge message", websocket.MessageBinary, strings.Repeat("x", 1<<20), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ws, err := open(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer ws.CloseNow() //nolint:errcheck // it may be closed
			_ = ws.Write(t.Context(), tt.kind, []byte(tt.data))
			var said string
			for {
				_, data, err := ws.Read(t.Context())
				if err != nil {
					break
				}
				said += string(data)
				if tt.says != "" && strings.Contains(said, tt.says) {
					return
				}
			}
			if tt.says != "" {
				t.Errorf("the connection ends after %s", said)
			}
		})
	}
	if len(e.screen) > 0 {
		t.Errorf("the task got %d bytes", len(e.screen))
	}
}

// A request whose context ends, as with its token, has no terminal any more.
func TestTerminal_EndsWithItsRequest(t *testing.T) {
	e := newTTY()
	revoked, revoke := context.WithCancel(t.Context())
	api := control.API(e, control.APIOptions{})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(revoked, cancel)()
		api.ServeHTTP(w, r.WithContext(ctx))
	}))
	defer s.Close()
	ws, _, err := websocket.Dial(t.Context(), s.URL+"/api/v1/jobs/j1/terminal", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow() //nolint:errcheck // it is closed
	if _, _, err := ws.Read(t.Context()); err != nil {
		t.Fatal(err)
	}
	revoke()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, _, err := ws.Read(ctx); websocket.CloseStatus(err) != websocket.StatusGoingAway {
		t.Errorf("the terminal goes on: %v", err)
	}
}
