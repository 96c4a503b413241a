package mcptool

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/mark3labs/mcp-go/client"
	"github.com/mark3labs/mcp-go/client/transport"
	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/junit"
	"linus/internal/vm"
)

var at = time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)

// transports are the ways a client reaches the tools, in both protocol eras.
var transports = map[string]func(t *testing.T, e job.Engine) *client.Client{
	"in process": func(t *testing.T, e job.Engine) *client.Client {
		t.Helper()
		c, err := client.NewInProcessClient(inProcess(t, e))
		return begin(t, c, err)
	},
	"stdio": func(t *testing.T, e job.Engine) *client.Client {
		t.Helper()
		return begin(t, overStdio(t, e), nil)
	},
	"HTTP": func(t *testing.T, e job.Engine) *client.Client {
		t.Helper()
		return begin(t, overHTTP(t, e), nil)
	},
	"HTTP, 2025-11-25": func(t *testing.T, e job.Engine) *client.Client {
		t.Helper()
		return begin(t, overHTTP(t, e, client.WithProtocolVersion(mcp.ProtocolVersion20251125)), nil)
	},
	"stdio, 2025-11-25": func(t *testing.T, e job.Engine) *client.Client {
		t.Helper()
		return begin(t, overStdio(t, e, client.WithProtocolVersion(mcp.ProtocolVersion20251125)), nil)
	},
}

func options(e job.Engine) Options {
	return Options{
		Engine: e, Version: "test", Log: slog.New(slog.DiscardHandler), notice: 100 * time.Millisecond,
		SSHCommand: func(v vm.VM) string { return "ssh " + v.User + "@" + v.IP },
	}
}

func overStdio(t *testing.T, e job.Engine, o ...client.ClientOption) *client.Client {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- NewStdio(options(e)).Serve(context.Background(), toServer, fromServer)
		_ = fromServer.Close()
	}()
	t.Cleanup(func() {
		_ = fromClient.Close()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v at the end of stdin", err)
		}
	})
	return client.NewClient(transport.NewIO(toClient, fromClient, io.NopCloser(strings.NewReader(""))), o...)
}

func inProcess(t *testing.T, e job.Engine) *server.MCPServer {
	t.Helper()
	s := newServer(options(e), server.WithOutputSchemaValidation())
	t.Cleanup(s.close)
	return s.MCPServer
}

func overHTTP(t *testing.T, e job.Engine, o ...client.ClientOption) *client.Client {
	t.Helper()
	h := NewHTTP(options(e), server.WithOutputSchemaValidation())
	s := httptest.NewServer(h)
	var listen []transport.StreamableHTTPCOption
	if len(o) > 0 { // the older protocol has a stream for what the server says unasked
		listen = append(listen, transport.WithContinuousListening()) //nolint:staticcheck // it is what is tested
	}
	tr, err := transport.NewStreamableHTTP(s.URL, listen...)
	if err != nil {
		t.Fatal(err)
	}
	c := client.NewClient(tr, o...)
	t.Cleanup(func() {
		_ = c.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := h.Close(ctx); err != nil {
			t.Error(err)
		}
		s.Close()
	})
	return c
}

