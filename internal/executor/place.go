package executor

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// placeAgain is the time between two attempts to find a node for a VM, unless room
// was made before; reachAgain that between two to reach the hosts.
const (
	placeAgain = 10 * time.Second
	reachAgain = time.Second
)

// intend records that the job is to have a VM, and on which node, before the VM can
// exist. A job that no node can take now waits for that, and is pending meanwhile. Hosts
// that cannot be reached are given up HeartbeatThreshold after the first attempt: what
// was waited before, for others that choose, does not count.
func (e *Executor) intend(ctx context.Context, r *run, j job.Job) (job.Job, error) {
	var away time.Time // since when the hosts have not been reached
	for {
		room := e.o.Fleet.Room()
		next, err := e.tryIntend(ctx, r, j)
		var full *job.NoRoomError
		pause := placeAgain
		switch {
		case errors.As(err, &full) && !full.Never():
			away = time.Time{}
			if err := e.tellWaiting(ctx, r, full); err != nil {
				return next, err
			}
		case job.IsClass(err, job.HostUnreachable) && (away.IsZero() || time.Since(away) < e.o.HeartbeatThreshold):
			if away.IsZero() {
				away = time.Now()
			}
			pause = reachAgain
		default:
			e.setWaits(r, "")
			return next, err
		}
		again := time.NewTimer(pause)
		select {
		case <-room:
		case <-again.C:
		case <-ctx.Done():
		}
		again.Stop()
		if ctx.Err() != nil {
			return next, context.Cause(ctx)
		}
	}
}

func (e *Executor) tryIntend(ctx context.Context, r *run, j job.Job) (job.Job, error) {
	v := vm.VM{Name: cmp.Or(j.Manifest.VMName, vm.DefaultName(j.ID)), Job: j.ID, Owner: e.o.Owner, State: vm.Intended, Source: vm.Cold, Made: madeAs(j)}
	record := func(at job.Placed) (err error) {
		v.Node = at.Node
		j, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
			if planned(*j) {
				if j.VM != nil {
					v.Member = j.VM.Member
					v.Member.Waits = ""
				}
				j.VM = &v
			}
			events := become(j, job.Provisioning)
			if at.Node != "" {
				events = append(events, job.Event{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: "on node " + at.Node + ": " + at.Why})
			}
			return events, nil
		})
		return err
	}
	if !e.o.Fleet.Spread() || !planned(j) {
		return j, record(job.Placed{})
	}
	spec, err := e.vmSpecOf(j, v)
	if err != nil {
		return j, err
	}
	err = e.o.Fleet.Choose(ctx, spec, record)
	return j, err
}

// planned reports whether no VM can exist of the job's own yet.
func planned(j job.Job) bool { return j.VM == nil || j.VM.State == vm.Reserved }

// madeAs returns what a job's own VM is made as.
func madeAs(j job.Job) vm.Made {
	return vm.Made{
		Lifecycle: j.Manifest.Lifecycle, Template: j.Manifest.VMTemplate, OS: j.Manifest.OS, Resources: j.Manifest.Resources,
		Network: j.Manifest.Network, Principal: j.Principal, CreatedAt: j.CreatedAt,
	}
}

// forNode begins the progress of a job that waits for a node.
const forNode = "waiting: "

// setWaits records why a run has no node yet, and returns what was recorded before.
func (e *Executor) setWaits(r *run, why string) (before string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, r.waits = r.waits, why
	return before
}

// tellWaiting shows why the job waits.
func (e *Executor) tellWaiting(ctx context.Context, r *run, full *job.NoRoomError) error {
	text := forNode + full.Error()
	before := e.setWaits(r, text)
	if before == text {
		return nil
	}
	_, err := e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.Progress = text
		if j.ForPool() {
			j.VM.Member.Waits = text
		}
		if before != "" {
			return nil, nil
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text}}, nil
	})
	return err
}

// fits returns an error if it is known that no node can ever take the VM of a
// submission.
func (e *Executor) fits(ctx context.Context, m job.Manifest) error {
	if m.VM != "" {
		return nil
	}
	spec, err := e.vmSpecOf(job.Job{Manifest: m}, vm.VM{})
	if err != nil {
		return err
	}
	return neverFits(e.o.Fleet.Fits(ctx, spec))
}

// neverFits returns what is wrong with a manifest whose VM no node can take, however long
// it waits; other errors as they are.
func neverFits(err error) error {
	var none *job.NoRoomError
	if !errors.As(err, &none) || !none.Never() {
		return err
	}
	wrong := &job.FieldError{Field: "manifest", Problem: none.Error(), Remedy: "ask for what a node has, or have it set up on one"}
	only := func(reason job.RefusalReason) bool {
		return !slices.ContainsFunc(none.Refusals, func(r job.Refusal) bool { return r.Reason != reason })
	}
	switch {
	case only(job.RefusedMemory):
		wrong.Field, wrong.Remedy = "manifest.resources.memory", "ask for less memory"
	case only(job.RefusedTemplate):
		wrong.Field, wrong.Remedy = "manifest.vmTemplate", "use a template that a node has, or build this one"
	}
	return wrong
}

// relocate records that the job's VM is on another node, and tells of it in the rows of the
// job and of the one that made the VM.
func (e *Executor) relocate(ctx context.Context, j job.Job, node string) {
	e.o.Log.Info("the VM is on another node", "job_id", j.ID, "vm_id", j.VM.ID, "node", node, "before", j.VM.Node)
	told, err := e.o.Fleet.Moved(ctx, j.VM.Job, node)
	if err == nil && j.VM.Job != j.ID && len(told) > 0 {
		_, err = e.update(ctx, j.ID, recordEvents(told...))
	}
	if err != nil && ctx.Err() == nil {
		e.o.Log.Warn("record of a VM's node failed", "job_id", j.ID, "err", err)
	}
}
