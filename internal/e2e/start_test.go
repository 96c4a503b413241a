package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Every client waits for linus to start: what our packages compute before main is
// bounded. Measured in bytes, which do not depend on the machine.
func TestStart_PackagesInitializeLittle(t *testing.T) {
	t.Parallel()
	const most = 600 << 10
	cmd := exec.Command(filepath.Join(binDir, "linus"), "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace strings.Builder
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	total, packages := 0, 0
	for line := range strings.Lines(trace.String()) {
		var name string
		var at, clock float64
		var bytes int
		if n, _ := fmt.Sscanf(line, "init %s @%f ms, %f ms clock, %d bytes", &name, &at, &clock, &bytes); n == 4 && strings.HasPrefix(name, "linus/") {
			total += bytes
			packages++
		}
	}
	if packages < 5 || total > most {
		t.Errorf("%d packages allocate %d bytes before main, the bound is %d; compute at first use (sync.OnceValue), and bound lengths outside regular expressions:\n%s", packages, total, most, trace.String())
	}
}
