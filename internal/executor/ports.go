// Package executor runs the life of a job: submit, acquire a VM, push, start, run, collect, release
// (phases.go). It declares what it needs from VMs (Fleet), from the tasks in them (Runner) and from storage
// (Stores), and knows none of the implementations. Package internal/capture captures what a job writes.
package executor

import (
	"context"
	"io"
	"net"
	"time"

	"linus/internal/capture"
	"linus/internal/job"
	"linus/internal/vm"
)

// Runner runs a job's task in a VM, through the job runner there: j.ID is the job, *j.VM the VM, which
// may belong to another job. Jobs in the same VM do not affect each other. Every method can be repeated.
type Runner interface {
	capture.Runner

	// Warm connects to the VM and installs the job runner there, so that Push is faster. What was
	// warmed for the job that created the VM serves the first job pushed there. Forget closes the
	// job's connections.
	Warm(ctx context.Context, j job.Job) error
	Forget(j job.Job)
	// Proxy carries connections to a port of the VM's loopback to the connections that dial
	// returns. It calls opened once it forwards, and returns when the VM is lost or ctx ends.
	Proxy(ctx context.Context, j job.Job, port int, dial func(context.Context) (net.Conn, error), opened func()) error

	// Trust adds a CA (PEM) to the CAs that the task finds in its environment.
	Trust(ctx context.Context, j job.Job, ca []byte) error
	// Connect connects to a name and port as a program in the VM would.
	Connect(ctx context.Context, j job.Job, address string) (net.Conn, error)

	// Push uploads the job runner, the task, its files and its settings.
	Push(ctx context.Context, j job.Job, p job.Payload) error
	// Start starts the task detached. It returns when the task runs (or has run), with the ID of
	// the VM's boot at that time, empty if unknown.
	Start(ctx context.Context, j job.Job) (bootID string, err error)
	// Follow passes to take what arrives on the channel that Start may have left open: the task's
	// output from its beginning and, as the last piece, its end. It returns when take returns an error,
	// ctx ends, or nothing more comes: nil after the end, job.ErrNoChannel if nothing ever comes. The
	// other methods and callbacks then show the task. The channel is closed when Follow returns.
	Follow(ctx context.Context, j job.Job, take func(job.Piece) error) error
	// Callbacks finds a way for a started task's callbacks by trying from inside the VM: first url
	// (empty: not tried), then a tunnel to local, an address that this process can dial (empty: no
	// tunnel). A tunnel stays open until Forget or the next call.
	Callbacks(ctx context.Context, j job.Job, url, local string) (job.CallbackWay, error)
	// Probe returns the task's state. It does not wait long for a VM that does not respond.
	Probe(ctx context.Context, j job.Job) (job.RunState, error)
	// Input appends data to the task's open stdin at offset, the number of bytes sent before, and
	// returns the new number. Bytes that have already arrived are not delivered twice.
	Input(ctx context.Context, j job.Job, offset int64, data []byte) (int64, error)
	// CloseInput closes the task's stdin after the bytes sent so far.
	CloseInput(ctx context.Context, j job.Job) error
	// Resize changes the size of the task's terminal.
	Resize(ctx context.Context, j job.Job, rows, columns int) error
	// Stop ends the task's whole process tree: it sends the signal (TERM, KILL, INT, HUP or QUIT),
	// and KILL to the remaining processes 5 s later.
	Stop(ctx context.Context, j job.Job, signal string) error
	// Clean removes the job's files and processes from a persistent VM.
	Clean(ctx context.Context, j job.Job) error
}

// verbs, and the other interfaces named so, are what the Executor embeds to offer it to its callers.
type verbs interface {
	job.VMs
	job.Files
	job.Pools
	job.Checkpoints
	job.Volumes
	job.Host
}

// Tokens are the API's tokens; see package token.
type Tokens interface {
	tokenVerbs

	// Watch ends the work of revoked and expired tokens, until ctx ends. Recheck makes it look now.
	Watch(ctx context.Context)
	Recheck()
}

type tokenVerbs interface {
	job.Tokens
	// Authenticate returns the principal of a token. Holder returns the principal of a previously
	// authenticated token by its ID. Both return job.ErrUnauthorized if there is none.
	Authenticate(ctx context.Context, token string) (job.Principal, error)
	Holder(ctx context.Context, id string) (job.Principal, error)
}

