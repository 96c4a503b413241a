package executor

import "sync"

// access decides who may submit a job into a persistent VM, and who may work on
// the VM itself (start, stop, snapshot, revert or destroy it). Its rule:
//
//   - One decision at a time. A decision is held from the first read of the store
//     until its result is stored: a job counts as in its VM, and against its client's
//     limits, from its submission on.
//   - Work on a VM begins with a decision and outlasts it. Until it is done no job
//     enters the VM, and no other work on it begins.
//
// The zero value is ready to use.
type access struct {
	deciding sync.Mutex

	mu   sync.Mutex
	work map[string]string // in progress, such as "started", by the job that created the VM
}

// decision is the right to decide. Functions that need one take it as a parameter.
type decision struct{ a *access }

// decide waits for the right to decide, which end releases.
func (a *access) decide() decision {
	a.deciding.Lock()
	return decision{a}
}

func (d decision) end() { d.a.deciding.Unlock() }

// workOn returns what is being done to the VM that job id created, in one word;
// empty: nothing.
func (d decision) workOn(id string) string {
	d.a.mu.Lock()
	defer d.a.mu.Unlock()
	return d.a.work[id]
}

// begin marks the VM that job id created as worked on, until finished is called.
func (d decision) begin(id, work string) (finished func()) {
	d.a.mu.Lock()
	defer d.a.mu.Unlock()
	if d.a.work == nil {
		d.a.work = map[string]string{}
	}
	d.a.work[id] = work
	return func() {
		d.a.mu.Lock()
		defer d.a.mu.Unlock()
		delete(d.a.work, id)
	}
}

// busy reports whether work on any VM is in progress.
func (a *access) busy() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.work) > 0
}
