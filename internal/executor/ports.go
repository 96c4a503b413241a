// Package executor runs the life of a job: submit, acquire a VM, push, start, run, collect,
// release (phases.go). It declares what it needs of VMs (Fleet), of the tasks in them
// (Runner) and of storage (Stores), and knows no implementation of them. internal/capture captures what a job writes.
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

// Runner runs one job's task in a VM, through the job runner there: j.ID is the job,
// *j.VM the VM, which may be another job's. Jobs in one VM do not affect each other.
// Every method may be repeated.
type Runner interface {
	capture.Runner

	// Warm prepares the VM for Push, which is faster then: it connects, and puts the
	// job runner there. What the job that created the VM has warmed serves the first job
	// that is pushed there. Forget closes the job's connections.
	Warm(ctx context.Context, j job.Job) error
	Forget(j job.Job)
	// Proxy carries connections to a port of the VM's loopback to what dial returns. It
	// calls opened when it does, and returns when the VM is lost, or ctx ends.
	Proxy(ctx context.Context, j job.Job, port int, dial func(context.Context) (net.Conn, error), opened func()) error

	// Trust adds a CA (PEM) to those that the job's task finds in its environment.
	Trust(ctx context.Context, j job.Job, ca []byte) error
	// Connect connects to a name and port as a program in the VM does.
	Connect(ctx context.Context, j job.Job, address string) (net.Conn, error)

	// Push uploads the job runner, the task, its files and settings.
	Push(ctx context.Context, j job.Job, p job.Payload) error
	// Start starts the task detached and returns when it runs (or has run), with the
	// ID of the VM's boot at that time; empty if unknown.
	Start(ctx context.Context, j job.Job) (bootID string, err error)
	// Follow calls take with what comes on the channel that Start may have left open: the
	// task's output from its beginning, and its end, as the last piece. It returns when
	// take returns an error, ctx ends, or nothing more comes: with nil after the end, and
	// job.ErrNoChannel if nothing ever does. The other methods and callbacks show the
	// task then. The channel is closed when Follow returns.
	Follow(ctx context.Context, j job.Job, take func(job.Piece) error) error
	// Callbacks finds a way for a started task's callbacks, by trying each from inside
	// the VM: url (empty: not tried), then a tunnel to local, an address this process
	// can dial (empty: no tunnel). A tunnel stays open until Forget or the next call.
	Callbacks(ctx context.Context, j job.Job, url, local string) (job.CallbackWay, error)
	// Probe returns the task's state. It does not wait long for a VM that does not
	// respond.
	Probe(ctx context.Context, j job.Job) (job.RunState, error)
	// Input appends data to the task's open stdin at offset, the number of bytes sent
	// before: what has arrived already is not delivered twice. It returns the number
	// after.
	Input(ctx context.Context, j job.Job, offset int64, data []byte) (int64, error)
	// CloseInput closes the task's stdin after what was sent.
	CloseInput(ctx context.Context, j job.Job) error
	// Resize gives the task's terminal another size.
	Resize(ctx context.Context, j job.Job, rows, columns int) error
	// Stop ends the task's whole process tree: it sends the signal (TERM, KILL, INT,
	// HUP or QUIT), and KILL to what is left 5 s later.
	Stop(ctx context.Context, j job.Job, signal string) error
	// Clean removes the job's files and processes from a persistent VM.
	Clean(ctx context.Context, j job.Job) error
}

// verbs are what the Fleet offers to callers, to be embedded.
type verbs interface {
	job.VMs
	job.Files
	job.Pools
	job.Checkpoints
	job.Volumes
	job.Host
}

// Tokens are the tokens of the API; see package token.
type Tokens interface {
	tokenVerbs

	// Watch ends what is done with tokens that end, until ctx ends; Recheck has it look now.
	Watch(ctx context.Context)
	Recheck()
}

// tokenVerbs are what Tokens offers to callers, to be embedded.
type tokenVerbs interface {
	job.Tokens
	// Authenticate returns the principal of a token, and Holder that of one that was shown
	// before, by its ID; job.ErrUnauthorized.
	Authenticate(ctx context.Context, token string) (job.Principal, error)
	Holder(ctx context.Context, id string) (job.Principal, error)
}