func begin(t *testing.T, c *client.Client, err error) *client.Client {
	t.Helper()
	if err == nil {
		err = c.Start(t.Context())
	}
	if err == nil {
		var hello mcp.InitializeRequest
		hello.Params.ClientInfo = mcp.Implementation{Name: "a client\n/1", Version: "1"}
		_, err = c.Initialize(t.Context(), hello)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func callTool(t *testing.T, c *client.Client, tool string, args any) *mcp.CallToolResult {
	t.Helper()
	var req mcp.CallToolRequest
	req.Params.Name, req.Params.Arguments = tool, args
	result, err := c.CallTool(t.Context(), req)
	if err != nil {
		t.Fatalf("%s: protocol error %v", tool, err)
	}
	return result
}

// text returns a result's text: an error, or its JSON, into which it puts the texts that
// stand beside it.
func text(r *mcp.CallToolResult) string {
	if len(r.Content) == 0 {
		return ""
	}
	content, _ := r.Content[0].(mcp.TextContent)
	all := content.Text
	for _, c := range r.Content[1:] {
		block, ok := c.(mcp.TextContent)
		if !ok {
			continue
		}
		name, text, _ := strings.Cut(block.Text, ":\n")
		value, err := plainJSON(text)
		if err != nil {
			panic(err) // it is a string
		}
		all = fmt.Sprintf("%s,%q:%s}", strings.TrimSuffix(all, "}"), name, value)
	}
	return all
}

func manifest(change map[string]any) map[string]any {
	m := map[string]any{"task": "echo hi", "agentType": "script"}
	for k, v := range change {
		if v == nil {
			delete(m, k)
		} else {
			m[k] = v
		}
	}
	return map[string]any{"manifest": m}
}

func TestTools_ReturnStructuredContent(t *testing.T) {
	code := 3
	e := &engine{
		job: job.Job{
			ID: knownID, Status: job.Failed, Phase: "destroy", CreatedAt: at, StartedAt: at, CompletedAt: at,
			VM:               &vm.VM{ID: 101, Node: "pve", IP: "10.0.0.9", State: vm.Destroyed},
			Outcome:          &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: "exit status 3"},
			SkippedArtifacts: job.SkippedArtifacts{ArtifactsSkipped: []job.SkippedArtifact{{Path: "out/*", Reason: "nothing there matches"}}, ArtifactsSkippedCount: 51},
		},
		result: job.Result{
			JobID: knownID, Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, Error: "exit status 3",
			Stdout: []byte("a\xffb\n"), Stderr: []byte("oh\n"), StdoutInfo: job.OutputInfo{Total: 4, Incomplete: true, Why: "the disk was full"}, StderrInfo: job.OutputInfo{Total: 3},
			Duration: 1500 * time.Millisecond,
		},
		out: "one\ntwo\n> ", err2: "oh\n",
		disk: disk{files: map[string]string{"/f": "one\r\n<&>"}},
		vm: job.VMInfo{
			VM:        vm.VM{ID: 105, Name: "dev", Node: "pve", IP: "10.0.0.9", User: "debian", Job: knownID, Status: vm.Running, ExpiresAt: at},
			Lifecycle: vm.Persistent, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}, Source: "debian-13", Jobs: []string{"j"}, CreatedAt: at,
			Labels: map[string]string{"team": "web"},
		},
	}
	const devVM = `{"vm_id":"105","name":"dev","status":"running","ip":"10.0.0.9","user":"debian","ssh":"ssh debian@10.0.0.9","node":"pve","source":"debian-13","cpu":2,"memory":"2G","disk":"10G","lifecycle":"persistent","job_id":"` + knownID + `","jobs":["j"],"created_at":"2026-03-04T05:06:07Z","expires_at":"2026-03-04T05:06:07Z"}`
	const run = `{"at":"2026-03-04T05:06:07Z"}`
	const nightly = `{"name":"nightly","cron":"0 3 * * *","timezone":"UTC","status":"active","next_at":"2026-03-04T05:06:07Z","overlap":"skip","missed":"run-once","owner":"ci","task":"make","last_runs":[` +
		`{"at":"2026-03-04T05:06:07Z","job_id":"` + knownID + `"},{"at":"2026-03-04T05:06:07Z","why":"left out"},` + run + `,` + run + `,` + run + `]}`
	tests := []toolTest{
		{"submit_job", manifest(nil), `{"job_id":"` + knownID + `","status":"pending"}`},
		{"get_job_status", map[string]any{"job_id": knownID}, `{"job_id":"` + knownID + `","status":"failed","reason":"exit_status","phase":"destroy","error":"exit status 3","created_at":"2026-03-04T05:06:07Z","started_at":"2026-03-04T05:06:07Z","completed_at":"2026-03-04T05:06:07Z","vm":{"id":101,"node":"pve","ip":"10.0.0.9","state":"destroyed"},"artifacts_skipped":[{"path":"out/*","reason":"nothing there matches"}],"artifacts_skipped_count":51}`},
		{"get_job_result", map[string]any{"job_id": knownID}, `{"job_id":"` + knownID + `","status":"failed","reason":"exit_status","exit_code":3,"output":"a\ufffdb\n","stderr":"oh\n","output_bytes":4,"stderr_bytes":3,"truncated":false,"output_incomplete":true,"output_incomplete_reason":"the disk was full","output_invalid_utf8":true,"error":"exit status 3","duration_seconds":1.5,"artifacts_skipped":[{"path":"out/*","reason":"nothing there matches"}],"artifacts_skipped_count":51}`},
		{"cancel_job", map[string]any{"job_id": knownID}, `{"job_id":"` + knownID + `","cancelled":true}`},
		{"list_jobs", map[string]any{"status": "running", "limit": 7, "cursor": "c"}, `{"jobs":[{"job_id":"` + knownID + `","status":"running","phase":"run","task":"true","client":"cli","vm":{"id":105,"name":"dev","node":"pve","state":"created"},"created_at":"2026-03-04T05:06:07Z"}],"next_cursor":"more"}`},
		{"list_jobs", map[string]any{"label": "team=db"}, `{"jobs":[]}`},
		{"list_jobs", nil, `{"jobs":[{"job_id":"` + knownID + `","status":"running","phase":"run","task":"true","client":"cli","vm":{"id":105,"name":"dev","node":"pve","state":"created"},"created_at":"2026-03-04T05:06:07Z"}],"next_cursor":"more"}`},
		{"schedule", map[string]any{"action": "list"}, `{"schedules":[` + nightly + `]}`},
		{"schedule", map[string]any{"action": "remove", "name": "nightly"}, `{"schedules":[` + nightly + `]}`},
		{"schedule", map[string]any{"action": "add", "name": "nightly", "cron": "0 3 * * *", "manifest": map[string]any{"task": "make"}}, `{"schedules":[` + nightly + `]}`},
		{"execute_command", map[string]any{"command": "make", "vm_id": "dev"}, `{"job_id":"` + knownID + `","status":"pending"}`},
		{"get_job_output", map[string]any{"job_id": knownID, "offset": 1, "limit": 4}, `{"job_id":"` + knownID + `","status":"failed","stdout":"ne\nt","stdout_next":5,"stderr":"oh\n","stderr_next":3,"complete":false}`},
		{"get_job_output", map[string]any{"job_id": knownID, "stream": "stderr", "offset": 3}, `{"job_id":"` + knownID + `","status":"failed","stdout":"","stdout_next":0,"stderr":"","stderr_next":3,"complete":true}`},
		{"tail_job_output", map[string]any{"job_id": knownID, "lines": 1}, `{"job_id":"` + knownID + `","status":"failed","stdout":"> ","stderr":"oh\n","stdout_next":10,"stderr_next":3,"truncated":true}`},
		{"interact_with_job", map[string]any{"job_id": knownID, "input": "1+1\n", "wait_ms": 0}, `{"job_id":"` + knownID + `","status":"failed","stdout":"","stdout_next":10,"stderr":"","stderr_next":3,"complete":true}`},
		{"kill_job", map[string]any{"job_id": knownID, "signal": "INT"}, `{"job_id":"` + knownID + `","result":"killed"}`},
		{"kill_job", map[string]any{"job_id": "x"}, `{"job_id":"x","result":"not_found"}`},
		{"cleanup_completed_jobs", map[string]any{"older_than": "24h"}, `{"count":3}`},
		{"provision_vm", map[string]any{"name": "dev", "os": "debian-13", "wait_seconds": 0, "dry_run": true}, `{"name":"dev","plan":["qm clone 9000 100 --name dev"]}`},
		{"list_vms", nil, `{"vms":[` + devVM + `]}`},
		{"list_vms", map[string]any{"label": "team=web"}, `{"vms":[` + devVM + `]}`},
		{"list_vms", map[string]any{"label": "team=db"}, `{"vms":[]}`},
		{"get_vm", map[string]any{"vm_id": "dev"}, devVM},
		{"start_vm", map[string]any{"vm_id": "105"}, `{"vm_id":"105","name":"dev","status":"running","ssh":"ssh debian@10.0.0.9"}`},
		{"stop_vm", map[string]any{"vm_id": "dev"}, `{"vm_id":"105","name":"dev","status":"running","ssh":"ssh debian@10.0.0.9"}`},
		{"suspend_vm", map[string]any{"vm_id": "dev"}, `{"vm_id":"105","name":"dev","status":"suspended"}`},
		{"resume_vm", map[string]any{"vm_id": "dev"}, `{"vm_id":"105","name":"dev","status":"running","ssh":"ssh debian@10.0.0.9"}`},
		{"snapshot_vm", map[string]any{"vm_id": "dev", "snapshot": "live", "memory": true}, `{"vm_id":"105","name":"dev","status":"running","ssh":"ssh debian@10.0.0.9"}`},
		{"fork_vm", map[string]any{"vm_id": "dev", "count": 1}, `{"vms":["dev"],"note":"1 copies were made from its memory: its storage can; it was paused for at most 120 ms"}`},
		{"snapshot_vm", map[string]any{"vm_id": "dev", "snapshot": "clean"}, `{"vm_id":"105","name":"dev","status":"running","ssh":"ssh debian@10.0.0.9"}`},
		{"revert_vm", map[string]any{"vm_id": "dev", "snapshot": "clean", "confirm": true}, `{"vm_id":"105","name":"dev","status":"running","ssh":"ssh debian@10.0.0.9"}`},
		{"list_snapshots", map[string]any{"vm_id": "dev"}, `{"snapshots":[{"name":"clean","created_at":"2026-03-04T05:06:07Z","memory":false,"disk_bytes":4096,"current":true}]}`},
		{"delete_snapshot", map[string]any{"vm_id": "dev", "snapshot": "clean", "confirm": true}, `{"deleted":true}`},
		{"expose_port", map[string]any{"vm_id": "dev", "port": 3000, "name": "web"}, `{"url":"https://web-1.vms.example/"}`},
		{"expose_port", map[string]any{"vm_id": "dev", "port": 1, "name": "web"}, `{"url":"https://web-1.vms.example/","note":"nothing listens there yet"}`},
		{"save_vm", map[string]any{"vm_id": "dev", "name": "tools"}, `{"template":"tools","template_id":9001,"left":["a key"]}`},
		{"list_volumes", nil, `{"volumes":[{"name":"cache","status":"ready","size_gb":20,"node":"pve","vms":["105 at /srv (ro)"]}]}`},
		{"create_volume", map[string]any{"name": "cache", "size": "20G"}, `{"name":"cache","status":"ready","size_gb":20,"node":"pve","vms":["105 at /srv (ro)"]}`},
		{"attach_volume", map[string]any{"volume": "cache", "vm_id": "dev", "path": "/srv", "mode": "ro"}, `{"name":"cache","status":"ready","size_gb":20,"node":"pve","vms":["105 at /srv (ro)"]}`},
		{"detach_volume", map[string]any{"volume": "cache", "vm_id": "dev"}, `{"name":"cache","status":"ready","size_gb":20,"node":"pve","vms":["105 at /srv (ro)"]}`},
		{"delete_volume", map[string]any{"volume": "cache", "confirm": true}, `{"name":"cache","status":"removing"}`},
		{"list_templates", nil, `{"nodes":[{"node":"pve","templates":["agent-template"]},{"node":"pve2","templates":[]}]}`},
		{"destroy_vm", map[string]any{"vm_id": "dev", "confirm": true}, `{"vm_id":"105","name":"dev","status":"destroying"}`},
		{"list_files", map[string]any{"vm_id": "dev", "path": "/d", "limit": 2}, `{"entries":[{"name":"a","type":"file","size":3,"mode":"0644","modified_at":"2026-03-04T05:06:07Z"},{"name":"a\ufffd","type":"other","size":0,"mode":"","modified_at":"2026-03-04T05:06:07Z","inexact_name":true}],"total":9,"next_offset":2}`},
		{"read_file", map[string]any{"vm_id": "dev", "path": "/f", "limit": 1}, `{"content":"one\r\n","encoding":"text","size":8,"mode":"0644","first_line":1,"lines":1,"total_lines":2,"next_offset":2,"next_byte_offset":5}`},
		{"write_file", map[string]any{"vm_id": "dev", "path": "/f", "content": "a\r\n"}, `{"created":true,"size":3,"mode":"0600"}`},
		{"edit_file", map[string]any{"vm_id": "dev", "path": "/f", "old_string": "a", "new_string": "b"}, `{"replaced":2,"line":3,"size":4}`},
		{"check_host", nil, `{"ok":false,"host":"pve:22","node":"pve","checks":[{"name":"bridge","level":"fail","text":"vmbr0 is missing","remedy":"add it"}]}`},
	}
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			c := connect(t, e)
			for _, tt := range tests {
				r := callTool(t, c, tt.tool, tt.args)
				structured, err := json.Marshal(r.StructuredContent)
				if err != nil || r.IsError {
					t.Errorf("%s: error %v %s", tt.tool, err, text(r))
				}
				inText := tt.want
				if tt.tool == "list_vms" { // its ssh commands are long, and in the structure
					inText = strings.ReplaceAll(inText, `"ssh":"ssh debian@10.0.0.9",`, "")
				}
				for _, as := range []struct{ what, got, want string }{{"text", text(r), inText}, {"structured content", string(structured), tt.want}} {
					if diff := cmp.Diff(parse(t, as.want), parse(t, as.got)); diff != "" {
						t.Errorf("%s: %s (-want +got):\n%s", tt.tool, as.what, diff)
					}
				}
			}
			for _, tool := range tools(options(e)) {
				if !slices.ContainsFunc(tests, func(tt toolTest) bool { return tt.tool == tool.Tool.Name }) {
					t.Errorf("%s is not called", tool.Tool.Name)
				}
			}
			wanted := []string{
				"remove schedule nightly", "schedule nightly 0 3 * * * UTC skip run-once make script", "input 1+1\n", "kill INT", "cleanup 24h0m0s", "start 105", "stop dev", "suspend dev", "resume dev", "snapshot dev live with memory", "fork dev 1 ", "snapshot dev clean", "revert dev clean", "remove dev clean", "save dev tools false", "volume cache 20G", "attach cache dev /srv ro", "detach cache dev", "delete cache", "destroy dev",
			}
			e.change(func() {
				if diff := cmp.Diff(wanted, e.calls); diff != "" {
					t.Errorf("engine was asked (-want +got):\n%s", diff)
				}
				e.calls = nil
			})
		})
	}
}

