package control_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/leaktest"
	"linus/internal/verbtest"
	"linus/internal/view"
	"linus/internal/vm"
)

// engine answers every call, with what the test put in or, of most verbs, with something.
type engine struct {
	job.Engine // through call

	err     error
	job     job.Job
	page    job.Page
	events  []job.Event
	wait    chan struct{} // Watch answers events once this is closed
	treeErr error         // at the end of ReadTree's archive

	cut    bool // each call breaks its connection instead of being answered
	mu     sync.Mutex
	calls  []string // the methods called
	in     any      // of the last
	client string   // who made it
}

func newEngine(e *engine) *engine {
	e.Engine = job.Through(e.call)
	return e
}

func (e *engine) called(ctx context.Context, name string, in any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls, e.in, e.client = append(e.calls, name), in, job.ClientFrom(ctx)
	if e.cut {
		panic(http.ErrAbortHandler)
	}
}

func (e *engine) log() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func (e *engine) wasCalled(name string) bool { return slices.Contains(e.log(), name) }

func (e *engine) call(ctx context.Context, v *job.Verb, in any) (any, error) {
	e.called(ctx, v.Name, in)
	switch v.Name {
	case "Submit", "Job":
		return e.job, e.err
	case "List":
		return e.page, e.err
	case "ReadTree":
		return io.NopCloser(io.MultiReader(strings.NewReader("archive"), iotest.ErrReader(cmp.Or(e.treeErr, io.EOF)))), e.err
	case "DialVM", "LoginVM":
		return echo(), e.err
	}
	return verbtest.Full(v.Out, "out"), e.err
}

func (e *engine) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	e.called(ctx, "OpenArtifact", nil)
	return io.NopCloser(strings.NewReader(id + "\x00" + path)), job.Artifact{Path: path, Size: int64(len(id+path) + 1)}, e.err
}

func (e *engine) WriteTree(ctx context.Context, f job.FileRef, archive io.Reader) error {
	data, err := io.ReadAll(archive)
	e.called(ctx, "WriteTree", []any{f, string(data)})
	return errors.Join(err, e.err)
}

func (e *engine) Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	e.called(ctx, "Watch", []any{id, after})
	if e.err != nil {
		return nil, job.Job{}, e.err
	}
	select {
	case <-e.wait:
		return e.events, e.job, nil
	case <-ctx.Done():
		return nil, e.job, nil
	}
}

// echo is a connection that sends back what it gets.
func echo() job.Tunnel {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	return &oneWay{Conn: near}
}

// oneWay is a connection whose other side sees the end of what was written only once.
type oneWay struct{ net.Conn }

func (o *oneWay) CloseWrite() error { return o.Close() }

