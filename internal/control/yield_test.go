package control_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/control"
	"linus/internal/job"
)

// background runs a server for e as one started in the background.
func background(t *testing.T, dir string, e job.Engine, o control.Options) *control.Server {
	t.Helper()
	l, err := control.Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, l, e, o)
}

func connect(t *testing.T, dir string) *control.Conn {
	t.Helper()
	c, err := control.Connect(t.Context(), control.Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestYield_EndsAnEngineThatNobodyElseNeeds(t *testing.T) {
	for _, tt := range []struct {
		name             string
		background, idle bool
		other, want      bool // another client is connected; the engine ends
	}{
		{name: "nobody needs it", background: true, idle: true, want: true},
		{name: "it has work", background: true},
		{name: "another client is connected", background: true, idle: true, other: true},
		{name: "it is in the foreground", idle: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var stopped atomic.Int64
			dir := t.TempDir()
			background(t, dir, newEngine(&engine{}), control.Options{
				Info: control.Info{Background: tt.background}, Stop: func() { stopped.Add(1) },
				Idle: func(context.Context) bool { return tt.idle },
			})
			if tt.other {
				dial(t, dir)
			}
			ends, err := connect(t, dir).Yield(t.Context())
			if err != nil || ends != tt.want || (stopped.Load() == 1) != tt.want {
				t.Errorf("Yield() = %v, %v, and it was told %d times to stop", ends, err, stopped.Load())
			}
			late, err := control.Connect(t.Context(), control.Socket(dir))
			if errors.Is(err, control.ErrNoEngine) != tt.want {
				t.Errorf("a client that comes now gets %v", err)
			}
			if err == nil {
				late.Close()
			}
		})
	}
}

func TestRetire_IsForAnEngineWithoutClients(t *testing.T) {
	dir := t.TempDir()
	s := background(t, dir, newEngine(&engine{}), control.Options{Idle: func(context.Context) bool { return true }})
	c := connect(t, dir)
	if s.Retire(t.Context()) {
		t.Error("an engine with a client retires")
	}
	c.Close()
	for deadline := time.Now().Add(time.Minute); s.Clients() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the client is still counted")
		}
	}
	if !s.Retire(t.Context()) {
		t.Error("an engine without clients does not retire")
	}
	if _, err := control.Connect(t.Context(), control.Socket(dir)); !errors.Is(err, control.ErrNoEngine) {
		t.Errorf("a client that comes then gets %v", err)
	}
}

// Two clients that start at once with settings that were corrected do not keep the
// engine for each other.
func TestYield_WhoAsksTheSameIsNoClient(t *testing.T) {
	var idle atomic.Bool
	dir := t.TempDir()
	background(t, dir, newEngine(&engine{}), control.Options{
		Info: control.Info{Background: true}, Stop: func() {},
		Idle: func(context.Context) bool { return idle.Load() },
	})
	first, second := connect(t, dir), connect(t, dir)
	if ends, err := first.Yield(t.Context()); ends || err != nil {
		t.Fatalf("Yield() = %v, %v of an engine with work", ends, err)
	}
	idle.Store(true)
	if ends, err := second.Yield(t.Context()); !ends || err != nil {
		t.Errorf("Yield() = %v, %v", ends, err)
	}
	if _, err := first.Yield(t.Context()); !errors.Is(err, control.ErrNoEngine) {
		t.Errorf("the other gets %v", err)
	}
}

// Of a job submitted while the engine is asked to make room either nothing is
// done, or it is there and the engine stays.
func TestYield_NeverTakesAJobWithIt(t *testing.T) {
	for range 100 {
		e := newEngine(&engine{})
		dir := t.TempDir()
		s := background(t, dir, e, control.Options{
			Info: control.Info{Background: true}, Stop: func() {},
			Idle: func(context.Context) bool { return len(e.log()) == 0 },
		})
		asker := connect(t, dir)
		var ends bool
		var yieldErr, submitErr error
		var both sync.WaitGroup
		both.Go(func() { ends, yieldErr = asker.Yield(t.Context()) })
		both.Go(func() {
			c, err := control.Dial(t.Context(), control.Socket(dir))
			if submitErr = err; err == nil {
				_, submitErr = c.Submit(t.Context(), job.Submission{})
				c.Close()
			}
		})
		both.Wait()
		done := slices.Contains(e.log(), "Submit")
		if yieldErr != nil || ends && done || done != (submitErr == nil) {
			t.Fatalf("the engine ends: %v, %v; the job is there: %v, and its client got %v", ends, yieldErr, done, submitErr)
		}
		if !done && !errors.Is(submitErr, control.ErrNoEngine) {
			t.Fatalf("the client got %v, want ErrNoEngine", submitErr)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// A client whose engine has gone does not go on with whatever engine has the
// socket by then: its dialer looks at that first.
func TestClient_CallsForAnEngineThatHasGoneAreNotAnothers(t *testing.T) {
	dir := t.TempDir()
	old := serve(t, dir, newEngine(&engine{}), func() {})
	dialled := 0
	c, err := control.NewClient(t.Context(), func(ctx context.Context) (*control.Conn, error) {
		if dialled++; dialled > 1 {
			return nil, errors.New("the engine has other settings")
		}
		return control.Connect(ctx, control.Socket(dir))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if err := old.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := newEngine(&engine{})
	serve(t, dir, next, func() {})
	if _, err := c.Submit(t.Context(), job.Submission{}); err == nil || err.Error() != "the engine has other settings" || len(next.log()) > 0 {
		t.Errorf("Submit = %v, and the other engine did %v", err, next.log())
	}
}

// counted counts the connections that a listener takes.
type counted struct {
	net.Listener
	n atomic.Int64
}

func (c *counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.n.Add(1)
	}
	return conn, err
}

// A client keeps its connection, however long the answers are: without one the
// engine would think that it has gone.
func TestClient_KeepsItsConnection(t *testing.T) {
	e := newEngine(&engine{page: job.Page{Jobs: []job.Summary{{Task: strings.Repeat("x", 100<<10)}}}})
	dir := t.TempDir()
	l, err := control.Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	at := &counted{Listener: l}
	start(t, at, e, control.Options{Info: control.Info{Version: strings.Repeat("x", 100<<10)}})
	c := dial(t, dir)
	for range 3 {
		if _, err := c.List(t.Context(), job.Filter{}); err != nil {
			t.Fatal(err)
		}
	}
	if at.n.Load() != 1 {
		t.Errorf("%d connections for one client's calls", at.n.Load())
	}
}
