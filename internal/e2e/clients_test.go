package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
)

// clients are what scripts/dev/clients.sh has installed.
type clients struct{ dir, node string }

// npmClients installs other people's MCP clients, or skips the test where npm
// cannot.
func npmClients(t *testing.T) clients {
	t.Helper()
	out, err := exec.Command("bash", "../../scripts/dev/clients.sh").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if exit.ExitCode() == 75 {
			t.Skipf("no clients from npm: %s", strings.TrimSpace(string(exit.Stderr)))
		}
		t.Fatalf("clients.sh: %v\n%s", err, exit.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, node, _ := strings.Cut(strings.TrimSuffix(string(out), "\n"), "\n")
	return clients{dir, node}
}