// Credentials are what VMs may use and not read; see package credential.
type Credentials interface {
	credentialVerbs

	// Credential returns one by its name; job.ErrNotFound.
	Credential(ctx context.Context, name string) (job.Credential, error)
	// Watch ends what is done with credentials that are removed, until ctx ends.
	Watch(ctx context.Context)
}

// HostTests are the tests of the host; see package hosttest.
type HostTests interface {
	hostTestVerbs

	// Tend removes what engines have left in the middle of a test, until ctx ends.
	Tend(ctx context.Context)
	// Busy reports whether a test runs here, or may have been left by an engine.
	Busy() bool
}

// hostTestVerbs are what HostTests offers to callers, to be embedded.
type hostTestVerbs interface{ job.HostTests }

// Schedules submit jobs at given times; see package schedule.
type Schedules interface {
	scheduleVerbs

	// Tend submits jobs whose time has come, until ctx ends, if this engine leads.
	Tend(ctx context.Context)
	// Busy reports whether there are some for which an engine has to be there.
	Busy() bool
}

// scheduleVerbs are what Schedules offer to callers, to be embedded.
type scheduleVerbs interface{ job.Schedules }

// Repositories are the repositories of jobs on the engine's side; see package git.
type Repositories interface {
	// Ready returns why this machine cannot fetch a repository; nil: it can.
	Ready(r job.Repository) error
	// Fetch fetches a job's repository, and checks that its commits can be pushed. Has reports
	// whether that was done here, and Archive is then what goes into the VM.
	Fetch(ctx context.Context, q job.RepositoryCall) (job.Checkout, error)
	Has(id string) bool
	Archive(id string) (job.Archive, int64, error)
	// Take checks a bundle of what the task has committed, says in c what it is, and returns its
	// patch; nil if that cannot be made, or would have more than so many bytes. It is a
	// job.MalformedBundle if the bundle itself is why it is not taken.
	Take(ctx context.Context, q job.RepositoryCall, c *job.Checkout, bundle io.Reader, most int64) (patch io.ReadCloser, err error)
	// Push pushes a commit that was taken. It can be repeated.
	Push(ctx context.Context, q job.RepositoryCall, head string) error
	// Forget removes a job's repository.
	Forget(id string)
}

// credentialVerbs are what Credentials offers to callers, to be embedded.
type credentialVerbs interface{ job.Credentials }

// Fleet is the life of VMs; see package fleet. What it does to the VM of a job it records in the
// job's row itself, in one commit with the VM's.
type Fleet interface {
	verbs
	holding
	reach
	entry
	upkeep
}

// holding is how a job gets a VM, and gives it back.
type holding interface {
	// Acquire gets a job a VM, and returns the job as it is then; what was begun before is gone
	// on with. One that a pool's VM has failed gets a new one.
	Acquire(ctx context.Context, j job.Job) (job.Job, error)
	// GiveBack takes a pool's VM that has failed it from a job whose task has not begun, when
	// the change is stored; nil: it does not.
	GiveBack(ctx context.Context, j job.Job, cause error) (change, error)
	// PutBack unmounts the volumes of a job whose VM goes, and takes them off. What fails is told,
	// and done again before the VM is destroyed.
	PutBack(ctx context.Context, j job.Job) (told []job.Event)
	// Release ends a job's hold on its VM, which is kept or destroyed: the change says so of the
	// job, or why not yet, with the error. gone: the VM is no more. Call Freed when that is stored.
	Release(ctx context.Context, j job.Job) (_ change, gone bool, err error)
	Freed(ctx context.Context, id string)
}

// reach is what is known of where a VM is, and whether it can be reached.
type reach interface {
	// WhileUp calls work, which connects to a VM, and returns early with what notUp makes
	// of the VM's status, if that is an error.
	WhileUp(ctx context.Context, v vm.VM, notUp func(vm.VM, vm.Status) error, work func(context.Context) error) error
	// Identify records the address, user, host key and node that a VM shows, unless another
	// VM of ours has them; Moved the node, and returns what it has told; none: it was known.
	Identify(ctx context.Context, v vm.VM) error
	Moved(ctx context.Context, id, node string) ([]job.Event, error)
	// Tell records events of a VM, if there is one.
	Tell(ctx context.Context, id string, events []job.Event) error
	// Spread reports whether VMs are spread over nodes.
	Spread() bool
}

