package mcptool

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"

	"linus/internal/job"
	"linus/internal/mcptask"
	"linus/internal/vm"
)

// request returns a message of the newer protocol, of a client with these extensions.
func request(id int, method string, params map[string]any, extensions ...string) string {
	declared := map[string]any{}
	for _, name := range extensions {
		declared[name] = map[string]any{}
	}
	all := map[string]any{"_meta": map[string]any{
		mcp.MetaKeyProtocolVersion: mcp.ProtocolVersion20260728, mcp.MetaKeyClientCapabilities: map[string]any{"extensions": declared},
		"io.modelcontextprotocol/clientInfo": map[string]any{"name": "t", "version": "1"},
	}}
	for name, value := range params {
		all[name] = value
	}
	data, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": all})
	if err != nil {
		panic(err) // it is a test's
	}
	return string(data)
}

// raw are ways to send a message and get the answer's result, or its error.
var raw = map[string]func(t *testing.T, o Options) func(message string) map[string]any{
	"HTTP": func(t *testing.T, o Options) func(string) map[string]any {
		t.Helper()
		h := NewHTTP(o)
		s := httptest.NewServer(h)
		t.Cleanup(func() {
			s.CloseClientConnections()
			if err := h.Close(context.Background()); err != nil {
				t.Error(err)
			}
			s.Close()
		})
		return func(message string) map[string]any {
			t.Helper()
			var q struct {
				Method string
				Params struct{ Name, TaskID string }
			}
			if err := json.Unmarshal([]byte(message), &q); err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL, strings.NewReader(message))
			if err != nil {
				t.Fatal(err)
			}
			for name, value := range map[string]string{
				"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
				mcp.HeaderProtocolVersion: mcp.ProtocolVersion20260728, mcp.HeaderMethod: q.Method, mcp.HeaderName: q.Params.Name + q.Params.TaskID,
			} {
				req.Header.Set(name, value)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() //nolint:errcheck // only read
			data, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			return answered(t, data)
		}
	},
	"stdio": func(t *testing.T, o Options) func(string) map[string]any {
		t.Helper()
		toServer, fromClient := io.Pipe()
		toClient, fromServer := io.Pipe()
		served := make(chan error, 1)
		go func() { served <- NewStdio(o).Serve(context.Background(), toServer, fromServer) }()
		t.Cleanup(func() {
			_ = fromClient.Close()
			if err := <-served; err != nil {
				t.Error(err)
			}
		})
		lines := bufio.NewScanner(toClient)
		return func(message string) map[string]any {
			t.Helper()
			if _, err := io.WriteString(fromClient, message+"\n"); err != nil || !lines.Scan() {
				t.Fatal(err, lines.Err())
			}
			return answered(t, lines.Bytes())
		}
	},
}

func answered(t *testing.T, data []byte) map[string]any {
	t.Helper()
	var m struct{ Result, Error map[string]any }
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
	if m.Error != nil {
		return m.Error
	}
	delete(m.Result, "_meta")
	return m.Result
}

var (
	submission = map[string]any{"name": "submit_job", "arguments": map[string]any{"manifest": map[string]any{"task": "true", "agentType": "script"}}}
	ofKnown    = map[string]any{"taskId": knownID}
)

func TestTasks_AJobIsOne(t *testing.T) {
	for way, connect := range raw {
		t.Run(way, func(t *testing.T) {
			code := 3
			e := &engine{job: job.Job{ID: knownID, Kind: job.KindTask, Status: job.Running, Phase: "run", Progress: "4 s", CreatedAt: at, StartedAt: at.Add(time.Second)}}
			o := options(e)
			o.Retention = time.Hour
			ask := connect(t, o)
			begun := ask(request(1, "tools/call", submission, mcptask.Extension))
			if begun["resultType"] != "task" || begun["taskId"] != knownID || begun["status"] != "working" || begun["content"] != nil {
				t.Fatalf("submit_job returns %v", begun)
			}
			want := map[string]any{
				"resultType": "complete", "taskId": knownID, "status": "working", "statusMessage": "running, 4 s", "ttlMs": nil, "pollIntervalMs": 10000.0,
				"createdAt": "2026-03-04T05:06:07Z", "lastUpdatedAt": "2026-03-04T05:06:08Z",
			}
			if diff := cmp.Diff(want, ask(request(2, "tasks/get", ofKnown, mcptask.Extension))); diff != "" {
				t.Errorf("a running job is (-want +got):\n%s", diff)
			}
			if got := ask(request(3, "tasks/update", map[string]any{"taskId": knownID, "inputResponses": map[string]any{}}, mcptask.Extension)); got["resultType"] != "complete" {
				t.Errorf("an update returns %v", got)
			}
			e.change(func() {
				e.out = "hi\n"
				e.job.Status, e.job.CompletedAt = job.Failed, at.Add(time.Minute)
				e.job.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: "exit status 3"}
			})
			got := ask(request(4, "tasks/get", ofKnown, mcptask.Extension))
			result, _ := got["result"].(map[string]any)
			if got["status"] != "completed" || got["statusMessage"] != "failed: exit status 3" || got["ttlMs"] != 3_660_000.0 || result["resultType"] != "complete" {
				t.Errorf("a job that has ended is %v", got)
			}
			arguments := map[string]any{"manifest": submission["arguments"].(map[string]any)["manifest"], "wait_seconds": 1}
			waited := ask(request(5, "tools/call", map[string]any{"name": "submit_job", "arguments": arguments}))
			if diff := cmp.Diff(waited["structuredContent"], result["structuredContent"]); diff != "" || result["structuredContent"] == nil {
				t.Errorf("its result is not that of the call that waits (-waited +task):\n%s", diff)
			}
			e.change(func() { e.job.Outcome.Reason = job.ReasonCancelled })
			if got := ask(request(6, "tasks/cancel", ofKnown, mcptask.Extension)); got["resultType"] != "complete" {
				t.Errorf("cancelling returns %v", got)
			}
			if got := ask(request(7, "tasks/get", ofKnown, mcptask.Extension)); got["status"] != "cancelled" || got["result"] != nil {
				t.Errorf("a cancelled job is %v", got)
			}
			if got := ask(request(8, "tasks/get", map[string]any{"taskId": "other"}, mcptask.Extension)); got["code"] != -32602.0 || got["message"] != "Task not found" {
				t.Errorf("what does not exist is %v", got)
			}
		})
	}
}

