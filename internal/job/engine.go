package job

import (
	"context"
	"io"
	"time"
)

// Engine is everything an engine offers. The executor implements it, and so
// does a connection to an engine in another process.
type Engine interface {
	Jobs
	Streams
	VMs
	Pools
	Engines
	Host
}

// Jobs are the operations on jobs. Errors: *InvalidError and *FieldError for
// invalid input, ErrNotFound, ErrCompleted, *NotCompleteError.
type Jobs interface {
	// Submit checks the submission, stores the job and returns at once. An
	// idempotency key used before returns the first job, if that was submitted
	// with the same manifest.
	Submit(ctx context.Context, s Submission) (Job, error)
	// Plan returns what creating the job's VM would do, one command per line,
	// and changes nothing.
	Plan(ctx context.Context, s Submission) ([]string, error)
	Job(ctx context.Context, id string) (Job, error)
	// Result returns the job's outcome and output, or *NotCompleteError.
	Result(ctx context.Context, id string) (Result, error)
	// Cancel ends a job. It returns once the outcome is decided.
	Cancel(ctx context.Context, id string) error
	// Kill ends a job's task with one of Signals.
	Kill(ctx context.Context, id, signal string) (Killed, error)
	// List returns a page of jobs, newest first.
	List(ctx context.Context, f Filter) (Page, error)
	// Cleanup removes finished jobs older than the given age and returns how many.
	Cleanup(ctx context.Context, olderThan time.Duration) (int, error)
}

// MaxInput bounds what one call of Input sends, in bytes.
const MaxInput = 4 << 20

// Streams are a job's output and input, while it runs and after.
type Streams interface {
	// Watch returns the events after the given sequence number as soon as there
	// are any; none when ctx ends, or when the job is done and all were
	// returned.
	Watch(ctx context.Context, id string, after int64) ([]Event, Job, error)
	// Output returns at most limit bytes of a stream (Stdout or Stderr) from
	// offset; a negative offset counts from the end.
	Output(ctx context.Context, id, stream string, offset, limit int64) (Chunk, error)
	// Input sends data (at most MaxInput) to the task's open stdin, and then
	// closes it if closed is set.
	Input(ctx context.Context, id string, data []byte, closed bool) error
	// OpenArtifact returns a collected file, which the caller closes.
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, Artifact, error)
}

// VMs are the operations on VMs. ref is a VM's name, its VM ID or the ID of the
// job that created it.
type VMs interface {
	VMs(ctx context.Context) ([]VMInfo, error)
	VM(ctx context.Context, ref string) (VMInfo, error)
	StartVM(ctx context.Context, ref string) (VMInfo, error)
	StopVM(ctx context.Context, ref string) (VMInfo, error)
	DestroyVM(ctx context.Context, ref string) (VMInfo, error)
	// ForgetVM stops tracking a VM that is left alone. The VM is not touched.
	ForgetVM(ctx context.Context, ref string) (VMInfo, error)
	// SuspendVM writes a VM's memory to its disk and turns it off, until
	// ResumeVM or StartVM.
	SuspendVM(ctx context.Context, ref string) (VMInfo, error)
	ResumeVM(ctx context.Context, ref string) (VMInfo, error)
	// SnapshotVM saves the VM's disk, and with memory set what runs in it.
	SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (VMInfo, error)
	RevertVM(ctx context.Context, ref, snapshot string) (VMInfo, error)
}

// Host are the operations on the Proxmox host.
type Host interface {
	// CheckHost checks whether the host can run jobs.
	CheckHost(ctx context.Context) (HostReport, error)
	// Nodes returns the nodes that VMs are created on, by name.
	Nodes(ctx context.Context) ([]NodeInfo, error)
	// CordonNode keeps new VMs off a node, until UncordonNode. VMs that are there
	// stay.
	CordonNode(ctx context.Context, name string) (NodeInfo, error)
	UncordonNode(ctx context.Context, name string) (NodeInfo, error)
}
