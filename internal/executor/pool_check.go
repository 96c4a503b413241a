package executor

import (
	"context"
	"errors"
	"fmt"

	"linus/internal/job"
	"linus/internal/vm"
)

// checkPools reports, for each pool, what it costs in memory and whether that fits beside
// the pools before it, and without any what a pool would cost.
func (e *Executor) checkPools(ctx context.Context) []job.Check {
	pools, err := e.Pools(ctx)
	if err == nil && len(pools) == 0 {
		p := job.Pool{Name: "of 2 warm VMs like a job's by default", PoolSize: job.PoolSize{Warm: 2}}.WithDefaults(e.o.Defaults)
		pools = []job.PoolInfo{{Pool: p}}
	}
	host, roomErr := e.o.Provider.Room(ctx, nil, nil)
	begun := e.creating(ctx)
	committed, storeErr := e.committed(ctx, begun)
	others, placeErr := e.placement(ctx)
	others.Planned = true
	host.FreeMB -= spokenFor(begun)
	before := 0 // MiB of the pools before
	err = errors.Join(err, roomErr, storeErr, placeErr)
	var checks []job.Check
	for _, p := range pools {
		each := job.SizeMB(p.Resources.Memory)
		lasting, atOnce := lacking(p)
		c := job.Check{Name: "pools", Level: "ok", Text: fmt.Sprintf("pool %s: %d warm VMs take %d MiB", p.Name, p.Warm, p.Warm*each)}
		switch {
		case p.CreatedAt.IsZero():
			c.Text = fmt.Sprintf("no pools; one %s would take %d MiB", p.Name, p.Warm*each)
		case p.Stopped():
			c.Level, c.Remedy = "warn", p.State
		}
		short, remedy := "", ", or give its VMs less memory"
		if e.o.Placer != nil {
			remedy = ", give its VMs less memory, or add a node"
			if err == nil {
				short, err = e.shortOfNodes(ctx, &others, p.Pool, lasting, atOnce)
			}
			if short == "" && atOnce > 0 && host.FreeMB-each < host.ReserveMB() {
				short = fmt.Sprintf("the node with the most memory left has %d MiB free, of which %d MiB stay free", host.FreeMB, host.ReserveMB())
			}
		} else {
			c.Text += fmt.Sprintf(", and %d of %d MiB are free", host.FreeMB, host.TotalMB)
			need := atOnce * each
			if need > 0 {
				need += before
			}
			promised := committed+need > host.TotalMB-host.ReserveMB()
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
		}
		if short != "" {
			c.Text += ": it does not fit, for " + short
			if !p.CreatedAt.IsZero() {
				c.Level, c.Remedy = "warn", "make it smaller (linus pool resize "+p.Name+")"+remedy
			}
		}
		checks = append(checks, c)
	}
	if err != nil {
		return []job.Check{{Name: "pools", Level: "warn", Text: err.Error(), Remedy: "jobs run all the same, each in a VM of its own"}}
	}
	return checks
}

// lacking returns how many VMs a pool still makes that run until a job has them, and how
// many more run at once then: one at a time boots, before it is suspended.
func lacking(p job.PoolInfo) (lasting, atOnce int) {
	lasting = p.Warm
	for _, m := range p.Members {
		if m.State == job.MemberWarm || m.State == job.MemberMaking && m.VM.State != "" {
			lasting--
		}
	}
	atOnce = lasting
	if p.Hibernated > p.Count(job.MemberHibernated) {
		atOnce++
	}
	return max(0, lasting), max(0, atOnce)
}

// shortOfNodes returns why nodes cannot take all of a pool's next VMs beside the others;
// empty: they can. Those that last are among the others from then on.
func (e *Executor) shortOfNodes(ctx context.Context, others *job.Placement, p job.Pool, lasting, atOnce int) (string, error) {
	spec, err := e.vmSpec(job.Job{Manifest: p.Maker(), VM: &vm.VM{}})
	if err != nil {
		return "", err
	}
	others.Spec = spec
	for n := range atOnce {
		at, err := e.o.Placer.Place(ctx, *others)
		var full *job.NoRoomError
		if errors.As(err, &full) {
			return fmt.Sprintf("%d of its VMs find no room beside the others: %v", atOnce-n, full), nil
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
