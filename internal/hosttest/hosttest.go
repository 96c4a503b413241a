// Package hosttest owns the proof on the user's own host: the steps of a test, what they have made,
// and what is kept of the result. It calls the verbs that users call, and must not know how
// those are done.
package hosttest

import (
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
	"linus/internal/vm"
)

// Store stores tests.
type Store interface {
	// HostTests returns all, oldest first.
	HostTests(ctx context.Context) ([]job.HostTest, error)
	// PutHostTest adds one, or writes it anew.
	PutHostTest(ctx context.Context, t job.HostTest) error
	DeleteHostTest(ctx context.Context, id string) error
}

// Host is what tests see of the host beside the engine: whether something is there.
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
	// Leads reports whether this engine, of those that share the store, does what one does for all.
	Leads(ctx context.Context) bool
}

// Options of Tests.
type Options struct {
	Store    Store
	Host     Host
	Engine   Engine
	Row      func(ctx context.Context, id string) (vm.VM, error) // of a VM that no job makes, by the ID in its marker
	Engines  lock.Engines                                        // that share the store; nil: none do
	Log      *slog.Logger
	Template string        // that is in use
	Lease    time.Duration // of VMs, beyond their time; 0: they have none
	Port     int           // of VMs' SSH; 22

	Pause time.Duration // between two looks; 1 s
	Again time.Duration // between two looks for tests that an engine has left; 30 s
}

// Tests are the tests of the host.
type Tests struct {
	o Options

	mu      sync.Mutex
	looked  bool            // for what other engines have left
	running map[string]*run // here, by ID
	checked time.Time       // when it was last seen whether what is kept still holds
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

// Busy reports whether a test runs here, or may have been left by an engine.
func (t *Tests) Busy() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.running) > 0 || !t.looked
}

// HostTests returns those that run, and the last of each node, storage and kind.
func (t *Tests) HostTests(ctx context.Context) ([]job.HostTest, error) {
	return t.o.Store.HostTests(ctx)
}

// TestHost begins a test of a node.
func (t *Tests) TestHost(ctx context.Context, spec job.HostTestSpec) (job.HostTest, error) {
	nodes, err := t.o.Engine.Nodes(ctx)
	if err != nil {
		return job.HostTest{}, err
	}
	at := slices.IndexFunc(nodes, func(n job.NodeInfo) bool {
		return n.Name == spec.Node || spec.Node == "" && n.Status == job.NodeOnline && !n.Cordoned
	})
	if at < 0 {
		return job.HostTest{}, &job.FieldError{Field: "node", Problem: fmt.Sprintf("%.80q is no node that VMs go to", spec.Node), Remedy: "name one that linus node list shows as online", Fault: job.FaultUnknown}
	}
	id, err := uuid.NewV7()
	if err != nil {
		return job.HostTest{}, fmt.Errorf("create a test's ID: %w", err)
	}
	p, _ := job.PrincipalFrom(ctx)
	test := job.HostTest{
		ID: id.String(), Status: job.HostTestRunning, Quick: spec.Quick, Node: nodes[at].Name, Storage: spec.Storage, Template: t.o.Template,
		Principal: p.Owner(), CreatedAt: time.Now().UTC(),
	}
	release, err := t.hold(ctx, test.Node)
	if err != nil {
		return job.HostTest{}, err
	}
	if err = t.o.Store.PutHostTest(ctx, test); err == nil {
		r := &run{t: t, test: test, node: nodes[at]}
		t.mu.Lock()
		t.running[test.ID] = r
		t.mu.Unlock()
		err = t.o.Engine.Spawn(func(running context.Context) {
			defer release()
			defer t.end(test.ID)
			running = job.WithClient(job.WithPrincipal(running, p), client)
			asked, cancel := context.WithCancel(running)
			defer cancel()
			t.mu.Lock()
			r.cancel = cancel
			if r.cancelled {
				cancel()
			}
			t.mu.Unlock()
			r.work(running, asked)
		})
		if err != nil {
			t.end(test.ID)
		}
	}
	if err != nil {
		release()
	}
	return test, err
}

