package hosttest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"linus/internal/hosttest"
	"linus/internal/job"
	"linus/internal/vm"
)

// run takes a test to its end, and returns it.
func (s *site) run(t *testing.T, tests *hosttest.Tests, spec job.HostTestSpec) job.HostTest {
	t.Helper()
	begun, err := tests.TestHost(job.WithPrincipal(t.Context(), job.Operator()), spec)
	if err != nil {
		t.Fatal(err)
	}
	s.work.Wait()
	return s.kept(t, begun.ID)
}

func (s *site) kept(t *testing.T, id string) job.HostTest {
	t.Helper()
	defer s.locked()()
	return s.tests[id]
}

// left is what the site has of a test.
func (s *site) left() (all []string) {
	defer s.locked()()
	for _, g := range s.vms {
		if g.status != vm.Gone {
			all = append(all, g.Name)
		}
	}
	for _, v := range s.volumes {
		all = append(all, v.Name)
	}
	for _, c := range s.points {
		all = append(all, c.Name)
	}
	for _, j := range s.jobs {
		if j.Manifest.VM != "" {
			all = append(all, "job "+j.ID)
		}
	}
	return all
}

// with returns the steps that have ended so.
func with(t job.HostTest, r job.StepResult) string {
	var names []string
	for _, s := range t.Steps {
		if s.Result == r {
			names = append(names, s.Name)
		}
	}
	return strings.Join(names, ", ")
}

const (
	whole = "check, boot, agent, address, job, output, exit code, cancel, snapshot, suspend, resume, checkpoint, restore, fork, volume, egress lan, egress internet, egress allow, egress none, lease, destroy, nothing left"
	quick = "check, boot, job, cancel, destroy, nothing left"
)

func TestHost_GoesThroughTheWholeChain(t *testing.T) {
	for want, spec := range map[string]job.HostTestSpec{whole: {}, quick: {Quick: true}} {
		s := newSite()
		got := s.run(t, s.new(time.Hour), spec)
		if got.Status != job.HostTestPassed || with(got, job.StepPassed) != want || len(got.Steps) != strings.Count(want, ",")+1 || got.EndedAt.IsZero() {
			t.Errorf("%s: %+v", got.Status, got.Steps)
		}
		if left := s.left(); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		for _, g := range s.vms {
			if g.labels[job.HostTestLabel] != got.ID || !strings.HasPrefix(g.Name, "host-test-") {
				t.Errorf("nobody sees whose %s is: %v", g.Name, g.labels)
			}
		}
	}
}

