package e2e

import (
	"strconv"
	"strings"
	"testing"

	"linus/internal/lab"
)

// A VM that is stopped before its task runs ends the job as one that is stopped
// later: by what the host says, not by how long SSH is waited for.
func TestVM_StoppedBeforeItsTaskRuns(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "HEARTBEAT_THRESHOLD_SECONDS=3600")
	c := h.connect(t)
	for _, moment := range []string{"push", "start"} {
		t.Run(moment, func(t *testing.T) {
			c := &mcpClient{c.Client, t}
			id := c.submit(script("sleep 1000"))
			h.reach(t, id, moment)
			h.qm(t, "stop", strconv.Itoa(h.vmOf(id)))
			j := c.endsAs(id, "failed", "lost")
			if text, _ := j["error"].(string); !strings.Contains(text, "its VM is stopped on the host, and not by us; look in the host's log who stopped it") {
				t.Errorf("error: %v", j["error"])
			}
			h.waitGone(t)
		})
	}
}
