package e2e

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"linus/internal/bench"
)

// make compare gives both; without them the test that compares is skipped.
var (
	compareBase = flag.String("compare.base", "", "compare with the linus of this directory, on labs of the pvelab in it: make compare")
	compareHead = flag.String("compare.head", "", "the directory that is compared with it")
	compareName = flag.String("compare.name", "base", "the commit of -compare.base")
	compareN    = flag.Int("compare.n", 5, "pairs of measurements")
)

// TestCompare measures two commits' programs in turns, each with its own lab, which knows what
// that linus asks of a host, and fails where the one costs more than its bound.
func TestCompare(t *testing.T) {
	if *compareBase == "" {
		t.Skip("compares only with -compare.base: make compare")
	}
	bounds, err := bench.ReadBounds(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	base, head := newCompared(t, *compareBase), newCompared(t, *compareHead)
	var of [2][]bench.Sample
	for i := range *compareN {
		for turn := range 2 {
			side := (i + turn) % 2 // who begins takes turns, too
			of[side] = append(of[side], []*compared{base, head}[side].sample(t))
		}
	}
	if remedy := bench.WriteRatios(os.Stdout, *compareName, bench.Compare(of[0], of[1]), bounds); remedy != "" {
		t.Error(remedy)
	}
}

// compared is one of the programs with what it is measured on.
type compared struct {
	host   *host // a process lab
	silent *host // one whose jobs wait
	wire   *wire // to that
}

func newCompared(t *testing.T, dir string) *compared {
	t.Helper()
	o := processLab
	o.Binary = filepath.Join(dir, "pvelab")
	c := &compared{host: newHostAs(t, o, "LINUS_LOG_LEVEL=warn"), silent: silentHost(t)}
	c.silent.env = append(c.silent.env, "LINUS_LOG_LEVEL=warn")
	c.host.next, c.silent.next = filepath.Join(dir, "linus"), filepath.Join(dir, "linus")
	c.wire = c.silent.wire(t)
	c.wire.calls(t, 1000, 32, "submit_job", aTask)
	return c
}

// sample measures everything once.
func (c *compared) sample(t *testing.T) bench.Sample {
	t.Helper()
	const attaching, jobs, submissions, lists = 15, 3, 300, 50
	s := bench.Sample{}
	if info, err := os.Stat(c.host.next); err == nil {
		s["binary_mb"] = float64(info.Size()) / 1e6
	}

	c.host.stop(t)
	c.host.cli(t, "host", "check") // the engine has started and done what it does then
	var took, cpu []float64
	for range attaching {
		a := c.host.toInitialize(t)
		took, cpu = append(took, ms(a.took)), append(cpu, ms(a.cpu))
	}
	s["attach_ms"], s["attach_cpu_ms"] = median(took), median(cpu)
	s["idle_mb"] = rss(c.host.engine())
	within(2*time.Second, func() bool { // what its start has left is returned after a second
		s["idle_mb"] = min(s["idle_mb"], rss(c.host.engine()))
		return false
	})

	w, command := c.host.wire(t), map[string]any{"command": "true", "wait_seconds": 40}
	w.one(t, "execute_command", command) // scripts and connections are there then
	c.host.waitGone(t)
	took = nil
	before := cpuTime(c.host.engine())
	for range jobs {
		took = append(took, ms(w.one(t, "execute_command", command)))
		c.host.waitGone(t)
	}
	s["job_ms"], s["engine_cpu_ms"] = median(took), ms(cpuTime(c.host.engine())-before)/jobs
	s["used_mb"] = rss(c.host.engine())
	w.close()

	both := func() time.Duration { return cpuTime(c.silent.engine()) + cpuTime(c.wire.pid) }
	before = both()
	c.wire.calls(t, submissions, 32, "submit_job", aTask)
	s["submit_cpu_us"] = float64((both() - before).Microseconds()) / submissions
	took = nil
	for range lists {
		took = append(took, ms(c.wire.one(t, "list_jobs", map[string]any{})))
	}
	s["list_ms"] = median(took)
	return s
}

func median(values []float64) float64 {
	slices.Sort(values)
	return bench.Median(values)
}
