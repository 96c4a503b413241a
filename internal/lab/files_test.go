package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"linus/internal/lab/state"
)

// Scripts read the files that the real commands go by instead of starting these:
// both must say the same.
func TestFiles_ShowWhatTheCommandsTell(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100 --name clone-a")
	running := func() bool {
		t.Helper()
		raw, err := os.ReadFile(l.QemuPidFile(100))
		if errors.Is(err, fs.ErrNotExist) {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%s/cmdline", strings.TrimSpace(string(raw))))
		words := strings.Split(string(cmdline), "\x00")
		at := slices.Index(words, "-pidfile")
		return err == nil && at >= 0 && words[at+1] == l.QemuPidFile(100)
	}
	for _, step := range []struct {
		line string
		want bool
	}{{"qm status 100", false}, {"qm start 100", true}, {"qm stop 100", false}, {"qm start 100", true}, {"qm suspend 100 --todisk 1", false}, {"qm start 100", true}, {"qm shutdown 100", false}} {
		l.must(t, step.line)
		if running() != step.want {
			t.Errorf("after %q the VM's process shows that it runs: %v", step.line, !step.want)
		}
	}

	members := func() (m struct {
		NodeName string
		Cluster  *struct{ Quorate int }
		NodeList map[string]struct{ Online int }
	}) {
		t.Helper()
		raw, err := os.ReadFile(l.Path("etc", "pve", ".members"))
		if err == nil {
			err = json.Unmarshal(raw, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	if m := members(); m.NodeName != "pve" || m.Cluster != nil || m.NodeList != nil {
		t.Errorf("a host without a cluster: %+v", m)
	}
	if err := l.SetFault(state.FaultMissingTemplate, "9000"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(l.ConfPath(9000)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the config that nobody finds is there: %v", err)
	}
	if err := l.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	l.must(t, "qm config 9000")
}