// toolTest is one call and its result.
type toolTest struct {
	tool string
	args any
	want string
}

func parse(t *testing.T, data string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
	return v
}

func TestSubmitJob_RefusesEveryMistakeByNameBeforeAnythingHappens(t *testing.T) {
	file := func(f map[string]any) map[string]any { return manifest(map[string]any{"files": []any{f}}) }
	resources := func(k string, v any) map[string]any {
		return manifest(map[string]any{"resources": map[string]any{k: v}})
	}
	tests := []struct {
		name string
		args any
		want string
	}{
		{"no arguments", nil, "manifest: is required"},
		{"manifest is text", map[string]any{"manifest": "{}"}, "manifest: is a string, want an object"},
		{"unknown argument", map[string]any{"manfest": map[string]any{}}, `manfest: is not a known key; did you mean "manifest"?`},
		{"no task", manifest(map[string]any{"task": nil}), "manifest.task: is required"},
		{"blank task", manifest(map[string]any{"task": " \n\t"}), "manifest.task"},
		{"task too large", manifest(map[string]any{"task": strings.Repeat("x", job.MaxTask+1)}), "manifest.task: is 1048577 bytes"},
		{"task with NUL", manifest(map[string]any{"task": "a\x00b"}), "manifest.task"},
		{"task is a number", manifest(map[string]any{"task": 5}), "manifest.task: is a number, want a string"},
		{"unknown agentType", manifest(map[string]any{"agentType": "python"}), `manifest.agentType: "python" is unknown; use one of: claude, codex, gemini, script, custom`},
		{"custom without command", manifest(map[string]any{"agentType": "custom"}), "manifest.agent.command"},
		{"model for a script", manifest(map[string]any{"agent": map[string]any{"claudeModel": "opus"}}), "manifest.agent.claudeModel"},
		{"relative file path", file(map[string]any{"path": "a", "content": ""}), "manifest.files[0].path"},
		{"file path with ..", file(map[string]any{"path": "/a/../b", "content": ""}), "manifest.files[0].path"},
		{"file path with newline", file(map[string]any{"path": "/a\nb", "content": ""}), "manifest.files[0].path"},
		{"bad base64", file(map[string]any{"path": "/a", "content": "%%%"}), "manifest.files[0].content: is not base64"},
		{"bad mode", file(map[string]any{"path": "/a", "content": "", "mode": "rwx"}), "manifest.files[0].mode"},
		{"duplicate file", manifest(map[string]any{"files": []any{map[string]any{"path": "/a", "content": ""}, map[string]any{"path": "/a", "content": ""}}}), "manifest.files[1].path"},
		{"bad env name", manifest(map[string]any{"env": map[string]any{"A B": "x"}}), "manifest.env"},
		{"env name of the runner", manifest(map[string]any{"env": map[string]any{"LINUS_JOB_ID": "x"}}), "manifest.env.LINUS_JOB_ID"},
		{"env value is a number", manifest(map[string]any{"env": map[string]any{"A": 1}}), "manifest.env.A: is a number, want a string"},
		{"no cores", resources("cpu", 0), "manifest.resources.cpu"},
		{"too many cores", resources("cpu", 33), "manifest.resources.cpu"},
		{"half a core", resources("cpu", 0.5), "manifest.resources.cpu: 0.5 is not a whole number"},
		{"memory in lower case", resources("memory", "2g"), "manifest.resources.memory"},
		{"memory too small", resources("memory", "511M"), "manifest.resources.memory"},
		{"disk too large", resources("disk", "10001G"), "manifest.resources.disk"},
		{"disk too small", resources("disk", "4G"), "manifest.resources.disk"},
		{"timeout 0", manifest(map[string]any{"timeout": 0}), "manifest.timeout"},
		{"timeout too long", manifest(map[string]any{"timeout": 86401}), "manifest.timeout"},
		{"timeout as text", manifest(map[string]any{"timeout": "60"}), "manifest.timeout: is a string, want a whole number"},
		{"unknown lifecycle", manifest(map[string]any{"lifecycle": "forever"}), "manifest.lifecycle"},
		{"unknown status mode", manifest(map[string]any{"statusMode": "loud"}), "manifest.statusMode"},
		{"bad template", manifest(map[string]any{"vmTemplate": "a b"}), "manifest.vmTemplate"},
		{"unknown key", manifest(map[string]any{"timout": 5}), `manifest.timout: is not a known key; did you mean "timeout"?`},
		{"key in the wrong case", manifest(map[string]any{"AgentType": "script"}), `manifest.AgentType: is not a known key; did you mean "agentType"?`},
		{"unknown key below", resources("ram", "2G"), "manifest.resources.ram: is not a known key"},
		{"unknown key in a file", file(map[string]any{"path": "/a", "content": "", "perm": "1"}), "manifest.files[0].perm: is not a known key"},
		{"key too long", map[string]any{"manifest": manifest(nil)["manifest"], "idempotency_key": strings.Repeat("k", 201)}, "idempotency_key"},
	}
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			e := &engine{}
			c := connect(t, e)
			for _, tt := range tests {
				if r := callTool(t, c, "submit_job", tt.args); !r.IsError || !strings.Contains(text(r), tt.want) {
					t.Errorf("%s: error %v, %q; want an error with %q", tt.name, r.IsError, text(r), tt.want)
				}
			}
			if len(e.submitted) != 0 {
				t.Errorf("%d of the wrong manifests were submitted", len(e.submitted))
			}
		})
	}
}

