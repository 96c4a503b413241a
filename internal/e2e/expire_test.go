package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
)

// A VM's time can be changed while it runs: it ends some seconds after a time of seconds, it is
// suspended then if that is asked for, and its host has a lease of it as long as it is to be destroyed.
func TestExpire_AVMsTimeIsChanged(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.cli(t, "vm", "create", "dev")
	lease := func(what string, there bool) {
		t.Helper()
		if found, err := filepath.Glob(filepath.Join(h.dir, leaseFiles)); err != nil || len(found) > 0 != there {
			t.Errorf("%s: leases %v, %v", what, found, err)
		}
	}
	until := func(what string, so func(code int, shown string) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
			code, shown := h.exits(t, "vm", "show", "dev")
			if so(code, shown) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s:\n%s", what, shown)
			}
		}
	}
	lease("it stays", false)
	h.cli(t, "vm", "set", "dev", "--ttl", "1h")
	lease("for an hour", true)
	if out := h.cli(t, "vm", "set", "dev", "--ttl", "off"); !strings.Contains(out, "stays") {
		t.Errorf("%s", out)
	}
	lease("without a time", false)
	h.cli(t, "vm", "set", "dev", "--ttl", "2", "--at-end", "suspend")
	until("it is not suspended", func(_ int, shown string) bool { return strings.Contains(shown, "status     suspended") })
	until("its suspend does not end", func(int, string) bool { // it is shown as suspended a moment before
		code, _ := h.exits(t, "vm", "resume", "dev")
		return code == 0
	})
	if said := h.cli(t, "job", "exec", "--vm", "dev", "--", "echo", "back"); said != "back\n" {
		t.Errorf("after that: %q", said)
	}
	lease("resumed", false)
	h.cli(t, "vm", "set", "dev", "--ttl", "2", "--at-end", "destroy")
	until("it is not destroyed", func(code int, _ string) bool { return code != 0 })
	h.waitGone(t)
	lease("gone", false)
}
