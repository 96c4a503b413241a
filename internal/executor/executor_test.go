package executor_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/credential"
	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/hosttest"
	"linus/internal/job"
	"linus/internal/pgtest"
	"linus/internal/providertest"
	"linus/internal/schedule"
	"linus/internal/store"
	"linus/internal/storetest"
	"linus/internal/token"
	"linus/internal/vm"
)

const maxOutput = 64 << 10

// rig is an executor on a real store and a fake hypervisor.
type rig struct {
	*executor.Executor
	t     *testing.T
	fake  *providertest.Fake
	store *store.Store
	dir   string // the store's
	log   *logBuffer
	opts  executor.Options
	vms   fleet.Options // beside what follows from opts
}

// logBuffer keeps what an engine logs.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// These tests wait for deadlines far more than they work: eight at once, however
// few cores there are.
func TestMain(m *testing.M) {
	flag.Parse()
	parallel := "8"
	if testing.Short() {
		parallel = "16" // without -race they wait more than they work
	}
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	os.Exit(pgtest.Main(m))
}

// newRig starts an engine that gives nothing up for being slow; change has what is
// special about it.
func newRig(t *testing.T, maxJobs int, change ...func(*executor.Options)) *rig {
	t.Helper()
	t.Parallel()
	return newRigHere(t, maxJobs, change...)
}

// hasty has an engine soon give up a VM that does not answer. It may give up one on a
// slow machine, too.
func hasty(o *executor.Options) {
	o.CollectPatience = 2 * time.Second
}

// newRigHere is newRig for a test in a bubble of testing/synctest.
func newRigHere(t *testing.T, maxJobs int, change ...func(*executor.Options)) *rig {
	t.Helper()
	dir, log := t.TempDir(), &logBuffer{}
	s, err := storetest.Open(context.Background(), store.Options{Dir: dir, URL: pgtest.URL(t, dir), MaxOutput: maxOutput})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	fake := providertest.NewFake()
	logger := slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r := &rig{t: t, fake: fake, store: s, dir: dir, log: log, opts: executor.Options{
		Stores: executor.StoresOf(s), Provider: fake, Runner: fake, Log: logger,
		CallbackURL: func(context.Context) (string, error) { return "http://192.0.2.1:8765", nil },
		Defaults:    job.Defaults{VMTemplate: providertest.FakeTemplate, Timeout: 3600, CPU: 2, Memory: "2G", Disk: "10G"},
		MaxJobs:     maxJobs, MaxOutput: maxOutput, CleanupInterval: 20 * time.Millisecond, CollectPatience: 10 * time.Minute,
		HeartbeatInterval: time.Second,
	}, vms: fleet.Options{Store: s, Guest: fake, Owner: "5a17c0de-0000-4000-8000-000000000001", PoolInterval: 20 * time.Millisecond}}
	for _, c := range change {
		c(&r.opts)
	}
	r.restart()
	t.Cleanup(r.stop)
	return r
}

// notOnPostgres skips a test in a bubble, where no server can be waited for.
func notOnPostgres(t *testing.T) {
	t.Helper()
	if pgtest.Chosen() {
		t.Skip("in a bubble, in which time stands still for a database")
	}
}

