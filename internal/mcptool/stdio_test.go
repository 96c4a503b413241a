package mcptool

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
)

func TestStdio_StdoutIsJSONRPCOnlyAndEndsWithStdin(t *testing.T) {
	line := func(id int, method, params string) string {
		return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params)
	}
	initialize := line(1, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}`)
	checkHost := line(2, "tools/call", `{"name":"check_host","arguments":{}}`)
	tests := []struct {
		name  string
		input string
		hang  bool
		ids   []string // answered
	}{
		{"nothing", "", false, nil},
		{"requests sent at once with the end are answered", initialize + checkHost, false, []string{"1", "2"}},
		{"last line without its end", initialize + strings.TrimSuffix(checkHost, "\n"), false, []string{"1", "2"}},
		{"rubbish before", "hello\n" + initialize, false, []string{"1", "null"}},
		{"a call that hangs", initialize + checkHost, true, []string{"1", "2"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := &engine{}
			if tt.hang {
				e.hang = make(chan struct{})
			}
			o := options(e)
			if !tt.hang {
				o.answer = time.Hour
			}
			var out bytes.Buffer
			began := time.Now()
			if err := NewStdio(o).Serve(t.Context(), strings.NewReader(tt.input), &out); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("took %s after the end of stdin", took)
			}
			var ids []string
			for l := range strings.Lines(out.String()) {
				var m struct {
					JSONRPC string          `json:"jsonrpc"`
					ID      json.RawMessage `json:"id"`
				}
				if err := json.Unmarshal([]byte(l), &m); err != nil || m.JSONRPC != "2.0" {
					t.Errorf("stdout has %q", l)
				}
				ids = append(ids, string(m.ID))
			}
			slices.Sort(ids)
			if !slices.Equal(ids, tt.ids) {
				t.Errorf("answered %v, want %v", ids, tt.ids)
			}
		})
	}
}

func TestStdio_SlowCallsDoNotBlockOthers(t *testing.T) {
	e := &engine{hang: make(chan struct{})}
	c := transports["stdio"](t, e)
	var slow sync.WaitGroup
	for range 20 {
		slow.Go(func() {
			var req mcp.CallToolRequest
			req.Params.Name = "check_host"
			_, _ = c.CallTool(context.Background(), req)
		})
	}
	done := make(chan struct{})
	go func() {
		callTool(t, c, "list_jobs", nil)
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("list_jobs waits behind 20 calls of check_host")
	}
	close(e.hang)
	slow.Wait()
}