// Credentials are secrets that VMs may use but not read; see package credential.
type Credentials interface {
	credentialVerbs

	// Credential returns a credential by its name; job.ErrNotFound if there is none.
	Credential(ctx context.Context, name string) (job.Credential, error)
	// Watch ends the use of removed credentials, until ctx ends.
	Watch(ctx context.Context)
}

// HostTests are the tests of the host; see package hosttest.
type HostTests interface {
	hostTestVerbs

	// Tend removes what engines left behind in the middle of a test, until ctx ends.
	Tend(ctx context.Context)
	// Busy reports whether a test runs here, or an engine may have left one behind.
	Busy() bool
}

type hostTestVerbs interface{ job.HostTests }

// Schedules submit jobs at given times; see package schedule.
type Schedules interface {
	scheduleVerbs

	// Tend submits the jobs that are due, until ctx ends, if this engine leads.
	Tend(ctx context.Context)
	// Busy reports whether there are schedules that need a running engine.
	Busy() bool
}

type scheduleVerbs interface{ job.Schedules }

// Repositories are the engine's copies of jobs' repositories; see package git.
type Repositories interface {
	// Ready returns why this machine cannot fetch a repository, or nil if it can.
	Ready(r job.Repository) error
	// Fetch fetches a job's repository and checks that its commits can be pushed. Has reports
	// whether that was done here; Archive then returns what goes into the VM.
	Fetch(ctx context.Context, q job.RepositoryCall) (job.Checkout, error)
	Has(id string) bool
	Archive(id string) (job.Archive, int64, error)
	// Take checks a bundle of the task's commits, describes it in c, and returns its patch: nil if
	// the patch cannot be made or would exceed most bytes. The error is a *job.MalformedBundle if
	// the bundle itself is the reason for the refusal.
	Take(ctx context.Context, q job.RepositoryCall, c *job.Checkout, bundle io.Reader, most int64) (patch io.ReadCloser, err error)
	// Push pushes a commit that Take accepted. It can be repeated.
	Push(ctx context.Context, q job.RepositoryCall, head string) error
	// Forget removes the copy of a job's repository.
	Forget(id string)
}

type credentialVerbs interface{ job.Credentials }

// Fleet manages the life of VMs; see package fleet. It records what it does to a job's VM in the
// job's row itself, in one commit with the VM's row.
type Fleet interface {
	verbs
	holding
	reach
	entry
	upkeep
}

// holding is how a job gets a VM and gives it back.
type holding interface {
	// Acquire gets a job a VM and returns the updated job. It continues an acquisition that was
	// interrupted. A job whose pool VM failed gets a new VM.
	Acquire(ctx context.Context, j job.Job) (job.Job, error)
	// GiveBack returns the change that takes a failed pool VM from a job whose task has not begun;
	// nil if it does not apply.
	GiveBack(ctx context.Context, j job.Job, cause error) (change, error)
	// PutBack unmounts and detaches the volumes of a job whose VM is about to go. Failures are
	// returned as events, and the work is repeated before the VM is destroyed.
	PutBack(ctx context.Context, j job.Job) (told []job.Event)
	// Release ends a job's hold on its VM, which is kept or destroyed. The change records that in
	// the job or, with an error, why it has not happened yet. gone reports that the VM no longer
	// exists. Call Freed once that is stored.
	Release(ctx context.Context, j job.Job) (_ change, gone bool, err error)
	Freed(ctx context.Context, id string)
}

// reach is what is known about where a VM is and whether it can be reached.
type reach interface {
	// WhileUp calls work, which connects to a VM. It returns early with notUp's result for the VM's
	// status, if that is an error.
	WhileUp(ctx context.Context, v vm.VM, notUp func(vm.VM, vm.Status) error, work func(context.Context) error) error
	// Identify records the address, user, host key and node that a VM shows, unless another VM of
	// this installation has them. Moved records a VM's node and returns the recorded events; none
	// if the node was known.
	Identify(ctx context.Context, v vm.VM) error
	Moved(ctx context.Context, id, node string) ([]job.Event, error)
	// Tell records events of a VM, if it exists.
	Tell(ctx context.Context, id string, events []job.Event) error
	// Spread reports whether VMs are spread over nodes.
	Spread() bool
}