// restart starts an executor where the last one stopped.
func (r *rig) restart() {
	r.t.Helper()
	vms := r.vms
	r.opts.Changes = &job.Changes{}
	r.store.Changes = r.opts.Changes
	vms.Provider, vms.Jobs, vms.Log, vms.Changes, vms.Defaults, vms.Allow, vms.Spare = r.opts.Provider, r.opts.Jobs.(fleet.JobStore), r.opts.Log, r.opts.Changes, r.opts.Defaults, r.opts.Allow, r.opts.Spare
	vms.CleanupInterval, vms.SweepInterval, vms.Patience = r.opts.CleanupInterval, r.opts.SweepInterval, r.opts.HeartbeatThreshold
	vms.ClaimPatience, vms.MaxMaking = min(time.Minute, r.opts.CollectPatience), r.opts.MaxJobs
	if r.opts.Engines != nil {
		vms.Engines = r.opts.Engines
	}
	r.opts.Fleet = fleet.New(vms)
	r.opts.Tokens = token.New(token.Options{Store: r.store, Limits: r.opts.Defaults.TokenLimits(r.opts.MaxJobs), Log: r.opts.Log, Observer: r.opts.Observer})
	r.opts.Credentials = credential.New(credential.Options{Store: r.store, Dir: filepath.Join(r.dir, "credentials"), Secrets: r.opts.Secrets, Log: r.opts.Log, Observer: r.opts.Observer})
	r.opts.HostTests = hosttest.New(hosttest.Options{Store: r.store, Host: r.opts.Provider, Engine: r, Row: r.store.VM, Log: r.opts.Log})
	r.opts.Schedules = schedule.New(schedule.Options{Store: r.store, Engine: r, Log: r.opts.Log})
	r.Executor = executor.New(r.opts)
	if err := r.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) stop() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := r.Close(ctx); err != nil {
		r.t.Error(err)
	}
}

// behave sets the fake; a task's end is reported by callback, as runners do.
func (r *rig) behave(b providertest.Behaviour, reports bool) {
	if reports {
		b.OnStart = func(j job.Job, p job.Payload) {
			code := 0
			if b.Task != nil {
				code = b.Task(p).ExitCode
			}
			if err := r.Report(context.Background(), j.ID, p.Token, job.Report{Kind: job.ReportComplete, ExitCode: code}); err != nil {
				r.t.Errorf("report: %v", err)
			}
		}
	}
	r.fake.Set(b)
}

func (r *rig) submit(change ...func(*job.Manifest)) string {
	r.t.Helper()
	m := job.Manifest{Task: "echo hello", AgentType: job.AgentScript}
	for _, c := range change {
		c(&m)
	}
	j, err := r.Submit(context.Background(), job.Submission{Manifest: m})
	if err != nil {
		r.t.Fatal(err)
	}
	return j.ID
}

// until follows the job's events until it is as wanted.
func (r *rig) until(id string, wanted func(job.Job) bool) job.Job {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	after := int64(0)
	for {
		events, j, err := r.Watch(ctx, id, after)
		if err != nil {
			r.t.Fatal(err)
		}
		if wanted(j) {
			return j
		}
		if ctx.Err() != nil {
			r.t.Fatalf("waited 2 minutes; the job is %+v", j)
		}
		if len(events) > 0 {
			after = events[len(events)-1].Seq
		}
	}
}

func (r *rig) wait(id string) job.Job {
	r.t.Helper()
	return r.until(id, job.Job.Done)
}

func (r *rig) noLeaks() {
	r.t.Helper()
	if leaks := r.fake.Leaks(); leaks != nil {
		r.t.Errorf("left behind: %v", leaks)
	}
}

func task(t providertest.Task) func(job.Payload) providertest.Task {
	return func(job.Payload) providertest.Task { return t }
}

func TestJob_GoesThroughItsPhases(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("out\n"), Stderr: []byte("err\n")})}, true)
	id := r.submit()
	j := r.wait(id)
	if j.Status != job.Success || j.VM.State != vm.Destroyed {
		t.Errorf("job %+v", j)
	}
	got, err := r.Result(context.Background(), id)
	if err != nil || string(got.Stdout) != "out\n" || string(got.Stderr) != "err\n" || *got.ExitCode != 0 {
		t.Errorf("result %+v, %v", got, err)
	}
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	var phases, statuses []string
	for _, e := range events {
		switch e.Kind {
		case job.EventPhaseStarted:
			phases = append(phases, e.Phase)
		case job.EventStatus:
			statuses = append(statuses, e.Text)
		}
	}
	if diff := cmp.Diff([]string{"provision", "push", "start", "run", "collect", "destroy"}, phases); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"provisioning", "running", "success"}, statuses[max(0, len(statuses)-3):]); diff != "" {
		t.Errorf("statuses %v", statuses)
	}
	r.noLeaks()
}

