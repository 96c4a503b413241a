package e2e

import (
	"encoding/json"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// Sandboxes live through deaths of the engine, cut connections, a host that is away and Proxmox's own
// failures: what answers is right, and nothing is left.
func TestSandboxes_UnderFaults(t *testing.T) {
	loops.AtNightOnly(t, "TestSandboxes_ProcessesOutlastTheirEngine kills an engine, TestFault_AtEveryMoment and TestProxmoxFaults do the rest to jobs")
	t.Parallel()
	c := npmClients(t)
	addr := "127.0.0.1:" + freePort(t)
	h := newHost(t, lab.DriverProcess, "E2B_ADDR="+addr, "CLEANUP_INTERVAL_SECONDS=10")
	s := newSoak(t, h, 0)
	s.least = 15 * time.Second // TestSoak has them longer
	s.run(nil, s.sandboxes(c, addr), s.again(2*time.Second, 4*time.Second, s.inject))
	s.summary()
	s.sandboxesGone()
	s.nothingLeft()
}

// sandboxes has sandboxes made, used and ended by E2B's own client, as served at an address, until
// over, and checks what it has seen.
func (s *soak) sandboxes(c clients, addr string) func(over <-chan struct{}) {
	s.t.Helper()
	end := s.h.supervised(s.t)
	untilDials(s.t, "tcp", addr)
	cmd := exec.CommandContext(s.t.Context(), c.node, filepath.Join(c.scripts(s.t, "soak.mjs"), "soak.mjs"))
	cmd.Env = append(s.h.env, "E2B_API_URL=http://"+addr, "E2B_SANDBOX_URL=http://"+addr, "E2B_API_KEY="+strings.TrimSpace(s.h.cli(s.t, "token", "create", "tester", "--e2b")))
	cmd.Stderr = s.t.Output()
	lasts, err := cmd.StdinPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	return func(over <-chan struct{}) {
		go func() { <-over; _ = lasts.Close() }()
		out, err := cmd.Output()
		end()
		var seen struct {
			Lives    map[string]int
			Failures int
			Wrong    []any
		}
		if err == nil {
			err = json.Unmarshal(out, &seen)
		}
		if err != nil || len(seen.Wrong) > 0 || len(seen.Lives) == 0 {
			s.t.Errorf("what the client of sandboxes has seen: %v, %s\nbeside %s\nand the engines have logged of sandboxes\n%s", err, out, s.stdout("vm", "list", "-o", "json"), s.loggedOfSandboxes())
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for kind, n := range seen.Lives {
			s.beside["sandbox, "+kind] += n
		}
		s.beside["call for a sandbox, made again"] += seen.Failures
	}
}

// loggedOfSandboxes is what engines have logged of sandboxes lately.
func (s *soak) loggedOfSandboxes() string {
	var lines []string
	for line := range strings.Lines(s.h.wholeLog() + readAll(s.h.state+".log")) {
		if strings.Contains(line, "sandbox") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-400):], "")
}

// sandboxesGone destroys those of which no client was told, since the engine was killed that made
// them, or before it did.
func (s *soak) sandboxesGone() {
	s.t.Helper()
	s.until("the end of the sandboxes", func() bool {
		list, err := s.list()
		left := err != nil
		for _, v := range list {
			if strings.HasPrefix(v.Name, "sandbox-") {
				left = true
				s.h.exits(s.t, "vm", "destroy", v.Name, "--yes")
			}
		}
		return !left
	})
}
