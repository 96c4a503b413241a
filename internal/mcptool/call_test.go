package mcptool

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/vm"
)

// heard gathers a client's notifications of one method.
type heard struct {
	mu  sync.Mutex
	all []map[string]any
}

func listen(c *client.Client, method string) *heard {
	h := &heard{}
	c.OnNotification(func(n mcp.JSONRPCNotification) {
		if n.Method == method {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.all = append(h.all, n.Params.AdditionalFields)
		}
	})
	return h
}

func (h *heard) list() []map[string]any {
	h.mu.Lock()
	defer h.mu.Unlock()
	return append([]map[string]any(nil), h.all...)
}

// await waits until n notifications have come.
func (h *heard) await(t *testing.T, n int) []map[string]any {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if all := h.list(); len(all) >= n {
			return all
		}
	}
	t.Fatalf("heard %v, want %d", h.list(), n)
	return nil
}

func TestGetJobResult_WaitsForTheEndAndReportsTheSteps(t *testing.T) {
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			e := &engine{job: job.Job{ID: knownID, Status: job.Provisioning, Phase: "provision", Progress: "1"}}
			c := connect(t, e)
			progress := listen(c, "notifications/progress")
			answer := make(chan *mcp.CallToolResult, 1)
			go func() {
				var req mcp.CallToolRequest
				req.Params.Name, req.Params.Arguments = "get_job_result", map[string]any{"job_id": knownID, "wait_seconds": 30}
				req.Params.Meta = &mcp.Meta{ProgressToken: "p1"}
				r, err := c.CallTool(t.Context(), req)
				if err != nil {
					t.Error(err)
				}
				answer <- r
			}()
			progress.await(t, 1)
			e.change(func() { e.job.Progress = "12" })
			progress.await(t, 2)
			if r := callTool(t, c, "get_job_status", map[string]any{"job_id": knownID}); r.IsError {
				t.Errorf("another call meanwhile: %s", text(r))
			}
			e.change(func() { e.job.Status, e.job.Phase, e.job.Progress = job.Running, "run", "123" })
			progress.await(t, 3)
			e.change(func() {
				e.job.Status, e.job.Phase = job.Success, "collect"
				e.result = job.Result{JobID: knownID, Status: job.Success, Stdout: []byte("done")}
			})
			if r := <-answer; r == nil || r.IsError || !strings.Contains(text(r), `"output":"done"`) {
				t.Fatalf("answer %v", r)
			}
			all := progress.list() // the last one is on its way before the result
			if len(all) != 4 {
				t.Fatalf("heard %v", all)
			}
			last := 0.0
			for i, want := range []string{"provision: 1", "provision: 12", "run: 123", "collect: 123"} {
				value, _ := all[i]["progress"].(float64)
				if all[i]["progressToken"] != "p1" || all[i]["message"] != want || value <= last || all[i]["total"] != 6.0 {
					t.Errorf("progress %d is %v, after %v", i, all[i], last)
				}
				last = value
			}
		})
	}
}

// heldUp is an engine whose fault holds a job up, which is no event.
type heldUp struct{ *engine }

func (h heldUp) Watch(ctx context.Context, id string, _ int64) ([]job.Event, job.Job, error) {
	j, err := h.Job(ctx, id)
	j.Progress = "waiting: this engine cannot continue it"
	return nil, j, err
}

func TestWait_ReportsWhatHoldsTheJobUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := transports["in process"](t, heldUp{&engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run"}}})
		defer c.Close()
		progress := listen(c, "notifications/progress")
		var req mcp.CallToolRequest
		req.Params.Name, req.Params.Arguments = "get_job_status", map[string]any{"job_id": knownID, "wait_seconds": 1}
		req.Params.Meta = &mcp.Meta{ProgressToken: "p1"}
		if _, err := c.CallTool(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if all := progress.list(); len(all) != 1 || all[0]["message"] != "run: waiting: this engine cannot continue it" {
			t.Errorf("heard %v", all)
		}
	})
}

func TestWait_EndsWithItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run"}}
		c := transports["in process"](t, e)
		defer c.Close()
		progress := listen(c, "notifications/progress")
		began := time.Now()
		r := callTool(t, c, "get_job_status", map[string]any{"job_id": knownID, "wait_seconds": 1})
		if took := time.Since(began); r.IsError || took < time.Second || took > 3*time.Second || !strings.Contains(text(r), `"status":"running"`) {
			t.Errorf("after %s: %s", took, text(r))
		}
		if r = callTool(t, c, "get_job_result", map[string]any{"job_id": knownID, "wait_seconds": 1}); !r.IsError || !strings.Contains(text(r), "Job not complete. Status: running") {
			t.Errorf("result before the end: %s", text(r))
		}
		if all := progress.list(); len(all) > 0 {
			t.Errorf("a caller without a token heard %v", all)
		}
	})
}

