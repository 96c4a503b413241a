package e2e

import (
	"flag"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/pgtest"
)

var soakEngines = flag.Int("soak.engines", 0, "jobs of TestSoakEngines; 0: not run")

// Three engines on one PostgreSQL, VMs on three nodes, while engines are killed and
// stopped for longer than their lease, the database crashes, and nodes go down: no task
// begins twice, no job is lost but with its node, and nothing is left.
func TestSoakEngines(t *testing.T) {
	if *soakEngines == 0 {
		t.Skip("takes about a second for each job: make soak-engines")
	}
	server := pgtest.Start(t)
	c := newCluster(t, []int{1, 2}, "LINUS_DATABASE_URL="+server.Database(t), "MAX_JOBS=5")
	s := &engineSoak{soak: newSoak(t, c.h, 10*time.Second), c: c, server: server}
	s.ledger, s.lossy = newLedger(t), true
	s.engines = []*host{c.h, c.h.machine(t, "second"), c.h.machine(t, "third")}
	for _, h := range s.engines[1:] {
		t.Cleanup(func() { h.stop(t) })
	}
	for _, h := range s.engines {
		s.clients = append(s.clients, h.connect(t), h.connect(t))
	}
	jobs := make([]soakJob, *soakEngines)
	for i := range jobs {
		for jobs[i] = s.plan(i); strings.HasPrefix(jobs[i].kind, "VM "); {
			jobs[i] = s.plan(i)
		}
	}
	s.run(jobs, s.inject)
	s.summary()
	t.Log(c.h.cli(t, "engine", "list"))
	c.gone()
	for _, c := range s.clients {
		c.Close()
	}
}

// engineSoak is a soak of several engines and nodes.
type engineSoak struct {
	*soak
	c       *cluster
	engines []*host
	server  *pgtest.Server

	under sync.WaitGroup // faults that last
	node  sync.Mutex     // held while a node is down
	still sync.Mutex     // held while an engine is stopped
}

// inject injects a fault every second or so; one that lasts is one of its kind.
func (s *engineSoak) inject(over <-chan struct{}) {
	defer s.under.Wait()
	nodes, err := s.h.lab.Nodes()
	if err != nil {
		s.t.Error(err)
		return
	}
	for {
		select {
		case <-over:
			return
		case <-time.After(time.Duration(300+s.rng.IntN(1500)) * time.Millisecond):
		}
		h, node := s.engines[s.rng.IntN(len(s.engines))], nodes[s.rng.IntN(len(nodes))]
		switch p := s.rng.IntN(100); {
		case p < 12:
			if h.killEngine() {
				s.count(s.faults, "engine killed")
			}
		case p < 20:
			s.lasting(&s.still, "engine stopped for three leases", 45*time.Second, over, func() func() { return stopped([]int{h.engine()}) })
		case p < 24:
			s.count(s.faults, "database crashed")
			s.server.Restart(s.t)
		case p < 32:
			s.lasting(&s.node, "node down", time.Duration(5+s.rng.IntN(15))*time.Second, over, func() func() {
				s.c.must(s.h.lab.NodeDown(s.t.Context(), node.Config.Node))
				return func() { s.c.must(s.h.lab.NodeUp(s.t.Context(), node.Config.Node)) }
			})
		case p < 55:
			s.count(s.faults, "connections cut")
			(&host{dir: node.Dir}).cutConnections()
		default:
			faults := []lab.Fault{lab.FaultTaken, lab.FaultTakenCT, lab.FaultLockTimeout, lab.FaultStorageLockTimeout, lab.FaultCloneFails}
			fault := faults[s.rng.IntN(len(faults))]
			s.count(s.faults, string(fault))
			if err := node.SetFault(fault, "1"); err != nil {
				s.t.Error(err)
			}
		}
	}
}

// lasting makes a fault last for a while, unless one of its kind does.
func (s *engineSoak) lasting(kind *sync.Mutex, what string, d time.Duration, over <-chan struct{}, begin func() (end func())) {
	if !kind.TryLock() {
		return
	}
	s.count(s.faults, what)
	s.under.Go(func() {
		defer kind.Unlock()
		defer begin()()
		select {
		case <-time.After(d):
		case <-over:
		}
	})
}
