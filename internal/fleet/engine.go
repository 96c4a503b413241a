package fleet

import (
	"context"
	"errors"
	"io"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Engine is what the fleet needs of the engine that runs jobs in its VMs.
type Engine interface {
	// Leads reports whether this engine, of those that share the store, does what one does
	// for all.
	Leads(ctx context.Context) bool
	// Spawn runs work that outlives its caller, and ends with the engine.
	Spawn(work func(running context.Context)) error
	// TellUnwanted tells the engine that leads of VMs that nobody wants any more.
	TellUnwanted(ctx context.Context) error
	// CheckSelf returns what is wrong with what the engine itself stands on.
	CheckSelf(ctx context.Context) []job.Check

	// JobsWait reports whether a client's job waits for a slot.
	JobsWait() bool
	// Admit returns an error if the client may not have one more VM, or job, in addition to
	// what it has, or there is no space for one.
	Admit(ctx context.Context, s job.Submission, m job.Manifest) error
	// Creating returns the VMs that this engine's jobs make, or are about to.
	Creating(ctx context.Context) []vm.Making
	// InProgress returns every job that is not Done and does not wait for a slot.
	InProgress(ctx context.Context) ([]job.Job, error)
	// Stored returns a job as it is stored; job.ErrNotFound. Known does, too, and for the ID
	// in the marker of a VM that no job has made it returns what stands for one.
	Stored(ctx context.Context, id string) (job.Job, error)
	Known(ctx context.Context, id string) (job.Job, error)
	// Events returns a job's events, in order.
	Events(ctx context.Context, id string) ([]job.Event, error)
	// Cancel ends a job; job.ErrCompleted if it has ended.
	Cancel(ctx context.Context, id string) error
	// EndedBy records who has asked for the destruction of the VM that a job has made.
	EndedBy(ctx context.Context, id string, by job.Caller) error
}

// Guest is what a VM offers from inside, over SSH. A job.Job names the VM, *j.VM, and whose
// connections there are meant. Every method may be repeated.
type Guest interface {
	// Ping checks that the VM responds, and leaves the connection open.
	Ping(ctx context.Context, j job.Job) error
	// Warm prepares the VM for the first job there.
	Warm(ctx context.Context, j job.Job) error
	// Forget closes the connections.
	Forget(j job.Job)

	// Dial connects to a TCP port of a VM's loopback. The connection outlasts ctx. A
	// *job.FieldError if nothing listens there.
	Dial(ctx context.Context, v vm.VM, port int) (job.Tunnel, error)
	// InUse reports whether somebody is logged in whom no engine knows, by SSH or on a terminal.
	InUse(ctx context.Context, v vm.VM) (bool, error)
	// TryTargets tries TCP connections from inside a VM, directly and, if proxy is a port
	// of its loopback, through the HTTP proxy there. Targets are valid.
	TryTargets(ctx context.Context, v vm.VM, targets []string, proxy int) ([]job.NetworkAttempt, error)

	// StatFile returns what a path leads to.
	StatFile(ctx context.Context, v vm.VM, path string) (job.FileInfo, error)
	// The others are the methods of job.Files, in vm. Their arguments have been checked,
	// and have every default.
	ListFiles(ctx context.Context, v vm.VM, q job.FileList) (job.FilePage, error)
	ReadFile(ctx context.Context, v vm.VM, r job.FileRange) (job.FileChunk, error)
	WriteFile(ctx context.Context, v vm.VM, w job.FileWrite) (job.FileWritten, error)
	EditFile(ctx context.Context, v vm.VM, e job.FileEdit) (job.FileEdited, error)
	ReadTree(ctx context.Context, v vm.VM, path string) (io.ReadCloser, error)
	WriteTree(ctx context.Context, v vm.VM, path string, archive io.Reader) error
}

// maker stands for a VM where a Guest is asked about it.
func maker(v vm.VM) job.Job { return job.Job{ID: v.Job, VM: &v} }

// holds reports whether a job has a VM, and for how long it may run.
func (f *Fleet) holds(ctx context.Context, id string, v vm.VM) (held bool, timeout time.Duration, err error) {
	j, err := f.o.Engine.Stored(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		return false, 0, nil
	}
	return !j.Finished() && j.VM != nil && j.VM.Job == v.Job, seconds(j.Manifest.Timeout), err
}

// ender returns who has ended the job that made a VM, or has asked for the VM's destruction.
func (f *Fleet) ender(ctx context.Context, id string) job.Caller {
	j, err := f.o.Engine.Known(ctx, id)
	if err != nil {
		return job.Caller{}
	}
	return j.Ender()
}
