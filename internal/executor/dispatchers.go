package executor

import (
	"context"
	"fmt"

	"linus/internal/job"
)

// Dispatchers returns the dispatchers that the caller may see.
func (e *Executor) Dispatchers(ctx context.Context) (seen []job.Dispatcher, err error) {
	all, err := e.o.Dispatchers.Dispatchers(ctx)
	p, asks := job.PrincipalFrom(ctx)
	for _, d := range all {
		if !asks || p.Sees(d.Principal) { // a caller without a principal reads a state directory without an engine
			seen = append(seen, d)
		}
	}
	return seen, err
}

// ReportDispatcher stores the state of one of the caller's dispatchers.
func (e *Executor) ReportDispatcher(ctx context.Context, d job.Dispatcher) (job.Dispatcher, error) {
	if err := d.Check(); err != nil {
		return d, err
	}
	p, _ := job.PrincipalFrom(ctx)
	d.Principal, d.HeardAt = p.Owner(), now()
	drain, err := e.o.Dispatchers.ReportDispatcher(ctx, d)
	d.Draining = d.Draining || drain
	return d, err
}

// DrainDispatcher makes the dispatchers with a name that the caller may see take no more work.
func (e *Executor) DrainDispatcher(ctx context.Context, name string) error {
	return e.drainDispatcher(ctx, name, true)
}

// UndrainDispatcher lets the dispatchers with a name that the caller may see take work again.
func (e *Executor) UndrainDispatcher(ctx context.Context, name string) error {
	return e.drainDispatcher(ctx, name, false)
}

func (e *Executor) drainDispatcher(ctx context.Context, name string, drain bool) error {
	p, _ := job.PrincipalFrom(ctx)
	owner := p.Owner()
	of := &owner
	if p.Admin() {
		of = nil
	}
	n, err := e.o.Dispatchers.DrainDispatcher(ctx, of, name, drain)
	if err == nil && n == 0 {
		err = &job.FieldError{Field: "name", Problem: fmt.Sprintf("no dispatcher is called %.80q", name), Remedy: "linus dispatch list shows those there are", Fault: job.FaultUnknown}
	}
	return err
}
