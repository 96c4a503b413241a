package executor_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/pgtest"
	"linus/internal/providertest"
	"linus/internal/store"
	"linus/internal/vm"
)

// Leases: one that a busy machine does not miss, and one that is waited for.
const (
	longLease  = time.Minute
	shortLease = 3 * time.Second
)

// cohort is engines that share a database and a hypervisor.
type cohort struct {
	t       *testing.T
	fake    *providertest.Fake
	engines []*rig
	open    func() *store.Store
	url     string // of the database

	mu     sync.Mutex
	begun  map[string]int  // tasks, by job
	fenced map[string]bool // engines that the host refuses
	late   int             // what it has refused
}

// newCohort starts n engines; change sets what is special about one.
func newCohort(t *testing.T, n, maxJobs int, change func(f *cohort, i int, r *rig)) *cohort {
	t.Helper()
	dir := t.TempDir()
	f := &cohort{t: t, url: pgtest.Database(t), fake: providertest.NewFake(), begun: map[string]int{}, fenced: map[string]bool{}}
	f.open = func() *store.Store {
		s, err := store.Open(context.Background(), store.Options{Dir: dir, URL: f.url, MaxOutput: maxOutput})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("once\n"), For: 5 * time.Millisecond})})
	for i := range n {
		s, log := f.open(), &logBuffer{}
		r := &rig{t: t, fake: f.fake, store: s, log: log, vms: fleet.Options{Store: s, Guest: f.fake, Owner: "5a17c0de-0000-4000-8000-000000000001", PoolInterval: 200 * time.Millisecond}}
		r.opts = executor.Options{
			Stores: executor.StoresOf(s), Runner: f.fake,
			Provider: hostOf{f.fake, f, s},
			Log:      slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Engines:  s, About: job.EngineInfo{Host: fmt.Sprintf("machine%d", i), PID: i + 1}, EngineLease: longLease,
			Fence:       f.fence,
			CallbackURL: func(context.Context) (string, error) { return "http://192.0.2.1:8765", nil },
			Defaults:    job.Defaults{VMTemplate: providertest.FakeTemplate, Timeout: 3600, CPU: 2, Memory: "2G", Disk: "10G"},
			MaxJobs:     maxJobs, MaxOutput: maxOutput, CleanupInterval: 200 * time.Millisecond, CollectPatience: 10 * time.Minute,
			HeartbeatInterval: time.Second, SweepInterval: 400 * time.Millisecond,
		}
		if change != nil {
			change(f, i, r)
		}
		r.restart()
		t.Cleanup(r.stop)
		f.engines = append(f.engines, r)
	}
	return f
}

// behave sets what the hypervisor does, and has the tasks that begin counted.
func (f *cohort) behave(b providertest.Behaviour) {
	b.OnStart = func(j job.Job, _ job.Payload) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.begun[j.ID]++
	}
	f.fake.Set(b)
}

func (f *cohort) fence(_ context.Context, engine string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fenced[engine] = true
	return nil
}

// refuses returns the host's error for an engine that it is to refuse.
func (f *cohort) refuses(s *store.Store) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fenced[s.EngineID()] {
		return nil
	}
	f.late++
	return &job.HostError{Op: "do what a dead engine asks", Host: "pve", Class: job.HostFenced, Text: "others have taken it for dead"}
}

// ended waits until jobs are done, and checks that each ran once and left nothing.
func (f *cohort) ended(ids ...string) {
	f.t.Helper()
	r := f.engines[len(f.engines)-1]
	for _, id := range ids {
		j := r.wait(id)
		if j.Status != job.Success {
			f.t.Errorf("job %s: %s %+v", id, j.Status, j.Outcome)
		}
		f.mu.Lock()
		begun := f.begun[id]
		f.mu.Unlock()
		if begun != 1 {
			f.t.Errorf("the task of job %s was run %d times", id, begun)
		}
	}
	r.noLeaks()
}

// hostOf is the hypervisor as one engine has it.
type hostOf struct {
	*providertest.Fake
	f *cohort
	s *store.Store
}