// entry is who may have which VM.
type entry interface {
	// Known returns a job as it is stored or, for the ID in the marker of a VM that no job has
	// made, what stands for one; job.ErrNotFound.
	Known(ctx context.Context, id string) (job.Job, error)
	// Limited reports whether what clients may have is limited. Admit returns an error if the
	// client may not have one more job, of this manifest, beside others that are to be stored with
	// it, or there is no space for one.
	Limited() bool
	Admit(ctx context.Context, s job.Submission, m job.Manifest, beside ...job.Job) error
	// Decide waits for the right to decide who may have what, which end releases. Enter
	// returns the VM that a job is to share, if it accepts one more; the caller decides.
	Decide(ctx context.Context) (end func(), err error)
	Enter(ctx context.Context, ref string) (vm.VM, error)
	// Runs returns an error if a VM is known to be stopped or suspended, as somebody has asked.
	Runs(ctx context.Context, ref string) error
	// Find returns a VM of ours by its name or ID, if the caller may see it; Destroy is DestroyVM
	// for it, when no job makes it.
	Find(ctx context.Context, ref string) (vm.VM, error)
	Destroy(ctx context.Context, v vm.VM) (job.VMInfo, error)
	// Fits returns an error if no node can ever take the VM of a manifest. Plan returns what
	// making it would do, and PlanVM what CreateVM would.
	Fits(ctx context.Context, m job.Manifest) error
	Plan(ctx context.Context, m job.Manifest, owner string) ([]string, error)
	PlanVM(ctx context.Context, s job.Submission) ([]string, error)
	// CancelVM ends the making of a VM that somebody has asked for; job.ErrCompleted: it is
	// made, or a pool's.
	CancelVM(ctx context.Context, id string) error
}

// upkeep is the work on VMs that no job waits for.
type upkeep interface {
	// Begin has work on VMs that callers ask for go on until ctx ends; Spawn is such work, which
	// outlives its caller.
	Begin(ctx context.Context)
	Spawn(work func(running context.Context)) error
	// Tend does what is to be done for VMs without a job, until ctx ends. Busy reports whether
	// there is any of that, Working whether a VM is being worked on here.
	Tend(ctx context.Context)
	Busy() bool
	Working() bool
	// Expect says what this engine's jobs may ask for.
	Expect(d job.Demand)
	// DestroySoon has VMs destroyed of which was just recorded that nobody wants them;
	// TendSoon has the pools tended, and LoadPools read again first.
	DestroySoon()
	TendSoon()
	LoadPools(ctx context.Context) error
}

// Stores are what an Executor stores, by who uses it; StoresOf fills them from a database.
// Everything acknowledged survives kill -9.
type Stores struct {
	Branches BranchStore
	Jobs     JobStore
	Queue    QueueStore
	Outbox   WebhookStore
	Captured capture.Store
	// Dispatchers are those who serve queues.
	Dispatchers DispatcherStore
}

// DispatcherStore stores how dispatchers are.
type DispatcherStore interface {
	// Dispatchers returns those that were heard of within a day or are drained, by queue and name.
	Dispatchers(ctx context.Context) ([]job.Dispatcher, error)
	// ReportDispatcher writes how one is, and reports whether it is to take no more work.
	ReportDispatcher(ctx context.Context, d job.Dispatcher) (drain bool, err error)
	// DrainDispatcher notes whether a principal's dispatchers of a name are to take no more work, those
	// of all principals if it is nil, and returns how many there are.
	DrainDispatcher(ctx context.Context, principal *string, name string, drain bool) (int64, error)
	// TellDispatchers records the messages about each one whose status is another than it was told of
	// last; was is empty where nothing was.
	TellDispatchers(ctx context.Context, messages func(was string, d job.Dispatcher) []job.Webhook) error
}

