package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// inspector is the MCP Inspector's command line, at linus mcp.
type inspector struct {
	clients
	host *host
	home string // of its own files
	era  string // of the protocol: legacy or modern
}

// run returns the result of one method.
func (i inspector) run(t *testing.T, method string, args ...string) (map[string]any, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	line := append([]string{
		filepath.Join(i.dir, "node_modules", ".bin", "mcp-inspector"), "--cli",
		"--protocol-era", i.era, "--quiet", "--format", "json", "--method", method,
	}, args...)
	for _, setting := range i.host.env {
		if slices.ContainsFunc([]string{"PROXMOX_", "LINUS_", "CALLBACK_", "PVELAB_", "HTTP_"}, func(ours string) bool { return strings.HasPrefix(setting, ours) }) {
			line = append(line, "-e", setting) // a server it starts gets nothing else of its environment
		}
	}
	cmd := exec.CommandContext(ctx, i.node, append(line, "--", filepath.Join(binDir, "linus"), "mcp")...)
	cmd.Env = append(i.host.env, "HOME="+i.home)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%w: %s%s", err, out, stderr.String())
	}
	var result map[string]any
	if err := json.Unmarshal(out, &result); err != nil {
		return nil, fmt.Errorf("%w: %s", err, out)
	}
	if inner, ok := result["result"].(map[string]any); ok {
		result = inner
	}
	return result, nil
}

