package e2e

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/pgtest"
)

var soakEngines = flag.Int("soak.engines", 0, "jobs of TestSoakEngines; 0: 60 at night, else it is not run")

// Three engines on one PostgreSQL, VMs on three nodes that boot or go on from checkpoints, a
// VM that is forked and saved, and a volume that jobs read, while engines are killed, stopped
// for longer than their lease and cut off from the database, the database crashes, nodes
// go down, entries fall silent, storages are full and the memory of checkpoints is removed: no
// task begins twice, no job is lost but with its node, the VM and the volume are as they were,
// and nothing is left.
func TestSoakEngines(t *testing.T) {
	n := *soakEngines
	if n == 0 {
		loops.AtNightOnly(t, "TestEngines_OneIsKilledInTheMiddleOfAJob, TestEngines_OneIsStoppedInsideAHostOperation and TestPlace_AJobIsLostWithItsNode make its faults one at a time")
		n = 60
	}
	server := pgtest.Start(t)
	database := server.Database(t)
	lines := []pgtest.Line{pgtest.LineTo(t, database), pgtest.LineTo(t, database), pgtest.LineTo(t, database)}
	c := newCluster(t, []int{1, 2}, "LINUS_DATABASE_URL="+lines[0].URL(database), "MAX_JOBS=8", "CHECKPOINTS=auto")
	s := &engineSoak{soak: newSoak(t, c.h, 10*time.Second), c: c, server: server, lines: lines, watch: watchEngines(t, database), refused: map[string]int{}}
	s.ledger, s.wasDown, s.patience = newLedger(t), s.watch.wasDown, 3*time.Minute
	s.callTime, s.atOnce = 8*time.Second, 20
	s.engines = []*host{c.h, c.h.machine(t, "second"), c.h.machine(t, "third")}
	for i, h := range s.engines[1:] {
		h.env = append(h.env, "LINUS_DATABASE_URL="+lines[i+1].URL(database))
		t.Cleanup(func() { h.stop(t) })
	}
	for _, h := range s.engines {
		s.clients = append(s.clients, h.connect(t), h.connect(t))
	}
	c.h.cli(t, "template", "checkpoint", "build", "--wait") // the others are made meanwhile, where VMs boot
	s.churnBegins()
	jobs := make([]soakJob, n)
	for i := range jobs {
		for jobs[i] = s.plan(i); strings.HasPrefix(jobs[i].kind, "VM "); {
			jobs[i] = s.plan(i)
		}
	}
	s.run(jobs, s.churn(math.MaxInt), s.again(300*time.Millisecond, 1500*time.Millisecond, s.inject))
	s.under.Wait()
	s.summary()
	s.takeOvers()
	s.churnGone()
	s.checkpointsGone()
	t.Log(c.h.cli(t, "engine", "list"))
	s.savesOver()
	c.gone()
	s.nothingLeft()
	for _, c := range s.clients {
		c.Close()
	}
}

// engineSoak is a soak of several engines and nodes.
type engineSoak struct {
	*soak
	c       *cluster
	engines []*host
	lines   []pgtest.Line // of each engine to the database
	server  *pgtest.Server
	watch   *engineWatch

	under sync.WaitGroup // faults that last
	node  sync.Mutex     // held while a node is down
	still sync.Mutex     // held while an engine is stopped
	cut   sync.Mutex     // held while an engine is cut off from the database
	entry sync.Mutex     // held while an entry is silent

	refused map[string]int // what engines asked for that were taken for dead, by who refused it
}