func TestProvisionVM_ReturnsTheStatusWhenItTakesLong(t *testing.T) {
	v := &vm.VM{ID: 105, Name: "dev", IP: "10.0.0.9", User: "debian"}
	tests := []struct {
		name string
		job  job.Job
		want []string
		bad  bool
	}{
		{"ready", job.Job{ID: knownID, Status: job.Success, VM: v}, []string{`"vm_id":"105"`, `"status":"running"`, `"ip":"10.0.0.9"`, `"ssh":"ssh debian@10.0.0.9"`}, false},
		{"being made", job.Job{ID: knownID, Status: job.Provisioning, Progress: "3/9 clone", VM: &vm.VM{Name: "dev"}}, []string{`"status":"provisioning"`, "provisioning, 3/9 clone. That continues; call get_vm", `"job_id":"` + knownID}, false},
		{"waiting", job.Job{ID: knownID, Status: job.Pending, Manifest: job.Manifest{VMName: "dev"}}, []string{`"name":"dev"`, "pending. That continues"}, false},
		{"failed", job.Job{ID: knownID, Status: job.Failed, Outcome: &job.Outcome{Reason: job.ReasonProvisionFailed, Error: "no space; free some"}}, []string{"could not be created", "provision_failed", "no space; free some"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := &engine{job: tt.job}
			c := transports["in process"](t, e)
			r := callTool(t, c, "provision_vm", map[string]any{"name": "dev", "os": "ubuntu-24.04", "cpu": 4, "memory": "8G", "disk": "50G", "ttl": 3600, "wait_seconds": 0})
			for _, want := range tt.want {
				if r.IsError != tt.bad || !strings.Contains(text(r), want) {
					t.Errorf("error %v, %s; want %s", r.IsError, text(r), want)
				}
			}
			if s := e.submitted[0]; s.Manifest.Task != "" || s.Client != "mcp:a-client-1" || s.Manifest.VMName != "dev" || s.Manifest.OS != "ubuntu-24.04" ||
				s.Manifest.TTL != 3600 || s.Manifest.Resources != (vm.Resources{CPU: 4, Memory: "8G", Disk: "50G"}) || s.Manifest.Lifecycle != vm.Persistent {
				t.Errorf("submitted %+v", s)
			}
		})
	}
}

func TestExecuteCommand_IsAJobWithOpenStdin(t *testing.T) {
	e := &engine{}
	c := transports["HTTP"](t, e)
	args := map[string]any{"command": "make -j", "vm_id": "dev", "cwd": "/srv", "env": map[string]any{"A": "b"}, "timeout": 9, "sudo": true, "tty": true}
	if r := callTool(t, c, "execute_command", args); r.IsError {
		t.Fatal(text(r))
	}
	if r := callTool(t, c, "execute_command", map[string]any{"command": "true", "os": "debian", "persistent": true}); r.IsError {
		t.Fatal(text(r))
	}
	if r := callTool(t, c, "execute_command", map[string]any{"command": "true", "network": map[string]any{"egress": "allow", "allow": []any{"*.npmjs.org"}}}); r.IsError {
		t.Fatal(text(r))
	}
	m := e.submitted[0].Manifest
	if m.Task != "make -j" || m.AgentType != job.AgentScript || m.Stdin != job.StdinOpen || m.StatusMode != job.StatusStreaming || m.VM != "dev" ||
		m.Cwd != "/srv" || m.Env["A"] != "b" || m.Timeout != 9 || !m.Sudo || !m.TTY || m.Lifecycle != "" {
		t.Errorf("submitted %+v", m)
	}
	if m := e.submitted[1].Manifest; m.OS != "debian" || m.Lifecycle != vm.Persistent || !m.Network.IsZero() {
		t.Errorf("submitted %+v", m)
	}
	if n := e.submitted[2].Manifest.Network; n.Egress != vm.EgressAllow || !slices.Equal(n.Allow, []string{"*.npmjs.org"}) {
		t.Errorf("network %+v", n)
	}
}

