package e2e

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

var (
	soakJobs = flag.Int("soak.jobs", 0, "jobs of TestSoak; 0: 60, at night only")
	soakSeed = flag.Uint64("soak.seed", 0, "seed of TestSoak's faults; 0: another each time, which it prints")
)

// Many jobs, and sandboxes beside them, while everything that can go wrong does, at random: every
// job ends in the right state with its whole output, ran at most once, every sandbox has its files
// and what runs in it until it is ended, and at the end nothing is left, and nothing of others was
// touched.
func TestSoak(t *testing.T) {
	if *soakJobs == 0 {
		loops.AtNightOnly(t, "TestProxmoxFaults, TestEngineKilled_TwoClients, TestPool_EngineKilledAtEveryStep and TestSubmit_ManyAtOnce make its faults one by one")
	}
	e2b := "127.0.0.1:" + freePort(t)
	h := newHost(t, lab.DriverProcess, "E2B_ADDR="+e2b, "MAX_JOBS=8", "HEARTBEAT_THRESHOLD_SECONDS=30", "CLEANUP_INTERVAL_SECONDS=10")
	s := newSoak(t, h, 5*time.Second)
	s.ledger = newLedger(t)
	foreign := s.plantForeigners()
	h.cli(t, "template", "checkpoint", "build", "--wait")
	h.makePool(t, "--warm", "2")
	for range 4 { // as many chat windows
		s.clients = append(s.clients, h.connect(t))
	}
	jobs := make([]soakJob, cmp.Or(*soakJobs, 60))
	s.churnBegins()
	for i := range jobs {
		jobs[i] = s.plan(i)
	}
	beside := []func(<-chan struct{}){s.churn(math.MaxInt), s.again(300*time.Millisecond, 1500*time.Millisecond, s.inject)}
	if c, missing := findNPM(t, "clients"); missing != "" {
		t.Logf("without sandboxes: no clients from npm: %s", missing)
	} else {
		beside = append(beside, s.sandboxes(c, e2b))
	}
	s.run(jobs, beside...)
	s.summary()
	s.sandboxesGone()
	s.churnGone()
	s.checkpointsGone()
	s.membersWhole()
	h.cli(t, "pool", "remove", "p", "--yes")
	s.nothingLeft()
	if now := s.foreigners(); now != foreign {
		t.Errorf("VMs of others were\n%s\nare\n%s", foreign, now)
	}
}

// soak is one run: its jobs, what was done to them, what became of them.
type soak struct {
	h       *host
	nodes   []*lab.Lab
	t       *testing.T
	ledger  *ledger // nil where VMs cannot reach it
	clients []*mcpClient
	began   time.Time
	jobs    int           // how many
	each    time.Duration // a job may take on average, faults included
	least   time.Duration // how long it lasts, also when all jobs have ended
	// patience is how long a call may fail while engines are killed under it; callTime how
	// long it may take before another client makes it.
	patience, callTime time.Duration
	atOnce             int // jobs of the second half at a time: fewer than slots, so that pools make members between them

	rng *rand.Rand // by one goroutine at a time: first the plan's, then the faults'

	mu      sync.Mutex
	ends    map[string]int
	beside  map[string]int // what forks, saves and uses of the volume came to
	faults  map[string]int
	maxVMs  int
	vms     []string // the jobs' VMs, by name and source
	wrote   []string // the lines that jobs have written to the volume
	others  int      // VMs with the marker of another installation
	devNode string   // of the VM that is forked and saved

	writing sync.Mutex // held for the VM that writes to the volume: others would be refused it

	// wasDown reports whether a node (empty: any) was down at some time of a span, and
	// what it ran is gone. nil: none goes down.
	wasDown func(node string, from, to time.Time) bool
}

func newSoak(t *testing.T, h *host, each time.Duration) *soak {
	t.Helper()
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("again with -soak.seed=%d", seed)
	nodes, err := h.lab.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	return &soak{
		h: h, nodes: nodes, t: t, rng: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), each: each, patience: time.Minute, callTime: callTime, atOnce: 5,
		ends: map[string]int{}, beside: map[string]int{}, faults: map[string]int{},
	}
}

// soakJob is a job of a soak: what it is to come to.
type soakJob struct {
	work
	id       string
	manifest map[string]any
	kind     string // ends, timeout, cancel, or what is done to its VM
	delay    time.Duration
	volume   string // how it uses the volume: ro, rw; empty: not
	cloned   func() // what is done when its VM is cloned and has not started
}