// inject injects a fault; one that lasts is one of its kind.
func (s *engineSoak) inject(over <-chan struct{}) {
	at, node := s.rng.IntN(len(s.engines)), s.nodes[s.rng.IntN(len(s.nodes))]
	h, line := s.engines[at], s.lines[at]
	switch p := s.rng.IntN(100); {
	case p < 10:
		s.watch.forget(h.engine()) // who starts it again frees its jobs at once
		if h.killEngine() {
			s.count(s.faults, "engine killed")
			s.watch.note("engine killed")
		}
	case p < 15:
		s.stopInside(node, over)
	case p < 20:
		s.lasting(&s.still, "engine stopped for three leases", "", 45*time.Second, over, func() func() {
			s.watch.hit(h.engine(), "stopped")
			return stopped([]int{h.engine()})
		})
	case p < 27:
		s.lasting(&s.cut, "engine cut off from the database", "", time.Duration(20+s.rng.IntN(20))*time.Second, over, func() func() {
			s.watch.hit(h.engine(), "cut off from the database")
			line.Hold()
			return line.Release
		})
	case p < 31:
		s.count(s.faults, "database crashed")
		end := s.watch.lasts("database restarts", "")
		s.server.Restart(s.t)
		end()
	case p < 38:
		s.lasting(&s.node, "node down", node.Config.Node, time.Duration(5+s.rng.IntN(15))*time.Second, over, func() func() {
			s.c.must(s.h.lab.NodeDown(s.t.Context(), node.Config.Node))
			s.reboots(node)
			return func() { s.c.must(s.h.lab.NodeUp(s.t.Context(), node.Config.Node)) }
		})
	case p < 43:
		s.lasting(&s.entry, "entry silent", "", time.Duration(2+s.rng.IntN(12))*time.Second, over, func() func() {
			return (&host{dir: s.nodes[s.rng.IntN(2)].Dir}).freezeHost()
		})
	case p < 47:
		s.loseCheckpoints()
	case p < 60:
		s.cutConnections(&host{dir: node.Dir})
	default:
		s.failOnce(node)
	}
}

// lasting makes a fault, of that node if it takes its VMs with it, last for a while, unless
// one of its kind does.
func (s *engineSoak) lasting(kind *sync.Mutex, what, node string, d time.Duration, over <-chan struct{}, begin func() (end func())) {
	if !kind.TryLock() {
		return
	}
	s.count(s.faults, what)
	noted := s.watch.lasts(what, node)
	end := begin()
	s.under.Go(func() {
		defer kind.Unlock()
		defer noted()
		defer end()
		select {
		case <-time.After(d):
		case <-over:
		}
	})
}

// reboots has the leases of a node that is down be of another boot, as on one that has lost its
// power: the lab's nodes have this machine's. The lease of a VM that was not made by then would
// stay for three hours else, for what a killed script has begun may still be at work.
func (s *engineSoak) reboots(node *lab.Lab) {
	files, err := filepath.Glob(filepath.Join(node.Dir, leaseFiles))
	s.c.must(err)
	s.changeLeases(files, func(fields []string) bool { fields[6] = "another-boot"; return true })
}

// savesOver has the leases of copies be over that were to be templates when their node went down: it is
// they that end such a copy, six hours after it was begun.
func (s *engineSoak) savesOver() {
	s.changeLeases(s.onNodes(leaseFiles), func(fields []string) bool {
		fields[9], fields[10] = "1", "1"
		return strings.HasPrefix(fields[1], "saved-")
	})
}

// changeLeases changes the last lines of leases, which count.
func (s *engineSoak) changeLeases(files []string, change func(fields []string) bool) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		if fields := strings.Fields(lines[len(lines)-1]); err == nil && len(fields) == 11 && change(fields) {
			s.c.must(os.WriteFile(file, []byte(strings.Join(fields, " ")+"\n"), 0o600))
		}
	}
}

// stopInside stops an engine whose operation waits on a node, until others have taken its
// jobs over: then the node must refuse it.
func (s *engineSoak) stopInside(node *lab.Lab, over <-chan struct{}) {
	if !s.still.TryLock() {
		return
	}
	s.under.Go(func() {
		defer s.still.Unlock()
		turn, err := (&host{dir: node.Dir}).holdTurn()
		if err != nil {
			s.t.Error(err)
			return
		}
		defer turn.release()
		await := func(limit time.Duration, what func() bool) bool {
			for deadline := time.After(limit); !what(); {
				select {
				case <-over:
					return false
				case <-deadline:
					return false
				case <-time.After(50 * time.Millisecond):
				}
			}
			return true
		}
		var script, pid int
		var engine string
		await(10*time.Second, func() bool { script, engine = turn.waiting(); return script != 0 })
		for _, h := range s.engines {
			if script != 0 && strings.Contains(h.wholeLog(), `joined the engines of the database" engine=`+engine) {
				pid = h.engine()
			}
		}
		if pid == 0 {
			return
		}
		s.count(s.faults, "engine stopped inside a host operation")
		s.watch.hit(pid, "stopped")
		defer s.watch.lasts("engine stopped inside a host operation", "")()
		exit := exitOf(script)
		defer stopped([]int{pid})()
		fenced := await(time.Minute, func() bool {
			_, err := os.Stat(filepath.Join(s.h.dir, "etc/pve/priv/linus/fence-"+engine))
			return err == nil
		})
		turn.release()
		status, err := exit()
		switch {
		case !fenced:
		case err == nil && status == refusedByHost:
			s.count(s.refused, "by the host")
		case err == nil && status == 0:
			s.t.Errorf("%s is fenced, and its operation was begun", engine)
		default: // its connection was cut, or its node went down
			s.count(s.refused, fmt.Sprintf("ended with status %d, %v", status, err))
		}
	})
}

