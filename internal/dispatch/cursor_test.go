package dispatch_test

import (
	"context"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/dispatch"
	"linus/internal/job"
	"linus/internal/queuetest"
)

func hook(more ...string) map[string]string {
	env := map[string]string{"CURSOR_POOL": "proxmox", "CURSOR_AGENT_WORKER_ID": "pw_123", "CURSOR_AUTH_TOKEN": "of-this-request"}
	for _, pair := range more {
		name, value, _ := strings.Cut(pair, "=")
		env[name] = value
	}
	return env
}

func TestReadCursor_Refuses(t *testing.T) {
	for pair, says := range map[string]string{
		"CURSOR_AGENT_WORKER_ID=":              "this is run by agent worker controller, as its --spawn hook",
		"CURSOR_AGENT_WORKER_ID=$(id)":         "is not a worker's ID",
		"CURSOR_POOL=a\nb":                     "is not a pool's name",
		"CURSOR_AUTH_TOKEN=":                   "start the controller with --session-token",
		"CURSOR_AUTH_TOKEN=a\nb":               "is not a token",
		"CURSOR_API_ENDPOINT=file:///etc":      "CURSOR_API_ENDPOINT:",
		"CURSOR_API_URL=https://a.example/\nx": "CURSOR_API_URL:",
	} {
		if _, err := dispatch.ReadCursor(hook(pair)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v", pair, err)
		}
	}
}

// The worker of a claimed request has a VM, once, which gets the request's token in memory alone.
func TestSpawnCursor_HasAWorkerInAVM(t *testing.T) {
	t.Parallel()
	c, err := dispatch.ReadCursor(hook("CURSOR_API_KEY=of-the-service-account", "CURSOR_API_ENDPOINT=https://api.example"))
	if err != nil {
		t.Fatal(err)
	}
	c.Idle = 90 * time.Second
	said := make(chan string, 2)
	e := queuetest.NewEngine(t)
	e.Run = func(ctx context.Context, vm queuetest.VM) int {
		home := t.TempDir()
		item := filepath.Join(home, "item")
		agent := filepath.Join(home, "cursor-agent")
		program := "#!/bin/sh\necho \"$@ in $PWD with $CURSOR_AUTH_TOKEN, $CURSOR_API_ENDPOINT, $CURSOR_AGENT_WORKER_ID\"; ls \"$HOME\"\n"
		if os.WriteFile(item, vm.Secret, 0o600) != nil || os.WriteFile(agent, []byte(program), 0o700) != nil { //nolint:gosec // a program
			return 1
		}
		_, task, _ := strings.Cut(vm.Manifest.Task, "\ndone\n") // what waits for the item
		cmd := exec.CommandContext(ctx, "bash", "-c", "set -eu\nitem="+item+"\n"+task)
		cmd.Env = []string{"HOME=" + home, "PATH=" + home + ":/usr/bin:/bin"}
		out, _ := cmd.CombinedOutput()
		said <- strings.ReplaceAll(string(out), home, "~")
		return cmd.ProcessState.ExitCode()
	}
	o := dispatch.Options{Engine: e, Name: "cursor", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	id, err := dispatch.SpawnCursor(t.Context(), o, c)
	if err != nil {
		t.Fatal(err)
	}
	const want = "worker --pool proxmox --worker-id pw_123 --idle-release-timeout 90 start in ~/workspace with of-this-request, https://api.example, pw_123\ncursor-agent\nworkspace\n"
	if got := <-said; got != want {
		t.Errorf("in the VM: %s", got)
	}
	vm := e.VMs()[id]
	if s := vm.Session; s == nil || s.Kind != "cursor" || s.Queue != "proxmox" || s.Work.ID != "pw_123" || strings.Contains(vm.Manifest.Task, "of-this") || strings.Contains(string(vm.Secret), "service-account") {
		t.Errorf("%+v", vm.Job)
	}
	for e.VMs()[id].Status != job.Success {
		time.Sleep(10 * time.Millisecond)
	}
	if again, err := dispatch.SpawnCursor(t.Context(), o, c); err == nil || again != id || len(e.VMs()) != 1 {
		t.Errorf("the hook's second call: %s, %v, %d VMs", again, err, len(e.VMs()))
	}
}

// Requests whose IDs begin alike, beyond what a piece of work's ID may have, are several.
func TestSpawnCursor_WithLongIDs(t *testing.T) {
	t.Parallel()
	e := queuetest.NewEngine(t)
	e.Run = func(context.Context, queuetest.VM) int { return 0 }
	o := dispatch.Options{Engine: e, Name: "cursor", Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	works := map[string]bool{}
	for _, end := range []string{"a", "b"} {
		id := strings.Repeat("w", 99) + end
		c, err := dispatch.ReadCursor(hook("CURSOR_AGENT_WORKER_ID=" + id))
		if err != nil {
			t.Fatal(err)
		}
		at, err := dispatch.SpawnCursor(t.Context(), o, c)
		if err != nil {
			t.Fatalf("%s: %v", id, err)
		}
		vm := e.VMs()[at]
		works[vm.Session.Work.ID] = true
		if err := vm.Session.Check(); err != nil || !strings.Contains(string(vm.Secret), id) {
			t.Errorf("%v, the VM gets %s", err, vm.Secret)
		}
	}
	if len(works) != 2 || len(e.VMs()) != 2 {
		t.Errorf("%v, %d VMs", works, len(e.VMs()))
	}
}