func (h hostOf) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	if err := h.f.refuses(h.s); err != nil {
		return vm.VM{}, err
	}
	return h.Fake.Create(ctx, spec, progress)
}

func (h hostOf) Destroy(ctx context.Context, v vm.VM) error {
	if err := h.f.refuses(h.s); err != nil {
		return err
	}
	return h.Fake.Destroy(ctx, v)
}

// Whichever engine a job is submitted at, one engine runs it, once.
func TestEngines_EachJobRunsOnce(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 3, 4, nil)
	var ids []string
	for i := range 30 {
		ids = append(ids, f.engines[i%3].submit())
	}
	f.ended(ids...)
	took := 0
	for _, r := range f.engines {
		if strings.Contains(r.log.String(), `msg="job done"`) {
			took++
		}
	}
	if took < 2 {
		t.Errorf("%d of 3 engines had jobs", took)
	}
}

// All engines together run no more jobs than MaxJobs of the store, and not fewer.
func TestEngines_SlotsOfAll(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 3, 4, func(f *cohort, _ int, r *rig) {
		s, err := store.Open(context.Background(), store.Options{URL: f.url, MaxJobs: 5})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		r.store, r.opts.Stores, r.opts.Engines, r.opts.Provider = s, executor.StoresOf(s), s, hostOf{f.fake, f, s}
	})
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	var ids []string
	for i := range 12 {
		ids = append(ids, f.engines[i%3].submit())
	}
	f.await("five jobs that run", func() bool {
		running := 0
		for _, id := range ids {
			if j, err := f.engines[0].Job(context.Background(), id); err == nil && j.Status == job.Running {
				running++
			}
		}
		return running == 5
	})
	f.await("why a job waits", func() bool { // of an engine that has slots of its own
		return slices.ContainsFunc(f.engines, func(r *rig) bool {
			j, err := r.Job(context.Background(), ids[11])
			return err == nil && strings.Contains(j.Progress, "as MAX_JOBS_ALL allows")
		})
	})
	close(until)
	f.ended(ids...)
	if most := f.fake.Stats().MostVMs; most != 5 {
		t.Errorf("%d VMs at a time", most)
	}
}

func (f *cohort) await(what string, there func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(time.Minute); !there(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("no %s within a minute", what)
		}
	}
}

// others has another name than its method, so that it can be embedded.
type others = executor.Engines

type mortalEngines struct {
	others
	m *mortal
}

func (s mortalStore) Take(ctx context.Context, id string) (j job.Job, taken bool, err error) {
	err = s.m.do(func() error { j, taken, err = s.Store.Take(ctx, id); return err })
	return j, taken, err
}

// A dead engine neither renews nor leaves.
func (e mortalEngines) Renew(ctx context.Context, lease time.Duration) error {
	if e.m.isDead() {
		<-ctx.Done()
	}
	return e.others.Renew(ctx, lease)
}

func (e mortalEngines) Join(ctx context.Context, about job.EngineInfo, lease time.Duration) (string, error) {
	if e.m.isDead() {
		return "", errDead
	}
	return e.others.Join(ctx, about, lease)
}

func (e mortalEngines) Leave(ctx context.Context) error {
	if e.m.isDead() {
		return errDead
	}
	return e.others.Leave(ctx)
}

func (e mortalEngines) Evict(ctx context.Context, id string, dead bool) (bool, error) {
	if e.m.isDead() {
		return false, errDead
	}
	return e.others.Evict(ctx, id, dead)
}

func (m *mortal) isDead() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.dead
}

