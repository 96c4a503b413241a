package queuetest

import (
	"archive/tar"
	"cmp"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/job"
)

// Engine is an engine whose VMs run a Go function.
type Engine struct {
	// Run is what a VM runs once it has its secret, until ctx ends. It returns the task's exit code.
	Run func(ctx context.Context, vm VM) int
	// Full is how many submissions are refused for lack of room, Refuses is why no job can be served, and
	// jobs wait for Slow before they run.
	Full    int
	Refuses error
	Slow    <-chan struct{}
	// Far is the maximum delay of a request, and of its answer.
	Far time.Duration
	// As is the principal of dispatchers; without a name: the operator.
	As job.Principal

	t       testing.TB
	mu      sync.Mutex
	changed chan struct{}
	jobs    map[string]*VM
	keys    map[string]string // IDs of jobs by their idempotency keys
	drains  bool
	dead    bool
	lives   int // number of times it was killed
	reports []job.Dispatcher
	tasks   sync.WaitGroup
}

// VM is a job with the content of its VM.
type VM struct {
	job.Job

	Files  map[string]string // by their paths
	Secret []byte

	end context.CancelFunc // ends what runs in it
}

// NewEngine returns an engine without jobs. Its VMs end with the test.
func NewEngine(t testing.TB) *Engine {
	slow := make(chan struct{})
	close(slow)
	e := &Engine{Slow: slow, t: t, changed: make(chan struct{}), jobs: map[string]*VM{}, keys: map[string]string{}}
	t.Cleanup(func() {
		for _, vm := range e.VMs() {
			e.End(vm.ID, job.Failed, job.ReasonKilled, 137)
		}
		e.tasks.Wait()
	})
	return e
}

// VMs returns all VMs, including ended ones, by job ID.
func (e *Engine) VMs() map[string]VM {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := map[string]VM{}
	for id, vm := range e.jobs {
		all[id] = vm.copy()
	}
	return all
}

func (vm *VM) copy() VM {
	c := *vm
	c.Files = maps.Clone(vm.Files)
	return c
}

// Put adds a job that does not wait for a secret.
func (e *Engine) Put(j job.Job) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.jobs[j.ID] = &VM{Job: j, Files: map[string]string{}, Secret: []byte{}, end: func() {}}
}

func (e *Engine) change(id string, with func(vm *VM)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	with(e.jobs[id])
	close(e.changed)
	e.changed = make(chan struct{})
}

// Set gives a job a status.
func (e *Engine) Set(id string, status job.Status) { e.change(id, func(vm *VM) { vm.Status = status }) }

// Caller returns the principal of dispatchers.
func (e *Engine) Caller(context.Context) (job.Principal, error) {
	if e.As.Name == "" {
		return job.Operator(), nil
	}
	return e.As, nil
}

// Plan returns Refuses.
func (e *Engine) Plan(context.Context, job.Submission) ([]string, error) { return nil, e.Refuses }

// Submit adds a job, which runs as soon as Slow permits.
func (e *Engine) Submit(_ context.Context, s job.Submission) (job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Full > 0 {
		e.Full--
		return job.Job{}, &job.FieldError{Field: "jobs", Problem: "there are as many as there may be", Fault: job.FaultLimit}
	}
	s.Principal = job.Operator()
	if err := cmp.Or(s.Manifest.Validate(), s.CheckSession()); err != nil {
		return job.Job{}, err
	}
	if id := e.keys[s.IdempotencyKey]; id != "" {
		return e.jobs[id].Job, nil
	}
	for id, vm := range e.jobs {
		if of := vm.Session; of != nil && !vm.Status.Terminal() && of.Queue == s.Session.Queue && of.Work.ID == s.Session.Work.ID {
			return job.Job{}, &job.FieldError{Field: "session.work", Problem: "is served by job " + id, Fault: job.FaultState}
		}
	}
	id := "job-" + s.Manifest.Labels["dispatch/session"] + strings.Repeat("+", len(e.jobs))
	e.keys[s.IdempotencyKey] = id
	ctx, end := context.WithCancel(context.Background())
	vm := &VM{Job: job.Job{ID: id, Manifest: s.Manifest, Session: s.Session, Status: job.Pending, CreatedAt: time.Now()}, Files: map[string]string{}, end: end}
	e.jobs[id] = vm
	e.tasks.Go(func() {
		select {
		case <-e.Slow:
		case <-ctx.Done():
			return
		}
		if !e.alive(ctx) {
			return
		}
		e.change(id, func(vm *VM) {
			if vm.Status == job.Pending {
				vm.Status = job.Running
			}
		})
		select {
		case <-ctx.Done():
		case <-time.After(5 * time.Minute):
			if e.VMs()[id].Secret == nil {
				e.End(id, job.Failed, job.ReasonExitStatus, 75)
			}
		}
	})
	return vm.Job, nil
}

