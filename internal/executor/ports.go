// Package executor runs the life of a job: submit, provision, run, follow,
// collect, destroy. It declares what it needs of a hypervisor (Provider), of the
// inside of a VM (Guest) and of storage (Store), and knows none of them.
package executor

import (
	"context"
	"errors"
	"io"
	"time"

	"linus/internal/job"
)

// VMSpec is the VM a job asks for. Name, Job and Owner identify it for good.
type VMSpec struct {
	Name     string // DNS label
	Job      string // linus-job=<uuid>
	Owner    string // linus-owner=<uuid>
	CPU      int    // cores
	MemoryMB int
	DiskGB   int
	Template string // name or VM ID of the template to clone; empty: OS
	OS       string // one of job.Systems, from its cloud image; empty: Template
	Network  job.Network

	PublicKey string // one line: what logs in to it; empty: the Provider's own

	// Lease: should nobody destroy the VM within this time, the host itself
	// does, after the same proof. 0: never.
	Lease time.Duration
}

// Progress is one step of a provider's work as it happens.
type Progress struct {
	Step  string // the step's name, e.g. "create_vm"; empty when something else is news
	Text  string // one line for people
	N, Of int    // step N of Of
	VMID  int    // the VM ID, the moment it is ours; else 0

	Warning string // something the job's owner should know, e.g. no host key to pin
}

// Seen is a VM as Look finds it. What its guest says is bounded and of the right
// form, and still the word of a machine where a job may have been root; empty
// where it says nothing.
type Seen struct {
	Status job.VMStatus
	IP     string // an address a VM can have
	BootID string // the kernel's, another after each restart
}

// ErrDetach is the cause a context ends with when its work is to go on without
// us: the engine stops, the job does not.
var ErrDetach = errors.New("the engine stops; work on the host goes on")

// Provider makes and removes VMs on a hypervisor. Every method may be called
// recordAddress after it was interrupted. Errors are *job.HostError where the host is
// to blame.
type Provider interface {
	// Check looks whether jobs can run at all.
	Check(ctx context.Context) (job.HostReport, error)
	// Create makes a VM that answers SSH and has finished its first boot. When
	// it fails, or ctx ends, it has removed what it made, or tried to: Destroy
	// afterwards is always right. When ctx ends with ErrDetach the work goes on,
	// and Create for the same job joins it. progress is called from one goroutine.
	Create(ctx context.Context, spec VMSpec, progress func(Progress)) (job.VM, error)
	// Destroy removes the VM after proof that it is vm: ID, name, job and owner
	// must all match what the host says. A VM that is gone is success. Of class
	// job.HostForeign is the error that its ID is another's by now: vm is gone as
	// well. Of class job.HostLeftAlone, that the host has it, and it is not proven:
	// nothing was touched, and it is not gone. A create for the same job that is
	// still under way is ended first; with ID 0, where the ID was never learned,
	// that is all.
	Destroy(ctx context.Context, vm job.VM) error
	// ForgetVM gives up what the host keeps of a VM that it leaves alone: its lease,
	// and the address reserved for it. The VM is not touched. One that proves to be
	// vm is refused: it is destroyed, not forgotten.
	ForgetVM(ctx context.Context, vm job.VM) error
	// List finds every VM that carries this installation's owner marker.
	List(ctx context.Context) ([]job.VM, error)
	// Status asks how one VM is, by the same proof as Destroy's: running, stopped,
	// gone, where no VM has its ID or another has it by now, or unproven, where
	// Destroy would leave it alone. It does not wait for a host that does not
	// answer. Unknown and unproven are no proof of anything.
	Status(ctx context.Context, vm job.VM) (job.VMStatus, error)
	// Look is Status, and asks the guest of a VM that runs, through the hypervisor
	// rather than the network, where it is and which boot this is.
	Look(ctx context.Context, vm job.VM) (Seen, error)
	// Plan tells what Create would do, one command a line, and changes nothing.
	Plan(ctx context.Context, spec VMSpec) ([]string, error)
	// StartVM starts a VM, after proof, and returns it as it then is (its address
	// may be another) once it answers SSH. A running VM is success.
	StartVM(ctx context.Context, vm job.VM, progress func(Progress)) (job.VM, error)
	// StopVM shuts a VM down, after proof, and turns it off when it does not.
	// A stopped VM is success.
	StopVM(ctx context.Context, vm job.VM) error
	// SnapshotVM keeps the VM's disk as it is now under a name, after proof. A
	// snapshot of that name is an error.
	SnapshotVM(ctx context.Context, vm job.VM, name string) error
	// RevertVM brings the VM back to a snapshot, after proof, starts it and
	// answers it as StartVM does. What was on its disk since is lost.
	RevertVM(ctx context.Context, vm job.VM, name string, progress func(Progress)) (job.VM, error)
	// CallbackHost is this machine's address as VMs of the host can reach it:
	// the near end of the connection to the host. Never "localhost", unless
	// the host itself is this machine's loopback.
	CallbackHost(ctx context.Context) (string, error)
}