// An engine is killed between every two steps of a job: another takes the job over at
// its phase, the task runs once, and nothing is left.
func TestEngines_KilledAtEveryStep(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	steps := 0
	t.Run("alive", func(t *testing.T) {
		m := &mortal{died: make(chan struct{})}
		dieWith(t, m)
		if steps = m.steps; steps < 20 {
			t.Errorf("only %d steps", steps)
		}
	})
	var killed atomic.Int32
	for n := range steps {
		at := n + 1
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			t.Parallel()
			m := &mortal{at: at, died: make(chan struct{})}
			dieWith(t, m)
			if m.isDead() {
				killed.Add(1)
			}
		})
	}
	t.Cleanup(func() { // a job has some steps more or fewer, as changes share a commit
		if n := killed.Load(); n < 5 {
			t.Errorf("only %d engines were killed", n)
		}
	})
}

// dieWith has a job begin on an engine that dies, and another engine there.
func dieWith(t *testing.T, m *mortal) {
	f := newCohort(t, 1, 1, func(f *cohort, _ int, r *rig) {
		if m.at > 0 {
			r.opts.EngineLease = shortLease
		}
		r.vms.Store = mortalStore{r.store, m}
		r.opts.Stores, r.opts.Engines = executor.StoresOf(mortalStore{r.store, m}), mortalEngines{r.store, m}
		r.opts.Provider, r.opts.Runner = mortalProvider{r.opts.Provider, m}, mortalRunner{f.fake, m}
	})
	first := f.engines[0]
	id := ""
	submission := job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript}, IdempotencyKey: "key"}
	if j, err := first.Submit(context.Background(), submission); err == nil {
		id = j.ID
	}
	if m.at == 0 {
		f.ended(id)
		return
	}
	f.await("end of the engine or of its job", func() bool {
		j, err := first.store.Job(context.Background(), id)
		return m.isDead() || err == nil && j.Done() && first.Idle()
	})
	second := f.join()
	if j, err := second.Submit(context.Background(), submission); err != nil || id != "" && j.ID != id {
		t.Fatalf("%s: %+v, %v", id, j, err)
	} else {
		id = j.ID
	}
	f.ended(id)
}

// join starts one more engine, like the first but without its faults.
func (f *cohort) join() *rig {
	f.t.Helper()
	s, log := f.open(), &logBuffer{}
	r := &rig{t: f.t, fake: f.fake, store: s, log: log, opts: f.engines[0].opts, vms: fleet.Options{Store: s, Guest: f.fake, Owner: "5a17c0de-0000-4000-8000-000000000001", PoolInterval: 200 * time.Millisecond}}
	r.opts.Stores, r.opts.Engines, r.opts.Provider = executor.StoresOf(s), s, hostOf{f.fake, f, s}
	r.opts.Runner = f.fake
	r.opts.Log = slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	r.opts.About, r.opts.EngineLease = job.EngineInfo{Host: "another", PID: 99}, longLease
	r.restart()
	f.t.Cleanup(r.stop)
	f.engines = append(f.engines, r)
	return r
}

// freezer holds up whatever an engine does, as SIGSTOP does, until it goes on.
type freezer struct {
	mu   sync.Mutex
	cond *sync.Cond
	on   bool
}

func newFreezer() *freezer {
	f := &freezer{}
	f.cond = sync.NewCond(&f.mu)
	return f
}

func (f *freezer) set(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.on = on
	f.cond.Broadcast()
}

func (f *freezer) pass() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.on {
		f.cond.Wait()
	}
}

type frozenStore struct {
	*store.Store
	f    *freezer
	mu   *sync.Mutex
	errs *[]error // of the writes that were held up
}

func (s frozenStore) Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error) {
	held := s.f.frozen()
	s.f.pass()
	j, err := s.Store.Update(ctx, id, change)
	if held {
		s.mu.Lock()
		defer s.mu.Unlock()
		*s.errs = append(*s.errs, err)
	}
	return j, err
}

func (f *freezer) frozen() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.on
}

type frozenProvider struct {
	job.Provider
	f *freezer
}

func (p frozenProvider) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	p.f.pass()
	return p.Provider.Create(context.WithoutCancel(ctx), spec, progress) // what was sent is carried out
}

func (p frozenProvider) Destroy(ctx context.Context, v vm.VM) error {
	p.f.pass()
	return p.Provider.Destroy(context.WithoutCancel(ctx), v)
}

