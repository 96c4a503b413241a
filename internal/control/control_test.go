package control_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/control"
	"linus/internal/job"
	"linus/internal/leaktest"
)

// engine returns every call with what the test put in.
type engine struct {
	err    error
	job    job.Job
	result job.Result
	page   job.Page
	report job.HostReport
	events []job.Event
	wait   chan struct{} // Watch answers events once this is closed

	submission job.Submission
	input      string
	filter     job.Filter
	client     string // who asked for StopVM
	treeErr    error  // at the end of ReadTree's archive

	cut   bool // each call breaks its connection instead of being answered
	mu    sync.Mutex
	calls []string // the methods called
}

func (e *engine) called(name string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls = append(e.calls, name)
	if e.cut {
		panic(http.ErrAbortHandler)
	}
}

func (e *engine) log() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.calls)
}

func (e *engine) wasCalled(name string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Contains(e.calls, name)
}

func (e *engine) Submit(_ context.Context, s job.Submission) (job.Job, error) {
	e.called("Submit")
	e.submission = s
	return e.job, e.err
}

func (e *engine) Plan(_ context.Context, s job.Submission) ([]string, error) {
	e.called("Plan")
	e.submission = s
	return []string{"qm create"}, e.err
}

func (e *engine) Kill(_ context.Context, id, signal string) (job.Killed, error) {
	e.called("Kill")
	return job.Killed(id + " " + signal), e.err
}

func (e *engine) Cleanup(_ context.Context, age time.Duration) (int, error) {
	e.called("Cleanup")
	return int(age / time.Hour), e.err
}

func (e *engine) Output(_ context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	e.called("Output")
	return job.Chunk{Data: []byte(id + "\xff" + stream), Offset: offset, Next: limit}, e.err
}

func (e *engine) Input(_ context.Context, id string, data []byte, closed bool) error {
	e.called("Input")
	e.input = fmt.Sprintf("%s %v %v", id, data, closed) //nolint:staticcheck // the bytes, not text
	return e.err
}

func (e *engine) Resize(_ context.Context, id string, rows, columns int) error {
	e.called("Resize")
	e.input = fmt.Sprint(id, " ", rows, "x", columns)
	return e.err
}

func (e *engine) OpenArtifact(_ context.Context, id, path string) (io.ReadCloser, job.Artifact, error) {
	e.called("OpenArtifact")
	return io.NopCloser(strings.NewReader(id + "\x00" + path)), job.Artifact{Path: path, Size: int64(len(id+path) + 1)}, e.err
}

func (e *engine) VMs(context.Context) ([]job.VMInfo, error) {
	e.called("VMs")
	return []job.VMInfo{e.vm("list")}, e.err
}
func (e *engine) VM(_ context.Context, ref string) (job.VMInfo, error) {
	e.called("VM")
	return e.vm(ref), e.err
}
func (e *engine) StartVM(_ context.Context, ref string) (job.VMInfo, error) {
	e.called("StartVM")
	return e.vm("start " + ref), e.err
}

func (e *engine) StopVM(ctx context.Context, ref string) (job.VMInfo, error) {
	e.called("StopVM")
	e.client = job.ClientFrom(ctx)
	return e.vm("stop " + ref), e.err
}

func (e *engine) DestroyVM(_ context.Context, ref string) (job.VMInfo, error) {
	e.called("DestroyVM")
	return e.vm("destroy " + ref), e.err
}

func (e *engine) ForgetVM(_ context.Context, ref string) (job.VMInfo, error) {
	e.called("ForgetVM")
	return e.vm("forget " + ref), e.err
}

func (e *engine) SuspendVM(_ context.Context, ref string) (job.VMInfo, error) {
	e.called("SuspendVM")
	return e.vm("suspend " + ref), e.err
}

func (e *engine) ResumeVM(_ context.Context, ref string) (job.VMInfo, error) {
	e.called("ResumeVM")
	return e.vm("resume " + ref), e.err
}

