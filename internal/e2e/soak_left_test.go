package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab"
)

// What is to be there when a soak is over, and what is not.

// plantForeigners makes VMs of others: one that only exists, one that runs,
// and one of another installation of linus.
func (s *soak) plantForeigners() string {
	s.h.plantForeign(s.t)
	s.others = 1
	template := strconv.Itoa(lab.TemplateID)
	for id, description := range map[string]string{
		"151": "somebody's",
		"152": "linus-job=01a1fd08-0000-7000-8000-000000000000 linus-owner=11111111-2222-4333-8444-555555555555",
	} {
		s.h.qm(s.t, "clone", template, id, "--name", "production-"+id, "--description", description)
		s.h.qm(s.t, "set", id, "--tags", "linus")
		s.h.qm(s.t, "start", id)
	}
	return s.foreigners()
}

// foreigners is all that must not change: configs, and the processes that run.
func (s *soak) foreigners() string {
	var b strings.Builder
	for _, id := range []int{150, 151, 152, lab.TemplateID} {
		fmt.Fprintf(&b, "VM %d, process %d\n%s\n", id, s.h.vmPID(s.t, id), s.h.conf(id))
	}
	return b.String()
}

// membersWhole checks that no VM of the pool was given to two jobs, that the pool fills
// again once the faults are over, and that no VM of ours is there but its members.
func (s *soak) membersWhole() {
	s.t.Helper()
	of := map[string]int{}
	for _, vm := range s.vms {
		if of[vm]++; of[vm] == 2 {
			s.t.Errorf("VM %s was given to two jobs", vm)
		}
	}
	s.until("the pool's two members, and no other VM", func() bool {
		var p struct{ Members []struct{ State string } }
		err := json.Unmarshal([]byte(s.stdout("pool", "show", "p", "-o", "json")), &p)
		return err == nil && len(p.Members) == 2 && p.Members[0].State == "warm" && p.Members[1].State == "warm" && s.h.ourVMs(s.t)-s.others == 2
	})
	s.t.Logf("%d jobs had a VM of the pool\n%s", s.from("pool"), s.h.cli(s.t, "pool", "list"))
}

// from counts the jobs whose VMs were from a pool, restored, cold.
func (s *soak) from(source string) (n int) {
	for _, vm := range s.vms {
		if strings.HasSuffix(vm, " "+source) {
			n++
		}
	}
	return n
}

// checkpointsGone removes the checkpoints. Where their memory was always gone before a job came, one
// goes on from a checkpoint now.
func (s *soak) checkpointsGone() {
	s.t.Helper()
	s.t.Logf("%d jobs had a VM that was restored\n%s", s.from("restored"), s.h.cli(s.t, "template", "checkpoint", "list"))
	if s.from("restored") == 0 {
		s.until("a job that goes on from a checkpoint", func() bool {
			s.h.exits(s.t, "template", "checkpoint", "build", "--wait") // refused while there is one: a job finds that its memory is gone
			code, text := s.h.exits(s.t, "run", "--start", "restore", "--", "true")
			if code != 0 {
				s.t.Log(text)
			}
			return code == 0
		})
	}
	s.until("the end of the checkpoints", func() bool {
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

// nothingLeft checks that no VM is there or told of, and that, once the engine has ended
// too, no volume, process, connection or file of a job is left on the host for a sweep.
func (s *soak) nothingLeft() {
	s.t.Helper()
	s.until("the end of the last VM", func() bool { return s.h.ourVMs(s.t) == s.others })
	s.until("a list without VMs, left alone or not", func() bool { return strings.TrimSpace(s.stdout("vm", "list", "-o", "json")) == "[]" })
	s.until("the end of the last lease", func() bool { return len(s.onNodes(leaseFiles)) == 0 })
	for _, c := range s.clients {
		c.Close()
	}
	s.h.cli(s.t, "serve", "--stop")
	if pid := s.h.engine(); pid != 0 {
		s.t.Errorf("the engine runs as %d", pid)
	}
	var sessions []int
	if !within(10*time.Second, func() bool { sessions = childrenOf(s.h.sshd()); return len(sessions) == 0 }) {
		s.t.Errorf("%d SSH sessions are left", len(sessions))
	}
	owners := []string{"9000", "150", "151", "152", "dhcp", "systemd", "qemu"} // the last three are the network's and the host's
	for _, pattern := range []string{"storage/local-lvm/*", "storage/local/images/*", "run/*", "run/qemu-server/*"} {
		for _, path := range s.onNodes(pattern) {
			name := strings.TrimPrefix(strings.TrimPrefix(filepath.Base(path), "base-"), "vm-")
			owner, _, _ := strings.Cut(strings.TrimSuffix(name, filepath.Ext(name)), "-")
			if !slices.Contains(owners, owner) {
				s.t.Errorf("%s is left", path)
			}
		}
	}
	err := filepath.WalkDir(filepath.Join(s.h.dir, "home"), func(path string, entry os.DirEntry, err error) error {
		known := strings.HasSuffix(path, ".sh") || strings.HasSuffix(path, ".pl") || entry.Name() == ".sweep" || entry.Name() == "timer.lock" || // scripts and locks
			entry.Name() == "armed" || entry.Name() == ".cleared" || // when the timer was looked at, and old answers were removed
			strings.Contains(entry.Name(), ".sh.linus-") || // an upload that an engine began, and was killed
			strings.Contains(path, "/operations/power-") || strings.Contains(path, "/operations/save-") || // what an engine was killed over: it goes after a week
			filepath.Base(filepath.Dir(path)) == "checked" // what the host's scripts have learnt of it
		if err == nil && !entry.IsDir() && !known {
			s.t.Errorf("%s is left", path)
		}
		return err
	})
	if err != nil {
		s.t.Error(err)
	}
}

// onNodes are the files that a pattern names on the nodes.
func (s *soak) onNodes(pattern string) (files []string) {
	for _, node := range s.nodes {
		found, err := filepath.Glob(filepath.Join(node.Dir, pattern))
		if err != nil {
			s.t.Fatal(err)
		}
		files = append(files, found...)
	}
	return files
}