type frozenEngines struct {
	others
	f *freezer
}

func (e frozenEngines) Renew(ctx context.Context, lease time.Duration) error {
	e.f.pass()
	return e.others.Renew(ctx, lease)
}

func (e frozenEngines) Evict(ctx context.Context, id string, dead bool) (bool, error) {
	e.f.pass()
	return e.others.Evict(ctx, id, dead)
}

func (e frozenEngines) Join(ctx context.Context, about job.EngineInfo, lease time.Duration) (string, error) {
	e.f.pass()
	return e.others.Join(ctx, about, lease)
}

// An engine is paused for three times its lease in the middle of jobs, and goes on then:
// whatever it still writes is refused, by the database and by the host, the other engine
// has ended its jobs, and it works again as a new engine.
func TestEngines_PausedEngineIsRefused(t *testing.T) {
	t.Parallel()
	ice := newFreezer()
	var mu sync.Mutex
	var late []error
	f := newCohort(t, 1, 4, func(_ *cohort, _ int, r *rig) {
		r.opts.EngineLease = shortLease
		r.opts.Jobs = frozenStore{r.store, ice, &mu, &late}
		r.opts.Engines = frozenEngines{r.store, ice}
		r.opts.Provider = frozenProvider{r.opts.Provider, ice}
	})
	first := f.engines[0]
	was := first.store.EngineID()
	until := make(chan struct{})
	f.behave(providertest.Behaviour{StepDelay: 3 * time.Millisecond, Task: task(providertest.Task{Until: until})})
	var ids []string
	for range 3 {
		ids = append(ids, first.submit())
	}
	second := f.join()
	f.await("jobs that are being made and run", func() bool { return f.fake.Stats().Creates >= 2 })
	ice.set(true)
	f.await("the burial of the paused engine", func() bool {
		engines, err := second.store.Engines(context.Background())
		return err == nil && !slices.ContainsFunc(engines, func(e job.EngineInfo) bool { return e.ID == was })
	})
	close(until)
	f.ended(ids...)
	stats := f.fake.Stats()
	time.AfterFunc(3*shortLease, func() { ice.set(false) })
	f.await("the paused engine among the others again", func() bool {
		engines, err := second.store.Engines(context.Background())
		return err == nil && len(engines) == 2 && first.store.EngineID() != was
	})
	mu.Lock()
	for _, err := range late {
		if !errors.Is(err, job.ErrDetach) && !errors.Is(err, context.Canceled) { // refused, or given up
			t.Errorf("a late write: %v", err)
		}
	}
	mu.Unlock()
	if now := f.fake.Stats(); now.Creates != stats.Creates {
		t.Errorf("the host has made VMs for an engine that was evicted: %d, then %d", stats.Creates, now.Creates)
	}
	id := first.submit()
	f.behave(providertest.Behaviour{})
	f.ended(id)
}

// A job that runs on one engine is cancelled at another: the first is told, or finds out
// by itself.
func TestEngines_CancelElsewhere(t *testing.T) {
	t.Parallel()
	for name, lease := range map[string]time.Duration{"told": time.Hour, "not told": shortLease} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newCohort(t, 1, 1, func(_ *cohort, _ int, r *rig) {
				r.opts.EngineLease = lease
				if name == "not told" {
					r.opts.Engines = deafEngines{r.store}
				}
			})
			until := make(chan struct{})
			defer close(until)
			f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
			id := f.engines[0].submit(func(m *job.Manifest) { m.Stdin = job.StdinOpen })
			f.engines[0].until(id, func(j job.Job) bool { return j.Status == job.Running })
			second := f.join()
			var elsewhere *job.FieldError
			f.await("word of where the job is followed", func() bool { // with a short lease it may be nowhere for a moment
				err := second.Input(context.Background(), id, []byte("x"), false)
				return errors.As(err, &elsewhere) && strings.Contains(elsewhere.Problem, "on machine0 (pid 1)")
			})
			if err := second.Cancel(context.Background(), id); err != nil {
				t.Fatal(err)
			}
			j := second.wait(id)
			if j.Status != job.Failed || j.Outcome.Reason != job.ReasonCancelled || j.VM.State != vm.Destroyed {
				t.Errorf("%s %+v, VM %+v", j.Status, j.Outcome, j.VM)
			}
			f.await("its end at the engine that ran it", func() bool {
				return strings.Contains(f.engines[0].log.String(), `msg="job done"`)
			})
		})
	}
}

