package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// resumeTime bounds how long a hibernated member may take to be back.
const resumeTime = time.Minute

// pooled is the source of pools: it gives a job a member that responds. The job is returned
// as it is then. One that has a member already, from an interrupted run, keeps it if it still
// responds.
func (e *Executor) pooled(ctx context.Context, r *run, j job.Job) (_ job.Job, has bool, err error) {
	began := time.Now()
	for {
		if j.VM == nil {
			if r.cold || time.Since(began) > e.o.ClaimPatience {
				return j, false, nil
			}
			claimed := false
			if j, claimed, err = e.claimMember(ctx, j); err != nil || !claimed {
				return j, false, err
			}
		}
		if !j.Claims() {
			return j, false, nil
		}
		entered, err := e.checkMember(ctx, j)
		if err == nil {
			j = entered
			e.o.Observer(job.PoolEvent{Pool: poolOf(j), Kind: job.PoolHit, Job: j.ID, VM: *j.VM, Took: time.Since(began)})
			return j, true, nil
		}
		if ctx.Err() != nil {
			return j, false, context.Cause(ctx)
		}
		if j, err = e.giveBack(ctx, j, err); err != nil {
			return j, false, err
		}
	}
}

// claimMember claims a member for a job that has no VM, in one transaction and without
// a call to the host.
func (e *Executor) claimMember(ctx context.Context, j job.Job) (job.Job, bool, error) {
	if j.Kind != job.KindTask {
		return j, false, nil
	}
	for _, p := range e.o.Fleet.Offering(j.Manifest) {
		var events []job.Event
		claimer, claimed, err := e.o.Pools.Claim(ctx, j.ID, p.Name, func(j *job.Job, idle []vm.VM) (at int, _ []job.Event) {
			at = -1
			if j.VM == nil && j.Outcome == nil {
				at = e.o.Fleet.Pick(p, j.Manifest, idle)
			}
			if at >= 0 {
				events = e.claim(j, &idle[at])
			}
			return at, events
		})
		if err != nil {
			return j, false, err
		}
		if !claimed {
			e.o.Fleet.TendSoon() // it may be asleep
			e.o.Observer(job.PoolEvent{Pool: p.Name, Kind: job.PoolMiss, Job: j.ID})
			continue
		}
		e.o.Observer(job.Change{Job: claimer, Events: events})
		e.changed(claimer.ID)
		e.changed(claimer.VM.Job)
		e.o.Log.Info("VM of a pool claimed", "job_id", j.ID, "pool", p.Name, "vm_id", claimer.VM.ID, "maker", claimer.VM.Job)
		return claimer, true, nil
	}
	return j, false, nil
}

// claim makes a pool's VM that of job j. The VM keeps its marker.
func (e *Executor) claim(j *job.Job, v *vm.VM) []job.Event {
	m := v.Member
	source := vm.FromPool
	if m.State == vm.MemberHibernated {
		source = vm.FromHibernated
	}
	waited := now().Sub(m.Since).Round(time.Second)
	text := fmt.Sprintf("VM %d of pool %s, %s for %s", v.ID, m.Pool, m.State, waited)
	m.Become(vm.MemberClaimed, now())
	m.Claimer, m.Principal = j.ID, j.Principal
	claimed := *v
	claimed.Source = source
	j.VM = &claimed
	return append(become(j, job.Provisioning), job.Event{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text})
}

// errGivenUp: giving a member back was interrupted when the member was doomed and the
// job still had it.
var errGivenUp = errors.New("the pool has given it up")

// checkMember checks that a claimed member responds. A hibernated one is resumed first. It
// returns the job as it is then.
func (e *Executor) checkMember(ctx context.Context, j job.Job) (job.Job, error) {
	if m := j.VM.Member; m == nil || m.State != vm.MemberClaimed || m.Claimer != j.ID {
		return j, errGivenUp
	}
	if j.VM.Source == vm.FromHibernated {
		woken, err := e.awaken(ctx, j)
		if err != nil {
			return j, err
		}
		j = woken
	}
	timed, end := context.WithTimeoutCause(ctx, e.o.ClaimPatience, fmt.Errorf("no answer within %s", e.o.ClaimPatience))
	defer end()
	return j, e.o.Guest.Ping(timed, j)
}

