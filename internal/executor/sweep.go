package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// sweep periodically finds what no job's own life takes care of.
func (e *Executor) sweep(ctx context.Context) {
	tick := time.NewTicker(e.o.SweepInterval)
	defer tick.Stop()
	for {
		if e.leads(ctx) {
			e.reapVMs(ctx)
			e.lookAtLeftAlone(ctx)
			e.dropOldJobs(ctx)
		}
		e.dropKeys(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (e *Executor) dropOldJobs(ctx context.Context) {
	if e.o.Retention == 0 {
		return
	}
	n, err := e.o.Jobs.Forget(ctx, now().Add(-e.o.Retention))
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("delete old jobs failed", "err", err)
	}
	if n > 0 {
		e.o.Log.Info("old jobs deleted", "count", n)
	}
}

// reapVMs compares the host with the store and destroys what is ours and unwanted: the
// VM, under another ID than the one destroyed, of a job that is done with it. It must
// have the job's marker and name, which the host proves again. Under the same ID, which
// was seen free, somebody has restored it. A VM of an unknown job is left alone: this
// store may not be the only one with our marker, and the host's lease ends such a VM.
func (e *Executor) reapVMs(ctx context.Context) {
	page, err := e.o.Jobs.List(ctx, job.Filter{Limit: 1})
	if err != nil || len(page.Jobs) == 0 {
		return
	}
	vms, err := e.o.Provider.List(ctx)
	if err != nil && ctx.Err() == nil {
		e.o.Log.Warn("list VMs on the host failed", "err", err)
	}
	leaked := 0
	for _, v := range vms {
		log := e.o.Log.With("vm_id", v.ID, "node", v.Node, "job_id", v.Job)
		j, err := e.o.Jobs.Job(ctx, v.Job)
		switch {
		case errors.Is(err, job.ErrNotFound):
			log.Warn("VM with our mark, but of no job known here: left alone")
			leaked++
			continue
		case err != nil:
			return
		case j.VM == nil || j.VM.State != vm.Destroyed:
			if e.o.Placer != nil && j.VM != nil && j.VM.Job == j.ID && j.VM.ID == v.ID && j.VM.Node != "" && j.VM.Node != v.Node {
				e.relocate(ctx, j, v.Node)
			}
			continue // its job destroys it, or keeps it
		case v.Name != j.VM.Name:
			log.Warn("VM with a job's mark, but another name: left alone")
			leaked++
			continue
		case v.ID == j.VM.ID:
			if status, err := e.o.Provider.Status(ctx, v); err == nil && status != vm.Gone { // else it went meanwhile
				log.Warn("VM that was destroyed is back, and not by us: left alone")
				leaked++
			}
			continue
		}
		leaked++
		text := fmt.Sprintf("VM %d was found after the job's end and is destroyed", v.ID)
		if err = e.o.Provider.Destroy(ctx, v); err != nil {
			if ctx.Err() != nil {
				return
			}
			if job.IsClass(err, job.HostLeftAlone) {
				err = errors.Join(e.found(ctx, j.ID, v), e.settleVM(ctx, j.ID, err))
				log.Warn("VM found after its job's end is left alone", "err", err)
				continue
			}
			text = fmt.Sprintf("VM %d was found after the job's end and could not be destroyed, will be tried again: %v", v.ID, err)
		}
		log.Warn("VM found after its job's end", "err", err)
		if _, err := e.update(ctx, j.ID, recordEvents(job.Event{Kind: job.EventWarning, Text: text})); err != nil && ctx.Err() == nil {
			log.Error("record warning failed", "err", err)
		}
	}
	if err == nil {
		e.o.Observer(job.Leaked(leaked))
	}
}