// entry decides who may have which VM.
type entry interface {
	// Known returns a job as stored or, for the marker ID of a VM that was not made by a job, a
	// stand-in for one; job.ErrNotFound.
	Known(ctx context.Context, id string) (job.Job, error)
	// Limited reports whether clients have limits. Admit returns an error if the client may not
	// have one more job with this manifest, in addition to the jobs in beside that are stored
	// together with it, or if there is no space for it.
	Limited() bool
	Admit(ctx context.Context, s job.Submission, m job.Manifest, beside ...job.Job) error
	// Decide waits for the exclusive right to decide who may have what, which end releases. Enter
	// returns the VM that a job is to share, if it accepts one more job; the caller must hold the right.
	Decide(ctx context.Context) (end func(), err error)
	Enter(ctx context.Context, ref string) (vm.VM, error)
	// Runs returns an error if a VM is known to be stopped or suspended at somebody's request.
	Runs(ctx context.Context, ref string) error
	// Find returns a VM of this installation by its name or ID, if the caller may see it. Destroy
	// is DestroyVM for a VM that no job is making.
	Find(ctx context.Context, ref string) (vm.VM, error)
	Destroy(ctx context.Context, v vm.VM) (job.VMInfo, error)
	// Fits returns an error if no node can ever take the VM of a manifest. Plan returns what making
	// that VM would do, and PlanVM what CreateVM would do.
	Fits(ctx context.Context, m job.Manifest) error
	Plan(ctx context.Context, m job.Manifest, owner string) ([]string, error)
	PlanVM(ctx context.Context, s job.Submission) ([]string, error)
	// CancelVM cancels the making of a VM that was requested on its own. It returns
	// job.ErrCompleted if the VM is already made or belongs to a pool.
	CancelVM(ctx context.Context, id string) error
}

// upkeep is the work on VMs that no job waits for.
type upkeep interface {
	// Begin allows work on VMs that callers request, until ctx ends. Spawn runs such work, which
	// outlives its caller.
	Begin(ctx context.Context)
	Spawn(work func(running context.Context)) error
	// Tend does the work for VMs without a job, until ctx ends. Busy reports whether there is any,
	// Working whether this engine is working on a VM.
	Tend(ctx context.Context)
	Busy() bool
	Working() bool
	// Expect tells the fleet what this engine's jobs may ask for.
	Expect(d job.Demand)
	// DestroySoon wakes the destruction of VMs just recorded as unwanted. TendSoon wakes the
	// tending of the pools; LoadPools first reads them again.
	DestroySoon()
	TendSoon()
	LoadPools(ctx context.Context) error
}

// Stores are the stores of an Executor, by user; StoresOf fills them from one database. Everything
// acknowledged survives kill -9.
type Stores struct {
	Branches    BranchStore
	Jobs        JobStore
	Queue       QueueStore
	Outbox      WebhookStore
	Captured    capture.Store
	Dispatchers DispatcherStore
}

// DispatcherStore stores the state of dispatchers, which serve queues.
type DispatcherStore interface {
	// Dispatchers returns the dispatchers that reported within a day or are drained, by queue and name.
	Dispatchers(ctx context.Context) ([]job.Dispatcher, error)
	// ReportDispatcher stores a dispatcher's state and reports whether it must take no more work.
	ReportDispatcher(ctx context.Context, d job.Dispatcher) (drain bool, err error)
	// DrainDispatcher sets whether a principal's dispatchers with a name take no more work, or
	// those of all principals if principal is nil. It returns how many there are.
	DrainDispatcher(ctx context.Context, principal *string, name string, drain bool) (int64, error)
	// TellDispatchers records messages about each dispatcher whose status differs from the one last
	// told. was is empty if none was told before.
	TellDispatchers(ctx context.Context, messages func(was string, d job.Dispatcher) []job.Webhook) error
}

// StoresOf returns Stores that are all backed by s.
func StoresOf(s interface {
	JobStore
	QueueStore
	WebhookStore
	BranchStore
	DispatcherStore
	capture.Store
},
) Stores {
	return Stores{Branches: s, Jobs: s, Queue: s, Outbox: s, Captured: s, Dispatchers: s}
}

