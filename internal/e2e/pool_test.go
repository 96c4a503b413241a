package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// makePool makes a pool of the lab's template and returns when it is full.
func (h *host) makePool(t *testing.T, flags ...string) {
	t.Helper()
	out := h.cli(t, append([]string{"pool", "create", "p", "--wait"}, flags...)...)
	if !strings.Contains(out, "state           ready") {
		t.Fatalf("the pool is\n%s", out)
	}
}

// emptyPool removes the pool and waits until no VM of ours is left.
func (h *host) emptyPool(t *testing.T) {
	t.Helper()
	h.cli(t, "pool", "remove", "p", "--yes")
	h.waitGone(t)
}

// A job gets a VM that has booted; the host sees nothing of it but the destroy.
func TestPool_JobStartsAtOnce(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.makePool(t, "--warm", "1")
	c := h.connect(t)
	var took []time.Duration
	const jobs = 2
	for range jobs {
		began := time.Now()
		got := c.call("submit_job", map[string]any{"manifest": script("echo warm"), "wait_seconds": 30})
		took = append(took, time.Since(began))
		job := c.call("get_job_status", map[string]any{"job_id": got["job_id"]})
		if vm := job["vm"].(map[string]any); job["status"] != "success" || vm["source"] != "pool" || got["stdout"] != "warm\n" {
			t.Errorf("%v\n%v", got, job)
		}
		for deadline := time.Now().Add(time.Minute); !strings.Contains(h.cli(t, "pool", "show", "p"), " warm "); <-time.After(200 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the pool is not filled again:\n%s", h.cli(t, "pool", "show", "p"))
			}
		}
	}
	slices.Sort(took)
	t.Logf("submit to result: median %s, all %v", took[len(took)/2], took)
	if list := h.cli(t, "job", "list"); strings.Count(list, "\n") != 1+jobs {
		t.Errorf("jobs listed:\n%s", list)
	}
	if shown := h.cli(t, "pool", "list"); !strings.Contains(shown, fmt.Sprintf("100 %% of %d", jobs)) {
		t.Errorf("pools:\n%s", shown)
	}
	h.emptyPool(t)
}

// A member that was suspended to disk is resumed for the job that claims it.
func TestPool_HibernatedMember(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess)
	h.makePool(t, "--hibernated", "1")
	c := h.connect(t)
	got := c.call("submit_job", map[string]any{"manifest": script("echo back"), "wait_seconds": 45})
	job := c.call("get_job_status", map[string]any{"job_id": got["job_id"]})
	if vm := job["vm"].(map[string]any); job["status"] != "success" || vm["source"] != "hibernated" || got["stdout"] != "back\n" {
		t.Errorf("%v\n%v", got, job)
	}
	h.emptyPool(t)
}

// The engine is killed again and again while jobs come: each runs exactly once, in a VM
// that no other job had, and at the end nothing is left.
func TestPool_EngineKilled(t *testing.T) {
	loops.AtNightOnly(t, "TestPool_EngineKilledAtEveryStep kills an engine between the steps of a pool's VM, TestEngineKilled_TwoClients a whole one")
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "MAX_JOBS=4", "CLEANUP_INTERVAL_SECONDS=10")
	h.makePool(t, "--warm", "2")
	ledger := newLedger(t)
	c := h.connect(t)
	over := make(chan struct{})
	var killing sync.WaitGroup
	killing.Go(func() {
		for pause := 700 * time.Millisecond; ; pause += pause / 10 { // on a slow machine an engine needs longer to come to something
			select {
			case <-over:
				return
			case <-time.After(pause):
				h.killEngine()
			}
		}
	})
	s := &soak{h: h, t: t, ledger: ledger, clients: []*mcpClient{c}, began: time.Now(), jobs: 10, each: 20 * time.Second, patience: time.Minute, callTime: callTime, ends: map[string]int{}, faults: map[string]int{}}
	for n := range 10 {
		j := soakJob{work: work{n: n, lines: 10, sleep: "0.1"}, kind: "ends"}
		j.manifest = script(ledger.task(j.work))
		s.follow(&j)
	}
	close(over)
	killing.Wait()
	s.membersWhole()
	h.emptyPool(t)
}

// A pool's VM is given to whoever asks for one, by its new name, and the pool fills again. An engine that
// is killed in the middle of that leaves the VM to the next one: there is one of the name, never two.
func TestPool_GivesItsVMs(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "CLEANUP_INTERVAL_SECONDS=10")
	h.makePool(t, "--warm", "2")
	full := func() {
		t.Helper()
		for deadline := time.Now().Add(2 * time.Minute); strings.Count(h.cli(t, "pool", "show", "p"), " warm ") < 2; <-time.After(200 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the pool is not filled again:\n%s", h.cli(t, "pool", "show", "p"))
			}
		}
	}
	isOurs := func(name, began string) {
		t.Helper()
		if shown := h.cli(t, "vm", "show", name); !strings.Contains(shown, began) || !strings.Contains(shown, "team=web") {
			t.Errorf("%s:\n%s", name, shown)
		}
		if said := h.cli(t, "job", "exec", "--vm", name, "--", "hostname"); strings.TrimSpace(said) != name {
			t.Errorf("the system of %s is named %q", name, said)
		}
		if list := h.cli(t, "vm", "list"); strings.Count(list, " "+name+" ") != 1 {
			t.Errorf("VMs of the name %s:\n%s", name, list)
		}
	}
	var took []time.Duration
	for n := range 2 {
		name := fmt.Sprintf("dev%d", n)
		began := time.Now()
		h.cli(t, "vm", "create", name, "--label", "team=web", "--ttl", "1h")
		took = append(took, time.Since(began))
		isOurs(name, "in a pool, as linus-job-")
		h.cli(t, "vm", "destroy", name, "--yes")
		full()
	}
	slices.Sort(took)
	t.Logf("vm create: median %s, all %v", took[len(took)/2], took)
	pauses := []time.Duration{20, 60, 120, 300}
	for _, n := range loops.Every(len(pauses), 2, "TestPool_EngineKilledAtEveryStep kills an engine between the steps of a pool's VM") {
		name, pause := fmt.Sprintf("killed%d", n), pauses[n]
		var asking sync.WaitGroup
		asking.Go(func() { h.exits(t, "vm", "create", name, "--label", "team=web", "--ttl", "1h") })
		<-time.After(pause * time.Millisecond) // the engine is somewhere
		h.killEngine()
		asking.Wait()
		for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(100 * time.Millisecond) {
			code, text := h.exits(t, "vm", "show", name)
			if code == 0 && strings.Contains(text, "running") {
				break
			}
			if code != 0 {
				h.exits(t, "vm", "create", name, "--label", "team=web", "--ttl", "1h") // it was not stored
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s, of which the engine was killed after %d ms:\n%s", name, pause, text)
			}
		}
		isOurs(name, "") // an engine that has just begun does not know yet what its pools' VMs are to be
		h.cli(t, "vm", "destroy", name, "--yes")
		full()
	}
	h.emptyPool(t)
}
