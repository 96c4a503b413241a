package executor

import (
	"context"
	"errors"
	"slices"

	"linus/internal/job"
	"linus/internal/vm"
)

// poolClient is the client of what stands for the jobs that make the pools' VMs.
const poolClient = "pool"

// lookup returns a job or, for the ID of a VM that no job has made, what stands for one: who
// follows VMs by the IDs of jobs goes on doing so.
func (e *Executor) lookup(ctx context.Context, id string) (job.Job, error) {
	j, err := e.o.Jobs.Job(ctx, id)
	if !errors.Is(err, job.ErrNotFound) {
		return j, err
	}
	v, noVM := e.o.VMs.VM(ctx, id)
	if noVM != nil || v.Member == nil {
		return j, err
	}
	return asJob(v), nil
}

// asJob returns a job that has made a pool's VM, as it would be.
func asJob(v vm.VM) job.Job {
	j := job.Job{
		ID: v.Job, Kind: job.KindVM, Client: poolClient, Status: job.Provisioning, CreatedAt: v.CreatedAt, VM: &v,
		Manifest: job.Manifest{
			Task: "make a VM of pool " + v.Member.Pool, AgentType: job.AgentScript, Lifecycle: v.Lifecycle,
			VMTemplate: v.Template, OS: v.OS, Resources: v.Resources, Network: v.Network,
		},
	}
	code := 0
	switch m := v.Member; {
	case m.Failed != "":
		j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonProvisionFailed, Error: m.Failed, At: m.Since}
	case !m.ReadyAt.IsZero():
		j.Outcome = &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, ExitCode: &code, At: m.ReadyAt}
	case v.State.Settled() || v.Unwanted:
		j.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, Error: m.Why, At: m.Since}
	default:
		j.Progress = m.Waits
		return j
	}
	j.Status, j.CompletedAt = j.Outcome.Status, j.Outcome.At
	return j
}

// events returns the events with Seq > after of a job, or of what lookup has in its place.
func (e *Executor) events(ctx context.Context, id string, after int64) ([]job.Event, error) {
	events, err := e.o.Jobs.Events(ctx, id, after)
	if !errors.Is(err, job.ErrNotFound) {
		return events, err
	}
	told, noVM := e.o.VMs.VMEvents(ctx, id)
	if noVM != nil || len(told) == 0 {
		if _, err = e.lookup(ctx, id); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(told, func(e job.Event) bool { return e.Seq <= after }), noVM
}
