package main

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/sshtest"
)

// What is removed is listed first, on all nodes, and nothing on any while one refuses.
func TestHostUninstall(t *testing.T) {
	useHost(t, sshtest.Start(t, sshtest.Options{}))
	t.Setenv("LINUS_STATE_DIR", filepath.Join(t.TempDir(), "s"))
	shelves := map[string]*shelf{"a": {}, "b": {}, "c": {}}
	onNodes := func(config.Config, daemon.Installation, *slog.Logger) daemon.Backend {
		return daemon.Backend{
			Provider: threeNodes{spread: true, shelves: shelves}, Templates: shelves["a"], Close: func() {},
			TemplatesOn: func(_ context.Context, node string) (daemon.TemplateStore, error) { return shelves[node], nil },
		}
	}
	linus := func(args ...string) (code int, text string) {
		t.Helper()
		var out bytes.Buffer
		code = run(t.Context(), onNodes, append([]string{"host", "uninstall"}, args...), strings.NewReader(""), &out, &out)
		return code, out.String()
	}
	done := func() int {
		return shelves["a"].uninstalled + 10*shelves["b"].uninstalled + 100*shelves["c"].uninstalled
	}
	if code, text := linus("--yes"); code != exitFailure || done() != 0 || !strings.Contains(text, "has VMs of linus: 100 (web)") {
		t.Errorf("with VMs: exit code %d, %d, %s", code, done(), text)
	}
	if code, text := linus("--leave-vms"); code != exitUsage || done() != 0 || !strings.Contains(text, "would be removed: /var/lib/linus: leases") || !strings.Contains(text, "--yes") {
		t.Errorf("without a terminal: exit code %d, %d, %s", code, done(), text)
	}
	if code, text := linus("--leave-vms", "--yes"); code != exitOK || done() != 1 || !strings.Contains(text, "node pve: is removed: /var/lib/linus: leases\nnode pve: stays: VM 100 (web)\n") {
		t.Errorf("one node: exit code %d, %d, %s", code, done(), text)
	}
	shelves["c"].fault = &job.HostError{Op: "uninstall", Host: "c", Class: job.HostOffline, Text: "node 'c' is offline"}
	if code, text := linus("--leave-vms", "--yes", "--all-nodes"); code != exitFailure || done() != 1 || !strings.Contains(text, "node 'c' is offline") {
		t.Errorf("a node that is offline: exit code %d, %d, %s", code, done(), text)
	}
	shelves["c"].fault = nil
	if code, text := linus("--leave-vms", "--yes", "--all-nodes"); code != exitOK || done() != 112 {
		t.Errorf("all nodes: exit code %d, %d, %s", code, done(), text)
	}
}