// Kill kills the engine's process: requests and answers on the way are lost, and no job starts to run.
// VMs keep running, and the engine still has its jobs after Start.
func (e *Engine) Kill() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead = true
	e.lives++
}

// Start restarts the engine.
func (e *Engine) Start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dead = false
	close(e.changed)
	e.changed = make(chan struct{})
}

// reached is called when a request or an answer arrives. It returns the number of the engine's life, or
// an error if the engine is dead.
func (e *Engine) reached() (life int, err error) {
	if e.Far > 0 {
		time.Sleep(rand.N(e.Far)) //nolint:gosec,forbidigo // its way
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dead {
		return 0, errFault
	}
	return e.lives, nil
}

// alive waits until the engine runs. It returns false if ctx has ended.
func (e *Engine) alive(ctx context.Context) bool {
	for {
		e.mu.Lock()
		dead, changed := e.dead, e.changed
		e.mu.Unlock()
		if !dead {
			return ctx.Err() == nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false
		}
	}
}

// Reports returns all reports of dispatchers.
func (e *Engine) Reports() []job.Dispatcher {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.reports)
}

// Drain says whether dispatchers are to take no more work.
func (e *Engine) Drain(drains bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.drains = drains
}

// ReportDispatcher records a dispatcher's report, and tells it whether to drain.
func (e *Engine) ReportDispatcher(_ context.Context, d job.Dispatcher) (job.Dispatcher, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := d.Check(); err != nil {
		return d, err
	}
	e.reports = append(e.reports, d)
	d.Draining = e.drains
	return d, nil
}

// Watch returns a job after its next change, or after a second.
func (e *Engine) Watch(ctx context.Context, id string, _ int64) ([]job.Event, job.Job, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.jobs[id] == nil {
		return nil, job.Job{}, job.ErrNotFound
	}
	if before := e.jobs[id].Status; !before.Terminal() {
		changed := e.changed
		e.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(time.Second):
		}
		e.mu.Lock()
	}
	return nil, e.jobs[id].Job, nil
}

// End ends a job, unless it has ended already.
func (e *Engine) End(id string, status job.Status, reason job.Reason, code int) {
	e.change(id, func(vm *VM) {
		vm.end()
		if vm.Outcome == nil {
			vm.Status, vm.Outcome = status, &job.Outcome{Status: status, Reason: reason, ExitCode: &code}
		}
	})
}

// Cancel ends a job.
func (e *Engine) Cancel(_ context.Context, id string) error {
	e.End(id, job.Failed, job.ReasonCancelled, 143)
	return nil
}

// List returns jobs, all in one page.
func (e *Engine) List(_ context.Context, f job.Filter) (page job.Page, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, vm := range e.jobs {
		has := !slices.ContainsFunc(f.Label, func(text string) bool {
			key, value, _ := strings.Cut(text, "=")
			return vm.Manifest.Labels[key] != value
		})
		of := vm.Session
		has = has && (f.Dispatcher == "" || of != nil && of.Dispatcher == f.Dispatcher && job.QueueID(of.Kind, of.Queue) == f.Queue)
		mine := f.Principal == "" || f.Principal == cmp.Or(vm.Principal, job.OperatorName)
		if vm.Status == f.Status && has && mine {
			page.Jobs = append(page.Jobs, job.Summary{ID: vm.ID, Status: vm.Status, Labels: vm.Manifest.Labels, Session: vm.Session, Outcome: vm.Outcome, CompletedAt: vm.CompletedAt})
		}
	}
	return page, nil
}

// WriteTree unpacks an archive in a VM.
func (e *Engine) WriteTree(_ context.Context, at job.FileRef, archive io.Reader) error {
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		e.change(at.VM, func(vm *VM) { vm.Files[path.Join(at.Path, h.Name)] = string(data) })
	}
}

// WriteFile gives a VM its secret, so that it runs, or tells it that none comes.
func (e *Engine) WriteFile(_ context.Context, w job.FileWrite) (job.FileWritten, error) {
	if strings.HasSuffix(w.Path, ".over") {
		if e.VMs()[w.VM].Secret == nil {
			e.End(w.VM, job.Failed, job.ReasonExitStatus, 75)
		}
		return job.FileWritten{}, nil
	}
	var vm VM
	ctx, end := context.WithCancel(context.Background())
	e.change(w.VM, func(to *VM) {
		before := to.end
		to.Files[w.Path], to.Secret = string(w.Data), w.Data
		to.end = func() { before(); end() }
		vm = to.copy()
	})
	if vm.Status != job.Running {
		end()
		return job.FileWritten{}, &job.FieldError{Field: "vm", Problem: "does not run", Fault: job.FaultState}
	}
	e.tasks.Go(func() {
		code := e.Run(ctx, vm)
		if ctx.Err() != nil {
			return
		}
		status := job.Success
		if code != 0 {
			status = job.Failed
		}
		e.End(w.VM, status, job.ReasonExitStatus, code)
	})
	return job.FileWritten{}, nil
}
