package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// resumeTime bounds how long resuming a hibernated member may take.
const resumeTime = time.Minute

// pooled is the source for pools: it gives a job a member that responds. A job that already has a
// member from an interrupted run keeps it if it still responds.
func (f *Fleet) pooled(ctx context.Context, a *acquisition) (has bool, err error) {
	began := time.Now()
	for {
		if a.job.VM == nil {
			if a.poolLeft || time.Since(began) > f.o.ClaimPatience {
				return false, nil
			}
			if claimed, err := f.claimMember(ctx, a); err != nil || !claimed {
				return false, err
			}
		}
		if !a.job.Claims() {
			return false, nil
		}
		err := f.checkMember(ctx, &a.job)
		if err == nil {
			f.o.Changes.Add(job.PoolEvent{Pool: a.job.VM.OfPool(), Kind: job.PoolHit, Job: a.job.ID, VM: *a.job.VM, Took: time.Since(began)})
			return true, nil
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if job.IsEngineFault(err) {
			return false, err
		}
		without, err := f.giveBack(ctx, a.job, err)
		if err == nil {
			a.job, err = f.updateJob(ctx, a.job.ID, without)
		}
		if err != nil {
			return false, err
		}
	}
}

// claimMember claims a member for a job that has no VM, in one transaction and without a call to the host.
func (f *Fleet) claimMember(ctx context.Context, a *acquisition) (claimed bool, err error) {
	pools := f.offering(a.job.Manifest)
	if len(pools) == 0 {
		return false, nil
	}
	on, err := f.nodesFor(ctx, a.job)
	if err != nil {
		return false, err
	}
	f.untilRead(ctx, pools, a.job.Manifest, on)
	for _, p := range pools {
		claimer, claimed, err := f.o.Store.Claim(ctx, a.job.ID, p.Name, func(j *job.Job, idle []vm.VM) (at int, events []job.Event) {
			at = -1
			if j.VM == nil && j.Outcome == nil {
				at = f.Pick(p, j.Manifest, on, idle)
			}
			if at >= 0 {
				events = claim(j, &idle[at])
			}
			return at, events
		})
		if err != nil {
			return false, err
		}
		if !claimed {
			f.TendSoon() // the pool may be asleep
			f.o.Changes.Add(job.PoolEvent{Pool: p.Name, Kind: job.PoolMiss, Job: a.job.ID})
			continue
		}
		a.job = claimer
		f.o.Log.Info("VM of a pool claimed", "job_id", claimer.ID, "pool", p.Name, "vm_id", claimer.VM.ID, "maker", claimer.VM.Job)
		return true, nil
	}
	return false, nil
}

// claim makes a pool's VM the VM of job j. The VM keeps its marker.
func claim(j *job.Job, v *vm.VM) []job.Event {
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
	return append(j.Reach(job.Provisioning), job.Event{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text})
}

// errGivenUp: giving a member back was interrupted after the member was doomed, while the job still had it.
var errGivenUp = errors.New("the pool has given it up")

func (f *Fleet) checkMember(ctx context.Context, j *job.Job) error {
	if m := j.VM.Member; m == nil || m.State != vm.MemberClaimed || m.Claimer != j.ID {
		return errGivenUp
	}
	return f.answers(ctx, j)
}

// answers checks that a pool's VM responds to its new user. A hibernated VM is resumed first.
func (f *Fleet) answers(ctx context.Context, j *job.Job) error {
	if j.VM.Source == vm.FromHibernated {
		if err := f.awaken(ctx, j); err != nil {
			return err
		}
	}
	timed, end := context.WithTimeoutCause(ctx, f.o.ClaimPatience, fmt.Errorf("no answer within %s", f.o.ClaimPatience))
	defer end()
	return f.o.Guest.Ping(timed, *j)
}

// awaken resumes the hibernated member that a job has claimed. It may have another address then,
// but not another host key.
func (f *Fleet) awaken(ctx context.Context, j *job.Job) error {
	timed, end := context.WithTimeoutCause(ctx, resumeTime, fmt.Errorf("not resumed within %s", resumeTime))
	defer end()
	woken, err := f.o.Provider.ResumeVM(timed, *j.VM, silent)
	if err != nil {
		return err
	}
	if woken.HostKey != j.VM.HostKey {
		return &job.HostError{
			Op: fmt.Sprintf("resume VM %d (%s)", woken.ID, woken.Name), Host: "node " + j.VM.Node, Class: job.HostKeyChanged,
			Text:   "it came back with another SSH host key than it was suspended with; nothing was sent there",
			Remedy: "look whether its template makes new host keys when a VM is resumed, or another machine has its address",
		}
	}
	f.o.Guest.Forget(*j)
	if err := f.Identify(ctx, woken); err != nil {
		return err
	}
	j.VM.IP, j.VM.User, j.VM.Node = woken.IP, woken.User, woken.Node // as it is stored now
	return nil
}

// giveBack has a member destroyed that does not answer a job whose task has not begun. The job has
// no VM once the returned change is stored.
func (f *Fleet) giveBack(ctx context.Context, j job.Job, cause error) (without func(*job.Job) ([]job.Event, error), err error) {
	v := *j.VM
	f.o.Log.Warn("a pool's VM did not answer the job that claimed it", "job_id", j.ID, "vm_id", v.ID, "maker", v.Job, "err", cause)
	f.o.Guest.Forget(j)
	if err := f.doom(ctx, v.Job, vm.MemberClaimed, "it did not answer the job that claimed it: "+cause.Error()); err != nil {
		return nil, err
	}
	f.o.Changes.Add(job.PoolEvent{Pool: v.OfPool(), Kind: job.PoolFell, Job: j.ID, VM: v, Detail: cause.Error()})
	text := fmt.Sprintf("VM %d did not answer and is not used: %v", v.ID, cause)
	return func(j *job.Job) ([]job.Event, error) {
		if j.VM == nil || j.VM.Job != v.Job || !j.StartedAt.IsZero() {
			return nil, nil
		}
		j.VM = nil
		return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: text}}, nil
	}, nil
}

// GiveBack takes a pool's VM away from a job that it failed before the job's task began. Once the
// returned change is stored, the job may continue with a new VM. A nil change means that it may not.
func (f *Fleet) GiveBack(ctx context.Context, j job.Job, cause error) (func(*job.Job) ([]job.Event, error), error) {
	if !j.Claims() || !j.StartedAt.IsZero() || j.Outcome != nil {
		return nil, nil
	}
	return f.giveBack(ctx, j, cause)
}