func TestSubmitJob_PassesEveryFieldOn(t *testing.T) {
	want := job.Manifest{
		Task: "echo \u00fc\n", AgentType: job.AgentCustom, Agent: job.Agent{Command: "cat"},
		Files: []job.File{{Path: "/a b", Content: "aGk=", Mode: "0755"}}, Env: map[string]string{"A": "b\nc"},
		Resources: vm.Resources{CPU: 3, Memory: "4G", Disk: "20G"}, Timeout: 60,
		Lifecycle: vm.Persistent, VMTemplate: "9000", StatusMode: job.StatusStreaming,
	}
	e := &engine{}
	c := transports["stdio"](t, e)
	if r := callTool(t, c, "submit_job", map[string]any{"manifest": want, "idempotency_key": "k1"}); r.IsError {
		t.Fatal(text(r))
	}
	wanted := []job.Submission{{Manifest: want, IdempotencyKey: "k1", Client: "mcp:a-client-1"}}
	if diff := cmp.Diff(wanted, e.submitted); diff != "" {
		t.Errorf("submitted (-want +got):\n%s", diff)
	}
}

func TestTools_ErrorsSayWhatToDoNext(t *testing.T) {
	id := map[string]any{"job_id": knownID}
	tests := []struct {
		name, tool string
		args       any
		err        error
		want       string
	}{
		{"unknown job", "get_job_status", map[string]any{"job_id": "x"}, nil, "Job not found. Use list_jobs"},
		{"unknown job", "get_job_result", map[string]any{"job_id": "x"}, nil, "Job not found. Use list_jobs"},
		{"unknown job", "cancel_job", map[string]any{"job_id": "x"}, nil, "Job not found. Use list_jobs"},
		{"no job", "get_job_status", nil, nil, "job_id: is required"},
		{"mistyped argument", "get_job_status", map[string]any{"jobid": "x"}, nil, `jobid: is not a known key; did you mean "job_id"?`},
		{"not complete", "get_job_result", id, &job.NotCompleteError{Status: job.Running}, "Job not complete. Status: running. Call again with wait_seconds"},
		{"already completed", "cancel_job", id, job.ErrCompleted, "Job already completed. Use get_job_result"},
		{"max_bytes", "get_job_result", map[string]any{"job_id": knownID, "max_bytes": 0}, nil, "max_bytes: 0 is out of range; give 1 to 1048576"},
		{"unknown status", "list_jobs", map[string]any{"status": "done"}, nil, `status: "done" is unknown; use one of: pending, provisioning, running, success, failed, timeout`},
		{"label", "list_vms", map[string]any{"label": "team"}, nil, `label: "team" has no value; give KEY=VALUE, as in team=web`},
		{"limit", "list_jobs", map[string]any{"limit": 201}, nil, "limit: 201 is out of range"},
		{"wait too long", "get_job_result", map[string]any{"job_id": knownID, "wait_seconds": 46}, nil, "wait_seconds: 46 is out of range; give 0 to 45"},
		{"unknown job", "get_job_output", map[string]any{"job_id": "x"}, nil, "Job not found. Use list_jobs"},
		{"unknown stream", "get_job_output", map[string]any{"job_id": knownID, "stream": "stdin"}, nil, `stream: "stdin" is unknown; use one of: stdout, stderr`},
		{"two faults", "get_job_output", map[string]any{"job_id": knownID, "stream": "x", "limit": 0}, nil, "limit: 0 is out of range"},
		{"offset of the stream not asked for", "get_job_output", map[string]any{"job_id": knownID, "stream": "stdout", "stderr_offset": 5}, nil, "stderr_offset: is for both streams"},
		{"lines", "tail_job_output", map[string]any{"job_id": knownID, "lines": 1001}, nil, "lines: 1001 is out of range; give 1 to 1000"},
		{"no input", "interact_with_job", id, nil, "input: is required; give text, or close: true"},
		{"stdin closed", "interact_with_job", map[string]any{"job_id": knownID, "input": "x"}, &job.FieldError{Field: "input", Problem: "the job's stdin is closed"}, "input: the job's stdin is closed"},
		{"ended", "interact_with_job", map[string]any{"job_id": knownID, "input": "x"}, job.ErrCompleted, "Job already completed. Use get_job_result"},
		{"wait_ms", "interact_with_job", map[string]any{"job_id": knownID, "input": "x", "wait_ms": 10001}, nil, "wait_ms: 10001 is out of range; give 0 to 10000"},
		{"unknown signal", "kill_job", map[string]any{"job_id": knownID, "signal": "STOP"}, nil, `signal: "STOP" is unknown; use one of: TERM, KILL, INT, HUP, QUIT`},
		{"no duration", "cleanup_completed_jobs", map[string]any{"older_than": "1 day"}, nil, `older_than: "1 day" is not a duration; give one such as 30m or 24h`},
		{"negative duration", "cleanup_completed_jobs", map[string]any{"older_than": "-1h"}, nil, "older_than"},
		{"no command", "execute_command", nil, nil, "command: is required and must not be blank"},
		{"relative cwd", "execute_command", map[string]any{"command": "ls", "cwd": "src"}, nil, `cwd: "src" is not absolute`},
		{"env name", "execute_command", map[string]any{"command": "ls", "env": map[string]any{"A B": "x"}}, nil, `env: "A B" is not a variable name`},
		{"template and a VM", "execute_command", map[string]any{"command": "ls", "vm_id": "dev", "template": "x"}, nil, "template: has no meaning for an existing VM; remove it, or remove vm_id to get a new VM"},
		{"persistent and a VM", "execute_command", map[string]any{"command": "ls", "vm_id": "dev", "persistent": true}, nil, "persistent: has no meaning for an existing VM"},
		{"a mode and a VM", "execute_command", map[string]any{"command": "ls", "vm_id": "dev", "network": map[string]any{"egress": "none"}}, nil, "network.egress: has no meaning for an existing VM"},
		{"a mode there is not", "execute_command", map[string]any{"command": "ls", "network": map[string]any{"egress": "wan"}}, nil, "network.egress"},
		{"unknown VM to run in", "execute_command", map[string]any{"command": "ls", "vm_id": "prod"}, nil, `vm_id: "prod" is not a VM of ours; list_vms`},
		{"VM by number", "execute_command", map[string]any{"command": "ls", "vm_id": 105}, nil, "vm_id: is a number, want a string"},
		{"size of the new VM", "execute_command", map[string]any{"command": "ls", "resources": map[string]any{"cpu": 64}}, nil, "resources.cpu"},
		{"no name", "provision_vm", map[string]any{"os": "debian"}, nil, "name: is required"},
		{"not a name", "provision_vm", map[string]any{"name": "a b"}, nil, `name: "a b" is not a host name`},
		{"os and template", "provision_vm", map[string]any{"name": "a", "os": "debian", "template": "t"}, nil, "os: is given together with template; give either os or template"},
		{"all of its size", "provision_vm", map[string]any{"name": "a", "cpu": 99, "memory": "1", "disk": "1G"}, nil, "disk: "},
		{"gateway alone", "provision_vm", map[string]any{"name": "a", "network": map[string]any{"gateway": "10.0.0.1"}}, nil, "network.gateway: has no meaning without a fixed address"},
		{"ttl", "provision_vm", map[string]any{"name": "a", "ttl": -5}, nil, "ttl: -5 is out of range"},
		{"no VM", "get_vm", nil, nil, "vm_id: is required; give the name or ID of a VM; list_vms shows them"},
		{"unknown VM", "get_vm", map[string]any{"vm_id": "prod"}, nil, `vm_id: "prod" is not a VM of ours; list_vms`},
		{"unknown VM", "start_vm", map[string]any{"vm_id": "prod"}, nil, `vm_id: "prod" is not a VM of ours; list_vms`},
		{"no snapshot", "snapshot_vm", map[string]any{"vm_id": "dev"}, nil, "snapshot: is required"},
		{"neither", "revert_vm", nil, nil, "vm_id: is required; give the name or ID of a VM; list_vms shows them\nsnapshot: is required"},
		{"not confirmed either", "delete_snapshot", map[string]any{"vm_id": "dev", "snapshot": "clean"}, nil, "confirm: is required: Remove snapshot clean of VM dev?"},
		{"a volume, not confirmed", "delete_volume", map[string]any{"volume": "cache"}, nil, "confirm: is required: Delete volume cache and all that is on it?"},
		{"attached nowhere", "attach_volume", map[string]any{"path": "/srv"}, nil, "volume: is required"},
		{"a save without a name", "save_vm", map[string]any{"vm_id": "dev"}, nil, "name: is required"},
		{"not confirmed", "revert_vm", map[string]any{"vm_id": "dev", "snapshot": "clean"}, nil, "confirm: is required: Revert VM dev to snapshot clean?"},
		{"not confirmed", "destroy_vm", map[string]any{"vm_id": "dev"}, nil, "confirm: is required: Destroy VM 105 (dev) and its disk?; call again with confirm: true"},
		{"confirmed for another VM", "destroy_vm", map[string]any{"vm_id": "prod", "confirm": true}, nil, `vm_id: "prod" is not a VM of ours`},
		{"argument to a tool without", "check_host", map[string]any{"node": "pve"}, nil, "node: is not a known key"},
		{
			"host down", "check_host", nil, &job.HostError{Op: "connect", Host: "pve:22", Class: job.HostUnreachable, Text: "connection refused", Remedy: "is sshd running?"},
			"connect on pve:22: connection refused; is sshd running?",
		},
	}
	for way, connect := range transports {
		t.Run(way, func(t *testing.T) {
			e := &engine{vm: job.VMInfo{VM: vm.VM{ID: 105, Name: "dev"}}}
			c := connect(t, e)
			for _, tt := range tests {
				e.err = tt.err
				if r := callTool(t, c, tt.tool, tt.args); !r.IsError || !strings.Contains(text(r), tt.want) {
					t.Errorf("%s %s: error %v, %q; want an error with %q", tt.tool, tt.name, r.IsError, text(r), tt.want)
				}
			}
			if len(e.submitted) > 0 || slices.ContainsFunc(e.calls, func(c string) bool { return c != "input x" }) {
				t.Errorf("wrong calls reached the engine: %v %q", e.submitted, e.calls)
			}
		})
	}
}

