package job

import (
	"context"
	"io"
	"math"
	"time"
)

// Engine is everything an engine offers. The executor implements it; Through makes the other
// implementations, such as a connection to an engine in another process. Each method has a row in Verbs.
type Engine interface {
	Jobs
	Streams
	VMs
	Files
	Pools
	Checkpoints
	Volumes
	Engines
	Dispatchers
	Tokens
	Credentials
	Host
	HostTests
	Accounting
	Schedules
}

// Jobs are the operations on jobs. Errors: *InvalidError and *FieldError for invalid input,
// ErrNotFound, ErrCompleted, *NotCompleteError.
type Jobs interface {
	// Submit checks the submission, stores the job and returns at once. An idempotency key used
	// before returns the first job if that was submitted with the same manifest.
	Submit(ctx context.Context, s Submission) (Job, error)
	// Plan returns what creating the job's VM would do, one command per line. A manifest with a
	// vmName and without a task asks for a VM. Plan changes nothing.
	Plan(ctx context.Context, s Submission) ([]string, error)
	// Job returns everything known about one job.
	Job(ctx context.Context, id string) (Job, error)
	// Manifest returns a job's whole manifest, the files' contents included. Those are removed when
	// the job is done; for a job with files it then returns a *FieldError.
	Manifest(ctx context.Context, id string) (Manifest, error)
	// Result returns a finished job's outcome and output, or a *NotCompleteError if the job has not finished.
	Result(ctx context.Context, id string) (Result, error)
	// Cancel ends a job. It returns once the outcome is decided.
	Cancel(ctx context.Context, id string) error
	// Kill ends a job's task with one of Signals.
	Kill(ctx context.Context, id, signal string) (Killed, error)
	// List returns a page of jobs, newest first.
	List(ctx context.Context, f Filter) (Page, error)
	// DeleteJob removes a job that has ended, with its output and artifacts. It returns a
	// *FieldError if the job has not ended or its VM still exists.
	DeleteJob(ctx context.Context, id string) error
	// Cleanup removes finished jobs older than the given age and returns how many.
	Cleanup(ctx context.Context, olderThan time.Duration) (int, error)
}

// MaxInput bounds what one call of Input sends, in bytes.
const MaxInput = 4 << 20

// OnlyEnd is passed to Watch to wait for a job's end only, which costs less than following its events.
const OnlyEnd = math.MaxInt64

// Streams are a job's output and input, while it runs and after.
type Streams interface {
	// Watch returns the events after the given sequence number as soon as there are any. It returns none
	// when ctx ends, when the job is done and all events were returned, or when a fault of the engine
	// itself starts to delay the job, which the job's progress reports; through a client, also after a
	// while. With OnlyEnd (9223372036854775807) it returns none, as soon as the job's status is terminal.
	Watch(ctx context.Context, id string, after int64) ([]Event, Job, error)
	// Output returns at most limit bytes of a stream (Stdout or Stderr) from offset; a negative
	// offset counts from the end.
	Output(ctx context.Context, id, stream string, offset, limit int64) (Chunk, error)
	// Input sends data (at most MaxInput) to the task's open stdin, and then closes stdin if closed is set.
	Input(ctx context.Context, id string, data []byte, closed bool) error
	// Resize changes the terminal size of a running task, in characters: 1 to 9999 each.
	Resize(ctx context.Context, id string, rows, columns int) error
	// OpenArtifact returns a collected file, which the caller must close.
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, Artifact, error)
}

