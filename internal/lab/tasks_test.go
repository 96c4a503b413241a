package lab

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"linus/internal/lab/sys"
)

func TestTasks_ShowWhoWorksOnAVMAndNoOneWhoIsGone(t *testing.T) {
	l := newLab(t)
	const ask = "pvesh get /nodes/pve/tasks --source active --output-format json"
	if got := strings.TrimSpace(l.must(t, ask)); got != "[]" {
		t.Errorf("nobody is at work, but: %s", got)
	}
	if err := sys.WritePidFile(l.TaskPath("100"), os.Getpid()); err != nil {
		t.Fatal(err)
	}
	if got := l.must(t, ask); !strings.Contains(got, fmt.Sprintf("UPID:pve:%08X:", os.Getpid())) || !strings.Contains(got, `:100:`) {
		t.Errorf("this process works on VM 100, but: %s", got)
	}
	if err := os.WriteFile(l.TaskPath("100"), fmt.Appendf(nil, "%d 1\n", os.Getpid()), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimSpace(l.must(t, ask)); got != "[]" {
		t.Errorf("the number belongs to another process now, but: %s", got)
	}
}