func TestInteractWithJob_ReturnsTheOutputSinceTheInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &engine{out: ">>> ", job: job.Job{Status: job.Running}}
		e.onInput = func(input string) {
			time.AfterFunc(30*time.Millisecond, func() { e.change(func() { e.out += "2\n" }) })
			time.AfterFunc(60*time.Millisecond, func() { e.change(func() { e.out += ">>> " }) })
		}
		c := transports["in process"](t, e)
		defer c.Close()
		began := time.Now()
		r := callTool(t, c, "interact_with_job", map[string]any{"job_id": knownID, "input": "1+1\n", "wait_ms": 10000})
		if took := time.Since(began); took > 2*time.Second || !strings.Contains(text(r), `"stdout":"2\n>>> "`) || !strings.Contains(text(r), `"stdout_next":10`) {
			t.Errorf("after %s: %s", took, text(r))
		}
		e.onInput = nil
		began = time.Now()
		r = callTool(t, c, "interact_with_job", map[string]any{"job_id": knownID, "input": "import time; time.sleep(9)\n", "wait_ms": 200})
		if took := time.Since(began); r.IsError || took < 200*time.Millisecond || !strings.Contains(text(r), `"stdout":""`) {
			t.Errorf("after %s: %s", took, text(r))
		}
	})
}

// user returns a client's questions.
type user struct {
	action mcp.ElicitationResponseAction
	yes    bool
	asked  []string
}

func (u *user) Elicit(_ context.Context, r mcp.ElicitationRequest) (*mcp.ElicitationResult, error) {
	u.asked = append(u.asked, r.Params.Message)
	return &mcp.ElicitationResult{ElicitationResponse: mcp.ElicitationResponse{Action: u.action, Content: map[string]any{"confirm": u.yes}}}, nil
}

func TestDestroyVM_AsksTheUserWhereTheClientCan(t *testing.T) {
	tests := []struct {
		name string
		user user
		want string // of the error; empty: it is done
	}{
		{"agreed", user{action: mcp.ElicitationResponseActionAccept, yes: true}, ""},
		{"form sent without agreeing", user{action: mcp.ElicitationResponseActionAccept}, "the user did not agree; nothing was done"},
		{"declined", user{action: mcp.ElicitationResponseActionDecline, yes: true}, "the user did not agree; nothing was done"},
		{"closed", user{action: mcp.ElicitationResponseActionCancel}, "the user did not agree; nothing was done"},
	}
	for _, tt := range tests {
		for _, era := range []string{"", mcp.ProtocolVersion20251125} {
			for way, connect := range map[string]func(*testing.T, job.Engine, ...client.ClientOption) *client.Client{"stdio": overStdio, "HTTP": overHTTP} {
				t.Run(strings.Join([]string{tt.name, way, era}, " "), func(t *testing.T) {
					e := &engine{vm: job.VMInfo{VM: vm.VM{ID: 105, Name: "dev"}}}
					u := tt.user
					options := []client.ClientOption{client.WithElicitationHandler(&u)}
					if era != "" {
						options = append(options, client.WithProtocolVersion(era))
					}
					r := callTool(t, begin(t, connect(t, e, options...), nil), "destroy_vm", map[string]any{"vm_id": "dev"})
					if len(u.asked) != 1 || u.asked[0] != "Destroy VM 105 (dev) and its disk?" {
						t.Errorf("the user was asked %q", u.asked)
					}
					if done := len(e.calls) == 1; r.IsError != (tt.want != "") || !strings.Contains(text(r), tt.want) || done != (tt.want == "") {
						t.Errorf("error %v %s, engine did %q", r.IsError, text(r), e.calls)
					}
				})
			}
		}
	}
}

func TestBackground_WorkThatTakesLongGoesOn(t *testing.T) {
	o := options(nil)
	b := newBackground(o.Log)
	release, finished := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	ended, err := b.within(ctx, 10*time.Millisecond, func(ctx context.Context) error {
		<-release
		finished <- ctx.Err()
		return nil
	})
	if ended || err != nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	cancel() // the call's end is not the work's
	close(release)
	if err := <-finished; err != nil {
		t.Errorf("the work was broken off: %v", err)
	}
	if ended, err := b.within(t.Context(), time.Minute, func(context.Context) error { return job.ErrNotFound }); !ended || err == nil {
		t.Errorf("ended %v, %v", ended, err)
	}
	_, _ = b.within(t.Context(), time.Millisecond, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	b.close() // ends what still runs, and waits for it
}

func TestClientName_IsBoundedAndOfPlainCharacters(t *testing.T) {
	for name, want := range map[string]string{
		"claude-code": "mcp:claude-code", "a b\n/c": "mcp:a-b-c", strings.Repeat("x", 100): "mcp:" + strings.Repeat("x", 64), "": "mcp",
	} {
		e := &engine{}
		c := overHTTP(t, e)
		var hello mcp.InitializeRequest
		hello.Params.ClientInfo = mcp.Implementation{Name: name, Version: "1"}
		if err := c.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Initialize(t.Context(), hello); err != nil {
			t.Fatal(err)
		}
		callTool(t, c, "submit_job", manifest(nil))
		if len(e.submitted) != 1 || e.submitted[0].Client != want {
			t.Errorf("client %q is %+v, want %q", name, e.submitted, want)
		}
	}
}