// Where clients get no tools that end anything, they end no task either.
func TestTasks_AreEndedByThoseWhoMay(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Kind: job.KindTask, Status: job.Running, CreatedAt: at}}
	o := options(e)
	o.DisableDestructive = true
	ask := raw["stdio"](t, o)
	if got := ask(request(1, "tasks/cancel", ofKnown, mcptask.Extension)); !strings.Contains(fmt.Sprint(got["message"]), "MCP_DISABLE_DESTRUCTIVE") {
		t.Errorf("cancelling returns %v", got)
	}
	if got := ask(request(2, "tasks/cancel", map[string]any{"taskId": "other"}, mcptask.Extension)); got["message"] != "Task not found" {
		t.Errorf("cancelling what is not there returns %v", got)
	}
	if got := ask(request(3, "tasks/get", ofKnown, mcptask.Extension)); got["status"] != "working" {
		t.Errorf("then it is %v", got)
	}
}

func TestTasks_WhoGetsOne(t *testing.T) {
	manifest := submission["arguments"].(map[string]any)["manifest"]
	tests := []struct {
		name       string
		tool       string
		arguments  map[string]any
		extensions []string
		task       bool
	}{
		{"a client without them", "submit_job", map[string]any{"manifest": manifest}, nil, false},
		{"a client with another extension", "submit_job", map[string]any{"manifest": manifest}, []string{"io.modelcontextprotocol/ui"}, false},
		{"one that would wait", "submit_job", map[string]any{"manifest": manifest, "wait_seconds": 5}, []string{mcptask.Extension}, true},
		{"one that wants the ID", "submit_job", map[string]any{"manifest": manifest, "wait_seconds": 0}, []string{mcptask.Extension}, false},
		{"a command", "execute_command", map[string]any{"command": "true"}, []string{mcptask.Extension}, true},
		{"a VM", "provision_vm", map[string]any{"name": "dev"}, []string{mcptask.Extension}, true},
		{"the plan of a VM", "provision_vm", map[string]any{"name": "dev", "dry_run": true}, []string{mcptask.Extension}, false},
		{"a short call", "get_job_status", map[string]any{"job_id": knownID}, []string{mcptask.Extension}, false},
		{"a mistake", "execute_command", map[string]any{}, []string{mcptask.Extension}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ask := raw["stdio"](t, options(&engine{job: job.Job{ID: knownID, Status: job.Running}}))
			got := ask(request(1, "tools/call", map[string]any{"name": tt.tool, "arguments": tt.arguments}, tt.extensions...))
			if is := got["resultType"] == "task" && got["taskId"] == knownID; is != tt.task || is == (got["content"] != nil) {
				t.Errorf("%v, want a task: %v", got, tt.task)
			}
		})
	}
}

func TestTasks_AVMThatIsAskedForIsOne(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Kind: job.KindMake, Status: job.Success, VM: &vm.VM{ID: 105, Name: "dev", IP: "10.0.0.9", User: "debian"}, Outcome: &job.Outcome{Status: job.Success}}}
	ask := raw["stdio"](t, options(e))
	got := ask(request(1, "tasks/get", ofKnown, mcptask.Extension))
	result, _ := got["result"].(map[string]any)
	if content, _ := result["structuredContent"].(map[string]any); got["status"] != "completed" || content["ssh"] != "ssh debian@10.0.0.9" {
		t.Errorf("a VM that is ready is %v", got)
	}
	e.change(func() {
		e.job.Status, e.job.Outcome = job.Failed, &job.Outcome{Status: job.Failed, Reason: job.ReasonProvisionFailed, Error: "no space; free some"}
	})
	got = ask(request(2, "tasks/get", ofKnown, mcptask.Extension))
	result, _ = got["result"].(map[string]any)
	if got["status"] != "completed" || result["isError"] != true || !strings.Contains(fmt.Sprint(result["content"]), "no space; free some") {
		t.Errorf("one that could not be created is %v", got)
	}
}