// plan draws a job. Most just run; some are hit by a fault of their own.
func (s *soak) plan(n int) soakJob {
	j := soakJob{work: work{n: n, lines: s.rng.IntN(3000), sleep: fmt.Sprintf("0.%d", s.rng.IntN(10))}, kind: "ends"}
	switch p := s.rng.IntN(100); {
	case p < 70:
	case p < 80:
		j.exit = 1 + s.rng.IntN(99)
	case p < 84:
		j.kind, j.sleep = "timeout", "1000"
	case p < 94:
		j.kind, j.sleep, j.delay = "cancel", "1000", time.Duration(s.rng.IntN(3000))*time.Millisecond
	case p < 96:
		j.kind, j.sleep = "VM destroyed", "1000"
	case p < 98:
		j.kind, j.sleep = "VM rebooted", "1000"
	default:
		j.kind, j.sleep = "VM reset", "1000"
	}
	j = s.withManifest(j)
	if s.rng.IntN(6) == 0 {
		j.usesVolume("ro")
	}
	return j
}

func (s *soak) withManifest(j soakJob) soakJob {
	if s.ledger != nil {
		j.manifest = script(s.ledger.task(j.work))
	} else {
		j.manifest = script(j.task())
	}
	j.manifest["statusMode"] = []string{"simple", "detailed", "streaming"}[s.rng.IntN(3)]
	if j.kind == "timeout" {
		j.manifest["timeout"] = 10 // seconds, in which the task has printed all of its output on a busy machine, too
	}
	return j
}

// run submits the jobs, does what is beside them until all have ended, and checks each. The
// first half is submitted at once, and waits for slots.
func (s *soak) run(jobs []soakJob, beside ...func(over <-chan struct{})) {
	s.jobs = len(jobs)
	over, least := make(chan struct{}), time.After(s.least)
	var others, following sync.WaitGroup
	for _, do := range append(beside, s.countVMs) {
		others.Go(func() { do(over) })
	}
	half := len(jobs) / 2
	for i := range half {
		following.Go(func() { s.follow(&jobs[i]) })
	}
	for i := range s.atOnce {
		following.Go(func() {
			for at := half + i; at < len(jobs); at += s.atOnce {
				s.follow(&jobs[at])
			}
		})
	}
	following.Wait()
	<-least
	close(over)
	others.Wait()
}

// follow takes one job from its submit to the check of its result.
func (s *soak) follow(j *soakJob) {
	if j.volume == "rw" {
		s.writing.Lock()
		defer s.writing.Unlock()
		defer s.until("a volume that no VM has", s.volumeFree)
	}
	submitted := s.ask(j, "submit_job", map[string]any{"manifest": j.manifest, "idempotency_key": fmt.Sprintf("soak %d", j.n)})
	if submitted == nil {
		return
	}
	j.id = submitted["job_id"].(string)
	if j.kind == "cancel" {
		time.Sleep(j.delay)
		s.ask(j, "cancel_job", map[string]any{"job_id": j.id})
	}
	hit := j.kind == "ends" || j.kind == "timeout" || j.kind == "cancel"
	deadline := time.Now().Add(5*time.Minute + time.Duration(s.jobs)*s.each)
	if j.cloned != nil {
		s.whenCloned(j, deadline)
	}
	var job map[string]any
	for {
		if job = s.ask(j, "get_job_status", map[string]any{"job_id": j.id}); job == nil {
			return
		}
		if job["status"] == "success" || job["status"] == "failed" || job["status"] == "timeout" {
			break
		}
		if !hit && job["status"] == "running" && s.begun(j) > 0 {
			hit = s.hitVM(j, job)
		}
		if time.Now().After(deadline) {
			s.t.Errorf("job %d does not end: %v", j.n, job)
			return
		}
		time.Sleep(200 * time.Millisecond)
	}
	if vm, ok := job["vm"].(map[string]any); ok {
		s.mu.Lock()
		s.vms = append(s.vms, fmt.Sprint(vm["name"], " ", vm["source"]))
		s.mu.Unlock()
		if j.manifest["start"] == "cold" && vm["source"] != "cold" {
			s.t.Errorf("job %d was to boot: %v", j.n, vm)
		}
	}
	s.check(j, job)
}