// A job that is submitted while an engine looks around, after it has read who waits,
// keeps its place in line.
func TestEngines_SubmittedDuringALookAround(t *testing.T) {
	t.Parallel()
	slow := &slowStore{read: make(chan struct{}), resume: make(chan struct{})}
	f := newCohort(t, 1, 1, func(_ *cohort, _ int, r *rig) {
		r.opts.EngineLease = time.Hour // it does not look around again
		slow.QueueStore, r.opts.Queue = r.opts.Queue, slow
	})
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	<-slow.read
	first := f.engines[0].submit()
	f.engines[0].until(first, func(j job.Job) bool { return j.Status == job.Running })
	second := f.engines[0].submit()
	close(slow.resume)
	f.await("end of the look", func() bool { return slow.over.Load() })
	close(until)
	f.ended(first, second)
}

// slowStore holds up an engine's first look around after it has read who waits.
type slowStore struct {
	executor.QueueStore
	reads        atomic.Int32
	over         atomic.Bool
	read, resume chan struct{}
}

func (s *slowStore) Waiting(ctx context.Context) ([]string, error) {
	ids, err := s.QueueStore.Waiting(ctx)
	if s.reads.Add(1) == 2 { // the first is the engine's start
		close(s.read)
		<-s.resume
		defer s.over.Store(true)
	}
	return ids, err
}

// deafEngines hears no notices.
type deafEngines struct{ others }

func (deafEngines) Listen(ctx context.Context, _ func(job.Notice)) error {
	<-ctx.Done()
	return nil
}

// A job that is submitted at an engine without room begins at once at one that has some,
// and who watches it at the first sees it there.
func TestEngines_TellOthersOfJobs(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 2, 1, func(_ *cohort, _ int, r *rig) { r.opts.EngineLease = time.Hour })
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	var ids []string
	for range 2 {
		ids = append(ids, f.engines[0].submit())
	}
	for _, id := range ids {
		f.engines[0].until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	close(until)
	for _, id := range ids {
		f.engines[0].wait(id)
	}
	f.ended(ids...)
}

// A runner's report arrives at another engine than the job's, which is told, and looks.
func TestEngines_ReportElsewhere(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 1, 1, func(_ *cohort, _ int, r *rig) { r.opts.EngineLease, r.opts.HeartbeatInterval = time.Hour, time.Hour })
	until, token := make(chan struct{}), make(chan string, 1)
	f.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: until}), OnStart: func(_ job.Job, p job.Payload) { token <- p.Token }})
	first := f.engines[0]
	id := first.submit()
	first.until(id, func(j job.Job) bool { return j.Status == job.Running })
	second := f.join()
	secret := <-token
	if err := second.Report(context.Background(), id, secret, job.Report{Kind: job.ReportStatus, Progress: "half"}); err != nil {
		t.Fatal(err)
	}
	first.eventually(id, func(j job.Job) bool { return j.Progress == "half" && !j.LastHeartbeat.IsZero() })
	if err := second.Report(context.Background(), id, "wrong", job.Report{Kind: job.ReportComplete}); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("a wrong token: %v", err)
	}
	if err := second.Report(context.Background(), id, secret, job.Report{Kind: job.ReportComplete, ExitCode: 3}); err != nil {
		t.Fatal(err)
	}
	first.eventually(id, func(j job.Job) bool { return j.Contradicted }) // it looked, and the task runs on
	close(until)
	second.wait(id)
}

