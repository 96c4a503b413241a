package executor

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
)

// guard decides for every verb of the engine whether the principal in the context may call it, and on what.
type guard struct {
	e     *Executor
	turns turns
}

// Guarded returns the engine for callers that have a principal; it refuses others.
func Guarded(e *Executor) job.Engine {
	g := &guard{e: e, turns: turns{of: map[string]*turn{}}}
	return job.Through(g.call)
}

func (g *guard) call(ctx context.Context, v *job.Verb, in any) (any, error) {
	err := g.may(ctx, v, v.Ref(in))
	kill, ok := in.(job.ToKill)
	if ok && errors.Is(err, job.ErrNotFound) { // the executor answers as for a job that does not exist
		kill.ID, err = "", nil
		in = kill
	}
	if err != nil {
		return nil, err
	}
	if asked, ok := in.(job.Filter); ok {
		asked.Principal = whose(ctx, asked.Principal)
		in = asked
	}
	if asked, ok := in.(job.UsageQuery); ok {
		asked.Principal = whose(ctx, asked.Principal)
		in = asked
	}
	if v.ReadsHost {
		leave, err := g.turns.take(ctx)
		if err != nil {
			return nil, err
		}
		defer leave()
	}
	out, err := v.Do(ctx, g.e, in)
	return job.Offered(out), err
}

// may returns an error if the principal in ctx may not call the verb, or if the verb is about a job
// or VM that does not exist for the principal.
func (g *guard) may(ctx context.Context, v *job.Verb, ref string) error {
	p, ok := job.PrincipalFrom(ctx)
	if !ok {
		return job.ErrNoPrincipal
	}
	if err := p.Refusal(v); err != nil {
		return err
	}
	if p.Admin() {
		return nil
	}
	switch v.Of {
	case job.OfJob:
		j, err := g.e.o.Fleet.Known(ctx, ref)
		if err == nil && !p.Sees(j.Principal) {
			err = job.ErrNotFound
		}
		return err
	case job.OfVM:
		_, err := g.e.o.Fleet.Find(ctx, ref)
		return err
	case job.OfFile, job.OfVolume, job.OfQueues, job.OfSchedule: // checked elsewhere: VM and volume by the fleet, dispatchers by the executor, schedules by package schedule
		return nil
	case job.OfJobs, job.OfVMs, job.OfNew, job.OfAll:
		return nil
	}
	return fmt.Errorf("not allowed: no rule says what %s is about", v.Name)
}

// whose returns the principal whose jobs a caller sees when it asks for those of a principal, or
// for all it may see (empty). Jobs of another principal do not exist for the caller.
func whose(ctx context.Context, asked string) string {
	p, _ := job.PrincipalFrom(ctx)
	switch {
	case p.Admin():
		return asked
	case asked == "" || asked == p.Name:
		return p.Name
	}
	return "somebody else" // no principal's name contains a space
}