// What an operator should know of the host reaches the job's events.
func TestProvision_TellsTheProvidersWarnings(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Warning: "its host key could not be read"}, true)
	id := r.submit()
	r.wait(id)
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil || !slices.ContainsFunc(events, func(e job.Event) bool {
		return e.Kind == job.EventWarning && e.Text == "its host key could not be read"
	}) {
		t.Errorf("events %v, %v", events, err)
	}
}

// The task ends and reports before the executor has noted that it runs.
func TestReport_BeforeRunningIsNoted(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3})}, true)
	j := r.wait(r.submit())
	if j.Status != job.Failed || j.Outcome.Reason != job.ReasonExitStatus || *j.Outcome.ExitCode != 3 {
		t.Errorf("job %+v", j.Outcome)
	}
}

func TestFailure_DecidesTheReasonAndLeavesNothing(t *testing.T) {
	down := errors.New("connection refused")
	tests := []struct {
		name   string
		b      providertest.Behaviour
		reason job.Reason
		text   string
	}{
		{"before a VM is", providertest.Behaviour{FailStep: "validate_environment"}, job.ReasonProvisionFailed, "made to fail"},
		{"with a VM", providertest.Behaviour{FailStep: "wait_for_network"}, job.ReasonProvisionFailed, "wait_for_network"},
		{"with a VM whose ID was never told", providertest.Behaviour{LateID: true}, job.ReasonProvisionFailed, "connection ended"},
		{"push", providertest.Behaviour{Pushes: []error{down}}, job.ReasonStartFailed, "connection refused"},
		{"start", providertest.Behaviour{Starts: []error{down}}, job.ReasonStartFailed, "connection refused"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.behave(tt.b, false)
			j := r.wait(r.submit())
			if j.Status != job.Failed || j.Outcome.Reason != tt.reason || !strings.Contains(j.Outcome.Error, tt.text) {
				t.Errorf("outcome %+v", j.Outcome)
			}
			r.noLeaks()
		})
	}
}

// Without callbacks the executor asks over SSH.
func TestFollow_ByProbe(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("x"), ExitCode: 7})}, false)
	j := r.wait(r.submit())
	if j.Outcome.Reason != job.ReasonExitStatus || *j.Outcome.ExitCode != 7 || j.Stdout.Total != 1 {
		t.Errorf("job %+v", j)
	}
}

// A runner that fails to end its task at the timeout is helped.
func TestFollow_EndsATaskItsRunnerDoesNot(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: make(chan struct{}), Ahead: 2 * time.Hour})}, false)
	j := r.wait(r.submit())
	if j.Status != job.Timeout || j.Outcome.Reason != job.ReasonTimeout || r.fake.Stats().Stops == 0 {
		t.Errorf("job %+v, %d stops", j.Outcome, r.fake.Stats().Stops)
	}
	r.noLeaks()
}

func TestCancel_AtEveryPhase(t *testing.T) {
	t.Parallel()
	never := make(chan struct{})
	blocked := task(providertest.Task{Stdout: []byte("partial"), Until: never})
	tests := []struct {
		name   string
		b      providertest.Behaviour
		when   func(job.Job) bool
		output string
	}{
		{"provisioning", providertest.Behaviour{Hold: never}, func(j job.Job) bool { return j.VM != nil && j.VM.ID != 0 }, ""},
		{"running", providertest.Behaviour{Task: blocked}, func(j job.Job) bool { return j.Status == job.Running }, "partial"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.behave(tt.b, false)
			id := r.submit()
			r.until(id, tt.when)
			for range 2 { // cancelling twice is fine while it ends
				if err := r.Cancel(context.Background(), id); err != nil && !errors.Is(err, job.ErrCompleted) {
					t.Fatal(err)
				}
			}
			j := r.wait(id)
			if j.Status != job.Failed || j.Outcome.Reason != job.ReasonCancelled || j.Outcome.Error != "Cancelled by user" {
				t.Errorf("job %+v", j.Outcome)
			}
			if got, err := r.Result(context.Background(), id); err != nil || string(got.Stdout) != tt.output {
				t.Errorf("stdout %q, %v", got.Stdout, err)
			}
			if err := r.Cancel(context.Background(), id); !errors.Is(err, job.ErrCompleted) {
				t.Errorf("cancel after the end: %v", err)
			}
			r.noLeaks()
		})
	}
}

