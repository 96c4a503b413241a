package e2e

import (
	"flag"
	"testing"
	"time"

	"linus/internal/lab"
)

var soakQemu = flag.Int("soak.qemu", 0, "jobs of TestSoakQemu; 0: not run")

// Jobs in real VMs, which boot or go on from a checkpoint, some of them with a volume that they
// write to, and a VM that is forked and saved, while the engine is killed, connections are cut,
// Proxmox fails, its storage is full and VMs are reset; between a VM's clone and its start the
// engine is killed, or the memory that it goes on from removed. No job is lost but with its VM,
// the VM and the volume are as they were, and nothing is left.
func TestSoakQemu(t *testing.T) {
	if *soakQemu == 0 {
		t.Skip("takes about a minute for each job: make soak-qemu")
	}
	h := newHost(t, lab.DriverQemu, "MAX_JOBS=2", "DEFAULT_MEMORY=1G", "HEARTBEAT_THRESHOLD_SECONDS=300", "CLEANUP_INTERVAL_SECONDS=10",
		"VM_NETWORK_TIMEOUT=1200", "VM_READY_TIMEOUT=1200")
	s := newSoak(t, h, 5*time.Minute)
	s.patience = 5 * time.Minute
	foreign := h.plantForeign(t)
	h.cli(t, "template", "checkpoint", "build", "--wait")
	s.clients = []*mcpClient{h.connect(t), h.connect(t)}
	s.churnBegins()
	jobs := make([]soakJob, *soakQemu)
	for i := range jobs {
		j := soakJob{work: work{n: i, lines: 20000, sleep: "5", exit: i % 3}, kind: "ends"}
		if i%4 == 2 {
			j.kind, j.sleep = "VM reset", "1000"
		}
		switch j = s.withManifest(j); i % 4 {
		case 1:
			j.cloned = func() { s.killEngine(" between clone and start") }
		case 3:
			j.cloned = s.loseCheckpoints
		default:
			j.manifest["start"] = []string{"any", "any", "cold"}[s.rng.IntN(3)]
			j.usesVolume("rw")
		}
		jobs[i] = j
	}
	s.run(jobs, s.churn(2), s.again(10*time.Second, 40*time.Second, func(<-chan struct{}) {
		switch p := s.rng.IntN(10); {
		case p < 4:
			s.killEngine("")
		case p < 7:
			s.cutConnections(h)
		default:
			s.failOnce(h.lab)
		}
	}))
	s.summary()
	s.churnGone()
	s.checkpointsGone()
	s.nothingLeft()
	if now := h.readForeign(t); now != foreign {
		t.Errorf("the foreign VM's config is now:\n%s", now)
	}
}
