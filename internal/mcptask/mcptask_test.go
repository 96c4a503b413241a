package mcptask

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"
)

// one is a source with one task.
type one struct {
	mu   sync.Mutex
	task Task
	did  []string
	seen int // times that it was looked at
}

func (o *one) Task(_ context.Context, id string) (Task, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.seen++
	if id != o.task.ID {
		return Task{}, ErrNotFound
	}
	return o.task, nil
}

func (o *one) Look(ctx context.Context, id string, _ time.Duration) (Task, error) {
	return o.Task(ctx, id)
}

func (o *one) Update(ctx context.Context, id string, answers mcp.InputResponses) error {
	_, err := o.Task(ctx, id)
	for key := range answers {
		o.did = append(o.did, "answer "+key)
	}
	return err
}

func (o *one) Cancel(ctx context.Context, id string) error {
	_, err := o.Task(ctx, id)
	o.did = append(o.did, "cancel "+id)
	return err
}

func (o *one) change(status Status) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.task.Status = status
}

var at = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

func serving(t *testing.T) (*one, *Server, *httptest.Server) {
	t.Helper()
	source := &one{task: Task{ID: "t1", Status: Working, CreatedAt: at, UpdatedAt: at, Poll: 500}}
	hooks := &server.Hooks{}
	Offer(hooks)
	m := server.NewMCPServer("s", "1", server.WithToolCapabilities(false), server.WithHooks(hooks))
	m.AddTool(mcp.NewTool("begin"), func(ctx context.Context, _ mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		if !Declared(ctx) {
			return mcp.NewToolResultText("plain"), nil
		}
		return Begun(source.task), nil
	})
	s := New(Options{Source: source, Info: mcp.Implementation{Name: "s", Version: "1"}, Every: time.Millisecond})
	next := server.NewStreamableHTTPServer(m)
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.ServeHTTP(w, r, next) }))
	t.Cleanup(func() {
		h.CloseClientConnections()
		h.Close()
		_ = next.Shutdown(context.Background())
	})
	return source, s, h
}

const (
	knows = `{"extensions":{"io.modelcontextprotocol/tasks":{}}}`
	not   = `{}`
)

func message(method, params, caps string) string {
	return `{"jsonrpc":"2.0","id":7,"method":"` + method + `","params":{` + params + `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28",` +
		`"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":` + caps + `}}}`
}