// An engine that stops leaves its jobs to the others at once: they do not wait for the
// end of its lease.
func TestEngines_StopHandsOver(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 1, 1, func(_ *cohort, _ int, r *rig) { r.opts.EngineLease = time.Hour })
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	id := f.engines[0].submit()
	f.engines[0].until(id, func(j job.Job) bool { return j.Status == job.Running })
	second := f.join()
	f.engines[0].stop()
	close(until)
	f.ended(id)
	if !strings.Contains(second.log.String(), `msg="job adopted"`) {
		t.Error("the second engine has not taken it over")
	}
}

// While one engine works on a VM, others keep jobs and other work out of it; and when
// it dies in the middle, only as long as its lease.
func TestEngines_WorkOnAVM(t *testing.T) {
	t.Parallel()
	ice := newFreezer()
	f := newCohort(t, 2, 2, func(f *cohort, i int, r *rig) {
		if i == 0 {
			r.opts.Engines = frozenEngines{r.store, ice}
			r.opts.Provider = stoppable{r.opts.Provider, ice}
		}
	})
	ctx := context.Background()
	first, second := f.engines[0], f.engines[1]
	vm := first.makeVM("box")
	ice.set(true)
	go first.StopVM(ctx, "box") //nolint:errcheck // it is paused in the middle
	f.await("work on the VM", func() bool {
		what, err := second.store.Locked(ctx, "vm "+vm.ID)
		return err == nil && what == "stopped"
	})
	var busy *job.FieldError
	if _, err := second.StartVM(ctx, "box"); !errors.As(err, &busy) || !strings.Contains(busy.Problem, "is being stopped") {
		t.Errorf("start at the other engine: %v", err)
	}
	if _, err := second.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, VM: "box"}}); !errors.As(err, &busy) {
		t.Errorf("submit at the other engine: %v", err)
	}
	if err := first.store.Renew(ctx, -time.Second); err != nil && !errors.Is(err, job.ErrDetach) { // it is dead
		t.Fatal(err)
	}
	f.await("the end of that when its engine is dead", func() bool {
		_, err := second.StartVM(ctx, "box")
		return err == nil
	})
	ice.set(false)
	if _, err := second.DestroyVM(ctx, fmt.Sprint(vm.VM.ID)); err != nil {
		t.Error(err)
	}
	second.wait(vm.ID)
}

type stoppable struct {
	job.Provider
	f *freezer
}

func (p stoppable) StopVM(ctx context.Context, v vm.VM) error {
	p.f.pass()
	return p.Provider.StopVM(ctx, v)
}

// Without quorum the host cannot be told to refuse a dead engine: its jobs stay its own,
// that is said, and they are taken over once it can.
func TestEngines_NoFenceNoTakeOver(t *testing.T) {
	t.Parallel()
	ice := newFreezer()
	f := newCohort(t, 1, 1, func(_ *cohort, _ int, r *rig) {
		r.opts.EngineLease = shortLease
		r.opts.Jobs = frozenStore{r.store, ice, &sync.Mutex{}, &[]error{}}
		r.opts.Engines = frozenEngines{r.store, ice}
	})
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	id := f.engines[0].submit()
	f.engines[0].until(id, func(j job.Job) bool { return j.Status == job.Running })
	var mu sync.Mutex
	quorum := false
	f.engines[0].opts.Fence = func(ctx context.Context, engine string) error {
		mu.Lock()
		defer mu.Unlock()
		if !quorum {
			return errors.New("no quorum")
		}
		return f.fence(ctx, engine)
	}
	second := f.join()
	ice.set(true)
	defer ice.set(false)
	f.await("what stands in the way", func() bool {
		engines, err := second.Engines(context.Background())
		return err == nil && slices.ContainsFunc(engines, func(e job.EngineInfo) bool { return strings.Contains(e.Problem, "no quorum") && e.Jobs == 1 })
	})
	mu.Lock()
	quorum = true
	mu.Unlock()
	close(until)
	f.ended(id)
}