// check compares what became of a job with what had to.
func (s *soak) check(j *soakJob, job map[string]any) {
	wanted := map[string][2]string{"ends": {"success", "exit_status"}, "timeout": {"timeout", "timeout"}, "cancel": {"failed", "cancelled"}}
	want, ok := wanted[j.kind]
	if !ok {
		want = [2]string{"failed", "lost"}
	}
	if j.kind == "ends" && j.exit != 0 {
		want[0] = "failed"
	}
	s.count(s.ends, fmt.Sprintf("%v, %v", job["status"], job["reason"]))
	down := s.nodeWasDown(job)
	if down && job["reason"] == "lost" {
		if begun := s.begun(j); begun > 1 || job["error"] == "" || job["error"] == nil {
			s.t.Errorf("job %d (%s) is lost, and has begun %d times: %v", j.n, j.kind, begun, job["error"])
		}
		return
	}
	if job["status"] != want[0] || job["reason"] != want[1] {
		s.t.Errorf("job %d (%s) is %v, %v, not %s, %s: %v", j.n, j.kind, job["status"], job["reason"], want[0], want[1], job["error"])
		return
	}
	if j.volume != "" && j.kind == "ends" {
		s.count(s.beside, "volume, as it was for a job, "+j.volume)
		if j.volume == "rw" {
			s.mu.Lock()
			s.wrote = append(s.wrote, j.line())
			s.mu.Unlock()
		}
	}
	got := s.ask(j, "get_job_result", map[string]any{"job_id": j.id, "max_bytes": 1 << 20})
	if got == nil {
		return
	}
	begun := s.begun(j)
	output, _ := got["output"].(string)
	switch {
	case down && got["output_incomplete"] == true && begun == 1 && strings.HasPrefix(j.stdout(), output) && (j.kind != "ends" || got["exit_code"] == float64(j.exit)):
		s.count(s.ends, "output lost with the node, and said to be")
	case j.kind == "ends" && (output != j.stdout() || got["stderr"] != j.stderr() || got["exit_code"] != float64(j.exit) || begun != 1):
		s.t.Errorf("job %d: %d of %d bytes of stdout, stderr %q, exit code %v of %d, begun %d times, incomplete: %v",
			j.n, len(output), len(j.stdout()), got["stderr"], got["exit_code"], j.exit, begun, got["output_incomplete"])
	case j.kind == "timeout" && (output != j.stdout() || begun != 1):
		s.t.Errorf("job %d: %d of %d bytes of stdout, begun %d times", j.n, len(output), len(j.stdout()), begun)
	case !strings.HasPrefix(j.stdout(), output) || begun > 1:
		s.t.Errorf("job %d (%s): %d bytes of stdout, begun %d times", j.n, j.kind, len(output), begun)
	}
}

// nodeWasDown reports whether the node of a job's VM was down while there was the job.
func (s *soak) nodeWasDown(job map[string]any) bool {
	if s.wasDown == nil {
		return false
	}
	at := func(key string) time.Time {
		text, _ := job[key].(string)
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			s.t.Errorf("%s of a job: %v", key, err)
		}
		return t
	}
	vm, _ := job["vm"].(map[string]any)
	node, _ := vm["node"].(string)
	return s.wasDown(node, at("created_at"), at("completed_at"))
}

// begun is how often the job's task has begun. Without a ledger the task counts
// in its VM, and fails when it begins again.
func (s *soak) begun(j *soakJob) int {
	if s.ledger == nil {
		return 1
	}
	return s.ledger.begun(j.n)
}

// ask calls a tool until it answers: while engines are killed under it a call
// may fail, but not for longer than patience. Each try is another client's.
func (s *soak) ask(j *soakJob, tool string, args map[string]any) map[string]any {
	var last string
	at := j.n
	for deadline := time.Now().Add(s.patience); time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
		res, err := s.clients[at%len(s.clients)].tryFor(s.callTime, tool, args)
		at++
		if err != nil {
			last = err.Error()
			continue
		}
		var v map[string]any
		if res.IsError {
			last = text(res)
			if tool == "cancel_job" && strings.Contains(last, "Job already completed") {
				return map[string]any{}
			}
			continue
		}
		data, err := json.Marshal(res.StructuredContent)
		if err == nil && json.Unmarshal(data, &v) == nil {
			return v
		}
	}
	s.t.Errorf("job %d: %s is not answered for %s: %s", j.n, tool, s.patience, last)
	return nil
}

func (s *soak) countVMs(over <-chan struct{}) {
	for {
		select {
		case <-over:
			return
		case <-time.After(100 * time.Millisecond):
			s.maxVMs = max(s.maxVMs, s.h.ourVMs(s.t)-s.others)
		}
	}
}

// until waits until it is so, for as long as calls may fail and more.
func (s *soak) until(what string, yes func() bool) {
	s.t.Helper()
	if !within(3*s.patience, yes) {
		s.t.Fatalf("waited %s for %s", 3*s.patience, what)
	}
}

func (s *soak) count(m map[string]int, what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m[what]++
}

func (s *soak) summary() {
	s.t.Logf("%d jobs in %s, at most %d VMs at once\nends:\n%sbeside them:\n%sfaults:\n%s",
		s.jobs, time.Since(s.began).Round(time.Second), s.maxVMs, lines(s.ends), lines(s.beside), lines(s.faults))
}

// lines are how often what was counted, a line each.
func lines(counted map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(counted)) {
		fmt.Fprintf(&b, "%6d %s\n", counted[name], name)
	}
	return b.String()
}
