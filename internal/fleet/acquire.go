package fleet

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// acquisition is a job's getting of a VM.
type acquisition struct {
	job      job.Job // as of the last change
	waits    string  // why its VM has no node yet; empty: it does not wait
	begun    bool    // its VM may have been begun before
	poolLeft bool    // a pool's VM has failed it: it gets a new one
}

// source is where a job may get a VM. has: the job has one; else the next source is asked.
type source func(f *Fleet, ctx context.Context, a *acquisition) (has bool, err error)

// sources are asked in this order: the VM that the job has already, the one that it names, a
// pool's, a new one (see ways). Each may be asked again after it was interrupted at any instant.
var sources = []source{(*Fleet).held, (*Fleet).named, (*Fleet).pooled, (*Fleet).made}

// Acquire gets a job a VM that responds, or is new, and returns the job as it is then. What the
// job has begun to get before is gone on with.
func (f *Fleet) Acquire(ctx context.Context, j job.Job) (job.Job, error) {
	a := &acquisition{
		job: j, begun: j.VM != nil && !j.VM.State.Planned(),
		poolLeft: j.VM == nil && j.Status == job.Provisioning, // it was given back: nothing else takes a job's VM from it
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

// tellUnproven says in a job's events which of the things it uses no test of its node has proven.
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

// errNoSource is never seen: the last source makes a VM, or fails.
var errNoSource = errors.New("no source has a VM for this job")

// held is the source of what the job has already, from an interrupted run: a VM of its own,
// one that it shares, or one of a pool in which its task has begun.
func (f *Fleet) held(_ context.Context, a *acquisition) (has bool, err error) {
	j := a.job
	return j.VM != nil && (j.Shares() || j.VM.Job == j.ID && j.VM.State == vm.Created || j.Claims() && !j.StartedAt.IsZero()), nil
}
