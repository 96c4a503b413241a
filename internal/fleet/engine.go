package fleet

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// JobStore stores the jobs that have VMs.
type JobStore interface {
	// Job returns a job, or job.ErrNotFound.
	Job(ctx context.Context, id string) (job.Job, error)
	// Update changes a job and the VM that it made in a transaction; see executor.JobStore.
	Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error)
	// OfClient returns the jobs that are not Done, or keep a VM, of one of the operator's clients,
	// or of all clients of another principal.
	OfClient(ctx context.Context, owner, client string) ([]job.Job, error)
	// InProgress returns every job that is not Done and does not wait for a slot.
	InProgress(ctx context.Context) ([]job.Job, error)
	// Events returns a job's events with Seq > after, in order.
	Events(ctx context.Context, id string, after int64) ([]job.Event, error)
}

// Guest is what a VM offers from inside, over SSH. A job.Job names the VM, *j.VM, and whose
// connections to it are meant. Every method may be repeated.
type Guest interface {
	// Ping checks that the VM responds, and leaves the connection open.
	Ping(ctx context.Context, j job.Job) error
	// Warm prepares the VM for the first job there.
	Warm(ctx context.Context, j job.Job) error
	// Rename sets the host name of the system in the VM. An error of class HostVM says that it cannot.
	Rename(ctx context.Context, j job.Job, name string) error
	// Forget closes the connections.
	Forget(j job.Job)

	// Dial connects to a TCP port of a VM's loopback. The connection outlasts ctx. It returns a
	// *job.FieldError if nothing listens there.
	Dial(ctx context.Context, v vm.VM, port int) (job.Tunnel, error)
	// Login connects to a VM's SSH server and authorizes a public key for a limited time. The
	// connection outlasts ctx. It returns a *job.FieldError if key is not a public key.
	Login(ctx context.Context, v vm.VM, key string) (job.Tunnel, error)
	// DialSandbox connects to the program that serves a sandbox in its VM, and starts it if it does
	// not run. The connection outlasts ctx.
	DialSandbox(ctx context.Context, v vm.VM) (net.Conn, error)
	// Leave closes the connections to a VM that belong to no job: the VM is off.
	Leave(v vm.VM)
	// InUse reports whether somebody whom no engine knows is logged in, by SSH or on a terminal.
	InUse(ctx context.Context, v vm.VM) (bool, error)
	// TryTargets tries TCP connections from inside a VM: directly and, if proxy is a port of its
	// loopback, through the HTTP proxy there. Targets are valid.
	TryTargets(ctx context.Context, v vm.VM, targets []string, proxy int) ([]job.NetworkAttempt, error)

	// StatFile describes the file that a path leads to.
	StatFile(ctx context.Context, v vm.VM, path string) (job.FileInfo, error)
	// The others are the methods of job.Files. Their arguments have been checked and have every default.
	ListFiles(ctx context.Context, v vm.VM, q job.FileList) (job.FilePage, error)
	ReadFile(ctx context.Context, v vm.VM, r job.FileRange) (job.FileChunk, error)
	WriteFile(ctx context.Context, v vm.VM, w job.FileWrite) (job.FileWritten, error)
	EditFile(ctx context.Context, v vm.VM, e job.FileEdit) (job.FileEdited, error)
	ReadTree(ctx context.Context, v vm.VM, path string) (io.ReadCloser, error)
	WriteTree(ctx context.Context, v vm.VM, path string, archive io.Reader) error
}

// asJob wraps a VM for calls of a Guest.
func asJob(v vm.VM) job.Job { return job.Job{ID: v.Job, VM: &v} }

// holds reports whether a job has a VM, and how long the job may run.
func (f *Fleet) holds(ctx context.Context, id string, v vm.VM) (held bool, timeout time.Duration, err error) {
	j, err := f.o.Jobs.Job(ctx, id)
	if errors.Is(err, job.ErrNotFound) {
		return false, 0, nil
	}
	return !j.Finished() && j.VM != nil && j.VM.Job == v.Job, seconds(j.Manifest.Timeout), err
}

// Known returns a job or, for the ID of a VM that no job made, a stand-in job, so that whoever
// follows VMs by job ID can keep doing so.
func (f *Fleet) Known(ctx context.Context, id string) (job.Job, error) {
	j, err := f.o.Jobs.Job(ctx, id)
	if !errors.Is(err, job.ErrNotFound) {
		return j, err
	}
	v, noVM := f.o.Store.VM(ctx, id)
	if noVM != nil || v.Own == nil {
		return j, err
	}
	return job.StandInJob(v), nil
}

// ender returns who ended the job that made a VM, or who asked for the VM's destruction.
func (f *Fleet) ender(ctx context.Context, id string) job.Caller {
	j, err := f.Known(ctx, id)
	if err != nil {
		return job.Caller{}
	}
	return j.Ender()
}
