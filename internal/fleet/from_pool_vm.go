package fleet

import (
	"context"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func anywhere(string) bool { return true }

// ask stores a requested VM, which is either a VM of one of the pools, from then on its
// requester's, or a VM still to be made. It calls no host.
func (f *Fleet) ask(ctx context.Context, v vm.VM, m job.Manifest, pools []job.Pool, key string, within job.Limits) (vm.VM, error) {
	var names []string
	for _, p := range pools {
		names = append(names, p.Name)
	}
	asked, created, missed, err := f.o.Store.GiveVM(ctx, v, key, within, names, func(pool string, idle []vm.VM) (at int, events []job.Event) {
		if at = f.Pick(pools[slices.Index(names, pool)], m, anywhere, idle); at < 0 || idle[at].HostKey == "" { // without a host key, another machine may answer at its address
			return -1, nil
		}
		return at, give(&idle[at], v)
	})
	if !created {
		return asked, err
	}
	for _, pool := range missed {
		f.o.Changes.Add(job.PoolEvent{Pool: pool, Kind: job.PoolMiss, Job: asked.Job})
	}
	if len(pools) > 0 {
		f.TendSoon() // to refill the pool, or to wake it
	}
	return asked, nil
}

// give turns a pool's VM into the requested one: it belongs to its owner and is no longer a member.
// It keeps its marker, its name on the host, its key and, until keepLeases adjusts it, its lease.
// It is intended until it has answered.
func give(v *vm.VM, to vm.VM) []job.Event {
	m, own := v.Member, *to.Own
	text := fmt.Sprintf("VM %d of pool %s, %s for %s", v.ID, m.Pool, m.State, now().Sub(m.Since).Round(time.Second))
	v.HostName = v.OnHost()
	v.Name, v.Made, v.LeaseUntil, v.Source = to.Name, to.Made, m.LeaseUntil, vm.FromPool
	if m.State == vm.MemberHibernated {
		v.Source = vm.FromHibernated
	}
	own.Pool = m.Pool
	v.State, v.Own, v.Member = vm.Intended, &own, nil
	return []job.Event{{Kind: job.EventStatus, Text: string(job.Pending)}, {Kind: job.EventProgress, Phase: job.PhaseProvision, Text: text}}
}

// given is the way for pools: the VM that the requester was given, once it answers. If it does not,
// it is destroyed and another is made in its place; the row keeps its owner.
func (f *Fleet) given(ctx context.Context, o *makeRequest) (v vm.VM, made bool, err error) {
	if v = o.planned; !v.Given() {
		return v, false, nil
	}
	began, pool := time.Now(), v.Own.Pool
	j := asJob(v)
	failed := errGivenUp // and the engine that gave it up has ended
	if v.ID != 0 {
		failed = f.answers(ctx, &j)
	}
	if failed == nil {
		events := f.rename(ctx, j)
		v, err = o.recorder.Change(ctx, func(v *vm.VM) ([]job.Event, error) {
			if v.State = vm.Created; o.ttl > 0 {
				v.ExpiresAt = now().Add(o.ttl)
			}
			return events, nil
		})
		if err == nil {
			f.o.Changes.Add(job.PoolEvent{Pool: pool, Kind: job.PoolHit, Job: v.Job, VM: v, Took: time.Since(began)})
		}
		return v, err == nil, err
	}
	if ctx.Err() != nil {
		return v, false, context.Cause(ctx)
	}
	if job.IsEngineFault(failed) {
		return v, false, failed
	}
	f.o.Log.Warn("a pool's VM did not answer whoever was given it", "job_id", v.Job, "vm_id", v.ID, "err", failed)
	f.o.Changes.Add(job.PoolEvent{Pool: pool, Kind: job.PoolFell, Job: v.Job, VM: v, Detail: failed.Error()})
	f.o.Guest.Forget(j)
	if _, err := f.removeAttempt(ctx, *o, v.Job); err != nil {
		return v, false, err
	}
	text := fmt.Sprintf("VM %d did not answer and is not used: %v", v.ID, failed)
	o.planned, err = o.recorder.Change(ctx, func(v *vm.VM) ([]job.Event, error) {
		*v = vm.VM{Name: v.Name, Job: v.Job, Owner: v.Owner, State: vm.Reserved, Source: vm.Cold, Kept: true, Unwanted: v.Unwanted, Made: v.Made, Own: v.Own}
		v.Own.Pool = ""
		return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: text}}, nil
	})
	return o.planned, false, err
}

// rename sets the host name in a VM to the VM's name. If that fails, the VM is used all the same.
func (f *Fleet) rename(ctx context.Context, j job.Job) []job.Event {
	timed, end := context.WithTimeoutCause(ctx, renameTime, fmt.Errorf("no answer within %s", renameTime))
	defer end()
	err := f.o.Guest.Rename(timed, j, j.VM.Name)
	if err == nil {
		return nil
	}
	f.o.Log.Warn("a VM's host name could not be changed", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
	return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseProvision, Text: fmt.Sprintf("its host name stays %s: %v", j.VM.OnHost(), err)}}
}

const renameTime = 10 * time.Second