// Each step is made to fail once: it says so, what needs it is not tried, all else is, and
// nothing is left.
func TestHost_EachStepThatFailsSaysSo(t *testing.T) {
	for _, c := range []struct {
		step, broken, skipped string
		change                func(*site)
	}{
		{step: "check", broken: "CheckHost", skipped: whole[len("check, "):strings.Index(whole, ", nothing")]},
		{step: "boot", broken: "CreateVM main", skipped: whole[len("check, boot, "):strings.Index(whole, ", nothing")]},
		{step: "boot", broken: "make main", skipped: whole[len("check, boot, "):strings.Index(whole, ", nothing")]},
		{step: "agent", broken: "agent", skipped: "address"},
		{step: "address", broken: "address"},
		{step: "job", broken: "Submit identities", skipped: "output, exit code, cancel, snapshot, suspend, resume, restore, fork, volume"},
		{step: "output", broken: "Submit output", skipped: "exit code"},
		{step: "output", broken: "answer output", skipped: "exit code"},
		{step: "exit code", broken: "exit"},
		{step: "cancel", broken: "Submit sleep"},
		{step: "snapshot", broken: "SnapshotVM"},
		{step: "snapshot", broken: "RevertVM"},
		{step: "snapshot", broken: "DeleteSnapshot"},
		{step: "suspend", broken: "SuspendVM", skipped: "resume"},
		{step: "resume", broken: "ResumeVM"},
		{step: "checkpoint", broken: "CreateCheckpoint", skipped: "restore"},
		{step: "checkpoint", broken: "save", skipped: "restore"},
		{step: "restore", broken: "CreateVM 1"},
		{step: "restore", broken: "make 2"},
		{step: "restore", change: func(s *site) { s.alike = true }},
		{step: "restore", change: func(s *site) { s.booting = true }},
		{step: "fork", broken: "ForkVM"},
		{step: "volume", broken: "CreateVolume"},
		{step: "volume", broken: "AttachVolume"},
		{step: "volume", broken: "DetachVolume"},
		{step: "egress lan", broken: "CreateVM lan", skipped: "egress internet, egress allow, egress none"},
		{step: "egress lan", change: func(s *site) { s.dead = true }, skipped: "egress internet, egress allow, egress none"},
		{step: "egress internet", broken: "make internet"},
		{step: "egress internet, egress allow, egress none", change: func(s *site) { s.open = true }},
		{step: "lease", broken: "lease"},
	} {
		t.Run(c.step+" "+c.broken, func(t *testing.T) {
			t.Parallel()
			s := newSite()
			if c.broken != "" {
				s.broken[c.broken] = errBroken
			}
			if c.change != nil {
				c.change(s)
			}
			got := s.run(t, s.new(time.Hour), job.HostTestSpec{})
			if got.Status != job.HostTestFailed || with(got, job.StepFailed) != c.step || with(got, job.StepSkipped) != c.skipped {
				t.Errorf("%s: failed %q, skipped %q; %+v", got.Status, with(got, job.StepFailed), with(got, job.StepSkipped), got.Steps)
			}
			if left := s.left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// What the host is not made for is no failure, and its remedy is told.
func TestHost_WhatCannotBeDoneIsSkipped(t *testing.T) {
	s := newSite()
	cannot := &job.HostError{Op: "snapshot", Class: job.HostConfig, Text: "the storage has no snapshots", Remedy: "use another"}
	s.broken["SnapshotVM"], s.broken["make none"] = cannot, cannot
	s.checks = []job.Check{{Name: "nft", Level: "warn", Text: "nft is not there", Remedy: "install it"}}
	got := s.run(t, s.new(0), job.HostTestSpec{})
	if got.Status != job.HostTestPassed || with(got, job.StepSkipped) != "snapshot, egress internet, egress allow, egress none, lease" {
		t.Errorf("%s: %+v", got.Status, got.Steps)
	}
	for name, want := range map[string]string{"snapshot": "use another", "egress none": "install it", "lease": "LEASE_HOURS"} {
		if step := got.Step(name); !strings.Contains(step.Remedy, want) || step.Text == "" {
			t.Errorf("%s: %+v", name, step)
		}
	}
}

// A host that cannot do the least has not passed.
func TestHost_TheLeastIsNotSkipped(t *testing.T) {
	for step, call := range map[string]string{"check": "CheckHost", "boot": "make main"} {
		s := newSite()
		s.broken[call] = &job.HostError{Op: "create", Class: job.HostConfig, Text: "there is no template", Remedy: "build one"}
		got := s.run(t, s.new(time.Hour), job.HostTestSpec{Quick: true})
		if is := got.Step(step); got.Status != job.HostTestFailed || is.Result != job.StepFailed || !strings.Contains(is.Text, "no template") {
			t.Errorf("%s: %s, %+v", step, got.Status, is)
		}
	}
}

// What a guest says is kept as far as people read it.
func TestHost_WhatAGuestSaysIsBounded(t *testing.T) {
	s := newSite()
	s.broken["answer script"] = errors.New(strings.Repeat("\xff long", 1<<20))
	for _, step := range s.run(t, s.new(time.Hour), job.HostTestSpec{}).Steps {
		if len(step.Text) > job.MaxText || !utf8.ValidString(step.Text) {
			t.Errorf("%s: %d bytes", step.Name, len(step.Text))
		}
	}
}

// A test that is cancelled takes no proof away.
func TestHost_ACancelledOneReplacesNoProof(t *testing.T) {
	s := newSite()
	tests := s.new(time.Hour)
	s.run(t, tests, job.HostTestSpec{})
	s.hook = func(call string) {
		if call == "look" {
			for _, h := range s.running() {
				_, _ = tests.CancelHostTest(context.Background(), h)
			}
		}
	}
	for range 2 {
		if got := s.run(t, tests, job.HostTestSpec{}); got.Status != job.HostTestCancelled {
			t.Errorf("%s: %+v", got.Status, got.Steps)
		}
	}
	if c := tests.Checked(t.Context(), []job.HostFacts{s.facts})[0]; c.Level != "ok" || !tests.Restores(t.Context(), "pve", "agent-template") {
		t.Errorf("what is proven: %+v", c)
	}
	if all, _ := s.HostTests(t.Context()); len(all) != 2 {
		t.Errorf("%d are kept", len(all))
	}
}

// Another one that comes while a test is stored is refused, and who looks for what engines have left
// leaves those alone that run, or have just ended.
func TestHost_IsHeldFromItsBeginningToItsEnd(t *testing.T) {
	s := newSite()
	tests := s.new(time.Hour)
	tending, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tests.Tend(tending)
	}()
	once, second := sync.Once{}, error(nil)
	s.hook = func(call string) {
		if call == "PutHostTest" {
			once.Do(func() { _, second = tests.TestHost(context.Background(), job.HostTestSpec{}) })
		}
	}
	for range 20 {
		if got := s.run(t, tests, job.HostTestSpec{Quick: true}); got.Status != job.HostTestPassed {
			t.Errorf("%s: %+v", got.Status, got.Steps)
		}
	}
	end()
	<-done
	if second == nil || !strings.Contains(second.Error(), "is being tested") {
		t.Errorf("a second one: %v", second)
	}
}

// What the host still has at the end is told, whoever says that it is gone; what it had before is not.
func TestHost_SaysWhatIsLeft(t *testing.T) {
	s := newSite()
	s.foreign = []vm.VM{{Name: "other", Job: "a", ID: 7, Node: "pve"}}
	s.hook = func(call string) {
		if call == "VMs" {
			defer s.locked()()
			for id := range s.tests {
				s.foreign = append(s.foreign[:1], vm.VM{Name: "host-test-" + id[24:] + "-main", Job: "b", ID: 8, Node: "pve"})
			}
		}
	}
	got := s.run(t, s.new(time.Hour), job.HostTestSpec{Quick: true})
	if step := got.Step("nothing left"); got.Status != job.HostTestFailed || !strings.Contains(step.Text, "-main (VM 8 on node pve)") || strings.Contains(step.Text, "other") {
		t.Errorf("%s: %+v", got.Status, step)
	}
}

// Ctrl-C at any call of any step: nothing is left, and the test says that it was cancelled.
func TestHost_CancelledAnywhereLeavesNothing(t *testing.T) {
	s := newSite()
	s.run(t, s.new(time.Hour), job.HostTestSpec{})
	calls := slices.Index(s.calls, "VMs") // the end begins there
	for at := range calls {
		s := newSite()
		tests, n := s.new(time.Hour), 0
		s.hook = func(call string) {
			if call == "PutHostTest" {
				return
			}
			s.mu.Lock()
			for _, kept := range s.tests {
				if call == "DestroyVM" && kept.Status != job.HostTestRunning {
					t.Errorf("cancelled at call %d, it is said to be %s while its VMs are there", at+1, kept.Status)
				}
			}
			n++
			now := n == at+1
			var id string
			for id = range s.tests {
			}
			s.mu.Unlock()
			if now {
				if _, err := tests.CancelHostTest(context.Background(), id); err != nil {
					t.Error(err)
				}
			}
		}
		got := s.run(t, tests, job.HostTestSpec{})
		if left := s.left(); got.Status != job.HostTestCancelled || len(left) > 0 || got.Step("nothing left").Result != job.StepPassed {
			t.Errorf("cancelled at call %d: %s, left: %v, %+v", at+1, got.Status, left, got.Steps)
		}
	}
}

// An engine that ends in the middle leaves all as it is; the next one removes it.
func TestTend_RemovesWhatAnEngineHasLeft(t *testing.T) {
	s := newSite()
	s.hook = func(call string) {
		if call == "ForkVM" {
			s.stop()
		}
	}
	got := s.run(t, s.new(time.Hour), job.HostTestSpec{})
	if len(s.left()) == 0 || got.Status != job.HostTestRunning {
		t.Fatalf("%s: %+v", got.Status, got.Steps)
	}
	next := s.new(time.Hour)
	if !next.Busy() {
		t.Error("an engine may end before it has looked for what others have left")
	}
	tending, end := context.WithCancel(t.Context())
	s.hook = func(string) {}
	done := make(chan struct{})
	go func() {
		defer close(done)
		next.Tend(tending)
	}()
	for deadline := time.Now().Add(10 * time.Second); s.kept(t, got.ID).Status == job.HostTestRunning && time.Now().Before(deadline); {
		<-time.After(time.Millisecond)
	}
	end()
	<-done
	got = s.kept(t, got.ID)
	if left := s.left(); len(left) > 0 || got.Status != job.HostTestFailed || got.Step("fork").Text != "the engine ended in the middle of it" || next.Busy() {
		t.Errorf("%s: %+v; left: %v", got.Status, got.Steps, left)
	}
}

// A node is tested once at a time, and the last result of each kind is kept.
func TestHost_OneAtATimeAndTheLastIsKept(t *testing.T) {
	s := newSite()
	tests := s.new(time.Hour)
	refused := error(nil)
	s.hook = func(call string) {
		if call == "look" {
			_, refused = tests.TestHost(context.Background(), job.HostTestSpec{Node: "pve"})
		}
	}
	s.run(t, tests, job.HostTestSpec{})
	if refused == nil || !strings.Contains(refused.Error(), "is being tested") {
		t.Errorf("a second one at the same time: %v", refused)
	}
	s.hook = func(string) {}
	s.run(t, tests, job.HostTestSpec{Quick: true})
	last := s.run(t, tests, job.HostTestSpec{})
	if all, _ := s.HostTests(t.Context()); len(all) != 2 || all[1].ID != last.ID || !all[0].Quick {
		t.Errorf("kept: %+v", all)
	}
	for _, node := range []string{"elsewhere", "off", "left"} {
		if _, err := tests.TestHost(t.Context(), job.HostTestSpec{Node: node}); err == nil || !strings.Contains(err.Error(), node) {
			t.Errorf("node %s is tested: %v", node, err)
		}
	}
}

// A result holds as long as what it was true of is so.
func TestChecked_SaysWhatHoldsNoMore(t *testing.T) {
	s := newSite()
	tests := s.new(time.Hour)
	check := func() job.Check { return tests.Checked(t.Context(), []job.HostFacts{s.facts})[0] }
	if c := check(); c.Level != "warn" || !strings.Contains(c.Text, "not tested") {
		t.Errorf("never tested: %+v", c)
	}
	unproven := func() []string { return tests.Unproven(t.Context(), "pve", "restore", "volume") }
	if got := unproven(); len(got) != 2 || tests.Restores(t.Context(), "pve", "agent-template") {
		t.Errorf("nothing is proven: %v", got)
	}
	s.run(t, tests, job.HostTestSpec{})
	s.run(t, tests, job.HostTestSpec{Quick: true})
	if c := check(); c.Level != "ok" || !strings.HasPrefix(c.Text, "passed on ") || !strings.Contains(c.Text, "restore") {
		t.Errorf("passed: %+v", c)
	}
	if got := unproven(); len(got) > 0 || !tests.Restores(t.Context(), "pve", "agent-template") || tests.Restores(t.Context(), "pve", "mine") || tests.Restores(t.Context(), "pve2", "agent-template") {
		t.Errorf("unproven: %v", got)
	}
	for want, now := range map[string]job.HostFacts{
		"Proxmox VE was 9.1 and is 9.2":      {Node: "pve", Proxmox: "9.2", Storage: "lvmthin", Template: "sum"},
		"the storage was lvmthin and is dir": {Node: "pve", Proxmox: "9.1", Storage: "dir", Template: "sum"},
		"the template is a different one":    {Node: "pve", Proxmox: "9.1", Storage: "lvmthin", Template: "other"},
	} {
		s.facts = now
		if c := check(); c.Level != "warn" || !strings.Contains(c.Text, want) || c.Remedy == "" {
			t.Errorf("%+v: %+v", now, c)
		}
		if len(unproven()) != 2 || tests.Restores(t.Context(), "pve", "agent-template") {
			t.Errorf("%+v: it holds", now)
		}
	}
}