// JobStore stores jobs.
type JobStore interface {
	// Job returns the job without its files' contents; job.ErrNotFound.
	Job(ctx context.Context, id string) (job.Job, error)
	// Manifest returns the whole manifest.
	Manifest(ctx context.Context, id string) (job.Manifest, error)
	// Insert adds a new job with its whole manifest, file contents included, and its children,
	// whose files are its own: all or none. For a non-empty key that was used before it returns the
	// first job and false. The principal's jobs are counted in the same transaction: a
	// *job.FieldError if they would exceed the limits.
	Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (job.Job, bool, error)
	// Children returns the jobs that a parent made, and the jobs that run lost children again.
	Children(ctx context.Context, parent string) ([]job.Job, error)
	// Submitted returns the job that was submitted with an idempotency key; job.ErrNotFound if
	// there is none, as for the empty key.
	Submitted(ctx context.Context, key string) (job.Job, error)
	// Update changes a job in a transaction: change gets the stored job, edits it and returns what to
	// record with it. An error from change is returned unwrapped, and nothing is written. The manifest is
	// never written. change may be called again with the then current job: only its last call counts. The
	// counts of open streams are neither in the job that change gets nor in the one that Update returns.
	Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error)
	// UpdateSoon is Update for changes that need not be durable at once: they are written with the
	// next change of any job, or soon. wait waits for that and returns what Update does.
	UpdateSoon(id string, change func(*job.Job) (job.Record, error)) (wait func() (job.Job, error))
	// List returns a page of jobs, newest first.
	List(ctx context.Context, f job.Filter) (job.Page, error)
	// Usage returns what jobs and VMs used up to a time, by group, including removed ones.
	Usage(ctx context.Context, q job.UsageQuery, at time.Time) (map[string]*job.Used, error)
	// InProgress returns every job that is not Done and does not wait for a slot, oldest first.
	InProgress(ctx context.Context) ([]job.Job, error)
	// Events returns the job's events with Seq > after, in order.
	Events(ctx context.Context, id string, after int64) ([]job.Event, error)
	// VM returns a VM in any state by the ID in its marker. VMEvents returns the events of a VM
	// that was not made by a job. Both return job.ErrNotFound.
	VM(ctx context.Context, id string) (vm.VM, error)
	VMEvents(ctx context.Context, id string) ([]job.Event, error)
	// TokenHash returns the hex sha256 of the job's callback token. A job that has ended has none.
	TokenHash(ctx context.Context, id string) (string, error)
	// Forget removes the jobs that ended before the given time and whose VM is gone, with their
	// files, and returns how many.
	Forget(ctx context.Context, before time.Time) (int, error)
	// ForgetJob removes a job that may be removed, whenever it ended, and reports whether it did.
	ForgetJob(ctx context.Context, id string) (bool, error)
}

// QueueStore stores which jobs wait, and gives each to one engine.
type QueueStore interface {
	// Waiting returns the IDs of the jobs that wait for a slot, oldest first: jobs that are pending
	// and undecided, and do not share a VM.
	Waiting(ctx context.Context) ([]string, error)
	// WaitingOf returns the principals of the waiting jobs by job ID, without those of the operator.
	WaitingOf(ctx context.Context) (map[string]string, error)
	// Take makes this engine the one that works on a job, and returns the job. It returns false if
	// another engine works on it or nothing is left to do, and job.ErrNoSlot if it must wait because
	// all slots are taken. For an engine that does not share its store, Take only reads the job.
	Take(ctx context.Context, id string) (job.Job, bool, error)
}

// BranchStore stores which commits jobs pushed to which branch.
type BranchStore interface {
	// Branch returns the record of a branch by its key; the zero value if there is none.
	Branch(ctx context.Context, key string) (job.PushedBranch, error)
	KeepBranch(ctx context.Context, key string, b job.PushedBranch) error
}

// WebhookStore stores the messages to be delivered, which changes of jobs add.
type WebhookStore interface {
	// Webhooks returns the messages that are due first.
	Webhooks(ctx context.Context, limit int) ([]job.Webhook, error)
	// TakeWebhook records that an attempt to deliver a message begins, and when the next one is
	// due. It reports whether nobody else has taken the message meanwhile.
	TakeWebhook(ctx context.Context, w job.Webhook, next time.Time) (bool, error)
	// DropWebhook removes a message that was delivered or given up.
	DropWebhook(ctx context.Context, id string) error
}
