package daemon

import (
	"os/exec"
	"strings"
	"testing"
)

// What is started so has the slack, and nothing that is started later.
func TestSlackened(t *testing.T) {
	t.Parallel()
	slack := func(start func(func() error) error) string {
		var said strings.Builder
		cat := exec.Command("cat", "/proc/self/timerslack_ns")
		cat.Stdout = &said
		if err := start(cat.Start); err != nil {
			t.Fatal(err)
		}
		if err := cat.Wait(); err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(said.String())
	}
	plain := func(start func() error) error { return start() }
	before := slack(plain)
	if got := slack(slackened); got != "500000" || got == before {
		t.Errorf("%s ns, %s before", got, before)
	}
	if after := slack(plain); after != before {
		t.Errorf("%s ns afterwards, %s before", after, before)
	}
}
