package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// poolClient is the client of the jobs that make the pools' VMs.
const poolClient = "pool"

// Reserve stores a job that makes a VM of a pool, of which nothing can exist yet.
func (e *Executor) Reserve(ctx context.Context, m job.Manifest, of vm.Member) (string, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("create a VM's ID: %w", err)
	}
	j := job.Job{ID: id.String(), Kind: job.KindVM, Client: poolClient, Status: job.Pending, CreatedAt: now(), Manifest: m}
	j.VM = &vm.VM{Name: vm.DefaultName(j.ID), Job: j.ID, Owner: e.o.Owner, State: vm.Reserved, Source: vm.Cold, Made: madeAs(j), Member: &of}
	j, _, err = e.o.Jobs.Insert(ctx, j, "", job.Limits{})
	return j.ID, err
}

// Make starts the job that makes a reserved VM.
func (e *Executor) Make(ctx context.Context, id string) {
	if e.isDraining() {
		return
	}
	j, taken, err := e.take(ctx, id)
	if err != nil && ctx.Err() == nil {
		e.o.Log.Error("take a pool's new member failed", "job_id", id, "err", err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if taken && e.runs[id] == nil {
		e.launch(ctx, j, false)
	}
}

// Unmake cancels the job that makes a VM.
func (e *Executor) Unmake(ctx context.Context, id string) error {
	j, err := e.o.Jobs.Job(ctx, id)
	if err == nil && j.Outcome == nil {
		err = e.Cancel(ctx, id)
	}
	if err != nil && !errors.Is(err, job.ErrCompleted) && !errors.Is(err, job.ErrNotFound) {
		return err
	}
	return e.unwanted(ctx)
}

// unwanted has what is destroyed of which was just recorded that nobody wants it: by the fleet
// here, or that of the engine that leads; by its job, if that has not ended.
func (e *Executor) unwanted(ctx context.Context) error {
	signal(e.reopened)
	e.o.Fleet.DestroySoon()
	if e.o.Engines == nil {
		return nil
	}
	return e.o.Engines.Tell(ctx, job.Notice{Kind: job.NoticeFree})
}

// Ender returns who has ended the job that made a VM, or has asked for the VM's destruction.
func (e *Executor) Ender(ctx context.Context, id string) job.Caller {
	j, err := e.o.Jobs.Job(ctx, id)
	if err != nil {
		return job.Caller{}
	}
	return j.Ender()
}

// Destroyed drops the key of a VM that is gone.
func (e *Executor) Destroyed(ctx context.Context, id string) { e.dropKey(ctx, id) }

// Holds reports whether a job has a VM, and for how long it may run.
func (e *Executor) Holds(ctx context.Context, id string, v vm.VM) (held bool, timeout time.Duration, err error) {
	j, err := e.o.Jobs.Job(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		return false, 0, nil
	}
	return !j.Finished() && j.VM != nil && j.VM.Job == v.Job, seconds(j.Manifest.Timeout), err
}

// JobsWait reports whether a client's job waits for a slot.
func (e *Executor) JobsWait() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.queue.empty()
}

// Making returns the pools' VMs that this engine works on.
func (e *Executor) Making() (all []vm.Making) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, r := range e.runs {
		if r.pool != "" {
			all = append(all, vm.Making{ID: id, Pool: r.pool, Waits: r.waits != ""})
		}
	}
	return all
}

// Creating returns the VMs of this engine's jobs that are being made, or are about to be.
func (e *Executor) Creating(ctx context.Context) (all []vm.Making) {
	e.mu.Lock()
	var ids []string
	for id, r := range e.runs {
		if !r.shares {
			ids = append(ids, id)
		}
	}
	e.mu.Unlock()
	for _, id := range ids {
		j, err := e.o.Jobs.Job(ctx, id)
		if err == nil && (j.Status == job.Pending || j.Status == job.Provisioning) && j.Outcome == nil && !j.Claims() {
			all = append(all, vm.Making{ID: id, MemoryMB: job.SizeMB(j.Manifest.Resources.Memory), Begun: j.Status == job.Provisioning})
		}
	}
	return all
}

// memberReady is the end of a pool's VM's making: it responds, and may be claimed. Other VMs
// are left as they are.
func (e *Executor) memberReady(j *job.Job) {
	m := j.VM.Member
	if m == nil {
		return
	}
	if lease := e.o.Fleet.MemberLease(); lease > 0 {
		m.LeaseUntil = j.CreatedAt.Add(lease) // it was announced after that
	}
	if m.State != vm.MemberMaking || j.Outcome != nil { // it was given up meanwhile
		j.VM.Unwanted = true
		return
	}
	m.Become(vm.MemberWarm, now())
	m.ReadyAt = now()
}
