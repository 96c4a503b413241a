package job

import (
	"context"
	"io"
	"math"
	"time"
)

// Engine is everything an engine offers. The executor implements it; Through makes the
// others, such as a connection to an engine in another process. Each method has a row in
// Verbs.
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

// Jobs are the operations on jobs. Errors: *InvalidError and *FieldError for
// invalid input, ErrNotFound, ErrCompleted, *NotCompleteError.
type Jobs interface {
	// Submit checks the submission, stores the job and returns at once. An
	// idempotency key used before returns the first job, if that was submitted
	// with the same manifest.
	Submit(ctx context.Context, s Submission) (Job, error)
	// Plan returns what creating the job's VM would do, or the VM that a manifest with a
	// vmName and without a task asks for: one command per line. It changes nothing.
	Plan(ctx context.Context, s Submission) ([]string, error)
	// Job returns everything known about one job.
	Job(ctx context.Context, id string) (Job, error)
	// Manifest returns a job's whole manifest, the files' contents included. Those are
	// removed when the job is done: *FieldError then, if it has files.
	Manifest(ctx context.Context, id string) (Manifest, error)
	// Result returns a finished job's outcome and output. Until it has finished, that is
	// a *NotCompleteError.
	Result(ctx context.Context, id string) (Result, error)
	// Cancel ends a job. It returns once the outcome is decided.
	Cancel(ctx context.Context, id string) error
	// Kill ends a job's task with one of Signals.
	Kill(ctx context.Context, id, signal string) (Killed, error)
	// List returns a page of jobs, newest first.
	List(ctx context.Context, f Filter) (Page, error)
	// DeleteJob removes one job that has ended, with its output and artifacts. One whose VM
	// is still there, or that has not ended, is a *FieldError.
	DeleteJob(ctx context.Context, id string) error
	// Cleanup removes finished jobs older than the given age and returns how many.
	Cleanup(ctx context.Context, olderThan time.Duration) (int, error)
}

// MaxInput bounds what one call of Input sends, in bytes.
const MaxInput = 4 << 20

// OnlyEnd is what Watch is called with to wait for a job's result and nothing before it,
// which costs less than to follow its events.
const OnlyEnd = math.MaxInt64

// Streams are a job's output and input, while it runs and after.
type Streams interface {
	// Watch returns the events after the given sequence number as soon as there
	// are any. It returns none when ctx ends, when the job is done and all were
	// returned, or when a fault of the engine's own begins to hold it up, which
	// the job's progress says; through a client after a while, too. With OnlyEnd
	// (9223372036854775807) it returns none, as soon as the job's status is terminal.
	Watch(ctx context.Context, id string, after int64) ([]Event, Job, error)
	// Output returns at most limit bytes of a stream (Stdout or Stderr) from
	// offset; a negative offset counts from the end.
	Output(ctx context.Context, id, stream string, offset, limit int64) (Chunk, error)
	// Input sends data (at most MaxInput) to the task's open stdin, and closes
	// stdin after that if closed is set.
	Input(ctx context.Context, id string, data []byte, closed bool) error
	// Resize gives the terminal of a running task another size, in characters: 1 to
	// 9999 each.
	Resize(ctx context.Context, id string, rows, columns int) error
	// OpenArtifact returns a collected file, which the caller closes.
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, Artifact, error)
}

