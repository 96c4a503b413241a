package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
		if !s.devRuns() {
			s.count(s.ends, "neither fork nor save: the VM is away")
			continue
		}
		if n%4 == 3 {
			code, _ := s.h.exits(s.t, "vm", "save", "dev", "--as", fmt.Sprintf("saved-%d", n))
			s.count(s.ends, fmt.Sprintf("save, exit %d", code))
			continue
		}
		began := time.Now()
		code, text := s.h.exits(s.t, "vm", "fork", "dev", "--count", "2", "--name", fmt.Sprintf("copy-%d-%%d", n))
		s.count(s.ends, fmt.Sprintf("fork, exit %d", code))
		for i := 1; code == 0 && i <= 2; i++ {
			name := fmt.Sprintf("copy-%d-%d", n, i)
			said := ""
			lost := func() bool { return s.wasDown != nil && s.wasDown(s.devNode, began, time.Now()) }
			for deadline := time.Now().Add(s.patience); time.Now().Before(deadline) && said != "41" && !lost(); {
				said = strings.TrimSpace(s.stdout("job", "exec", "--vm", name, "--", "cat", "/dev/shm/count"))
			}
			if said != "41" && !lost() {
				s.t.Errorf("%s, of which was told\n%s\ngoes on with %q", name, text, said)
			}
		}
		for _, v := range s.copies() {
			s.h.exits(s.t, "vm", "destroy", v.Name, "--yes")
		}
	}
}

// devRuns starts the VM if its node was down, and reports whether it runs, with what it is to
// have in its memory.
func (s *soak) devRuns() bool {
	const count = "/dev/shm/count"
	for _, v := range s.listed() {
		if v.Name != "dev" {
			continue
		}
		if s.devNode = v.Node; v.Status == "stopped" {
			s.h.exits(s.t, "vm", "start", "dev")
		}
	}
	switch said := strings.TrimSpace(s.stdout("job", "exec", "--vm", "dev", "--", "sh", "-c", "cat "+count+" 2>/dev/null || echo none")); said {
	case "41":
		return true
	case "none":
		if s.wasDown == nil || !s.wasDown(s.devNode, s.began, time.Now()) {
			s.t.Error("dev has lost its memory")
		}
		code, _ := s.h.exits(s.t, "job", "exec", "--vm", "dev", "--", "sh", "-c", "echo 41 >"+count)
		return code == 0
	}
	return false
}

// listedVM is a VM as the command line lists it.
type listedVM struct{ Name, Status, Node string }

// listed are the VMs there are.
func (s *soak) listed() (list []listedVM) {
	s.until(func() bool { return json.Unmarshal([]byte(s.stdout("vm", "list", "-o", "json")), &list) == nil })
	return list
}

// until waits until it is so, for as long as calls may fail.
func (s *soak) until(yes func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(3 * s.patience); !yes(); time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("it does not come")
		}
	}
}

// copies are the forks there are.
func (s *soak) copies() []listedVM {
	return slices.DeleteFunc(s.listed(), func(v listedVM) bool { return !strings.HasPrefix(v.Name, "copy-") })
}

// onNodes are the files that a pattern names on the nodes.
func (s *soak) onNodes(pattern string) (files []string) {
	nodes, err := s.h.lab.Nodes()
	if err != nil {
		s.t.Fatal(err)
	}
	for _, node := range nodes {
		found, err := filepath.Glob(filepath.Join(node.Dir, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		files = append(files, found...)
	}
	return files
}

// unforked reports whether no VM of the nodes has a snapshot of a fork, or a lock.
func (s *soak) unforked() bool {
	return !slices.ContainsFunc(s.onNodes("etc/pve/nodes/*/qemu-server/*.conf"), func(path string) bool {
		text, err := os.ReadFile(path)
		return err == nil && (strings.Contains(string(text), "linus-fork") || strings.Contains(string(text), "\nlock: "))
	})
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
	s.until(func() bool {
		for _, v := range s.copies() {
			s.h.exits(s.t, "vm", "destroy", v.Name, "--yes")
		}
		return len(s.copies()) == 0
	})
	s.until(s.unforked)
	if list := s.h.cli(s.t, "vm", "snapshots", "dev"); strings.Contains(list, "linus-fork") {
		s.t.Errorf("dev has snapshots:\n%s", list)
	}
	s.until(s.devRuns)
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
	s.until(func() bool {
		var left []struct{ Name string }
		if err := json.Unmarshal([]byte(s.h.cli(s.t, "template", "checkpoint", "list", "-o", "json")), &left); err != nil {
			s.t.Fatal(err)
		}
		for _, c := range left { // one may be about to be destroyed, and another made, by itself
			s.h.exits(s.t, "template", "checkpoint", "rm", c.Name)
		}
		return len(left)+len(s.onNodes(checkpointFiles)) == 0
	})
}

// loseCheckpoints removes the memory of the checkpoints.
func (s *soak) loseCheckpoints() {
	lost := slices.DeleteFunc(s.onNodes(checkpointFiles), func(file string) bool { return !strings.HasSuffix(file, ".state") || os.Remove(file) != nil })
	if len(lost) > 0 {
		s.count(s.faults, "memory of a checkpoint removed")
	}
}