// Payload is all that a VM needs to run one job.
type Payload struct {
	Manifest          job.Manifest      // with file contents
	Secrets           map[string]string // values by name; they go to a tmpfs
	CallbackURL       string            // without a trailing slash; empty: no callbacks
	Token             string            // the job's callback token
	HeartbeatInterval int               // seconds
	MaxOutput         int64             // bytes
}

// RunState is what the runner in the VM says of the task.
type RunState struct {
	Started     bool
	Exited      bool
	Unattended  bool // it has not ended, and its runner is gone: Start brings that back
	ExitCode    int
	Reason      string        // exit, timeout, stopped or lost
	Text        string        // the runner's words where Reason is not exit
	Duration    time.Duration // the task has run so far, by the VM's clock since boot
	StdoutBytes int64
	StderrBytes int64
	DiskFull    bool // the VM's disk was full while the task ran: what it printed meanwhile is lost
}

// CallbackWay is how a runner's callbacks arrive.
type CallbackWay string

// The ways.
const (
	CallbacksDirect CallbackWay = "direct" // the VM reaches the URL
	CallbacksTunnel CallbackWay = "tunnel" // through the SSH connection to the VM
	CallbacksNone   CallbackWay = "none"   // not at all: Probe and ReadOutput tell
)

// ArtifactLimits bound what is collected of one job.
type ArtifactLimits struct {
	Files int   // how many
	Each  int64 // bytes of one file
	All   int64 // bytes of all together
}

// FoundArtifact is a file in the VM that the job's patterns match.
type FoundArtifact struct {
	job.Artifact
	Source string // its absolute path in the VM
}

// Guest works inside a VM over SSH, for one job in it: j.ID is the job, *j.VM
// the VM, which may be another job's. Jobs in one VM do not touch each other.
// Every method may be called again.
type Guest interface {
	// Push uploads the job runner, the task, its files and settings.
	Push(ctx context.Context, j job.Job, p Payload) error
	// Start starts the task detached and returns when it runs (or has run), with
	// the VM's boot it was started under; empty where that is not told.
	Start(ctx context.Context, j job.Job) (bootID string, err error)
	// Callbacks finds a way for a started task's callbacks, each tried from
	// inside the VM: to url (empty: not tried), else by a tunnel to local, an address this process
	// can dial (empty: no tunnel), which is held open until Forget or the next
	// call.
	Callbacks(ctx context.Context, j job.Job, url, local string) (CallbackWay, error)
	// Probe asks where the task stands. It does not wait long for a VM that is
	// silent.
	Probe(ctx context.Context, j job.Job) (RunState, error)
	// ReadOutput returns at most limit bytes of stdout or stderr from offset;
	// fewer only at the end.
	ReadOutput(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error)
	// Sums returns the sha256, in hex, of the first bytes of stdout and of stderr,
	// so many of each: with that, what is held can be compared.
	Sums(ctx context.Context, j job.Job, stdout, stderr int64) (sums [2]string, err error)
	// Input appends data to the task's open stdin at offset, which is the count
	// of bytes sent before: what is there already is not sent twice. It answers
	// the count after.
	Input(ctx context.Context, j job.Job, offset int64, data []byte) (int64, error)
	// CloseInput lets the task read the end of its stdin after what was sent.
	CloseInput(ctx context.Context, j job.Job) error
	// Stop ends the task's whole process tree: the signal (TERM, KILL, INT, HUP
	// or QUIT), and KILL for what is left 5 s later.
	Stop(ctx context.Context, j job.Job, signal string) error
	// Artifacts finds what the job's patterns match once the task has ended, and
	// says what was left out and why.
	Artifacts(ctx context.Context, j job.Job, limits ArtifactLimits) (found []FoundArtifact, skipped job.SkippedArtifacts, err error)
	// ReadArtifact returns at most limit bytes of a found file from offset;
	// fewer only at the end.
	ReadArtifact(ctx context.Context, j job.Job, source string, offset, limit int64) ([]byte, error)
	// Clean removes what the job has left of itself in a VM that stays.
	Clean(ctx context.Context, j job.Job) error
	// Forget closes the connections for the job.
	Forget(j job.Job)
}