// post sends a message with its headers and returns the response.
func post(t *testing.T, url, body, method, name string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for header, value := range map[string]string{
		"Content-Type": "application/json", "Accept": "application/json, text/event-stream",
		mcp.HeaderProtocolVersion: "2026-07-28", mcp.HeaderMethod: method, mcp.HeaderName: name,
	} {
		if value != "" {
			req.Header.Set(header, value)
		}
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	return resp
}

func TestServeHTTP_AnswersWhatIsAboutTasks(t *testing.T) {
	const task = `"taskId":"t1",`
	tests := []struct {
		name                 string
		body, method, header string
		status               int
		want                 string
	}{
		{"get", message("tasks/get", task, knows), "tasks/get", "t1", 200, `"resultType":"complete","taskId":"t1","status":"working","createdAt":"2026-03-04T05:06:07Z","lastUpdatedAt":"2026-03-04T05:06:07Z","ttlMs":null,"pollIntervalMs":500}`},
		{"cancel", message("tasks/cancel", task, knows), "tasks/cancel", "t1", 200, `"resultType":"complete"}`},
		{"update", message("tasks/update", task+`"inputResponses":{"k":{"action":"accept","content":{"a":1}}},`, knows), "tasks/update", "t1", 200, `"resultType":"complete"}`},
		{"unasked", message("tasks/update", task+`"inputResponses":{"unknown-key":{"ignored":true}},`, knows), "tasks/update", "t1", 200, `"resultType":"complete"}`},
		{"of another type", message("tasks/update", task+`"inputResponses":5,`, knows), "tasks/update", "t1", 400, `"code":-32602,"message":"params.inputResponses cannot be of type number"`},
		{"of another", message("tasks/get", `"taskId":"t2",`, knows), "tasks/get", "t2", 400, `"code":-32602,"message":"Task not found"`},
		{"without an ID", message("tasks/get", "", knows), "tasks/get", "", 400, `"code":-32602,"message":"taskId is required"`},
		{"undeclared", message("tasks/get", task, not), "tasks/get", "t1", 400, `"code":-32021,"message":"missing required client capability: io.modelcontextprotocol/tasks","data":{"requiredCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}`},
		{"undeclared listening", message("subscriptions/listen", `"notifications":{"taskIds":["t1"]},`, not), "subscriptions/listen", "", 400, `"code":-32021`},
		{"another name", message("tasks/get", task, knows), "tasks/get", "t2", 400, `"code":-32020`},
		{"no name", message("tasks/get", task, knows), "tasks/get", "", 400, `"code":-32020`},
		{"another method in the header", message("tasks/get", task, knows), "tasks/cancel", "t1", 400, `"code":-32020`},
		{"no method in the header", message("tasks/get", task, knows), "", "t1", 400, `"code":-32020`},
		{"what 2025-11-25 has", message("tasks/result", task, knows), "tasks/result", "t1", 404, `"code":-32601`},
		{"a call that begins a task", message("tools/call", `"name":"begin",`, knows), "tools/call", "begin", 200, `"taskId":"t1","ttlMs":null}`},
		{"a call without", message("tools/call", `"name":"begin",`, not), "tools/call", "begin", 200, `"text":"plain"`},
		{"discovery", message("server/discover", "", not), "server/discover", "", 200, `"extensions":{"io.modelcontextprotocol/tasks":{}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			source, _, h := serving(t)
			resp := post(t, h.URL, tt.body, tt.method, tt.header)
			data, err := io.ReadAll(resp.Body)
			if err != nil || resp.StatusCode != tt.status || !strings.Contains(string(data), tt.want) || !strings.Contains(string(data), `"id":7`) {
				t.Errorf("%d, %s (%v); want %d, %s", resp.StatusCode, data, err, tt.status, tt.want)
			}
			did := map[string][]string{"cancel": {"cancel t1"}, "update": {"answer k"}, "unasked": {"answer unknown-key"}}[tt.name]
			if diff := cmp.Diff(did, source.did); diff != "" {
				t.Errorf("the source was asked (-want +got):\n%s", diff)
			}
			if strings.HasPrefix(tt.name, "a call") && strings.Contains(string(data), `"content":[]`) {
				t.Errorf("%s has content", data)
			}
		})
	}
}

func TestListen_TellsOfEachChange(t *testing.T) {
	source, _, h := serving(t)
	resp := post(t, h.URL, message("subscriptions/listen", `"notifications":{"taskIds":["t1","t2","t1"]},`, knows), "subscriptions/listen", "")
	lines := bufio.NewScanner(resp.Body)
	next := func(want string) {
		t.Helper()
		for lines.Scan() {
			if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				if !strings.Contains(data, want) {
					t.Fatalf("told %s, want %s", data, want)
				}
				return
			}
		}
		t.Fatalf("the stream ends (%v), want %s", lines.Err(), want)
	}
	next(`"method":"notifications/subscriptions/acknowledged","params":{"_meta":{"io.modelcontextprotocol/subscriptionId":7},"notifications":{"taskIds":["t1"]}}`)
	next(`"status":"working"`)
	source.change(InputRequired)
	next(`"status":"input_required"`)
	source.change(Completed)
	next(`"status":"completed","taskId":"t1"`)
	next(`"id":7`) // it is over
	if lines.Scan() && lines.Text() != "" {
		t.Errorf("after the end there is %q", lines.Text())
	}
}

// What a client lists without end is not all looked up for it.
func TestListen_LooksAtSoMany(t *testing.T) {
	source, _, h := serving(t)
	resp := post(t, h.URL, message("subscriptions/listen", `"notifications":{"taskIds":[`+strings.Repeat(`"t2",`, 10_000)+`"t3"]},`, knows), "subscriptions/listen", "")
	if _, err := io.ReadAll(resp.Body); err != nil || source.seen > 100 {
		t.Errorf("looked %d times, %v", source.seen, err)
	}
}

// Older clients see no change: what they send is answered by mcp-go, byte for byte.
func TestServeHTTP_LeavesOlderClientsAlone(t *testing.T) {
	_, s, _ := serving(t)
	for _, body := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t1"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"begin"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`,
		`{"jsonrpc":`,
	} {
		next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if data, err := io.ReadAll(r.Body); err != nil || string(data) != body {
				t.Errorf("mcp-go gets %s (%v), want %s", data, err, body)
			}
			_, _ = w.Write([]byte(`{"result":{"resultType":"task"}}`))
		})
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body)), next)
		if w.Body.String() != `{"result":{"resultType":"task"}}` {
			t.Errorf("answered %s", w.Body)
		}
	}
}