// VMs are the operations on VMs. ref is a VM's name, its VM ID or the ID of the
// job that created it.
type VMs interface {
	// CreateVM creates a VM that stays until it is destroyed, or its ttl expires. It returns
	// once the VM is stored: Watch, Job and Cancel take its UUID for the making of it. Of the
	// manifest count vmName, labels, os or vmTemplate, resources, network and ttl. An idempotency key
	// used before returns the first VM, if that was asked for with the same manifest.
	CreateVM(ctx context.Context, s Submission) (VMInfo, error)
	// VMs returns our VMs: persistent ones, those of unfinished jobs, and those left
	// alone.
	VMs(ctx context.Context) ([]VMInfo, error)
	// VM returns one VM, with its status on the host.
	VM(ctx context.Context, ref string) (VMInfo, error)
	// StartVM starts a stopped or suspended VM and returns when it accepts logins. A
	// VM that is already running is no error.
	StartVM(ctx context.Context, ref string) (VMInfo, error)
	// StopVM shuts a VM down, and powers it off if it does not shut down. No job may
	// be running in it. A VM that is already stopped is no error.
	StopVM(ctx context.Context, ref string) (VMInfo, error)
	// DestroyVM destroys a persistent VM and its disk. No job may be running in it. It
	// returns once that is decided; the engine tries until the VM is gone.
	DestroyVM(ctx context.Context, ref string) (VMInfo, error)
	// ForgetVM stops tracking a VM that is left alone. The VM is not touched.
	ForgetVM(ctx context.Context, ref string) (VMInfo, error)
	// SuspendVM writes a VM's memory to its disk and turns it off, until
	// ResumeVM or StartVM.
	SuspendVM(ctx context.Context, ref string) (VMInfo, error)
	// ResumeVM continues a suspended VM where it was, sets its clock, and returns when
	// it accepts logins.
	ResumeVM(ctx context.Context, ref string) (VMInfo, error)
	// SetVM changes settings of a persistent VM; what is nil stays. A VM that is suspended as it
	// was idle stays so until it is used, whatever its idle time is then. With a TTL its time
	// begins again: its host is told, too, when to end the VM if no engine does.
	SetVM(ctx context.Context, ref string, change VMChange) (VMInfo, error)
	// ForkVM makes copies of a running VM in which no job runs. Where its storage can clone a
	// snapshot with memory they go on from that, else they boot from copies of its disk; each as a VM
	// of its own, with the owner, size, network and labels of the one it is a copy of. All are made
	// or none, unless partial is set. It returns when they accept logins. The VM goes on after a
	// pause, which is told.
	ForkVM(ctx context.Context, spec ForkSpec) (Forked, error)
	// SnapshotVM saves the VM's disk under a name and, with memory set, what runs in
	// it. An existing snapshot of that name is an error.
	SnapshotVM(ctx context.Context, ref, snapshot string, memory bool) (VMInfo, error)
	// RevertVM reverts a VM to a snapshot and starts it or, if the snapshot has its
	// memory, continues it as it was then. What has changed since is lost.
	RevertVM(ctx context.Context, ref, snapshot string) (VMInfo, error)
	// ListSnapshots returns the snapshots of a VM, oldest first.
	ListSnapshots(ctx context.Context, ref string) ([]Snapshot, error)
	// DeleteSnapshot removes a snapshot of a VM, which may run, and stays as it is.
	DeleteSnapshot(ctx context.Context, ref, snapshot string) (VMInfo, error)
	// SaveVM makes a template of a VM, for jobs, pools and VMs to come: of a copy or, in place, of
	// the VM itself, which is no VM afterwards. It is cleaned of who it was, of keys, histories and
	// what jobs have left; what was seen and left is in the result. No job may be running in it.
	SaveVM(ctx context.Context, ref, name string, inPlace bool) (SavedTemplate, error)
	// Network reports where a VM's packets may go, as its node has it, and tries
	// connections from inside the VM to the query's targets; for that the VM must run.
	Network(ctx context.Context, q NetworkQuery) (NetworkReport, error)
	// DialVM connects to a TCP port of the VM's own loopback. ref may also be a job
	// that runs in the VM. The connection outlasts ctx.
	DialVM(ctx context.Context, ref string, port int) (Tunnel, error)
	// LoginVM connects to the VM's SSH server, which lets a public key in as the VM's user
	// from then on for two minutes; sessions that have begun by then go on. key is a line as in
	// authorized_keys, without options. ref may also be a job that runs in the VM. The
	// connection outlasts ctx.
	LoginVM(ctx context.Context, ref, key string) (Tunnel, error)
	// ExposePort gives a TCP port of the VM's own loopback a URL of this server, which asks for
	// a login, until UnexposePort or the VM's end. VM may also be a job that runs in the VM.
	// What has the name already is an error, unless it is the same port. A note says when nothing
	// listens at the port yet.
	ExposePort(ctx context.Context, spec PortSpec) (ExposedPort, error)
	// ListPorts returns the ports of a VM that have a URL, oldest first. ref may also be PortRef
	// and the ID of one.
	ListPorts(ctx context.Context, ref string) ([]ExposedPort, error)
	// UnexposePort takes a port's URL away, and ends what is open there.
	UnexposePort(ctx context.Context, ref, name string) (ExposedPort, error)
}

// Tunnel is a connection to a program in a VM. Its directions end separately.
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
	// CordonNode keeps new VMs off a node, until UncordonNode. VMs that are there
	// stay.
	CordonNode(ctx context.Context, name string) (NodeInfo, error)
	// UncordonNode lets new VMs on a node again.
	UncordonNode(ctx context.Context, name string) (NodeInfo, error)
}