func TestTasks_ListeningTellsOfTheJob(t *testing.T) {
	e := &engine{job: job.Job{ID: knownID, Kind: job.KindTask, Status: job.Running}}
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served := make(chan error, 1)
	go func() { served <- NewStdio(options(e)).Serve(context.Background(), toServer, fromServer) }()
	defer func() {
		_ = fromClient.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	lines := bufio.NewScanner(toClient)
	next := func(wants ...string) {
		t.Helper()
		if !lines.Scan() {
			t.Fatal(lines.Err())
		}
		for _, want := range wants {
			if !strings.Contains(lines.Text(), want) {
				t.Fatalf("heard %s, want %s", lines.Text(), want)
			}
		}
	}
	filter := map[string]any{"taskIds": []string{knownID, "other"}, "resourceSubscriptions": []string{resourcePrefix + knownID + "/output"}}
	if _, err := io.WriteString(fromClient, request(1, "subscriptions/listen", map[string]any{"notifications": filter}, mcptask.Extension)+"\n"); err != nil {
		t.Fatal(err)
	}
	next("acknowledged", `"taskIds":["`+knownID+`"]`, `"resourceSubscriptions":["linus://jobs/`)
	next("notifications/tasks", `"status":"working"`)
	next("notifications/resources/updated")
	e.change(func() {
		e.job.Status, e.job.Outcome = job.Success, &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus}
	})
	heard := map[bool]bool{}
	for len(heard) < 2 { // in either order
		next()
		heard[strings.Contains(lines.Text(), `"status":"completed"`)] = true
	}
	if _, err := io.WriteString(fromClient, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`+"\n"); err != nil {
		t.Fatal(err)
	}
	for !strings.Contains(lines.Text(), `"id":1`) {
		next()
	}
}

// A server that begins nothing offers no tasks, and older clients are not offered any.
func TestTasks_WhoIsOfferedThem(t *testing.T) {
	readOnly := options(&engine{})
	readOnly.ReadOnly = true
	for _, tt := range []struct {
		name    string
		o       Options
		message string
		offered bool
	}{
		{"newer", options(&engine{}), request(1, "server/discover", nil), true},
		{"newer, read only", readOnly, request(1, "server/discover", nil), false},
		{"older", options(&engine{}), strings.Replace(initialize, "2025-06-18", "2025-11-25", 1), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := raw["stdio"](t, tt.o)(tt.message)
			if offered := strings.Contains(fmt.Sprint(got["capabilities"]), "tasks"); offered != tt.offered || got["capabilities"] == nil {
				t.Errorf("offered %v, want tasks: %v", got, tt.offered)
			}
		})
	}
	if got := raw["stdio"](t, readOnly)(request(1, "tasks/get", ofKnown, mcptask.Extension)); got["code"] != -32601.0 {
		t.Errorf("a server without tasks answers %v", got)
	}
}

// tallied is an engine that counts the looks at jobs.
type tallied struct {
	*engine
	looks atomic.Int64
}

func (c *tallied) Job(ctx context.Context, id string) (job.Job, error) {
	c.looks.Add(1)
	return c.engine.Job(ctx, id)
}

// However many listen for a task, one of them looks at the job.
func TestTasks_OneLooksForAllThatListen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &tallied{engine: &engine{job: job.Job{ID: knownID, Status: job.Running, Phase: "run"}}}
		o := options(e)
		o.notice = time.Second
		s := newServer(o)
		ctx, cancel := context.WithTimeout(job.WithPrincipal(t.Context(), job.Principal{Name: "ann", Role: job.RoleRead}), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/mcp", strings.NewReader(`{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"taskIds":["`+knownID+`"]},"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}`))
				r.Header.Set("Mcp-Method", "subscriptions/listen")
				r.Header.Set("Mcp-Protocol-Version", "2026-07-28")
				w := httptest.NewRecorder()
				s.tasks.ServeHTTP(w, r, http.NotFoundHandler())
				if !strings.Contains(w.Body.String(), `"status":"working"`) {
					t.Errorf("%d %.300s", w.Code, w.Body)
				}
			})
			time.Sleep(7 * time.Millisecond)
		}
		all.Wait()
		s.close()
		if n := e.looks.Load(); n == 0 || n > 60 {
			t.Errorf("50 that listen for 10 s look %d times", n)
		}
	})
}
