package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// mostSlower is how many times slower everything may be for others, while one token's holder follows a
// job 900 times. What takes less than unnoticed is not slow: its multiples are the machine's noise.
const (
	mostSlower = 3
	unnoticed  = 10 * time.Millisecond
)

// Who follows a job hundreds of times, by MCP or as streams of its output, slows nobody else:
// not a list of jobs, and not a job.
func TestListeners_SlowNobody(t *testing.T) {
	loops.AtNightOnly(t, "TestAPI_OneLooksForAllThatFollowAnOutput and its like count the looks")
	h := newHost(t, lab.DriverProcess, clientsToken)
	url := strings.TrimSuffix(h.serveHTTP(t), "/mcp")
	h.cli(t, "vm", "create", "dev")
	h.cli(t, "vm", "create", "loud")
	ann := strings.TrimSpace(h.cli(t, "token", "create", "ann", "--role", "run"))
	operator := strings.TrimPrefix(clientsToken, "HTTP_TOKEN=")
	call := func(ctx context.Context, token, method, path, body string, header map[string]string) *http.Response {
		req, err := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		req.Header.Set("Content-Type", "application/json")
		for name, value := range header {
			req.Header.Set(name, value)
		}
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			if ctx.Err() == nil {
				t.Error(err)
			}
			return nil
		}
		return resp
	}
	ask := func(token, method, path, body string) (got map[string]any) {
		t.Helper()
		resp := call(t.Context(), token, method, path, body, nil)
		if resp == nil {
			t.FailNow()
		}
		defer resp.Body.Close() //nolint:errcheck // read
		data, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode >= 300 || json.Unmarshal(data, &got) != nil {
			t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, data, err)
		}
		return got
	}
	submit := func(token, task, more string) map[string]any {
		return ask(token, http.MethodPost, "/api/v1/jobs", fmt.Sprintf(`{"manifest": {"task": %q, "agent_type": "script"%s}}`, task, more))
	}
	loud, _ := submit(ann, "while :; do echo tick; sleep 0.2; done", "")["id"].(string)
	for ask(ann, http.MethodGet, "/api/v1/jobs/"+loud, "")["status"] != "running" {
		if t.Context().Err() != nil {
			t.FailNow()
		}
	}
	median := func(n int, do func()) time.Duration {
		all := make([]time.Duration, n)
		for i := range all {
			began := time.Now()
			do()
			all[i] = time.Since(began)
		}
		slices.Sort(all)
		return all[n/2]
	}
	list := func() { ask(operator, http.MethodGet, "/api/v1/jobs", "") }
	run := func() {
		j := ask(operator, http.MethodPost, "/api/v1/jobs?wait_seconds=50", `{"manifest": {"task": "sleep 0.5", "agent_type": "script", "vm": "dev"}}`)
		if j["status"] != "success" {
			t.Errorf("%v", j)
		}
	}
	list()
	run()
	listed, ran := median(200, list), median(5, run)
	t.Logf("alone: a list takes %v, a job of 0.5 s %v", listed, ran)

	for name, follow := range map[string]func(ctx context.Context) *http.Response{
		"subscriptions/listen": func(ctx context.Context) *http.Response {
			return call(ctx, ann, http.MethodPost, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"subscriptions/listen","params":{"notifications":{"resourceSubscriptions":["linus://jobs/`+loud+`/output"]},`+
				`"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}}}`,
				map[string]string{"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"})
		},
		"output streams": func(ctx context.Context) *http.Response {
			return call(ctx, ann, http.MethodGet, "/api/v1/jobs/"+loud+"/output?stream=stdout", "", map[string]string{"Accept": "text/event-stream"})
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		var all, begun sync.WaitGroup
		var mu sync.Mutex
		codes := map[int]int{}
		for range 900 {
			begun.Add(1)
			all.Go(func() {
				resp := follow(ctx)
				if resp == nil {
					begun.Done()
					return
				}
				defer resp.Body.Close() //nolint:errcheck // read
				mu.Lock()
				codes[resp.StatusCode]++
				mu.Unlock()
				begun.Done()
				_, _ = io.Copy(io.Discard, resp.Body)
			})
		}
		begun.Wait()
		nowListed, nowRan := median(100, list), median(5, run)
		t.Logf("beside 900 %s (%v): a list takes %v (%.1f times), a job %v (%.1f times)", name, codes, nowListed, float64(nowListed)/float64(listed), nowRan, float64(nowRan)/float64(ran))
		if nowListed > max(unnoticed, mostSlower*listed) || nowRan > mostSlower*ran {
			t.Errorf("beside 900 %s others are more than %d times slower", name, mostSlower)
		}
		cancel()
		all.Wait()
	}
}
