// Package hosttest owns the proof that the user's own host works: the steps of a test, what they
// have created, and what is kept of the result. It calls the verbs that users call, and must not
// know how they are implemented.
package hosttest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// Store stores tests.
type Store interface {
	// HostTests returns all tests, oldest first.
	HostTests(ctx context.Context) ([]job.HostTest, error)
	// PutHostTest adds a test, or overwrites it.
	PutHostTest(ctx context.Context, t job.HostTest) error
	DeleteHostTest(ctx context.Context, id string) error
}

// Host is what tests see of the host besides the engine: whether something exists.
type Host interface {
	List(ctx context.Context) ([]vm.VM, error)
	ListVolumes(ctx context.Context) ([]vm.VM, error)
	Status(ctx context.Context, v vm.VM) (vm.Status, error)
	Look(ctx context.Context, v vm.VM) (job.Seen, error)
	Room(ctx context.Context, origins []job.Origin, vms []job.Watched) (job.HostRoom, error)
}

// Engine is the engine that is tested.
type Engine interface {
	job.Jobs
	job.Streams
	job.VMs
	job.Checkpoints
	job.Volumes
	job.Host

	// Spawn runs work that outlives its caller, and ends with the engine.
	Spawn(work func(running context.Context)) error
	// Leads reports whether this engine does the work that one of the store's engines does for all.
	Leads(ctx context.Context) bool
}

// Options are the options of Tests.
type Options struct {
	Store    Store
	Host     Host
	Engine   Engine
	Row      func(ctx context.Context, id string) (vm.VM, error) // of a VM that no job makes, by the ID in its marker
	Engines  lock.Engines                                        // that share the store; nil: there are no others
	Log      *slog.Logger
	Template string        // the template in use
	Lease    time.Duration // of VMs, beyond their time; 0: they have no lease
	Port     int           // of VMs' SSH servers; 0: 22

	Pause time.Duration // between two checks; default 1 s
	Again time.Duration // between two searches for tests that an engine has left; default 30 s
}

// Tests runs and keeps the tests of the host.
type Tests struct {
	o Options

	mu      sync.Mutex
	looked  bool            // for what other engines have left
	running map[string]*run // on this engine, by ID
	checked time.Time       // when the stored results were last checked against the host
}

// New returns Tests.
func New(o Options) *Tests {
	if o.Pause == 0 {
		o.Pause = time.Second
	}
	if o.Again == 0 {
		o.Again = 30 * time.Second
	}
	return &Tests{o: o, running: map[string]*run{}}
}

// Busy reports whether a test runs here, or an engine may have left one.
func (t *Tests) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running) > 0 || !t.looked
}

// HostTests returns the running tests, and the last test of each node, storage and kind.
func (t *Tests) HostTests(ctx context.Context) ([]job.HostTest, error) {
	return t.o.Store.HostTests(ctx)
}

// TestHost starts a test of a node.
func (t *Tests) TestHost(ctx context.Context, spec job.HostTestSpec) (job.HostTest, error) {
	nodes, err := t.o.Engine.Nodes(ctx)
	if err != nil {
		return job.HostTest{}, err
	}
	at := slices.IndexFunc(nodes, func(n job.NodeInfo) bool {
		return (spec.Node == "" || n.Name == spec.Node) && n.Status == job.NodeOnline && !n.Cordoned
	})
	if at < 0 {
		return job.HostTest{}, &job.FieldError{Field: "node", Problem: fmt.Sprintf("%.80q is not a node that VMs go to", spec.Node), Remedy: "name one that linus node list shows as online and not cordoned", Fault: job.FaultUnknown}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return job.HostTest{}, fmt.Errorf("create a test's ID: %w", err)
	}
	p, _ := job.PrincipalFrom(ctx)
	r := &run{t: t, node: nodes[at], test: job.HostTest{
		ID: id.String(), Status: job.HostTestRunning, Quick: spec.Quick, Node: nodes[at].Name, Storage: spec.Storage, Template: t.o.Template,
		Principal: p.Owner(), CreatedAt: time.Now().UTC(),
	}}
	test := r.test
	release, err := t.hold(ctx, r)
	if err != nil {
		return job.HostTest{}, err
	}
	if err = t.o.Store.PutHostTest(ctx, test); err == nil {
		err = t.o.Engine.Spawn(func(running context.Context) {
			defer release()
			running = job.WithClient(job.WithPrincipal(running, p), client)
			asked, cancel := context.WithCancel(running)
			defer cancel()
			t.mu.Lock()
			if r.cancel = cancel; r.cancelled {
				cancel()
			}
			t.mu.Unlock()
			r.work(running, asked)
		})
	}
	if err != nil {
		release()
	}
	return test, err
}

// hold registers a test as running here, and keeps others from testing its node.
func (t *Tests) hold(ctx context.Context, r *run) (release func(), err error) {
	node, id := r.test.Node, r.test.ID
	busy := &job.FieldError{Field: "node", Problem: fmt.Sprintf("%s is being tested", node), Remedy: "wait until that test has ended, or cancel it", Fault: job.FaultState}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, other := range t.running {
		if other.test.Node == node {
			return nil, busy
		}
	}
	unlock := func() {}
	if t.o.Engines != nil {
		if unlock, err = lock.TryLock(ctx, t.o.Engines, "host test of "+node, "tested"); err != nil {
			return nil, busy
		}
	}
	t.running[id] = r
	return func() {
		unlock()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.running, id)
	}, nil
}