// The Inspector finds every tool's schema portable and calls every tool.
func TestInspector_CallsEveryTool(t *testing.T) {
	loops.AtNightOnly(t, "TestConformance and TestSDKs speak to the same server, TestTools_ReturnStructuredContent calls every tool")
	t.Parallel()
	c := npmClients(t)
	h := newHost(t, lab.DriverProcess, "HTTP_URL=https://linus.example")
	i := inspector{clients: c, host: h, home: t.TempDir(), era: "modern"}
	listed, err := i.run(t, "tools/list", "--strict")
	if err != nil {
		t.Fatal(err)
	}
	var tools []string
	for _, tool := range listed["tools"].([]any) {
		tools = append(tools, tool.(map[string]any)["name"].(string))
	}

	call := func(tool string, args map[string]any) map[string]any {
		t.Helper()
		tools = slices.DeleteFunc(tools, func(name string) bool { return name == tool })
		data, err := json.Marshal(args)
		if err != nil {
			t.Fatal(err)
		}
		i.era = map[string]string{"modern": "legacy", "legacy": "modern"}[i.era] // in turns
		if tool == "execute_command" || tool == "submit_job" {
			i.era = "legacy" // to a modern client they are tasks, whose end it waits for
		}
		result, err := i.run(t, "tools/call", "--tool-name", tool, "--tool-args-json", string(data))
		if err != nil || result["isError"] == true {
			t.Fatalf("%s: %v %v", tool, result["content"], err)
		}
		answer, _ := result["structuredContent"].(map[string]any)
		return answer
	}
	call("check_host", map[string]any{})
	call("provision_vm", map[string]any{"name": "dev"})
	// A call by the Inspector takes seconds of a processor: what is waited for is asked
	// of linus itself.
	says := func(word string, args ...string) func() bool {
		return func() bool { return strings.Contains(h.cli(t, args...), word) }
	}
	h.until(t, says("running", "vm", "show", "dev"))
	if got := call("get_vm", map[string]any{"vm_id": "dev"}); got["status"] != "running" {
		t.Errorf("the VM is %v", got)
	}
	talk := map[string]any{"job_id": call("execute_command", map[string]any{"command": "cat; echo end", "vm_id": "dev"})["job_id"]}
	with := func(args, more map[string]any) map[string]any {
		all := maps.Clone(args)
		maps.Copy(all, more)
		return all
	}
	h.until(t, says("running", "job", "status", talk["job_id"].(string)))
	if got := call("get_job_status", talk); got["status"] != "running" {
		t.Errorf("status %v", got)
	}
	call("interact_with_job", with(talk, map[string]any{"input": "typed\n", "close": true, "wait_ms": 1000}))
	result := call("get_job_result", with(talk, map[string]any{"wait_seconds": 30}))
	if result["output"] != "typed\nend\n" {
		t.Errorf("result %v", result)
	}
	if got := call("get_job_output", talk); got["stdout"] != "typed\nend\n" {
		t.Errorf("output %v", got)
	}
	if got := call("tail_job_output", with(talk, map[string]any{"lines": 1})); got["stdout"] != "end\n" {
		t.Errorf("tail %v", got)
	}
	task := map[string]any{"manifest": map[string]any{"agentType": "script", "task": "sleep 1000"}}
	cancelled := call("submit_job", task)["job_id"]
	call("cancel_job", map[string]any{"job_id": cancelled})
	killed := map[string]any{"job_id": call("execute_command", map[string]any{"command": "sleep 1000", "vm_id": "dev"})["job_id"]}
	h.until(t, says("running", "job", "status", killed["job_id"].(string)))
	call("kill_job", killed)
	call("get_job_result", with(killed, map[string]any{"wait_seconds": 30}))
	call("list_jobs", map[string]any{"limit": 5})
	call("schedule", map[string]any{"action": "add", "name": "yearly", "cron": "@yearly", "manifest": map[string]any{"task": "true"}})
	call("list_vms", map[string]any{})
	h.until(t, func() bool {
		var vm struct{ Jobs []string }
		return json.Unmarshal([]byte(h.cli(t, "vm", "show", "dev", "-o", "json")), &vm) == nil && len(vm.Jobs) == 0
	})
	note := map[string]any{"vm_id": "dev", "path": "note"}
	call("write_file", with(note, map[string]any{"content": "one\ntwo\n"}))
	call("edit_file", with(note, map[string]any{"old_string": "two", "new_string": "three"}))
	if got := call("read_file", note); !strings.Contains(fmt.Sprint(got), "three") {
		t.Errorf("read %v", got)
	}
	if got := call("list_files", map[string]any{"vm_id": "dev"}); !strings.Contains(fmt.Sprint(got), "note") {
		t.Errorf("listed %v", got)
	}
	call("expose_port", map[string]any{"vm_id": "dev", "port": 3000})
	call("stop_vm", map[string]any{"vm_id": "dev"})
	call("start_vm", map[string]any{"vm_id": "dev"})
	call("suspend_vm", map[string]any{"vm_id": "dev"})
	call("resume_vm", map[string]any{"vm_id": "dev"})
	call("snapshot_vm", map[string]any{"vm_id": "dev", "snapshot": "clean"})
	call("revert_vm", map[string]any{"vm_id": "dev", "snapshot": "clean", "confirm": true})
	call("list_snapshots", map[string]any{"vm_id": "dev"})
	call("delete_snapshot", map[string]any{"vm_id": "dev", "snapshot": "clean", "confirm": true})
	call("create_volume", map[string]any{"name": "cache", "size": "1G"})
	call("attach_volume", map[string]any{"volume": "cache", "vm_id": "dev", "path": "/srv/cache"})
	call("list_volumes", map[string]any{})
	call("detach_volume", map[string]any{"volume": "cache", "vm_id": "dev"})
	call("delete_volume", map[string]any{"volume": "cache", "confirm": true})
	call("save_vm", map[string]any{"vm_id": "dev", "name": "tools"})
	call("list_templates", map[string]any{})
	h.cli(t, "template", "remove", "tools")
	call("fork_vm", map[string]any{"vm_id": "dev", "name": "copy"})
	h.cli(t, "vm", "destroy", "copy", "--yes")
	call("destroy_vm", map[string]any{"vm_id": "dev", "confirm": true})
	h.waitGone(t)
	if count := call("cleanup_completed_jobs", map[string]any{})["count"]; count.(float64) < 1 {
		t.Errorf("%v jobs were forgotten", count)
	}
	if len(tools) > 0 {
		t.Errorf("not called: %v", tools)
	}
}