func (e *engine) SnapshotVM(_ context.Context, ref, name string, memory bool) (job.VMInfo, error) {
	e.called("SnapshotVM")
	return e.vm(fmt.Sprint("snapshot ", ref, " ", name, " ", memory)), e.err
}

func (e *engine) RevertVM(_ context.Context, ref, name string) (job.VMInfo, error) {
	e.called("RevertVM")
	return e.vm("revert " + ref + " " + name), e.err
}

func (e *engine) Network(_ context.Context, q job.NetworkQuery) (job.NetworkReport, error) {
	e.called("Network")
	return job.NetworkReport{Name: q.VM, Attempts: []job.NetworkAttempt{{Target: fmt.Sprint(q.Targets)}}}, e.err
}

func (e *engine) DialVM(context.Context, string, int) (job.Tunnel, error) {
	e.called("DialVM")
	if e.err != nil {
		return nil, e.err
	}
	near, far := net.Pipe()
	go func() { // sends back what it gets
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	return &oneWay{Conn: near}, nil
}

// oneWay is a connection whose other side sees the end of what was written only once.
type oneWay struct{ net.Conn }

func (o *oneWay) CloseWrite() error { return o.Close() }

func (e *engine) vm(asked string) job.VMInfo {
	return job.VMInfo{VM: job.VM{ID: 7, Name: asked, Status: job.VMRunning}, Jobs: []string{"j1"}}
}
func (e *engine) Job(context.Context, string) (job.Job, error) {
	e.called("Job")
	return e.job, e.err
}
func (e *engine) Manifest(context.Context, string) (job.Manifest, error) {
	e.called("Manifest")
	return e.job.Manifest, e.err
}
func (e *engine) Activity(_ context.Context, principal string) (job.Activity, error) {
	e.called("Activity")
	return job.Activity{Hours: []job.Hour{{From: time.Unix(1700000000, 0).UTC(), Failed: len(principal), MedianWait: time.Second}}, Cut: true}, e.err
}
func (e *engine) Result(context.Context, string) (job.Result, error) {
	e.called("Result")
	return e.result, e.err
}
func (e *engine) Cancel(context.Context, string) error {
	e.called("Cancel")
	return e.err
}
func (e *engine) Engines(context.Context) ([]job.EngineInfo, error) {
	e.called("Engines")
	return []job.EngineInfo{{ID: "e1", Jobs: 2, Self: true}}, e.err
}
func (e *engine) Tokens(context.Context) ([]job.Token, error) {
	e.called("Tokens")
	return []job.Token{{ID: "t1"}}, e.err
}
func (e *engine) CreateToken(_ context.Context, s job.TokenSpec) (job.NewToken, error) {
	e.called("CreateToken")
	return job.NewToken{Token: job.Token{ID: "t1", TokenSpec: s}, Secret: "linus_x"}, e.err
}
func (e *engine) RevokeToken(_ context.Context, ref string) ([]job.Token, error) {
	e.called("RevokeToken")
	return []job.Token{{ID: ref}}, e.err
}
func (e *engine) CheckHost(context.Context) (job.HostReport, error) {
	e.called("CheckHost")
	return e.report, e.err
}
func (e *engine) pool(call, what string) (job.PoolInfo, error) {
	e.called(call)
	return job.PoolInfo{Pool: job.Pool{Name: what}, State: "ready"}, e.err
}
func (e *engine) Pools(context.Context) ([]job.PoolInfo, error) {
	p, err := e.pool("Pools", "list")
	return []job.PoolInfo{p}, err
}
func (e *engine) Pool(_ context.Context, name string) (job.PoolInfo, error) {
	return e.pool("Pool", name)
}
func (e *engine) CreatePool(_ context.Context, p job.Pool) (job.PoolInfo, error) {
	return e.pool("CreatePool", fmt.Sprint("create ", p.Name, " ", p.Warm))
}
func (e *engine) ResizePool(_ context.Context, name string, s job.PoolSize) (job.PoolInfo, error) {
	return e.pool("ResizePool", fmt.Sprint("resize ", name, " ", s.Warm, " ", s.Hibernated))
}
func (e *engine) RemovePool(_ context.Context, name string) (job.PoolInfo, error) {
	return e.pool("RemovePool", "remove "+name)
}
func (e *engine) node(call, what string) (job.NodeInfo, error) {
	e.called(call)
	return job.NodeInfo{Name: what}, e.err
}
func (e *engine) Nodes(context.Context) ([]job.NodeInfo, error) {
	n, err := e.node("Nodes", "list")
	return []job.NodeInfo{n}, err
}
func (e *engine) CordonNode(_ context.Context, name string) (job.NodeInfo, error) {
	return e.node("CordonNode", "cordon "+name)
}
func (e *engine) UncordonNode(_ context.Context, name string) (job.NodeInfo, error) {
	return e.node("UncordonNode", "uncordon "+name)
}
func (e *engine) List(_ context.Context, f job.Filter) (job.Page, error) {
	e.called("List")
	e.filter = f
	return e.page, e.err
}

func (e *engine) Watch(ctx context.Context, _ string, _ int64) ([]job.Event, job.Job, error) {
	e.called("Watch")
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

func TestClient_CarriesEveryCall(t *testing.T) {
	code := 3
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	e := &engine{
		job: job.Job{
			ID: "j1", Status: job.Running, Phase: "run", CreatedAt: at, VM: &job.VM{ID: 101, IP: "10.0.0.2"},
			Outcome: &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, At: at},
		},
		result: job.Result{JobID: "j1", Status: job.Failed, ExitCode: &code, Stdout: []byte("a\xff\x00b"), Stderr: []byte{}, Duration: time.Second},
		page:   job.Page{Jobs: []job.Summary{{ID: "j1", Status: job.Running, Task: "true", CreatedAt: at}}, Next: "n"},
		report: job.HostReport{Host: "pve", OK: true, Checks: []job.Check{{Name: "storage", Level: "ok", Text: "fine"}}},
		events: []job.Event{{Seq: 4, JobID: "j1", Kind: job.EventStatus, Text: "running", At: at}},
		wait:   make(chan struct{}),
	}
	close(e.wait)
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c := dial(t, dir)
	ctx := t.Context()

	m := job.Manifest{Task: "echo \x01 ü", AgentType: job.AgentScript, Env: map[string]string{"A": "b\n"}, Timeout: 9}
	s := job.Submission{Manifest: m, Kind: job.KindTask, IdempotencyKey: "key", Client: "cli"}
	got, err := c.Submit(ctx, s)
	check(t, "Submit", got, e.job, err)
	check(t, "submission", e.submission, s, nil)
	plan, err := c.Plan(ctx, job.Submission{Kind: job.KindVM})
	check(t, "Plan", plan, []string{"qm create"}, err)
	check(t, "plan's submission", e.submission, job.Submission{Kind: job.KindVM}, nil)
	killed, err := c.Kill(ctx, "j1", "INT")
	check(t, "Kill", killed, "j1 INT", err)
	count, err := c.Cleanup(ctx, 5*time.Hour)
	check(t, "Cleanup", count, 5, err)
	chunk, err := c.Output(ctx, "j1", "stderr", -3, 9)
	check(t, "Output", chunk, job.Chunk{Data: []byte("j1\xffstderr"), Offset: -3, Next: 9}, err)
	check(t, "Input", struct{}{}, struct{}{}, c.Input(ctx, "j1", []byte("\x00\xff"), true))
	check(t, "input", e.input, "j1 [0 255] true", nil)
	check(t, "Resize", struct{}{}, struct{}{}, c.Resize(ctx, "j1", 50, 132))
	check(t, "size", e.input, "j1 50x132", nil)
	file, about, err := c.OpenArtifact(ctx, "j1", "a b/%2F?ü#")
	check(t, "OpenArtifact", about, job.Artifact{Path: "a b/%2F?ü#", Size: 14}, err)
	data, err := io.ReadAll(file)
	check(t, "artifact", string(data), "j1\x00a b/%2F?ü#", errors.Join(err, file.Close()))
	vms, err := c.VMs(ctx)
	check(t, "VMs", vms, []job.VMInfo{e.vm("list")}, err)
	for want, f := range map[string]func() (job.VMInfo, error){
		"a/b":         func() (job.VMInfo, error) { return c.VM(ctx, "a/b") },
		"start dev":   func() (job.VMInfo, error) { return c.StartVM(ctx, "dev") },
		"stop dev":    func() (job.VMInfo, error) { return c.StopVM(ctx, "dev") },
		"destroy dev": func() (job.VMInfo, error) { return c.DestroyVM(ctx, "dev") },
		"forget dev":  func() (job.VMInfo, error) { return c.ForgetVM(ctx, "dev") },
		"revert d a":  func() (job.VMInfo, error) { return c.RevertVM(ctx, "d", "a") },
		"suspend dev": func() (job.VMInfo, error) { return c.SuspendVM(ctx, "dev") },
		"resume dev":  func() (job.VMInfo, error) { return c.ResumeVM(ctx, "dev") },

		"snapshot d &a true": func() (job.VMInfo, error) { return c.SnapshotVM(ctx, "d", "&a", true) },
		"snapshot d b false": func() (job.VMInfo, error) { return c.SnapshotVM(ctx, "d", "b", false) },
	} {
		vm, err := f()
		check(t, want, vm, e.vm(want), err)
	}
	pools, err := c.Pools(ctx)
	check(t, "Pools", pools, []job.PoolInfo{{Pool: job.Pool{Name: "list"}, State: "ready"}}, err)
	for want, f := range map[string]func() (job.PoolInfo, error){
		"a/b": func() (job.PoolInfo, error) { return c.Pool(ctx, "a/b") },
		"create dev 3": func() (job.PoolInfo, error) {
			return c.CreatePool(ctx, job.Pool{Name: "dev", PoolSize: job.PoolSize{Warm: 3}})
		},
		"resize dev 2 1": func() (job.PoolInfo, error) { return c.ResizePool(ctx, "dev", job.PoolSize{Warm: 2, Hibernated: 1}) },
		"remove dev":     func() (job.PoolInfo, error) { return c.RemovePool(ctx, "dev") },
	} {
		p, err := f()
		check(t, want, p, job.PoolInfo{Pool: job.Pool{Name: want}, State: "ready"}, err)
	}
	spec := job.TokenSpec{Name: "alice", Role: job.RoleRun, Limits: job.Limits{Jobs: 2}, TTL: 60}
	created, err := c.CreateToken(ctx, spec)
	check(t, "CreateToken", created, job.NewToken{Token: job.Token{ID: "t1", TokenSpec: spec}, Secret: "linus_x"}, err)
	revoked, err := c.RevokeToken(ctx, "a@b/c")
	check(t, "RevokeToken", revoked, []job.Token{{ID: "a@b/c"}}, err)
	tokens, err := c.Tokens(ctx)
	check(t, "Tokens", tokens, []job.Token{{ID: "t1"}}, err)
	nodes, err := c.Nodes(ctx)
	check(t, "Nodes", nodes, []job.NodeInfo{{Name: "list"}}, err)
	node, err := c.CordonNode(ctx, "a/b")
	check(t, "CordonNode", node, job.NodeInfo{Name: "cordon a/b"}, err)
	node, err = c.UncordonNode(ctx, "pve2")
	check(t, "UncordonNode", node, job.NodeInfo{Name: "uncordon pve2"}, err)
	gotJob, err := c.Job(ctx, "j1")
	check(t, "Job", gotJob, e.job, err)
	gotManifest, err := c.Manifest(ctx, "j1")
	check(t, "Manifest", gotManifest, e.job.Manifest, err)
	gotResult, err := c.Result(ctx, "j1")
	check(t, "Result", gotResult, e.result, err)
	filter := job.Filter{
		Status: job.Failed, Reason: job.ReasonLost, Client: "mcp:a b", Text: "100% _&?\n", Since: time.Unix(1700000000, 5).UTC(), Before: time.Unix(1700000001, 0).UTC(),
		Limit: 7, Cursor: "a&b", Principal: "alice",
	}
	gotPage, err := c.List(ctx, filter)
	check(t, "List", gotPage, e.page, err)
	check(t, "filter", e.filter, filter, nil)
	gotPage, err = c.List(ctx, job.Filter{})
	check(t, "List", gotPage, e.page, err)
	check(t, "filter", e.filter, job.Filter{}, nil)
	gotActivity, err := c.Activity(ctx, "alice")
	check(t, "Activity", gotActivity, job.Activity{Hours: []job.Hour{{From: time.Unix(1700000000, 0).UTC(), Failed: 5, MedianWait: time.Second}}, Cut: true}, err)
	gotReport, err := c.CheckHost(ctx)
	check(t, "CheckHost", gotReport, e.report, err)
	gotEngines, err := c.Engines(ctx)
	check(t, "Engines", gotEngines, []job.EngineInfo{{ID: "e1", Jobs: 2, Self: true}}, err)
	gotEvents, watchedJob, err := c.Watch(ctx, "j1", 3)
	check(t, "Watch", gotEvents, e.events, err)
	check(t, "Watch's job", watchedJob, e.job, nil)
	check(t, "Cancel", struct{}{}, struct{}{}, c.Cancel(ctx, "j1"))
}

func check[T any](t *testing.T, what string, got, want T, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v", what, err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestClient_WhoAsksArrives(t *testing.T) {
	e := &engine{}
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
			return errors.As(err, &e) && cmp.Equal(e, invalid)
		}},
		{"field", cursor, func(err error) bool {
			var e *job.FieldError
			return errors.As(err, &e) && cmp.Equal(e, cursor)
		}},
		{"host", host, func(err error) bool {
			var e *job.HostError
			return errors.As(err, &e) && cmp.Equal(e, host)
		}},
		{"narrowed", narrowed, func(err error) bool {
			var e *job.NarrowedError
			return errors.As(err, &e) && cmp.Equal(e, narrowed) && errors.Is(err, job.ErrNotAllowed)
		}},
		{"its own fault", &job.OwnFault{Err: errors.New("database or disk is full")}, func(err error) bool {
			return job.Own(err) && strings.Contains(err.Error(), "the engine cannot do this at the moment, try again: database or disk is full")
		}},
		{"other", errors.New("disk full"), func(err error) bool { return strings.Contains(err.Error(), "disk full") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			serve(t, dir, &engine{err: tt.err}, func() {})
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
	e := &engine{wait: make(chan struct{}), events: []job.Event{{Seq: 1}}, job: job.Job{ID: "j"}}
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

func TestWatch_OnlyTheEndIsBeforeTheJobIsDone(t *testing.T) {
	e := &engine{wait: make(chan struct{}), job: job.Job{ID: "j", Status: job.Success, VM: &job.VM{ID: 100, State: job.VMCreated}}}
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
	e := &engine{wait: make(chan struct{})}
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
	s := serve(t, dir, &engine{}, func() {})
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
	serve(t, dir, &engine{}, func() { stopped.Store(true) })
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
	serve(t, dir, &engine{}, func() {})
	dial(t, dir)
	info, err := os.Stat(control.Socket(dir))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket %v, %v; want mode 0600", info, err)
	}
}
