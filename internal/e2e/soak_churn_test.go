package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Beside the jobs of a soak is what VMs that live on are for: one is forked, and saved as a
// template, again and again, and a volume is read by jobs.

// churnBegins makes the VM and the volume, with something on each that must stay.
func (s *soak) churnBegins() {
	s.t.Helper()
	s.h.cli(s.t, "vm", "create", "dev")
	s.h.cli(s.t, "job", "exec", "--vm", "dev", "--", "sh", "-c", "echo 41 >/dev/shm/count; echo saved >/home/debian/saved")
	s.h.cli(s.t, "volume", "create", "cache", "--size", "1G")
	s.h.cli(s.t, "job", "submit", "--wait", "--volume", "cache:/srv/cache", "--", "sh", "-c", "echo kept >/srv/cache/file")
}

// readsVolume has a job look at what is on the volume before its task.
func (j *soakJob) readsVolume() {
	j.manifest["task"] = "[ \"$(cat /srv/cache/file)\" = kept ] || exit 96\n" + j.manifest["task"].(string)
	j.manifest["volumes"] = []any{map[string]any{"name": "cache", "path": "/srv/cache", "mode": "ro"}}
}

// churn forks the VM, looks at the copies and destroys them, and saves it, until over. What
// fails under faults leaves nothing, which is seen at the end.
func (s *soak) churn(over <-chan struct{}) {
	for n := 0; ; n++ {
		select {
		case <-over:
			return
		case <-time.After(500 * time.Millisecond):
		}
		if n%4 == 3 {
			code, _ := s.h.exits(s.t, "vm", "save", "dev", "--as", fmt.Sprintf("saved-%d", n))
			s.count(s.ends, fmt.Sprintf("save, exit %d", code))
			continue
		}
		code, text := s.h.exits(s.t, "vm", "fork", "dev", "--count", "2", "--name", fmt.Sprintf("copy-%d-%%d", n))
		s.count(s.ends, fmt.Sprintf("fork, exit %d", code))
		for i := 1; code == 0 && i <= 2; i++ {
			name := fmt.Sprintf("copy-%d-%d", n, i)
			said := ""
			for deadline := time.Now().Add(s.patience); time.Now().Before(deadline) && said != "41"; {
				said = strings.TrimSpace(s.stdout("job", "exec", "--vm", name, "--", "cat", "/dev/shm/count"))
			}
			if said != "41" {
				s.t.Errorf("%s, of which was told\n%s\ngoes on with %q", name, text, said)
			}
		}
		for _, v := range s.copies() {
			s.h.exits(s.t, "vm", "destroy", v, "--yes")
		}
	}
}

// copies are the forks there are, by name.
func (s *soak) copies() (names []string) {
	var list []struct{ Name string }
	s.h.until(s.t, func() bool { return json.Unmarshal([]byte(s.stdout("vm", "list", "-o", "json")), &list) == nil })
	for _, v := range list {
		if strings.HasPrefix(v.Name, "copy-") {
			names = append(names, v.Name)
		}
	}
	return names
}

// stdout is what a verb of linus says, which may fail while the engine is killed under it.
func (s *soak) stdout(args ...string) string {
	cmd := exec.Command(s.h.linus(), args...)
	cmd.Env = s.h.env
	out, _ := cmd.Output()
	return string(out)
}

// churnGone checks that the VM is as it was, and the volume, and that of forks and saves there
// is nothing that was not told; then it removes them all.
func (s *soak) churnGone() {
	s.t.Helper()
	s.h.until(s.t, func() bool {
		for _, v := range s.copies() {
			s.h.exits(s.t, "vm", "destroy", v, "--yes")
		}
		return len(s.copies()) == 0
	})
	s.h.unforked(s.t, s.h.vmOf("name: dev\n"))
	if out := s.h.cli(s.t, "job", "exec", "--vm", "dev", "--", "cat", "/dev/shm/count", "/home/debian/saved"); out != "41\nsaved\n" {
		s.t.Errorf("dev has %q", out)
	}
	s.h.cli(s.t, "vm", "destroy", "dev", "--yes")
	if out := s.h.cli(s.t, "job", "submit", "--wait", "--volume", "cache:/srv/cache", "--", "cat", "/srv/cache/file"); !strings.Contains(out, "kept\n") {
		s.t.Errorf("the volume has %q", out)
	}
	s.h.cli(s.t, "volume", "rm", "cache")
	if out := s.h.cli(s.t, "volume", "list"); out != "" {
		s.t.Errorf("volumes are left:\n%s", out)
	}
	var list []struct{ Name string }
	out := s.h.cli(s.t, "template", "list", "-o", "json")
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		s.t.Fatalf("%v: %s", err, out)
	}
	for _, of := range list {
		if strings.HasPrefix(of.Name, "saved-") {
			s.h.cli(s.t, "template", "remove", of.Name)
		}
	}
}

// checkpointsGone removes the checkpoints, from which jobs must have gone on.
func (s *soak) checkpointsGone() {
	s.t.Helper()
	restored := 0
	for _, vm := range s.vms {
		if strings.HasSuffix(vm, " restored") {
			restored++
		}
	}
	s.t.Logf("%d jobs had a VM that was restored\n%s", restored, s.h.cli(s.t, "template", "checkpoint", "list"))
	if restored == 0 {
		s.t.Error("no job went on from a checkpoint")
	}
	s.h.until(s.t, func() bool {
		var left []struct{ Name string }
		if err := json.Unmarshal([]byte(s.h.cli(s.t, "template", "checkpoint", "list", "-o", "json")), &left); err != nil {
			s.t.Fatal(err)
		}
		for _, c := range left { // one may be about to be destroyed, and another made, by itself
			s.h.exits(s.t, "template", "checkpoint", "rm", c.Name)
		}
		return len(left)+len(s.h.checkpoints(s.t)) == 0
	})
}

// loseCheckpoints removes the memory of the checkpoints.
func (s *soak) loseCheckpoints() {
	lost := slices.DeleteFunc(s.h.checkpoints(s.t), func(file string) bool { return !strings.HasSuffix(file, ".state") || os.Remove(file) != nil })
	if len(lost) > 0 {
		s.count(s.faults, "memory of a checkpoint removed")
	}
}