// takeOvers tells how long engines that were stopped or cut off kept their membership,
// what of theirs was refused, and that each take-over has its fence on the host.
func (s *engineSoak) takeOvers() {
	fences, err := filepath.Glob(filepath.Join(s.h.dir, "etc/pve/priv/linus/fence-*"))
	s.c.must(err)
	for _, h := range s.engines {
		log := h.wholeLog()
		s.refused["by the database, as the engines log it"] += strings.Count(log, "the others have taken this engine for dead")
		s.refused["by the host, as the engines log it"] += strings.Count(log, "others have taken it for dead, and its jobs over")
		s.refused["leases lost"] += strings.Count(log, "the lease is lost")
	}
	s.t.Logf("engines taken over, after how many seconds: %v; %d fences on the host; refused: %v", s.watch.took(), len(fences), s.refused)
	s.t.Log(s.slowest())
}

// slowest tells of the take-over that took longest: when the lease ended, which faults
// there were meanwhile, and what the engines' logs say of it.
func (s *engineSoak) slowest() string {
	s.watch.mu.Lock()
	defer s.watch.mu.Unlock()
	if len(s.watch.taken) == 0 {
		return "no engine was taken over"
	}
	t := slices.MaxFunc(s.watch.taken, func(a, b takenOver) int { return cmp.Compare(a.gone.Sub(a.since), b.gone.Sub(b.since)) })
	after := func(at time.Time) string { return fmt.Sprintf("%6.1f s", at.Sub(t.since).Seconds()) }
	steps := []string{after(t.ended) + " its lease has ended", after(t.gone) + " it is taken over"}
	for _, f := range s.watch.faults {
		if f.from.Before(t.gone) && (f.to.IsZero() || f.to.After(t.since)) {
			steps = append(steps, after(f.from)+" "+f.what+" "+f.node+", until "+after(f.to))
		}
	}
	for i, h := range s.engines {
		for line := range strings.Lines(h.wholeLog()) {
			stamp, text, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, err := time.Parse(time.RFC3339, stamp)
			about := strings.Contains(line, "engine") || strings.Contains(line, "lease") || strings.Contains(line, "an entry of the cluster")
			if err == nil && at.After(t.since) && at.Before(t.gone.Add(time.Second)) && about && !strings.Contains(line, "level=DEBUG") {
				steps = append(steps, fmt.Sprintf("%s engine %d: %.200s", after(at), i+1, strings.TrimSpace(text)))
			}
		}
	}
	slices.Sort(steps)
	return fmt.Sprintf("the slowest take-over: process %d, %s\n%s", t.pid, t.what, strings.Join(steps, "\n"))
}

// nothingLeft checks that no volume and no process of a VM is left on a node, and
// nothing of checkpoints, and no lease. Those of templates have IDs from 9000 on.
func (s *engineSoak) nothingLeft() {
	for _, pattern := range []string{"storage/local-lvm/vm-[1-8]*", "storage/local-lvm/base-[1-8]*", "storage/local/images/*", "run/qemu-server/*", checkpointFiles, leaseFiles} {
		var left []string
		if !within(time.Minute, func() bool { left = s.onNodes(pattern); return len(left) == 0 }) {
			s.t.Errorf("left: %v", left)
		}
	}
}