func TestCancel_WaitingJobNeverTakesASlot(t *testing.T) {
	r := newRig(t, 1)
	release := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: release})}, false)
	first := r.submit()
	r.until(first, func(j job.Job) bool { return j.Status == job.Running })
	second, third := r.submit(), r.submit()
	j, err := r.Job(context.Background(), third)
	if err != nil || !strings.Contains(j.Progress, "1 of 1 slots in use") {
		t.Errorf("progress %q, %v", j.Progress, err)
	}
	if err := r.Cancel(context.Background(), second); err != nil {
		t.Fatal(err)
	}
	if j := r.wait(second); j.VM != nil || j.Outcome.Reason != job.ReasonCancelled {
		t.Errorf("cancelled while waiting: %+v", j)
	}
	close(release)
	r.wait(first)
	r.wait(third)
	if s := r.fake.Stats(); s.Creates != 2 || s.MostVMs != 1 {
		t.Errorf("stats %+v", s)
	}
}

// Whoever has seen the token can say that the task has ended. It is looked at at
// once, and nothing else comes of it; of its true end the same.
func TestReport_WakesALookThatDecides(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.opts.HeartbeatInterval, r.opts.HeartbeatThreshold = time.Hour, time.Hour // no look by itself after a heartbeat
	r.restart()
	tokens := make(chan string, 1)
	until := make(chan struct{})
	r.fake.Set(providertest.Behaviour{
		Task:    task(providertest.Task{Until: until, ExitCode: 5}),
		OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token },
	})
	id := r.submit()
	token := <-tokens
	report := func(kind job.ReportKind, code int) {
		t.Helper()
		if err := r.Report(t.Context(), id, token, job.Report{Kind: kind, ExitCode: code}); err != nil {
			t.Fatal(err)
		}
	}
	ignored := func() (texts []string) {
		events, err := r.store.Events(t.Context(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			if e.Kind == job.EventIgnored {
				texts = append(texts, e.Text)
			}
		}
		return texts
	}
	report(job.ReportHeartbeat, 0)
	for range 3 {
		report(job.ReportComplete, 0)
	}
	r.until(id, func(job.Job) bool { return len(ignored()) > 0 })
	if j, err := r.Job(t.Context(), id); err != nil || j.Outcome != nil || j.Status != job.Running {
		t.Errorf("a task that runs on has ended: %+v", j)
	}
	if got := ignored(); len(got) != 1 || !strings.Contains(got[0], "exit code 0: over SSH the task is seen to run on") {
		t.Errorf("ignored: %q", got)
	}
	close(until)
	report(job.ReportComplete, 5)
	if j := r.wait(id); j.Status != job.Failed || j.Outcome.Reason != job.ReasonExitStatus || *j.Outcome.ExitCode != 5 {
		t.Errorf("job %+v", j.Outcome)
	}
	if got := ignored(); len(got) != 1 {
		t.Errorf("ignored: %q", got)
	}
}

