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
// template, again and again, and a volume is used by jobs.

// churnBegins makes the VM and the volume, with something on each that must stay.
func (s *soak) churnBegins() {
	s.t.Helper()
	s.h.cli(s.t, "vm", "create", "dev")
	s.h.cli(s.t, "job", "exec", "--vm", "dev", "--", "sh", "-c", "echo 41 >/dev/shm/count; echo saved >/home/debian/saved")
	s.h.cli(s.t, "volume", "create", "cache", "--size", "1G")
	s.h.cli(s.t, "job", "submit", "--wait", "--volume", "cache:/srv/cache", "--", "sh", "-c", "echo kept >/srv/cache/file")
	if s.t.Failed() {
		s.t.FailNow()
	}
}

// usesVolume has a job look at what is on the volume before its task, and write its line there
// if it may.
func (j *soakJob) usesVolume(mode string) {
	j.volume = mode
	look := "[ \"$(head -n 1 /srv/cache/file)\" = kept ] || exit 96\n"
	if mode == "rw" {
		look += "echo '" + strings.TrimSpace(j.line()) + "' >>/srv/cache/file && sync /srv/cache/file || exit 95\n"
	}
	j.manifest["task"] = look + j.manifest["task"].(string)
	j.manifest["volumes"] = []any{map[string]any{"name": "cache", "path": "/srv/cache", "mode": mode}}
}

// line is what a job writes to the volume.
func (j *soakJob) line() string { return fmt.Sprintf("job %d\n", j.n) }

// volumeFree reports whether no VM has the volume.
func (s *soak) volumeFree() bool {
	var list []struct{ Uses []any }
	err := json.Unmarshal([]byte(s.stdout("volume", "list", "-o", "json")), &list)
	return err == nil && len(list) == 1 && len(list[0].Uses) == 0
}

// volumeWhole checks that what jobs have written to the volume is there, and nothing twice.
func (s *soak) volumeWhole() {
	s.t.Helper()
	out := s.h.cli(s.t, "job", "submit", "--wait", "--volume", "cache:/srv/cache", "--", "cat", "/srv/cache/file")
	seen := map[string]int{}
	for line := range strings.Lines(out) {
		if seen[line]++; seen[line] > 1 {
			s.t.Errorf("the volume has twice %q", line)
		}
	}
	for _, line := range append(s.wrote, "kept\n") {
		if seen[line] == 0 {
			s.t.Errorf("the volume has no %q, but\n%s", line, out)
		}
	}
}

// churn forks the VM, looks at the copies and destroys them, and saves it, in turns, until over
// or as often as is said. What fails under faults leaves nothing, which is seen at the end.
func (s *soak) churn(turns int) func(over <-chan struct{}) {
	return func(over <-chan struct{}) {
		for n := 0; n < turns; {
			select {
			case <-over:
				return
			case <-time.After(500 * time.Millisecond):
			}
			switch {
			case !s.devRuns():
				s.count(s.beside, "neither fork nor save: the VM is away")
				continue
			case n%2 == 0:
				s.fork(n, over)
			default:
				s.save(n)
			}
			n++
		}
	}
}

// forksWhole is what forks count as whose copies all go on.
const forksWhole = "fork, whose copies go on from memory"

// fork makes two copies of the VM, and reports whether both go on from its memory. Where an
// engine is killed over it the next one makes them. It is not waited for once it is over.
func (s *soak) fork(n int, over <-chan struct{}) bool {
	began, prefix := time.Now(), fmt.Sprintf("copy-%d-", n)
	lost := func() bool { return s.wasDown != nil && s.wasDown(s.devNode, began, time.Now()) }
	code, text := s.h.exits(s.t, "vm", "fork", "dev", "--count", "2", "--name", prefix+"%d")
	whole, given := 0, false
	for deadline := time.Now().Add(s.patience); whole < 2 && !given && !lost() && time.Now().Before(deadline); {
		select {
		case <-over:
			s.count(s.beside, "fork, not looked at: the jobs have ended")
			return false
		default:
		}
		whole = 0
		for i := 1; i <= 2 && whole == i-1; i++ {
			if said := s.stdout("job", "exec", "--vm", fmt.Sprint(prefix, i), "--", "cat", "/dev/shm/count"); strings.TrimSpace(said) == "41" {
				whole++
			}
		}
		copies, err := s.copies()
		given = err == nil && !slices.ContainsFunc(copies, func(v listedVM) bool { return strings.HasPrefix(v.Name, prefix) })
	}
	switch {
	case whole == 2:
		s.count(s.beside, forksWhole)
	case code == 0 && !lost():
		s.t.Errorf("the copies %s* do not go on, of which was told\n%s", prefix, text)
	default:
		s.count(s.beside, "fork, not made")
		s.t.Logf("%s* are not made, exit %d, its node was down: %v: %.500s", prefix, code, lost(), text)
	}
	copies, _ := s.copies() // those that are left are destroyed at the end
	for _, v := range copies {
		s.h.exits(s.t, "vm", "destroy", v.Name, "--yes")
	}
	return whole == 2
}

