package e2e

import (
	"flag"
	"testing"
	"time"

	"linus/internal/lab"
)

var soakQemu = flag.Int("soak.qemu", 0, "jobs of TestSoakQemu; 0: not run")

// Jobs in real VMs, while the engine is killed, connections are cut, and some
// of the VMs are reset.
func TestSoakQemu(t *testing.T) {
	if *soakQemu == 0 {
		t.Skip("takes about half a minute for each job: make soak-qemu")
	}
	h := newHost(t, lab.DriverQemu, "MAX_JOBS=2", "HEARTBEAT_THRESHOLD_SECONDS=60", "CLEANUP_INTERVAL_SECONDS=10")
	s := newSoak(t, h, 5*time.Minute)
	foreign := h.plantForeign(t)
	s.clients = []*mcpClient{h.connect(t), h.connect(t)}
	jobs := make([]soakJob, *soakQemu)
	for i := range jobs {
		j := soakJob{work: work{n: i, lines: 20000, sleep: "5", exit: i % 3}, kind: "ends"}
		if i%5 == 2 {
			j.kind, j.sleep = "VM reset", "1000"
		}
		jobs[i] = s.withManifest(j)
	}
	s.run(jobs, func(over <-chan struct{}) {
		for {
			select {
			case <-over:
				return
			case <-time.After(time.Duration(5+s.rng.IntN(20)) * time.Second):
			}
			if s.rng.IntN(2) == 0 && h.killEngine() {
				s.count(s.faults, "engine killed")
			} else {
				s.count(s.faults, "connections cut")
				h.cutConnections()
			}
		}
	})
	s.summary()
	s.nothingLeft()
	if now := h.readForeign(t); now != foreign {
		t.Errorf("the foreign VM's config is now:\n%s", now)
	}
}