// lines is what a client reads on stdout.
type lines chan string

func (l lines) Write(data []byte) (int, error) {
	l <- string(data)
	return len(data), nil
}

func TestStdio_AnswersWhatIsAboutTasks(t *testing.T) {
	_, s, _ := serving(t)
	out := make(lines, 10)
	client := s.Stdio(out)
	defer client.Close()
	for _, line := range []string{
		message("tools/call", `"name":"begin",`, knows), message("tasks/result", `"taskId":"t1",`, knows),
		`{"jsonrpc":"2.0","id":1,"method":"tasks/get","params":{"taskId":"t1"}}`, `"tasks/get`,
		message("subscriptions/listen", `"notifications":{"resourceSubscriptions":["u"]},`, knows),
	} {
		if client.Line(t.Context(), []byte(line)) {
			t.Errorf("took %s", line)
		}
	}
	for line, want := range map[string]string{
		message("tasks/get", `"taskId":"t1",`, knows): `"status":"working"`,
		message("tasks/get", `"taskId":"t1",`, not):   `-32021`,
		message("tasks/get", `"taskId":"t2",`, knows): `-32602`,
	} {
		if !client.Line(t.Context(), []byte(line)) {
			t.Fatalf("left %s", line)
		}
		if got := <-out; !strings.Contains(got, want) || !strings.HasSuffix(got, "}\n") {
			t.Errorf("answered %s, want %s", got, want)
		}
	}
	if !client.Line(t.Context(), []byte(message("subscriptions/listen", `"notifications":{"taskIds":["t1"]},`, knows))) {
		t.Fatal("left a client that listens")
	}
	for _, want := range []string{"acknowledged", "notifications/tasks"} {
		if got := <-out; !strings.Contains(got, want) {
			t.Errorf("told %s, want %s", got, want)
		}
	}
	if client.Line(t.Context(), []byte(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`)) {
		t.Error("kept a notification that is for mcp-go, too")
	}
	if got := <-out; !strings.Contains(got, `"id":7`) {
		t.Errorf("a cancelled stream ends with %s", got)
	}
}

func TestLift_OnlyWhatIsATask(t *testing.T) {
	result, err := json.Marshal(mcp.NewJSONRPCResultResponse(mcp.NewRequestId("a"), Begun(Task{ID: "t", Status: Working, CreatedAt: at, UpdatedAt: at, Requests: mcp.InputRequests{}})))
	if err != nil {
		t.Fatal(err)
	}
	var got, want any
	const lifted = `{"jsonrpc":"2.0","id":"a","result":{"_meta":{},"resultType":"task","taskId":"t","status":"working","createdAt":"2026-03-04T05:06:07Z","lastUpdatedAt":"2026-03-04T05:06:07Z","ttlMs":null}}`
	if err := json.Unmarshal(Lift(result), &got); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(lifted), &want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lifted (-want +got):\n%s", diff)
	}
	for _, other := range []string{
		`{"jsonrpc":"2.0","id":1,"result":{"content":[{"text":"{\"resultType\":\"task\"}"}]}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"resultType":"complete","structuredContent":{"resultType":"task"}}}`,
		`{"jsonrpc":"2.0","id":1,"result":{"resultType":"task"}}`, `"resultType":"task"`,
	} {
		if got := Lift([]byte(other)); !bytes.Equal(got, []byte(other)) {
			t.Errorf("%s became %s", other, got)
		}
	}
}
