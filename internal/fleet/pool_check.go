package fleet

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// checkPools reports, for each pool, what it costs in memory and whether that fits beside the pools
// before it. Without pools, it reports what one would cost.
func (f *Fleet) checkPools(ctx context.Context) []job.Check {
	pools, err := f.Pools(ctx)
	if err == nil && len(pools) == 0 {
		p := job.Pool{Name: "of 2 warm VMs like a job's by default", PoolSize: job.PoolSize{Warm: 2}}.WithDefaults(f.o.Defaults)
		pools = []job.PoolInfo{{Pool: p}}
	}
	host, roomErr := f.o.Provider.Room(ctx, nil, nil)
	begun := f.creating(ctx)
	host.FreeMB -= spokenFor(begun)
	err = errors.Join(err, roomErr)
	var checks []job.Check
	switch {
	case err != nil:
	case f.Spread():
		checks, err = f.checkPoolsOfNodes(ctx, pools, host)
	default:
		checks, err = f.checkPoolsOfHost(ctx, pools, host, begun)
	}
	if err != nil {
		checks = append(checks, job.Check{Name: "pools", Level: "warn", Text: err.Error(), Remedy: "jobs run all the same, each in a VM of its own"})
	}
	return checks
}

// checkPoolsOfHost is checkPools for a single host; begun are the VMs that it is to have soon.
func (f *Fleet) checkPoolsOfHost(ctx context.Context, pools []job.PoolInfo, host job.HostRoom, begun []vm.Making) (checks []job.Check, err error) {
	committed, err := f.committed(ctx, begun)
	if err != nil {
		return nil, err
	}
	before := 0 // MiB for the preceding pools
	for _, p := range pools {
		each := job.SizeMB(p.Resources.Memory)
		lasting, atOnce := lacking(p)
		need := atOnce * each
		if need > 0 {
			need += before
		}
		short, promised := "", committed+need > host.TotalMB-host.ReserveMB()
		if host.FreeMB-need < host.ReserveMB() || promised {
			short = fmt.Sprintf("%d MiB stay free", host.ReserveMB())
		}
		if promised {
			short += fmt.Sprintf(" and %d MiB are promised to VMs of linus", committed)
		}
		if short != "" && before > 0 {
			short += fmt.Sprintf(" and %d MiB are for the pools before it", before)
		}
		before += lasting * each
		checks = append(checks, poolCheck(p, fmt.Sprintf(", and %d of %d MiB are free", host.FreeMB, host.TotalMB), short, ", or give its VMs less memory"))
	}
	return checks, nil
}

// checkPoolsOfNodes is checkPools for VMs spread over nodes; host is the node with the most memory
// left. With an error, it returns the checks so far.
func (f *Fleet) checkPoolsOfNodes(ctx context.Context, pools []job.PoolInfo, host job.HostRoom) (checks []job.Check, err error) {
	others, err := f.Beside(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		lasting, atOnce := lacking(p)
		short, err := f.shortOfNodes(ctx, &others, p.Pool, lasting, atOnce)
		if err != nil {
			return checks, err
		}
		if short == "" && atOnce > 0 && host.FreeMB-job.SizeMB(p.Resources.Memory) < host.ReserveMB() {
			short = fmt.Sprintf("the node with the most memory left has %d MiB free, of which %d MiB stay free", host.FreeMB, host.ReserveMB())
		}
		checks = append(checks, poolCheck(p, "", short, ", give its VMs less memory, or add a node"))
	}
	return checks, nil
}

// poolCheck returns the check of a pool; free says what is free, and short what the pool lacks, if anything.
func poolCheck(p job.PoolInfo, free, short, remedy string) job.Check {
	takes := p.Warm * job.SizeMB(p.Resources.Memory)
	c := job.Check{Name: "pools", Level: "ok", Text: fmt.Sprintf("pool %s: %d warm VMs take %d MiB", p.Name, p.Warm, takes) + free}
	switch {
	case p.CreatedAt.IsZero():
		c.Text = fmt.Sprintf("no pools; one %s would take %d MiB", p.Name, takes) + free
	case short != "":
		c.Level, c.Remedy = "warn", "make it smaller (linus pool resize "+p.Name+")"+remedy
	case p.Stopped():
		c.Level, c.Remedy = "warn", p.State
	}
	if short != "" {
		c.Text += ": it does not fit, for " + short
	}
	return c
}

// lacking returns how many VMs a pool still makes that run until a job has them, and how many run
// at once while they are made: one VM at a time boots before it is suspended.
func lacking(p job.PoolInfo) (lasting, atOnce int) {
	lasting = p.Warm
	for _, m := range p.Members {
		if m.State == vm.MemberWarm || m.State == vm.MemberMaking && m.VM.State != "" {
			lasting--
		}
	}
	atOnce = lasting
	if p.Hibernated > p.Count(vm.MemberHibernated) {
		atOnce++
	}
	return max(0, lasting), max(0, atOnce)
}

// shortOfNodes returns why the nodes cannot take all of a pool's next VMs beside the others; empty:
// they can. It adds the VMs that last to others.
func (f *Fleet) shortOfNodes(ctx context.Context, others *job.Placement, p job.Pool, lasting, atOnce int) (string, error) {
	spec, err := job.SpecOf(p.Maker())
	if err != nil {
		return "", err
	}
	others.Spec, others.Planned = spec, true
	for n := range atOnce {
		at, err := f.o.Placer.Place(ctx, *others)
		if full, ok := errors.AsType[*job.NoRoomError](err); ok {
			return fmt.Sprintf("there is no room for %d of its VMs beside the others: %v", atOnce-n, full), nil
		}
		if err != nil {
			return "", err
		}
		if n < lasting {
			others.VMs = append(others.VMs, job.PlacedVM{Node: at.Node, MemoryMB: spec.MemoryMB, Making: true})
		}
	}
	return "", nil
}