// find returns a test as it is stored.
func (t *Tests) find(ctx context.Context, id string) (job.HostTest, error) {
	all, err := t.o.Store.HostTests(ctx)
	if at := slices.IndexFunc(all, func(h job.HostTest) bool { return h.ID == id }); at >= 0 {
		return all[at], nil
	}
	return job.HostTest{}, cmp.Or(err, error(&job.FieldError{Field: "test", Problem: fmt.Sprintf("%.80q is none", id), Fault: job.FaultUnknown}))
}

// CancelHostTest ends a test.
func (t *Tests) CancelHostTest(ctx context.Context, id string) (job.HostTest, error) {
	test, err := t.find(ctx, id)
	if err != nil {
		return test, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.running[id]
	if r == nil && test.Status == job.HostTestRunning {
		return test, &job.FieldError{Field: "test", Problem: "runs on another engine, or was left by one", Remedy: "ask that one; what is left is removed by itself", Fault: job.FaultState}
	}
	if r != nil {
		if r.cancelled = true; r.cancel != nil {
			r.cancel()
		}
	}
	return test, nil
}

// Tend removes, until ctx ends, what engines that ended during a test have left.
func (t *Tests) Tend(ctx context.Context) {
	for {
		if t.o.Engine.Leads(ctx) {
			if err := t.takeUp(ctx); err != nil && ctx.Err() == nil {
				t.o.Log.Warn("could not remove what a test of the host left, will be tried again", "err", err)
			}
		}
		t.mu.Lock()
		t.looked = true
		t.mu.Unlock()
		if sleep.For(ctx, t.o.Again) != nil {
			return
		}
	}
}

// takeUp ends the tests that no engine runs.
func (t *Tests) takeUp(ctx context.Context) error {
	all, err := t.o.Store.HostTests(ctx)
	for _, test := range all {
		r := &run{t: t, test: test}
		if test.Status != job.HostTestRunning {
			continue
		}
		release, held := t.hold(ctx, r)
		if held != nil {
			continue
		}
		now, failed := t.find(ctx, test.ID) // the test may have ended before it was held
		if failed == nil && now.Status == job.HostTestRunning {
			r.test = now
			r.over(job.StepFailed, "the engine ended in the middle of it")
			failed = r.finish(job.WithClient(job.WithPrincipal(ctx, job.Operator()), client), job.HostTestFailed)
		}
		err = errors.Join(err, failed)
		release()
	}
	return err
}

// Checked records which tests no longer hold, and returns what a check of the host reports of them.
func (t *Tests) Checked(ctx context.Context, nodes []job.HostFacts) (checks []job.Check) {
	all, err := t.o.Store.HostTests(ctx)
	if err != nil {
		return []job.Check{{Name: "test", Level: "warn", Text: "it is not known whether this host was tested: " + err.Error()}}
	}
	t.mu.Lock()
	t.checked = time.Now()
	t.mu.Unlock()
	for _, now := range nodes {
		c := job.Check{Name: "test", Level: "warn", Text: "not tested yet: what VMs can do here is not proven", Remedy: string(job.ProveHost)}
		var last job.HostTest
		for _, test := range all {
			if test.Node != now.Node {
				continue
			}
			if outdated := test.Of.Differs(now); test.Status != job.HostTestRunning && outdated != test.Outdated {
				test.Outdated = outdated
				if err := t.o.Store.PutHostTest(ctx, test); err != nil {
					t.o.Log.WarnContext(ctx, "recording that a test of the host is out of date failed", "err", err)
				}
			}
			// A quick test adds nothing to a full one, nor a cancelled test to one that was not.
			if last.ID == "" || (last.Quick || !test.Quick) && test.Status != job.HostTestCancelled {
				last, c = test, test.Check()
			}
		}
		if c.Node = ""; len(nodes) > 1 {
			c.Node = now.Node
		}
		checks = append(checks, c)
	}
	return checks
}

// Unproven returns those of the steps that no test of a node has proven.
func (t *Tests) Unproven(ctx context.Context, node string, steps ...string) []string {
	all, err := t.o.Store.HostTests(ctx)
	if err != nil {
		return nil // the error says nothing about the host
	}
	return slices.DeleteFunc(steps, func(step string) bool {
		return slices.ContainsFunc(all, func(test job.HostTest) bool { return test.Node == node && test.Proves(step) })
	})
}

// checkedFor is how long a check that the tests' results still hold stays valid.
const checkedFor = time.Hour

// Restores reports whether a test has shown that VMs of a template start from a node's checkpoints.
func (t *Tests) Restores(ctx context.Context, node, template string) bool {
	proven := func() bool {
		all, err := t.o.Store.HostTests(ctx)
		return err == nil && slices.ContainsFunc(all, func(test job.HostTest) bool {
			return test.Node == node && test.Template == template && test.Proves(stepRestore)
		})
	}
	t.mu.Lock()
	old := time.Since(t.checked) > checkedFor
	t.mu.Unlock()
	if proven() && old {
		if _, err := t.o.Engine.CheckHost(ctx); err != nil {
			return false
		}
	}
	return proven()
}