// StoresOf returns the Stores that are all in s.
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
	// Insert adds a new job with its whole manifest, file contents included, and with its
	// children, whose files are its own: all or none. For a
	// non-empty key that was used before it returns the first job and false. In its
	// transaction is counted what the job's principal has; a *job.FieldError if it would
	// be more than the limits allow.
	Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (job.Job, bool, error)
	// Children returns the jobs that a parent has made, and those that run lost ones again.
	Children(ctx context.Context, parent string) ([]job.Job, error)
	// Submitted returns the job that was submitted with an idempotency key;
	// job.ErrNotFound if there is none, as for the empty key.
	Submitted(ctx context.Context, key string) (job.Job, error)
	// Update changes one job in a transaction: change gets the stored job, edits it and
	// returns what to record with it. An error from change is returned unwrapped, and
	// nothing is written. The manifest is never written. change may be called again,
	// with the job as it is then: what its last call did counts. An open stream's counts
	// are not in it, nor in what Update returns.
	Update(ctx context.Context, id string, change func(*job.Job) (job.Record, error)) (job.Job, error)
	// UpdateSoon is Update for what need not be durable at once: it is written with the
	// next change of any job, or soon. wait waits until it is, and returns what Update
	// does.
	UpdateSoon(id string, change func(*job.Job) (job.Record, error)) (wait func() (job.Job, error))
	// List returns a page of jobs, newest first.
	List(ctx context.Context, f job.Filter) (job.Page, error)
	// Usage returns what jobs and VMs have used, those that were removed included, by group, as of a time.
	Usage(ctx context.Context, q job.UsageQuery, at time.Time) (map[string]*job.Used, error)
	// InProgress returns every job that is not Done and does not wait for a slot, oldest
	// first.
	InProgress(ctx context.Context) ([]job.Job, error)
	// Events returns the job's events with Seq > after, in order.
	Events(ctx context.Context, id string, after int64) ([]job.Event, error)
	// VM returns a VM by the ID in its marker, in any state, and VMEvents what happened to one
	// that no job has made; job.ErrNotFound.
	VM(ctx context.Context, id string) (vm.VM, error)
	VMEvents(ctx context.Context, id string) ([]job.Event, error)
	// TokenHash returns the hex sha256 of the job's callback token; a job that has ended
	// has none.
	TokenHash(ctx context.Context, id string) (string, error)
	// Forget removes the jobs that ended before the given time and whose VM is
	// gone, with their files, and returns how many.
	Forget(ctx context.Context, before time.Time) (int, error)
	// ForgetJob removes one that it may remove, whenever that ended, and reports whether it did.
	ForgetJob(ctx context.Context, id string) (bool, error)
}

// QueueStore says which jobs wait, and gives each to one engine.
type QueueStore interface {
	// Waiting returns the IDs of the jobs that wait for a slot, oldest first: they are
	// pending and undecided, and do not share a VM.
	Waiting(ctx context.Context) ([]string, error)
	// WaitingOf returns whose they are, by ID, without the operator's.
	WaitingOf(ctx context.Context) (map[string]string, error)
	// Take makes this engine the one that works on a job, and returns the job; false:
	// another engine works on it, or nothing is left to do. job.ErrNoSlot: it waits, as
	// many jobs have a slot as may. For an engine that shares its store with none it only
	// reads the job.
	Take(ctx context.Context, id string) (job.Job, bool, error)
}

// BranchStore stores what jobs have pushed.
type BranchStore interface {
	// Branch returns what is recorded of a branch, by its key; the zero value if nothing is.
	Branch(ctx context.Context, key string) (job.PushedBranch, error)
	KeepBranch(ctx context.Context, key string, b job.PushedBranch) error
}

// WebhookStore stores the messages that are to be delivered: changes of jobs put them there.
type WebhookStore interface {
	// Webhooks returns the messages that are due first.
	Webhooks(ctx context.Context, limit int) ([]job.Webhook, error)
	// TakeWebhook records that an attempt to deliver a message begins, and when the next
	// is due, and reports whether nobody else has taken it meanwhile.
	TakeWebhook(ctx context.Context, w job.Webhook, next time.Time) (bool, error)
	// DropWebhook removes a message that was delivered or given up.
	DropWebhook(ctx context.Context, id string) error
}