// Store keeps jobs. Everything acknowledged survives kill -9.
type Store interface {
	// Insert adds a new job with its whole manifest, file contents included.
	// A key that is not empty and was used before answers the first job and false.
	Insert(ctx context.Context, j job.Job, tokenHash, key string) (job.Job, bool, error)
	// Submitted returns the job that was submitted with an idempotency key;
	// job.ErrNotFound, always so for the empty key.
	Submitted(ctx context.Context, key string) (job.Job, error)
	// Job returns the job without its files' contents; job.ErrNotFound.
	Job(ctx context.Context, id string) (job.Job, error)
	// Manifest returns the whole manifest.
	Manifest(ctx context.Context, id string) (job.Manifest, error)
	// List returns a page of jobs, newest first.
	List(ctx context.Context, f job.Filter) (job.Page, error)
	// Unfinished returns every job that is not Done, oldest first.
	Unfinished(ctx context.Context) ([]job.Job, error)
	// Update changes one job in a transaction: change gets the job as it is,
	// edits it and returns the events that tell of it. An error from change
	// is returned as it is, and nothing is written. The manifest is not written.
	Update(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error)
	// OfClient returns the client's jobs that are not Done or keep a VM.
	OfClient(ctx context.Context, client string) ([]job.Job, error)
	// VMs returns the jobs whose own VM is intended, created or left alone, oldest
	// first.
	VMs(ctx context.Context) ([]job.Job, error)
	// Events returns the job's events with Seq > after, in order.
	Events(ctx context.Context, id string, after int64) ([]job.Event, error)
	// TokenHash and SetTokenHash keep the hex sha256 of the job's callback token;
	// of a job that has ended there is none.
	TokenHash(ctx context.Context, id string) (string, error)
	SetTokenHash(ctx context.Context, id, hash string) error
	// AppendOutput appends data that begins at offset of the stream, as far as
	// it is new and below the size limit, and returns how much of the stream
	// has been seen: the offset to send next.
	AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error)
	// CutOutput forgets what of an open stream is held beyond its first size bytes,
	// and that more was seen.
	CutOutput(ctx context.Context, id, stream string, size int64) error
	// SealOutput makes the stream final. When total is more than the limit it
	// keeps the head, a marker with the count of dropped bytes, and tail.
	SealOutput(ctx context.Context, id, stream string, total int64, tail []byte) (job.OutputInfo, error)
	// Forget removes the jobs that ended before the given time and whose VM is
	// gone, with their files, and returns how many.
	Forget(ctx context.Context, before time.Time) (int, error)
	// Output returns at most limit bytes held of a stream, marker included, from
	// offset, which counts these.
	Output(ctx context.Context, id, stream string, offset, limit int64) ([]byte, error)
	// Written returns at most limit bytes of what the task wrote to a stream:
	// those from offset on, or, where they are not held, the next that are, and
	// the offset at which they begin. At the end there are none, and the offset
	// is no more than the end.
	Written(ctx context.Context, id, stream string, offset, limit int64) (data []byte, at int64, err error)
	// PutArtifact keeps a part of a file the job left, at offset; the file at
	// path becomes what was written from offset 0 on.
	PutArtifact(ctx context.Context, id, path string, offset int64, data []byte) error
	// DropArtifact removes what was kept of a file; none is fine.
	DropArtifact(ctx context.Context, id, path string) error
	// OpenArtifact returns a kept file; job.ErrNotFound, or an error that is
	// fs.ErrNotExist.
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, error)
}