// serve runs a server for e on a socket in dir until the test ends.
func serve(t *testing.T, dir string, e job.Engine, stop func()) *control.Server {
	t.Helper()
	l, err := control.Listen(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return start(t, l, e, control.Options{Info: control.Info{Version: "v1", PID: 7, Settings: map[string]string{"PROXMOX_HOST": "pve"}}, Stop: stop})
}

// start is serve with a listener and options of the test's.
func start(t *testing.T, l net.Listener, e job.Engine, o control.Options) *control.Server {
	t.Helper()
	o.Log = slog.New(slog.DiscardHandler)
	s := control.NewServer(e, o)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := errors.Join(s.Close(ctx), <-served); err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, dir string) *control.Client {
	t.Helper()
	c, err := control.Dial(t.Context(), control.Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestMain(m *testing.M) { leaktest.Main(m) }

// What is given to a verb arrives, and its result comes back, whatever is in them.
func TestClient_CarriesEveryCall(t *testing.T) {
	full := func(of any) any { return verbtest.Full(reflect.TypeOf(of), "out") }
	e := newEngine(&engine{job: full(job.Job{}).(job.Job), page: full(job.Page{}).(job.Page), events: full([]job.Event{}).([]job.Event), wait: make(chan struct{})})
	close(e.wait)
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c, ctx := dial(t, dir), t.Context()
	all := gocmp.Exporter(func(reflect.Type) bool { return true })
	for _, v := range job.Verbs() {
		switch v.Name {
		case "Watch", "OpenArtifact", "ReadTree", "WriteTree", "DialVM", "LoginVM":
			continue
		}
		in := verbtest.Full(v.In, "a b/%2F?&ü#\n\x01")
		switch full := in.(type) {
		case job.Submission: // whose client is the one that calls
			full.Client, full.Wait = "cli", 0
			in = full
		case job.PoolEdit:
			full.Match = "" // of HTTP alone
			in = full
		}
		got, err := v.Do(ctx, c, in)
		if diff := gocmp.Diff(in, e.in, all); diff != "" || !e.wasCalled(v.Name) {
			t.Errorf("%s (-given +arrived):\n%s", v.Name, diff)
		}
		check(t, v.Name, inJSON(t, got), inJSON(t, verbtest.Full(v.Out, "out")), err)
	}
	_, err := c.List(ctx, job.Filter{})
	check(t, "List without a filter", e.in, any(job.Filter{}), err)
	events, j, err := c.Watch(ctx, "j1", 3)
	check(t, "Watch", inJSON(t, job.WatchedJob{Events: events, Job: j}), inJSON(t, job.WatchedJob{Events: e.events, Job: e.job}), err)
	check(t, "Watch's input", e.in, any([]any{"j1", int64(3)}), nil)
	file, about, err := c.OpenArtifact(ctx, "j1", "a b/%2F?ü#")
	check(t, "OpenArtifact", about, job.Artifact{Path: "a b/%2F?ü#", Size: 14}, err)
	data, err := io.ReadAll(file)
	check(t, "artifact", string(data), "j1\x00a b/%2F?ü#", errors.Join(err, file.Close()))
}

func inJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.MarshalIndent(view.Of(v), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func check[T any](t *testing.T, what string, got, want T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestClient_WhoAsksArrives(t *testing.T) {
	e := newEngine(&engine{})
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c := dial(t, dir)
	for _, tt := range []struct {
		name string
		ctx  context.Context
		want string
	}{
		{"a client of ours", job.WithClient(t.Context(), "mcp:claude-code"), "mcp:claude-code"},
		{"the command line, which says nothing", t.Context(), "cli"},
	} {
		if _, err := c.StopVM(tt.ctx, "dev"); err != nil || e.client != tt.want {
			t.Errorf("%s: %q asked, %v; want %q", tt.name, e.client, err, tt.want)
		}
	}
}

func TestClient_ErrorsArriveAsWhatTheyWere(t *testing.T) {
	invalid := &job.InvalidError{Fields: []*job.FieldError{{Field: "manifest.task", Problem: "is required", Remedy: "give it"}}}
	cursor := &job.FieldError{Field: "cursor", Problem: "is not one", Remedy: "leave it out"}
	host := &job.HostError{Op: "create VM", Host: "pve", Class: job.HostOffline, Text: "down", Remedy: "start it"}
	narrowed := &job.NarrowedError{What: "VMs", Toolsets: []string{"vm"}, Has: []string{"jobs"}}
	for _, tt := range []struct {
		name string
		err  error
		is   func(error) bool
	}{
		{"not found", job.ErrNotFound, func(err error) bool { return errors.Is(err, job.ErrNotFound) }},
		{"completed", job.ErrCompleted, func(err error) bool { return errors.Is(err, job.ErrCompleted) }},
		{"not complete", &job.NotCompleteError{Status: job.Running}, func(err error) bool {
			var e *job.NotCompleteError
			return errors.As(err, &e) && e.Status == job.Running
		}},
		{"invalid", invalid, func(err error) bool {
			var e *job.InvalidError
			return errors.As(err, &e) && gocmp.Equal(e, invalid)
		}},
		{"field", cursor, func(err error) bool {
			var e *job.FieldError
			return errors.As(err, &e) && gocmp.Equal(e, cursor)
		}},
		{"host", host, func(err error) bool {
			var e *job.HostError
			return errors.As(err, &e) && gocmp.Equal(e, host)
		}},
		{"narrowed", narrowed, func(err error) bool {
			var e *job.NarrowedError
			return errors.As(err, &e) && gocmp.Equal(e, narrowed) && errors.Is(err, job.ErrNotAllowed)
		}},
		{"its own fault", &job.OwnFault{Err: errors.New("database or disk is full")}, func(err error) bool {
			return job.IsEngineFault(err) && strings.Contains(err.Error(), "the engine cannot do this at the moment, try again: database or disk is full")
		}},
		{"other", errors.New("disk full"), func(err error) bool { return strings.Contains(err.Error(), "disk full") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			serve(t, dir, newEngine(&engine{err: tt.err}), func() {})
			c := dial(t, dir)
			_, _, watchErr := c.Watch(t.Context(), "j", 0)
			_, submitErr := c.Submit(t.Context(), job.Submission{})
			for _, err := range []error{watchErr, submitErr, c.Cancel(t.Context(), "j")} {
				if err == nil || !tt.is(err) {
					t.Errorf("arrived as %#v", err)
				}
			}
		})
	}
}

func TestWatch_WaitsForNewsAndEndsWithItsContext(t *testing.T) {
	e := newEngine(&engine{wait: make(chan struct{}), events: []job.Event{{Seq: 1}}, job: job.Job{ID: "j"}})
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c := dial(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if events, _, err := c.Watch(ctx, "j", 0); err != nil || len(events) != 0 {
		t.Errorf("Watch = %v, %v when nothing happens; want nothing", events, err)
	}
	time.AfterFunc(20*time.Millisecond, func() { close(e.wait) })
	if events, _, err := c.Watch(t.Context(), "j", 0); err != nil || len(events) != 1 {
		t.Errorf("Watch = %v, %v; want the event", events, err)
	}
}

// An answer without events is whoever watches's, too: the job says what holds it up.
func TestWatch_TellsWhatHoldsTheJobUp(t *testing.T) {
	e := newEngine(&engine{wait: make(chan struct{}), job: job.Job{ID: "j", Status: job.Running, Progress: "waiting: too many open files"}})
	close(e.wait)
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if events, j, err := dial(t, dir).Watch(ctx, "j", 7); err != nil || ctx.Err() != nil || len(events) != 0 || j.Progress != e.job.Progress {
		t.Errorf("%v, %+v, %v, %v", events, j, err, ctx.Err())
	}
}

func TestWatch_OnlyTheEndIsBeforeTheJobIsDone(t *testing.T) {
	e := newEngine(&engine{wait: make(chan struct{}), job: job.Job{ID: "j", Status: job.Success, VM: &vm.VM{ID: 100, State: vm.Created}}})
	close(e.wait)
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, j, err := dial(t, dir).Watch(ctx, "j", job.OnlyEnd); err != nil || ctx.Err() != nil || j.Done() || j.Status != job.Success {
		t.Errorf("%+v, %v, %v", j, err, ctx.Err())
	}
}

func TestWatch_EndsWithTheEngine(t *testing.T) {
	dir := t.TempDir()
	e := newEngine(&engine{wait: make(chan struct{})})
	s := serve(t, dir, e, func() {})
	c := dial(t, dir)
	watching := make(chan error, 1)
	go func() {
		_, _, err := c.Watch(context.Background(), "j", 0)
		watching <- err
	}()
	for deadline := time.Now().Add(time.Minute); !e.wasCalled("Watch"); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("Watch does not reach the engine")
		}
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-watching; !errors.Is(err, control.ErrStopped) && !errors.Is(err, control.ErrNoEngine) {
		t.Errorf("Watch = %v, want ErrStopped", err)
	}
}

func TestServer_CountsClientsUntilTheyClose(t *testing.T) {
	dir := t.TempDir()
	s := serve(t, dir, newEngine(&engine{}), func() {})
	c := dial(t, dir)
	if s.Clients() != 1 {
		t.Errorf("%d clients, want 1", s.Clients())
	}
	c.Close()
	for deadline := time.Now().Add(time.Minute); s.Clients() != 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%d clients after Close, want 0", s.Clients())
		}
		time.Sleep(time.Millisecond)
	}
}

func TestConn_StopReachesTheEngine(t *testing.T) {
	var stopped atomic.Bool
	dir := t.TempDir()
	serve(t, dir, newEngine(&engine{}), func() { stopped.Store(true) })
	c, err := control.Connect(t.Context(), control.Socket(dir))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Stop(t.Context()); err != nil || !stopped.Load() {
		t.Errorf("Stop() = %v, reached the engine: %v", err, stopped.Load())
	}
}

func TestDial_NoEngine(t *testing.T) {
	dir := t.TempDir()
	if _, err := control.Dial(t.Context(), control.Socket(dir)); !errors.Is(err, control.ErrNoEngine) {
		t.Errorf("Dial = %v, want ErrNoEngine", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "engine.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := control.Dial(t.Context(), control.Socket(dir)); !errors.Is(err, control.ErrNoEngine) {
		t.Errorf("Dial of a dead socket = %v, want ErrNoEngine", err)
	}
}

func TestListen_PathTooLongForASocket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	serve(t, dir, newEngine(&engine{}), func() {})
	dial(t, dir)
	info, err := os.Stat(control.Socket(dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v; want mode 0600", info, err)
	}
}