// VMs are the operations on VMs. ref is a VM's name, its VM ID or the ID of the job that created it.
type VMs interface {
	// CreateVM creates a VM that stays until it is destroyed or its ttl expires. It returns once the
	// VM is stored; Watch, Job and Cancel take its UUID to follow or cancel its creation. Of the
	// manifest, only vmName, labels, os or vmTemplate, resources, network and ttl count. An
	// idempotency key used before returns the first VM if that was requested with the same manifest.
	CreateVM(ctx context.Context, s Submission) (VMInfo, error)
	// VMs returns linus's VMs: persistent ones, those of unfinished jobs, and those left alone.
	VMs(ctx context.Context) ([]VMInfo, error)
	// VM returns one VM, with its status on the host.
	VM(ctx context.Context, ref string) (VMInfo, error)
	// StartVM starts a stopped or suspended VM and returns when it accepts logins. It is not an
	// error if the VM is already running.
	StartVM(ctx context.Context, ref string) (VMInfo, error)
	// StopVM shuts a VM down, and powers it off if it does not shut down. No job may be running in
	// it. It is not an error if the VM is already stopped.
	StopVM(ctx context.Context, ref string) (VMInfo, error)
	// DestroyVM destroys a persistent VM and its disk. No job may be running in it. It returns once
	// that is decided; the engine then retries until the VM is gone.
	DestroyVM(ctx context.Context, ref string) (VMInfo, error)
	// ForgetVM stops tracking a VM that is left alone. The VM is not touched.
	ForgetVM(ctx context.Context, ref string) (VMInfo, error)
	// SuspendVM writes a VM's memory to its disk and turns it off, until ResumeVM or StartVM.
	SuspendVM(ctx context.Context, ref string) (VMInfo, error)
	// ResumeVM resumes a suspended VM, sets its clock, and returns when it accepts logins.
	ResumeVM(ctx context.Context, ref string) (VMInfo, error)
	// SetVM changes settings of a persistent VM; nil settings stay as they are. A VM that was
	// suspended for being idle stays suspended until it is used, whatever its new idle time. A new
	// TTL starts now, and is also set on the host, which ends the VM if no engine does.
	SetVM(ctx context.Context, ref string, change VMChange) (VMInfo, error)
	// ForkVM makes copies of a running VM in which no job runs. If the VM's storage can clone a
	// snapshot with memory, the copies resume from one; otherwise they boot from copies of its disk.
	// Each copy is a VM of its own, with the owner, size, network and labels of the original. Either
	// all copies are made or none, unless partial is set. ForkVM returns when they accept logins.
	// The original resumes after a pause, whose length is reported.
	ForkVM(ctx context.Context, spec ForkSpec) (Forked, error)
	// SnapshotVM saves the VM's disk under a name and, with memory set, the state of what runs in
	// it. It is an error if a snapshot of that name exists.
	SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (VMInfo, error)
	// RevertVM reverts a VM to a snapshot and starts it or, if the snapshot has its memory, resumes
	// it from that. Later changes are lost.
	RevertVM(ctx context.Context, ref, snapshot string) (VMInfo, error)
	// ListSnapshots returns the snapshots of a VM, oldest first.
	ListSnapshots(ctx context.Context, ref string) ([]Snapshot, error)
	// DeleteSnapshot removes a snapshot of a VM. The VM may run and stays as it is.
	DeleteSnapshot(ctx context.Context, ref, snapshot string) (VMInfo, error)
	// SaveVM makes a template of a VM, for later jobs, pools and VMs. It uses a copy of the VM or,
	// in place, the VM itself, which is not a VM afterwards. The template is cleaned of the VM's
	// identity, keys, histories and leftovers of jobs; the result lists what was found and kept. No
	// job may be running in the VM.
	SaveVM(ctx context.Context, ref, name string, inPlace bool) (SavedTemplate, error)
	// Network reports where a VM's packets may go, according to its node, and tries connections from
	// inside the VM to the query's targets; for that the VM must run.
	Network(ctx context.Context, q NetworkQuery) (NetworkReport, error)
	// DialVM connects to a TCP port of the VM's own loopback. ref may also be a job that runs in the
	// VM. The connection outlasts ctx.
	DialVM(ctx context.Context, ref string, port int) (Tunnel, error)
	// LoginVM connects to the VM's SSH server, which accepts a public key for the VM's user for the
	// next two minutes; sessions begun by then continue. key is a line as in authorized_keys,
	// without options. ref may also be a job that runs in the VM. The connection outlasts ctx.
	LoginVM(ctx context.Context, ref, key string) (Tunnel, error)
	// ExposePort gives a TCP port of the VM's own loopback a URL of this server, which requires a login,
	// until UnexposePort or the VM's end. VM may also be a job that runs in the VM. It is an error if
	// the name is taken, unless by the same port. A note says if nothing listens at the port yet.
	ExposePort(ctx context.Context, spec PortSpec) (ExposedPort, error)
	// ListPorts returns the ports of a VM that have a URL, oldest first. ref may also be PortRef and
	// the ID of a port.
	ListPorts(ctx context.Context, ref string) ([]ExposedPort, error)
	// UnexposePort removes a port's URL and closes its open connections.
	UnexposePort(ctx context.Context, ref, name string) (ExposedPort, error)
}

// Tunnel is a connection to a program in a VM. Each direction ends separately.
type Tunnel interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// Host are the operations on the Proxmox host.
type Host interface {
	// CheckHost checks whether the host can run jobs.
	CheckHost(ctx context.Context) (HostReport, error)
	// Nodes returns the nodes that VMs are created on, by name.
	Nodes(ctx context.Context) ([]NodeInfo, error)
	// CordonNode keeps new VMs off a node until UncordonNode. Existing VMs stay.
	CordonNode(ctx context.Context, name string) (NodeInfo, error)
	// UncordonNode lets new VMs on a node again.
	UncordonNode(ctx context.Context, name string) (NodeInfo, error)
}