// A VM that goes as its task ends takes the proof with it.
func TestReport_OfAVMThatIsGone(t *testing.T) {
	r := newRig(t, 1, hasty)
	r.fake.Set(providertest.Behaviour{OnStart: func(j job.Job, p job.Payload) {
		r.fake.Vanish(j.VM.ID)
		if err := r.Report(t.Context(), j.ID, p.Token, job.Report{Kind: job.ReportComplete}); err != nil {
			t.Error(err)
		}
	}})
	j := r.wait(r.submit())
	if o := j.Outcome; o.Reason != job.ReasonLost || !strings.Contains(o.Error, "gone on the host") || !strings.Contains(o.Error, "exit code 0 was reported, but SSH did not show it") {
		t.Errorf("outcome %+v", o)
	}
}

// 100 completes at once, of which none is true: what SSH shows decides, once.
func TestReport_ConcurrentCompletes(t *testing.T) {
	r := newRig(t, 1)
	tokens := make(chan string, 1)
	until := make(chan struct{})
	r.fake.Set(providertest.Behaviour{
		Task:    task(providertest.Task{Until: until, ExitCode: 100}),
		OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token },
	})
	id := r.submit()
	token := <-tokens
	errs := make(chan error)
	for i := range 100 {
		go func() {
			errs <- r.Report(context.Background(), id, token, job.Report{Kind: job.ReportComplete, ExitCode: i})
		}()
	}
	for range 100 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	close(until)
	j := r.wait(id)
	events, err := r.store.Events(context.Background(), id, 0)
	if err != nil {
		t.Fatal(err)
	}
	decided := 0
	for _, e := range events {
		if e.Kind == job.EventDecided {
			decided++
		}
	}
	if decided != 1 || j.Outcome.ExitCode == nil || *j.Outcome.ExitCode != 100 {
		t.Errorf("decided %d times, job %+v", decided, j.Outcome)
	}
}

func TestOutput_BeyondTheLimitKeepsHeadAndTail(t *testing.T) {
	r := newRig(t, 1)
	long := bytes.Repeat([]byte("0123456789abcdef"), maxOutput/4)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: long})}, true)
	id := r.submit()
	j := r.wait(id)
	got, err := r.Result(context.Background(), id)
	if err != nil {
		t.Fatal(err)
	}
	half := maxOutput / 2
	marker := fmt.Sprintf("[linus: %d bytes dropped]", len(long)-maxOutput)
	if j.Stdout.Total != int64(len(long)) || !bytes.HasPrefix(got.Stdout, long[:half]) ||
		!bytes.HasSuffix(got.Stdout, long[len(long)-half:]) || !bytes.Contains(got.Stdout, []byte(marker)) {
		t.Errorf("info %+v, %d bytes held", j.Stdout, len(got.Stdout))
	}
}

// A VM that cannot be destroyed is tried again until it is gone; the result
// is there meanwhile.
func TestDestroy_TriedAgainUntilGone(t *testing.T) {
	r := newRig(t, 1)
	locked := &job.HostError{Op: "destroy", Host: "pve", Class: job.HostTimeout, Text: "VM is locked"}
	r.behave(providertest.Behaviour{Destroys: []error{locked, locked}}, true)
	j := r.wait(r.submit())
	if j.Status != job.Success || r.fake.Stats().Destroys != 3 {
		t.Errorf("status %s after %d destroys", j.Status, r.fake.Stats().Destroys)
	}
	r.noLeaks()
}

// An ID that became somebody else's VM is left alone, and the job is done.
func TestDestroy_LeavesARecycledIDAlone(t *testing.T) {
	r := newRig(t, 1, hasty)
	release := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: release})}, false)
	id := r.submit()
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.fake.Vanish(j.VM.ID)
	r.fake.PlantAt(j.VM.ID, "database")
	if err := r.Cancel(context.Background(), id); err != nil {
		t.Fatal(err)
	}
	r.until(id, func(j job.Job) bool { return j.Status.Terminal() })
	r.wait(id)
	if !r.fake.Has(j.VM.ID) {
		t.Error("the foreign VM is gone")
	}
}

func TestPersistent_VMOutlivesTheJob(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{}, true)
	j := r.wait(r.submit(func(m *job.Manifest) { m.Lifecycle = vm.Persistent }))
	if j.VM.State != vm.Created || len(r.fake.VMs()) != 1 {
		t.Errorf("VM %+v, %d on the host", j.VM, len(r.fake.VMs()))
	}
}

