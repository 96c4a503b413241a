package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// acquisition is the state of getting a VM for a job.
type acquisition struct {
	job      job.Job // the job as of the last change
	waits    string  // why its VM has no node yet; empty: it does not wait
	begun    bool    // making its VM may have begun before
	poolLeft bool    // a pool's VM failed the job: it gets a new VM
}

// source is where a job may get a VM. If has is false, the next source is tried.
type source func(f *Fleet, ctx context.Context, a *acquisition) (has bool, err error)

// sources are tried in this order: the VM that the job already has, the VM that it names, a pool's
// VM, a new VM (see ways). Each may be tried again after an interruption at any instant.
var sources = []source{(*Fleet).held, (*Fleet).named, (*Fleet).pooled, (*Fleet).made}

// Acquire gets a job a VM that responds or is new, and returns the updated job. It continues an
// acquisition that was interrupted.
func (f *Fleet) Acquire(ctx context.Context, j job.Job) (job.Job, error) {
	a := &acquisition{
		job: j, begun: j.VM != nil && !j.VM.State.Planned(),
		poolLeft: j.VM == nil && j.Status == job.Provisioning, // it was given back: nothing else takes a job's VM away
	}
	for _, from := range sources {
		has, err := from(f, ctx, a)
		if has && err == nil {
			err = f.mount(ctx, a)
		}
		if err != nil || has {
			f.tellUnproven(ctx, a, err)
			return a.job, err
		}
	}
	return a.job, errNoSource
}

// tellUnproven reports in a job's events which features the job uses that no test has proven on its node.
func (f *Fleet) tellUnproven(ctx context.Context, a *acquisition, err error) {
	j := a.job
	if err != nil || f.o.Tests == nil || j.VM == nil || !j.StartedAt.IsZero() || j.Manifest.Labels[job.HostTestLabel] != "" {
		return
	}
	var uses []string
	if j.VM.Source == vm.Restored {
		uses = append(uses, "restore")
	}
	if len(j.Manifest.Volumes) > 0 {
		uses = append(uses, "volume")
	}
	if mode := j.VM.Network.Mode(); mode != vm.EgressLAN {
		uses = append(uses, "egress "+string(mode))
	}
	if len(uses) > 0 {
		uses = f.o.Tests.Unproven(ctx, j.VM.Node, uses...)
	}
	if len(uses) == 0 {
		return
	}
	job.Tell(ctx, job.Progress{Step: job.PhaseProvision, Text: fmt.Sprintf("not proven on node %s: %s; %s tests it", j.VM.Node, strings.Join(uses, ", "), job.ProveHost)})
}

// errNoSource never occurs: the last source makes a VM or fails.
var errNoSource = errors.New("no source has a VM for this job")

// held is the source for a job that already has a VM from an interrupted run: its own, a shared
// one, or a pool's in which its task has begun.
func (f *Fleet) held(_ context.Context, a *acquisition) (has bool, err error) {
	j := a.job
	return j.VM != nil && (j.Shares() || j.VM.Job == j.ID && j.VM.State == vm.Created || j.Claims() && !j.StartedAt.IsZero()), nil
}
