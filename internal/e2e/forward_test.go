package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestForward_CarriesConnectionsIntoTheVM goes to a server on the VM's loopback,
// which is this machine's in the process lab.
func TestForward_CarriesConnectionsIntoTheVM(t *testing.T) {
	h := newHost(t, "process")
	h.cli(t, "vm", "create", "dev")
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "from the VM") }))
	defer site.Close()
	inside, here, other := site.Listener.Addr().(*net.TCPAddr).Port, freePort(t), freePort(t)

	cmd := exec.CommandContext(t.Context(), filepath.Join(binDir, "linus"), "vm", "forward", "dev", fmt.Sprintf("%s:%d", here, inside), other)
	cmd.Env, cmd.Stderr = h.env, t.Output()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait() //nolint:errcheck // it is interrupted
	defer cmd.Process.Signal(os.Interrupt)
	lines := bufio.NewScanner(out)
	for _, want := range []string{fmt.Sprintf("127.0.0.1:%s is port %d of VM dev", here, inside), fmt.Sprintf("127.0.0.1:%s is port %s of VM dev", other, other)} {
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("it says %q, want %q", lines.Text(), want)
		}
	}
	// It said so, so it listens.
	resp, err := http.Get("http://127.0.0.1:" + here + "/")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); string(body) != "from the VM" {
		t.Errorf("got %q", body)
	}

	again := exec.CommandContext(t.Context(), filepath.Join(binDir, "linus"), "vm", "forward", "dev", here)
	again.Env = h.env
	if said, err := again.CombinedOutput(); err == nil || !strings.Contains(string(said), "Address already in use") || strings.Contains(string(said), "is port") {
		t.Errorf("a port in use: %v, %s", err, said)
	}
}

// TestCopy_IntoAJobThatRunsAndBack copies by a job's id, names and all.
func TestCopy_IntoAJobThatRunsAndBack(t *testing.T) {
	h := newHost(t, "process")
	dir := t.TempDir()
	name := "a b;$(reboot) 'c'\n*.txt"
	if err := os.MkdirAll(filepath.Join(dir, "in", "deep"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "in", "deep", name), []byte("here and back"), 0o640); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(h.cli(t, "job", "submit", "--", "sleep", "600"))
	for !strings.Contains(h.cli(t, "job", "status", id), "running") {
		time.Sleep(50 * time.Millisecond) // the test's time bounds it
	}
	h.cli(t, "vm", "cp", filepath.Join(dir, "in"), id+":")
	h.cli(t, "vm", "cp", id+":in", filepath.Join(dir, "out"))
	if data, err := os.ReadFile(filepath.Join(dir, "out", "deep", name)); err != nil || string(data) != "here and back" {
		t.Errorf("%q, %v", data, err)
	}
	h.cli(t, "job", "cancel", id)
}