// hold keeps others from testing a node.
func (t *Tests) hold(ctx context.Context, node string) (release func(), err error) {
	busy := &job.FieldError{Field: "node", Problem: fmt.Sprintf("%s is being tested", node), Remedy: "wait until that test has ended, or cancel it", Fault: job.FaultState}
	t.mu.Lock()
	for _, r := range t.running {
		if r.test.Node == node {
			t.mu.Unlock()
			return nil, busy
		}
	}
	t.mu.Unlock()
	if t.o.Engines == nil {
		return func() {}, nil
	}
	if release, err = lock.Now(ctx, t.o.Engines, "host test of "+node, "tested"); err != nil {
		return nil, busy
	}
	return release, nil
}

func (t *Tests) end(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, id)
}

// CancelHostTest ends a test.
func (t *Tests) CancelHostTest(ctx context.Context, id string) (job.HostTest, error) {
	all, err := t.o.Store.HostTests(ctx)
	if err != nil {
		return job.HostTest{}, err
	}
	at := slices.IndexFunc(all, func(h job.HostTest) bool { return h.ID == id })
	if at < 0 {
		return job.HostTest{}, &job.FieldError{Field: "test", Problem: fmt.Sprintf("%.80q is none", id), Fault: job.FaultUnknown}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.running[id]
	if r == nil && all[at].Status == job.HostTestRunning {
		return all[at], &job.FieldError{Field: "test", Problem: "runs on another engine, or was left by one", Remedy: "ask that one; what is left is removed by itself", Fault: job.FaultState}
	}
	if r != nil {
		if r.cancelled = true; r.cancel != nil {
			r.cancel()
		}
	}
	return all[at], nil
}

// Tend removes what engines have left that ended in the middle of a test, until ctx ends.
func (t *Tests) Tend(ctx context.Context) {
	again := time.NewTicker(t.o.Again)
	defer again.Stop()
	for {
		if t.o.Engine.Leads(ctx) {
			if err := t.takeUp(ctx); err != nil && ctx.Err() == nil {
				t.o.Log.Warn("remove what a test of the host has left failed, will be tried again", "err", err)
			}
		}
		t.mu.Lock()
		t.looked = true
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-again.C:
		}
	}
}

// takeUp ends the tests that no engine runs.
func (t *Tests) takeUp(ctx context.Context) error {
	all, err := t.o.Store.HostTests(ctx)
	for _, test := range all {
		t.mu.Lock()
		here := t.running[test.ID] != nil
		t.mu.Unlock()
		if test.Status != job.HostTestRunning || here {
			continue
		}
		release, held := t.hold(ctx, test.Node)
		if held != nil {
			continue
		}
		r := &run{t: t, test: test}
		r.over(job.StepFailed, "the engine ended in the middle of it")
		err = errors.Join(err, r.finish(job.WithClient(job.WithPrincipal(ctx, job.Operator()), client), job.HostTestFailed))
		release()
	}
	return err
}

// Checked notes which of the tests hold no more, and returns what a check of the host says of
// them.
func (t *Tests) Checked(ctx context.Context, nodes []job.HostFacts) (checks []job.Check) {
	all, err := t.o.Store.HostTests(ctx)
	if err != nil {
		return []job.Check{{Name: "test", Level: "warn", Text: "whether this host was tested is not known: " + err.Error()}}
	}
	t.mu.Lock()
	t.checked = time.Now()
	t.mu.Unlock()
	for _, now := range nodes {
		c := job.Check{Name: "test", Level: "warn", Text: "not tested yet: what VMs can do here is not proven", Remedy: string(job.ProveHost)}
		whole := false
		for _, test := range all {
			if test.Node != now.Node {
				continue
			}
			if outdated := test.Of.Differs(now); test.Status != job.HostTestRunning && outdated != test.Outdated {
				test.Outdated = outdated
				if err := t.o.Store.PutHostTest(ctx, test); err != nil {
					t.o.Log.WarnContext(ctx, "note that a test of the host holds no more failed", "err", err)
				}
			}
			if whole = whole || !test.Quick; !whole || !test.Quick {
				c = test.Check()
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
		return nil // it says nothing of the host
	}
	return slices.DeleteFunc(steps, func(step string) bool {
		return slices.ContainsFunc(all, func(test job.HostTest) bool { return test.Node == node && test.Proves(step) })
	})
}

// checkedFor is for how long it is believed that what a test was true of is so still.
const checkedFor = time.Hour

// Restores reports whether VMs of a template go on from checkpoints on a node, as a test has shown.
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
