package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// resumeTime bounds how long a hibernated member may take to be back.
const resumeTime = time.Minute

// fromPool gives a job a member of a pool, and reports whether it has one that responds.
// If not, it creates its own VM: the job is returned as it is then. A job that has a
// member already, from an interrupted run, keeps it if it still responds.
func (e *Executor) fromPool(ctx context.Context, r *run, j job.Job) (_ job.Job, has bool, err error) {
	if j.Borrows() && !j.StartedAt.IsZero() {
		return j, true, nil
	}
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
		if !j.Borrows() {
			return j, false, nil
		}
		entered, err := e.checkMember(ctx, j)
		if err == nil {
			j = entered
			e.o.Observer(job.PoolEvent{Pool: e.poolOf(ctx, j), Kind: job.PoolHit, Job: j.ID, VM: *j.VM, Took: time.Since(began)})
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
	e.pools.mu.Lock()
	rows := slices.DeleteFunc(slices.Clone(e.pools.rows), func(p job.Pool) bool { return !p.Offers(j.Manifest) })
	e.pools.mu.Unlock()
	for _, p := range rows {
		var events []job.Event
		claimer, maker, claimed, err := e.o.Pools.Claim(ctx, j.ID, p.Name, func(j *job.Job, idle []job.Job) (int, []job.Event) {
			at := e.choose(p, *j, idle)
			if at >= 0 {
				events = e.lend(j, &idle[at])
			}
			return at, events
		})
		if err != nil {
			return j, false, err
		}
		if !claimed {
			signal(e.pools.wake) // it may be asleep
			e.o.Observer(job.PoolEvent{Pool: p.Name, Kind: job.PoolMiss, Job: j.ID})
			continue
		}
		e.o.Observer(job.Change{Job: claimer, Events: events})
		e.changed(claimer.ID)
		e.changed(maker.ID)
		e.o.Log.Info("VM of a pool claimed", "job_id", j.ID, "pool", p.Name, "vm_id", maker.VM.ID, "maker", maker.ID)
		return claimer, true, nil
	}
	return j, false, nil
}

// choose returns the index of the member that a job gets, -1 for none: the oldest warm
// one, or else the oldest hibernated one, that is what the pool's VMs are now.
func (e *Executor) choose(p job.Pool, j job.Job, idle []job.Job) int {
	if j.VM != nil || j.Outcome != nil {
		return -1
	}
	generation := e.pools.generation(p)
	fits := func(m job.Job, state job.MemberState) bool {
		member := *m.Member
		return member.State == state && m.KeepsVM() && generation != "" && member.Generation == generation &&
			now().Sub(m.CreatedAt) < seconds(p.MaxAge) &&
			(member.LeaseUntil.IsZero() || member.LeaseUntil.After(now().Add(seconds(j.Manifest.Timeout)))) &&
			(len(j.Manifest.Secrets) == 0 || m.VM.HostKey != "")
	}
	for _, state := range []job.MemberState{job.MemberWarm, job.MemberHibernated} {
		if at := slices.IndexFunc(idle, func(m job.Job) bool { return fits(m, state) }); at >= 0 {
			return at
		}
	}
	return -1
}

// lend makes the member that m made the VM of job j. The VM keeps its maker's marker.
func (e *Executor) lend(j, m *job.Job) []job.Event {
	v := *m.VM
	v.Source, v.Lent = vm.FromPool, true
	if m.Member.State == job.MemberHibernated {
		v.Source = vm.FromHibernated
	}
	waited := now().Sub(m.Member.Since).Round(time.Second)
	text := fmt.Sprintf("VM %d of pool %s, %s for %s", v.ID, m.Member.Pool, m.Member.State, waited)
	m.Member.Become(job.MemberClaimed, now())
	m.Member.Claimer, m.Member.Principal = j.ID, j.Principal
	j.VM = &v
	return append(become(j, job.Provisioning), job.Event{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text})
}

// errGivenUp: giving a member back was interrupted when the member was doomed and the
// job still had it.
var errGivenUp = errors.New("the pool has given it up")

// checkMember checks that a claimed member responds. A hibernated one is resumed first. It
// returns the job as it is then.
func (e *Executor) checkMember(ctx context.Context, j job.Job) (job.Job, error) {
	switch m, err := e.o.Jobs.Job(ctx, j.VM.Job); {
	case err != nil:
		return j, err
	case m.Member == nil || m.Member.State != job.MemberClaimed || m.Member.Claimer != j.ID:
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
	vm := *j.VM
	e.o.Log.Warn("a pool's VM did not answer the job that claimed it", "job_id", j.ID, "vm_id", vm.ID, "maker", vm.Job, "err", cause)
	e.o.Observer(job.PoolEvent{Pool: e.poolOf(ctx, j), Kind: job.PoolFell, Job: j.ID, VM: vm, Detail: cause.Error()})
	e.o.Guest.Forget(j)
	if err := e.doom(ctx, vm.Job, job.MemberClaimed, "it did not answer the job that claimed it: "+cause.Error()); err != nil {
		return j, err
	}
	text := fmt.Sprintf("VM %d did not answer and is not used: %v", vm.ID, cause)
	return e.update(ctx, j.ID, func(j *job.Job) ([]job.Event, error) {
		if j.VM == nil || j.VM.Job != vm.Job || !j.StartedAt.IsZero() {
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
	if err != nil || r.cold || !j.Borrows() || !j.StartedAt.IsZero() || j.Outcome != nil {
		return false
	}
	if _, err := e.giveBack(ctx, j, cause); err != nil {
		e.o.Log.Error("give a pool's VM back failed", "job_id", j.ID, "err", err)
		return false
	}
	r.cold = true
	return true
}

// poolOf returns the pool that a job's VM is a member of.
func (e *Executor) poolOf(ctx context.Context, j job.Job) string {
	m, err := e.o.Jobs.Job(ctx, j.VM.Job)
	if err != nil || m.Member == nil {
		return ""
	}
	return m.Member.Pool
}

// destroyBorrowed destroys the pool's VM that job j had, by its maker's proof, and
// records in both rows what became of it.
func (e *Executor) destroyBorrowed(ctx context.Context, j job.Job) error {
	maker, err := e.o.Jobs.Job(ctx, j.VM.Job)
	if err != nil {
		return err
	}
	e.o.Guest.Forget(maker)
	if !maker.VM.State.Settled() {
		var left error
		if left, err = e.removeAfter(ctx, j, maker); err != nil {
			return err
		}
		if err = e.o.Fleet.Settle(ctx, maker.ID, left); err != nil && !job.IsClass(err, job.HostLeftAlone) {
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
	signal(e.pools.wake)
	return err
}

func seconds(n int) time.Duration { return time.Duration(n) * time.Second }