// awaken resumes the hibernated member that a job has claimed. It may have another
// address then, but not another host key.
func (e *Executor) awaken(ctx context.Context, j job.Job) (job.Job, error) {
	timed, end := context.WithTimeoutCause(ctx, resumeTime, fmt.Errorf("not resumed within %s", resumeTime))
	defer end()
	vm, err := e.o.Provider.ResumeVM(timed, *j.VM, func(job.Progress) {})
	if err != nil {
		return j, err
	}
	if vm.HostKey != j.VM.HostKey {
		return j, &job.HostError{
			Op: fmt.Sprintf("resume VM %d (%s)", vm.ID, vm.Name), Host: "node " + j.VM.Node, Class: job.HostKeyChanged,
			Text:   "it came back with another SSH host key than it was suspended with; nothing was sent there",
			Remedy: "look whether its template makes new host keys when a VM is resumed, or another machine has its address",
		}
	}
	e.o.Guest.Forget(j)
	if err := e.o.Fleet.Identify(ctx, vm); err != nil {
		return j, err
	}
	return e.o.Jobs.Job(ctx, j.ID)
}

// giveBack takes a member that does not answer from a job whose task has not begun, and
// has it destroyed. It returns the job, which has no VM then.
func (e *Executor) giveBack(ctx context.Context, j job.Job, cause error) (job.Job, error) {
	v := *j.VM
	e.o.Log.Warn("a pool's VM did not answer the job that claimed it", "job_id", j.ID, "vm_id", v.ID, "maker", v.Job, "err", cause)
	e.o.Observer(job.PoolEvent{Pool: poolOf(j), Kind: job.PoolFell, Job: j.ID, VM: v, Detail: cause.Error()})
	e.o.Guest.Forget(j)
	if err := e.o.Fleet.Doom(ctx, v.Job, vm.MemberClaimed, "it did not answer the job that claimed it: "+cause.Error()); err != nil {
		return j, err
	}
	text := fmt.Sprintf("VM %d did not answer and is not used: %v", v.ID, cause)
	return e.update(ctx, j.ID, func(j *job.Job) ([]job.Event, error) {
		if j.VM == nil || j.VM.Job != v.Job || !j.StartedAt.IsZero() {
			return nil, nil
		}
		j.VM = nil
		return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: text}}, nil
	})
}

// goesCold reports whether a job that failed before its task began may go on with a VM
// of its own: its pool's VM failed it. That VM is given back then.
func (e *Executor) goesCold(ctx context.Context, r *run, cause error) bool {
	j, err := e.o.Jobs.Job(ctx, r.id)
	if err != nil || r.cold || !j.Claims() || !j.StartedAt.IsZero() || j.Outcome != nil {
		return false
	}
	if _, err := e.giveBack(ctx, j, cause); err != nil {
		e.o.Log.Error("give a pool's VM back failed", "job_id", j.ID, "err", err)
		return false
	}
	r.cold = true
	return true
}

// poolOf returns the pool of a job's VM; empty: it is no pool's.
func poolOf(j job.Job) string {
	if j.VM.Member == nil {
		return ""
	}
	return j.VM.Member.Pool
}

// destroyClaimed destroys the pool's VM that job j had, by its own proof, and
// records in both rows what became of it.
func (e *Executor) destroyClaimed(ctx context.Context, j job.Job) error {
	v, err := e.o.VMs.VM(ctx, j.VM.Job)
	if err != nil {
		return err
	}
	maker := job.Job{ID: v.Job, VM: &v}
	e.o.Guest.Forget(maker)
	if !v.State.Settled() {
		var left error
		if left, err = e.removeAfter(ctx, j, v); err != nil {
			return err
		}
		if err = e.o.Fleet.Settle(ctx, v.Job, left); err != nil && !job.IsClass(err, job.HostLeftAlone) {
			return err
		}
		e.o.Guest.Forget(maker) // the pool may have asked it meanwhile
	}
	_, err = e.update(ctx, j.ID, func(j *job.Job) ([]job.Event, error) {
		if err == nil {
			j.VM.State = vm.Destroyed
			return nil, nil
		}
		j.VM.State = vm.Released // its maker's row tells of it until it is gone
		return []job.Event{{Kind: job.EventWarning, Text: fmt.Sprintf("VM %d is left alone: %v", j.VM.ID, err)}}, nil
	})
	e.dropKey(ctx, j.VM.Job)
	e.o.Fleet.TendSoon()
	return err
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