func TestGetJobResult_LongOutputIsHeadMarkerAndTail(t *testing.T) {
	whole := strings.Repeat("ü", 50_000) + "END"
	for _, tt := range []struct {
		name  string
		limit int
		data  string
		cut   bool
	}{
		{"at the limit", len(whole), whole, false},
		{"one above", len(whole) - 1, whole, true},
		{"far above", 101, whole, true},
		{"limit 1", 1, whole, true},
		{"empty", 10, "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, cut := headAndTail([]byte(tt.data), tt.limit)
			if cut != tt.cut {
				t.Fatalf("cut = %v, want %v", cut, tt.cut)
			}
			if !cut {
				if got != tt.data {
					t.Error("changed")
				}
				return
			}
			head, rest, _ := strings.Cut(got, "\n[linus: ")
			count, tail, _ := strings.Cut(rest, " bytes left out here; max_bytes asks for more]\n")
			if !strings.HasPrefix(whole, head) || !strings.HasSuffix(whole, tail) || len(head)+len(tail) > tt.limit ||
				count != fmt.Sprint(len(whole)-len(head)-len(tail)) {
				t.Errorf("head %d, tail %d bytes, marker says %s of %d", len(head), len(tail), count, len(whole))
			}
		})
	}
}

func TestGetJobStatus_ShowsWebhooks(t *testing.T) {
	t.Parallel()
	e := &engine{job: job.Job{ID: knownID, Status: job.Success, CreatedAt: at, Webhooks: []job.Delivery{
		{ID: "msg_1", To: "ci.example", State: job.DeliveryGivenUp, Attempts: 10, Error: "the receiver returned 500", At: at},
		{ID: "msg_2", State: job.DeliveryPending, At: at},
	}}}
	c, err := client.NewInProcessClient(inProcess(t, e))
	result := callTool(t, begin(t, c, err), "get_job_status", map[string]any{"job_id": knownID})
	want := parse(t, `[{"to":"ci.example","state":"given_up","attempts":10,"error":"the receiver returned 500","at":"2026-03-04T05:06:07Z"},{"state":"pending","attempts":0,"at":"2026-03-04T05:06:07Z"}]`)
	got, _ := parse(t, text(result)).(map[string]any)
	if diff := cmp.Diff(want, got["webhooks"]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// check_host with deep tests the host as well, and waits for a test that runs; a read-only server
// has no such argument.
func TestCheckHost_DeepTestsTheHost(t *testing.T) {
	e := &engine{}
	c := transports["stdio"](t, e)
	for range 2 { // what has just ended is what was asked for
		var out checkOutput
		r := callTool(t, c, "check_host", map[string]any{"deep": true})
		if err := json.Unmarshal([]byte(text(r)), &out); err != nil || out.OK || len(out.Checks) != 4 {
			t.Fatalf("%v: %s", err, text(r))
		}
		want := []hostCheck{
			{Node: "pve", Name: "test: boot", Level: "ok"}, {Node: "pve", Name: "test: fork", Level: "warn", Text: "no room", Remedy: "make some"}, {Node: "pve", Name: "test: lease", Level: "fail", Text: "it lives"},
		}
		if diff := cmp.Diff(want, out.Checks[1:]); diff != "" {
			t.Error(diff)
		}
	}
	if len(e.tests) != 1 {
		t.Errorf("%d tests", len(e.tests))
	}
	o := options(e)
	o.ReadOnly = true
	for _, tool := range tools(o) {
		if tool.Tool.Name == "check_host" && strings.Contains(string(tool.Tool.RawInputSchema), "deep") {
			t.Error("a read-only server offers it")
		}
	}
}

// reports answers with JUnit reports.
type reports struct{ *engine }

func (r reports) OpenArtifact(_ context.Context, _, path string) (io.ReadCloser, job.Artifact, error) {
	text := `<testsuite name="unit"><testcase name="a"/><testcase name="b" classname="C"><failure message=" 1 is not 2 ">at line 3</failure></testcase><testcase name="c"><skipped/></testcase></testsuite>`
	if strings.HasSuffix(path, "cut.xml") {
		text = text[:80]
	}
	return io.NopCloser(strings.NewReader(text)), job.Artifact{Path: path, Size: int64(len(text))}, nil
}

// The result of a matrix has what the tests of all its jobs say.
func TestResult_HasTheTests(t *testing.T) {
	e := &engine{
		job:    job.Job{ID: knownID, Status: job.Failed, Children: []job.Child{{Name: "go=1"}, {Name: "go=2"}}, Artifacts: []job.Artifact{{Path: "go=1/r.xml"}, {Path: "go=2/r.xml"}, {Path: "go=2/cut.xml"}, {Path: "go=2/log"}}},
		result: job.Result{JobID: knownID, Status: job.Failed, Reason: job.ReasonExitStatus},
	}
	r := callTool(t, transports["in process"](t, reports{e}), "get_job_result", map[string]any{"job_id": knownID})
	structured, err := json.Marshal(r.StructuredContent)
	if err != nil || r.IsError {
		t.Fatal(err, text(r))
	}
	var got struct{ Tests testReport }
	if err := json.Unmarshal(structured, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Tests.Unread) != 1 || !strings.HasPrefix(got.Tests.Unread[0], "go=2/cut.xml: ") {
		t.Errorf("not read: %q", got.Tests.Unread)
	}
	got.Tests.Unread = nil
	want := testReport{Totals: junit.Totals{Tests: 6, Failures: 2, Skipped: 2}, Failed: []failedTest{{"go=1: unit", "C b", "1 is not 2"}, {"go=2: unit", "C b", "1 is not 2"}}}
	if diff := cmp.Diff(want, got.Tests); diff != "" {
		t.Error(diff)
	}
}

// What of a schedule is wrong, or refused, is said with the names that callers know.
func TestSchedule_RefusalsSayWhy(t *testing.T) {
	e := &engine{}
	c := transports["in process"](t, e)
	for _, tt := range []struct {
		args map[string]any
		err  error
		want string
	}{
		{map[string]any{}, nil, "action: is required; give list, add or remove"},
		{map[string]any{"action": "pause"}, nil, `"pause" is unknown`},
		{map[string]any{"action": "remove"}, nil, "name: is required"},
		{map[string]any{"action": "add", "name": "n", "cron": "@daily"}, nil, "manifest"},
		{map[string]any{"action": "add", "name": "n", "cron": "@daily", "manifest": map[string]any{"task": "true", "vmNam": "x"}}, nil, "vmName"},
		{map[string]any{"action": "add", "name": "n", "cron": "@daily", "manifest": map[string]any{"task": "true"}}, &job.FieldError{Field: "schedule", Problem: "has to run as a token of linus", Remedy: "make it with a token of linus token create"}, "linus token create"},
	} {
		e.change(func() { e.err = tt.err })
		if r := callTool(t, c, "schedule", tt.args); !r.IsError || !strings.Contains(text(r), tt.want) {
			t.Errorf("%v: %s; want %q", tt.args, text(r), tt.want)
		}
	}
}