// A restarted executor goes on where the last one stopped: in the middle of
// provisioning the VM is rolled back and made again, a running task is
// followed and not run twice, and what waited still waits its turn.
func TestRestart_AdoptsJobs(t *testing.T) {
	t.Parallel()
	t.Run("provisioning", func(t *testing.T) {
		r := newRig(t, 1)
		made := make(chan struct{})
		r.behave(providertest.Behaviour{Hold: made}, true)
		id, waiting := r.submit(), r.submit()
		r.until(id, func(j job.Job) bool { return j.VM != nil && j.VM.ID != 0 })
		r.stop()
		close(made)
		r.restart()
		for _, id := range []string{id, waiting} {
			if j := r.wait(id); j.Status != job.Success {
				t.Errorf("job %+v", j.Outcome)
			}
		}
		r.noLeaks()
	})
	t.Run("provisioning, and no step is told twice", func(t *testing.T) {
		r := newRig(t, 1)
		made := make(chan struct{})
		r.behave(providertest.Behaviour{Hold: made, Warning: "no host key"}, true)
		id := r.submit()
		r.until(id, func(j job.Job) bool { return j.VM != nil && j.VM.ID != 0 })
		r.stop()
		close(made)
		r.restart()
		r.wait(id)
		events, err := r.store.Events(context.Background(), id, 0)
		if err != nil {
			t.Fatal(err)
		}
		told := map[string]int{}
		for _, event := range events {
			if event.Kind == job.EventProgress || event.Kind == job.EventWarning {
				told[event.Phase]++
			}
		}
		if len(told) < 10 {
			t.Errorf("steps told: %v", told)
		}
		for phase, times := range told {
			if times != 1 {
				t.Errorf("%s was told %d times", phase, times)
			}
		}
	})
	t.Run("running", func(t *testing.T) {
		r := newRig(t, 1)
		release := make(chan struct{})
		r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("once"), Until: release})}, false)
		id := r.submit()
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
		r.stop()
		close(release)
		r.restart()
		if j := r.wait(id); j.Status != job.Success || j.Stdout.Total != 4 {
			t.Errorf("job %+v", j)
		}
		if s := r.fake.Stats(); s.Starts != 1 || s.Creates != 1 {
			t.Errorf("stats %+v", s)
		}
		r.noLeaks()
	})
}

// startedUnseen is a guest in which a push has started the runner, and its engine
// does not live to see it.
type startedUnseen struct {
	*providertest.Fake
	pushed chan struct{}
}

func (g *startedUnseen) Push(ctx context.Context, j job.Job, p job.Payload) error {
	if err := g.Fake.Push(ctx, j, p); err != nil {
		return err
	}
	if _, err := g.Start(ctx, j); err != nil {
		return err
	}
	close(g.pushed)
	<-ctx.Done()
	return context.Cause(ctx)
}

// A push that is gone on with finds a runner at work: it keeps its token and task.
func TestRestart_ARunnerAtWorkIsNotPushedAgain(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	unseen := &startedUnseen{Fake: r.fake, pushed: make(chan struct{})}
	r.opts.Runner = unseen
	r.restart()
	tokens, until := make(chan string, 1), make(chan struct{})
	r.fake.Set(providertest.Behaviour{
		Task:    task(providertest.Task{Until: until}),
		OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token },
	})
	id := r.submit()
	<-unseen.pushed
	r.stop()
	r.opts.Runner = r.fake
	r.restart()
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	if err := r.Report(t.Context(), id, <-tokens, job.Report{Kind: job.ReportHeartbeat}); err != nil {
		t.Errorf("the runner's own token: %v", err)
	}
	close(until)
	if j := r.wait(id); j.Status != job.Success || r.fake.Stats().Pushes != 1 {
		t.Errorf("outcome %+v after %d pushes", j.Outcome, r.fake.Stats().Pushes)
	}
}