// A draining engine ends its jobs and takes no more; another takes those.
func TestEngines_Drain(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 1, 4, nil)
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	first := f.engines[0]
	running := first.submit()
	first.until(running, func(j job.Job) bool { return j.Status == job.Running })
	if err := first.Drain(context.Background()); err != nil {
		t.Fatal(err)
	}
	waiting := first.submit()
	second := f.join()
	j := second.until(waiting, func(j job.Job) bool { return j.Status == job.Running })
	if j.Engine != second.store.EngineID() {
		t.Errorf("the job submitted later is worked on by %s, not by %s", j.Engine, second.store.EngineID())
	}
	if first.Drained() {
		t.Error("drained while a job runs")
	}
	close(until)
	f.ended(running, waiting)
	f.await("the end of draining", first.Drained)
}

// Pools are tended by one engine, and their members serve the jobs of every engine.
func TestEngines_PoolsOfAll(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 2, 2, nil)
	first, second := f.engines[0], f.engines[1]
	first.newPool(2)
	f.await("the second engine to know the pool", func() bool { return f.fake.Stats().Rooms > 4 })
	id := second.submit()
	j := second.wait(id)
	if j.Status != job.Success || j.VM.Source != vm.FromPool {
		t.Errorf("%s %+v, VM %+v", j.Status, j.Outcome, j.VM)
	}
	first.removePool()
	second.noLeaks()
}

// A VM may be asked for at any engine, and had destroyed at any: the one that leads makes it,
// and when that stops, or drains, the next one goes on.
func TestEngines_VMsThatAreAskedFor(t *testing.T) {
	t.Parallel()
	f := newCohort(t, 2, 2, nil)
	ctx, first, second := context.Background(), f.engines[0], f.engines[1]
	hold := make(chan struct{})
	f.behave(providertest.Behaviour{Hold: hold})
	unwanted, wanted := second.askVM("one"), second.askVM("two")
	for _, v := range []job.Job{unwanted, wanted} {
		first.hasID(v.ID)
	}
	_, err := first.CreateVM(ctx, job.Submission{Manifest: job.Manifest{VMName: "two"}})
	refusal(t, err, "VM already exists")
	if _, err := second.DestroyVM(ctx, "one"); err != nil {
		t.Fatal(err)
	}
	second.untilVM(unwanted.ID, vm.Destroyed)
	first.stop()
	close(hold)
	second.untilVM(wanted.ID, vm.Created)
	second.wait(wanted.ID)
	third := f.join()
	if err := second.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	last := second.askVM("three")
	third.untilVM(last.ID, vm.Created)
	third.wait(last.ID)
	f.await("the end of draining", second.Drained)
	if vms := f.fake.VMs(); len(vms) != 2 {
		t.Errorf("on the host: %+v", vms)
	}
}

// An engine that was killed is started again: it does not wait for the end of its own
// lease, and the host refuses what it asked before.
func TestEngines_KilledAndStartedAgain(t *testing.T) {
	t.Parallel()
	m := &mortal{died: make(chan struct{})}
	f := newCohort(t, 1, 1, func(f *cohort, _ int, r *rig) {
		r.opts.EngineLease = time.Hour
		r.vms.Store = mortalStore{r.store, m}
		r.opts.Stores, r.opts.Engines = executor.StoresOf(mortalStore{r.store, m}), mortalEngines{r.store, m}
		r.opts.Provider, r.opts.Runner = mortalProvider{r.opts.Provider, m}, mortalRunner{f.fake, m}
	})
	until := make(chan struct{})
	f.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})})
	first := f.engines[0]
	id := first.submit()
	first.until(id, func(j job.Job) bool { return j.Status == job.Running })
	m.mu.Lock()
	m.dead = true
	m.mu.Unlock()
	dead := first.store.EngineID()
	first.opts.Predecessor = dead
	joined := make(chan string, 1)
	first.opts.Joined = func(id string) { joined <- id }
	second := f.join()
	if got := <-joined; got != second.store.EngineID() || got == dead {
		t.Errorf("joined as %s", got)
	}
	close(until)
	f.ended(id)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.fenced[dead] {
		t.Error("the host was not told")
	}
}