// save saves the VM, and reports whether that is told. Where an engine is killed over it the
// host goes on with it: what has become a template is seen at the end.
func (s *soak) save(n int) bool {
	code, text := s.h.exits(s.t, "vm", "save", "dev", "--as", fmt.Sprint("saved-", n))
	s.count(s.beside, fmt.Sprintf("save, exit %d", code))
	if code != 0 {
		s.t.Logf("saved-%d, exit %d: %.500s", n, code, text)
	}
	return code == 0
}

// devRuns starts the VM if its node was down, and reports whether it runs, with what it is to
// have in its memory.
func (s *soak) devRuns() bool {
	const count = "/dev/shm/count"
	list, _ := s.list() // without an answer nothing runs that could be asked
	for _, v := range list {
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

// list are the VMs there are.
func (s *soak) list() (list []listedVM, err error) {
	err = json.Unmarshal([]byte(s.stdout("vm", "list", "-o", "json")), &list)
	return list, err
}

// copies are the forks there are.
func (s *soak) copies() ([]listedVM, error) {
	list, err := s.list()
	return slices.DeleteFunc(list, func(v listedVM) bool { return !strings.HasPrefix(v.Name, "copy-") }), err
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

// churnGone checks that the VM is as it was, and the volume, that one could be forked and saved
// at least when the faults were over, and that of forks and saves there is nothing that was not
// told; then it removes them all.
func (s *soak) churnGone() {
	s.t.Helper()
	s.copiesGone()
	s.until("the VM", s.devRuns)
	n := 1000 // faults may be left that have hit nothing
	s.until("a fork", func() bool { n++; return s.beside[forksWhole] > 0 || s.fork(n, nil) })
	s.copiesGone()
	s.until("a save", func() bool { n++; return len(s.saved()) > 0 || s.save(n) })
	if list := s.h.cli(s.t, "vm", "snapshots", "dev"); strings.Contains(list, "linus-fork") {
		s.t.Errorf("dev has snapshots:\n%s", list)
	}
	if out := s.h.cli(s.t, "job", "exec", "--vm", "dev", "--", "cat", "/dev/shm/count", "/home/debian/saved"); out != "41\nsaved\n" {
		s.t.Errorf("dev has %q", out)
	}
	s.h.cli(s.t, "vm", "destroy", "dev", "--yes")
	s.volumeWhole()
	s.h.cli(s.t, "volume", "rm", "cache", "--yes")
	if out := s.h.cli(s.t, "volume", "list"); out != "" {
		s.t.Errorf("volumes are left:\n%s", out)
	}
	saved := s.saved()
	if out := s.h.cli(s.t, "job", "submit", "--wait", "--template", saved[0], "--", "cat", "/home/debian/saved"); !strings.Contains(out, "saved\n") {
		s.t.Errorf("a VM of %s has %q", saved[0], out)
	}
	s.t.Logf("beside the jobs, with what was done at the end:\n%s%6d saves have become templates", lines(s.beside), len(saved))
	for _, name := range saved {
		s.h.cli(s.t, "template", "remove", name)
	}
}

// copiesGone destroys the forks there are, and waits until nothing of them is on a host.
func (s *soak) copiesGone() {
	s.t.Helper()
	s.until("the end of the copies", func() bool {
		copies, err := s.copies()
		for _, v := range copies {
			s.h.exits(s.t, "vm", "destroy", v.Name, "--yes")
		}
		return err == nil && len(copies) == 0
	})
	s.until("the end of the forks' snapshots", s.unforked)
}

// saved are the templates that the VM was saved as.
func (s *soak) saved() (names []string) {
	s.t.Helper()
	var list []struct{ Name string }
	s.until("a list of templates", func() bool { return json.Unmarshal([]byte(s.stdout("template", "list", "-o", "json")), &list) == nil })
	for _, of := range list {
		if strings.HasPrefix(of.Name, "saved-") {
			names = append(names, of.Name)
		}
	}
	return names
}