func TestSubmit_KeyAnswersTheFirstJob(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{}, true)
	m := job.Manifest{Task: "x", AgentType: job.AgentScript}
	first, err := r.Submit(context.Background(), job.Submission{Manifest: m, IdempotencyKey: "key-1"})
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.Submit(context.Background(), job.Submission{Manifest: m, IdempotencyKey: "key-1"})
	if err != nil || second.ID != first.ID {
		t.Errorf("second submit: %s, %v; the first was %s", second.ID, err, first.ID)
	}
	r.wait(first.ID)
	if r.fake.Stats().Creates != 1 {
		t.Errorf("%d VMs were made", r.fake.Stats().Creates)
	}
}

// A key that a database could not index is refused in words.
func TestSubmit_LongKey(t *testing.T) {
	r := newRig(t, 1)
	s := job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript}, IdempotencyKey: strings.Repeat("k", 201)}
	_, err := r.Submit(t.Context(), s)
	if field := new(job.FieldError); !errors.As(err, &field) || field.Field != "idempotency_key" {
		t.Errorf("%v", err)
	}
	s.IdempotencyKey = s.IdempotencyKey[1:]
	if _, err := r.Submit(t.Context(), s); err != nil {
		t.Error(err)
	}
}

func TestResult_BeforeTheEnd(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{StepDelay: time.Hour}, false)
	id := r.submit()
	r.until(id, func(j job.Job) bool { return j.Status == job.Provisioning })
	_, err := r.Result(context.Background(), id)
	var early *job.NotCompleteError
	if !errors.As(err, &early) || err.Error() != "Job not complete. Status: provisioning" {
		t.Errorf("%v", err)
	}
	if _, err := r.Result(context.Background(), "019aa000-0000-7000-8000-000000000000"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("unknown job: %v", err)
	}
}

// A VM that turns up after its job's end goes, under whatever ID; one of a job
// nobody here knows, or with another name, stays.
func TestSweep_DestroysWhatItsJobIsDoneWith(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	r.opts.SweepInterval = 20 * time.Millisecond
	r.restart()
	r.behave(providertest.Behaviour{}, true)
	done := r.wait(r.submit())
	back := *done.VM
	back.ID = 900
	r.fake.Return(back)
	renamed := *done.VM
	renamed.ID, renamed.Name = 901, "kept-by-the-operator"
	r.fake.Return(renamed)
	unknown := *done.VM
	unknown.ID, unknown.Job = 902, "019aa000-0000-7000-8000-000000000000"
	r.fake.Return(unknown)
	r.until(done.ID, func(job.Job) bool { return !r.fake.Has(900) })
	if !r.fake.Has(901) || !r.fake.Has(902) {
		t.Errorf("left: %v; want 901 and 902", r.fake.VMs())
	}
}

// The host is told when to end a VM by itself: never that of a persistent job.
func TestProvision_LeaseOutlastsTheTimeout(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	seen := &specs{Provider: r.fake, got: make(chan job.VMSpec, 2)}
	r.opts.Provider, r.vms.Lease = seen, time.Hour
	r.restart()
	r.behave(providertest.Behaviour{}, true)
	r.wait(r.submit(func(m *job.Manifest) { m.Timeout = 60 }))
	r.wait(r.submit(func(m *job.Manifest) { m.Lifecycle = vm.Persistent }))
	if got := (<-seen.got).Lease; got != time.Hour+time.Minute {
		t.Errorf("lease of an ephemeral job: %s", got)
	}
	if got := (<-seen.got).Lease; got != 0 {
		t.Errorf("lease of a persistent job: %s", got)
	}
}

// specs notes what VMs are asked for.
type specs struct {
	job.Provider
	got chan job.VMSpec
}

func (s *specs) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	s.got <- spec
	return s.Provider.Create(ctx, spec, progress)
}
