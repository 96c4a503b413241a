// Package executor runs the life of a job: submit, provision, run, follow, collect,
// destroy (phases.go). It declares what it needs of VMs (Guest), of the tasks in them
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

// Guest is what a VM of ours offers from inside, over SSH. A job.Job names the VM, *j.VM,
// and whose connections there are meant. Every method may be repeated.
type Guest interface {
	// Warm prepares the VM for Push, which is faster then: it connects, and puts the
	// job runner there. What the job that created the VM has warmed serves the first job
	// that is pushed there.
	Warm(ctx context.Context, j job.Job) error
	// Ping checks that the job's VM responds over SSH, and leaves the connection open.
	Ping(ctx context.Context, j job.Job) error
	// Forget closes the job's connections.
	Forget(j job.Job)

	// Dial connects to a TCP port of a VM's loopback. The connection outlasts ctx. A
	// *job.FieldError if nothing listens there.
	Dial(ctx context.Context, v vm.VM, port int) (job.Tunnel, error)
	// Proxy carries connections to a port of the VM's loopback to what dial returns. It
	// calls opened when it does, and returns when the VM is lost, or ctx ends.
	Proxy(ctx context.Context, j job.Job, port int, dial func(context.Context) (net.Conn, error), opened func()) error
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

// Runner runs one job's task in a VM, through the job runner there: j.ID is the job,
// *j.VM the VM, which may be another job's. Jobs in one VM do not affect each other.
// Every method may be repeated.
type Runner interface {
	capture.Runner

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
	// can dial (empty: no tunnel). A tunnel stays open until Guest.Forget or the next call.
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

// Fleet is the life of VMs; see package fleet. VMs are meant by the ID in their marker,
// which is that of the job that made them.
type Fleet interface {
	// Make makes a VM, and returns it as it is recorded; what was begun before is gone on
	// with. unmade: the host refused before it changed anything.
	Make(ctx context.Context, o job.VMOrder) (v vm.VM, unmade bool, err error)
	// Remove destroys a VM; nil: it is gone. removed: there was one.
	Remove(ctx context.Context, v vm.VM) (removed bool, err error)
	// Settle records what came of destroying a VM: it is gone, or left alone where err is a
	// *job.HostError, which it returns with what can be done.
	Settle(ctx context.Context, id string, err error) error
	// DestroyLeftAlone tries again to destroy a VM that is left alone; Forget leaves it to
	// the operator.
	DestroyLeftAlone(ctx context.Context, id string) error
	Forget(ctx context.Context, id string) error
	// Accept has record called, which records the address and host key that v shows, unless
	// another VM of ours has them.
	Accept(ctx context.Context, id string, v vm.VM, record func(context.Context) error) error
	// Identify records the address, user, host key and node that a VM shows, if Accept would.
	Identify(ctx context.Context, v vm.VM) error
	// Start, Resume and Revert return when the VM accepts logins, with its address recorded.
	Start(ctx context.Context, v vm.VM) error
	Resume(ctx context.Context, v vm.VM) error
	Revert(ctx context.Context, v vm.VM, snapshot string) error
	Stop(ctx context.Context, v vm.VM) error
	Suspend(ctx context.Context, v vm.VM) error
	Snapshot(ctx context.Context, v vm.VM, name string, memory bool) error
	// Moved records the node that a VM is on, and returns what it has told; none: it was known.
	Moved(ctx context.Context, id, node string) ([]job.Event, error)
	// Spread reports whether VMs are spread over nodes, which the methods that follow are for;
	// Fits may be called without, too.
	Spread() bool
	// Beside returns what a node is chosen by, but for the VM itself; Place returns the node
	// for one that is only planned.
	Beside(ctx context.Context) (job.Placement, error)
	Place(ctx context.Context, want job.Placement) (job.Placed, error)
	// Placed returns the VMs of ours that exist or are being made.
	Placed(ctx context.Context) ([]job.PlacedVM, error)
	// Fits returns *job.NoRoomError if it is known that no node can ever take such a VM.
	Fits(ctx context.Context, spec job.VMSpec) error

	// Sweep destroys on the host what is ours and unwanted, and returns how many VMs are
	// there that should not be; -1: the host was not seen whole.
	Sweep(ctx context.Context) (leaked int)
	job.Pools
	// Tend keeps the pools as they are wanted, and destroys what nobody wants any more, until
	// ctx ends. Busy reports whether there is any of that, Working whether a VM is being made
	// or destroyed here for that.
	Tend(ctx context.Context)
	Busy() bool
	Working() bool
	// DestroySoon has VMs destroyed of which was just recorded that nobody wants them.
	DestroySoon()
	// LoadPools reads the pools again, when they have changed.
	LoadPools(ctx context.Context) error
	// TendSoon has the pools tended: there is room, or something to do.
	TendSoon()
	// CheckPools reports what pools cost, and whether they fit.
	CheckPools(ctx context.Context) []job.Check
	// Offering returns the pools whose VMs are what a job asks for, and Pick the index of
	// the one it gets of a pool's idle ones; -1: none.
	Offering(m job.Manifest) []job.Pool
	Pick(p job.Pool, m job.Manifest, idle []vm.VM) int
	// Doom has a pool's VM destroyed, if it is still in that state.
	Doom(ctx context.Context, id string, state vm.MemberState, why string) error

	// Room returns a channel that is closed when there may be more room for VMs; MadeRoom
	// closes it.
	Room() <-chan struct{}
	MadeRoom()
}

// Stores are what an Executor stores, by who uses it; StoresOf fills them from a database.
// Everything acknowledged survives kill -9.
type Stores struct {
	Jobs     JobStore
	Queue    QueueStore
	VMs      VMStore
	Pools    PoolStore
	Tokens   TokenStore
	Cordons  CordonStore
	Outbox   WebhookStore
	Captured capture.Store
}

// StoresOf returns the Stores that are all in s.
func StoresOf(s interface {
	JobStore
	QueueStore
	VMStore
	PoolStore
	TokenStore
	CordonStore
	WebhookStore
	capture.Store
},
) Stores {
	return Stores{Jobs: s, Queue: s, VMs: s, Pools: s, Tokens: s, Cordons: s, Outbox: s, Captured: s}
}

// JobStore stores jobs.
type JobStore interface {
	// Job returns the job without its files' contents; job.ErrNotFound.
	Job(ctx context.Context, id string) (job.Job, error)
	// Manifest returns the whole manifest.
	Manifest(ctx context.Context, id string) (job.Manifest, error)
	// Insert adds a new job with its whole manifest, file contents included. For a
	// non-empty key that was used before it returns the first job and false. In its
	// transaction is counted what the job's principal has; a *job.FieldError if it would
	// be more than the limits allow.
	Insert(ctx context.Context, j job.Job, key string, within job.Limits) (job.Job, bool, error)
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
	// Activity returns what was submitted in the hours until now, of one principal's;
	// empty: all.
	Activity(ctx context.Context, principal string, now time.Time) (job.Activity, error)
	// InProgress returns every job that is not Done and does not wait for a slot, oldest
	// first.
	InProgress(ctx context.Context) ([]job.Job, error)
	// OfClient returns the jobs that are not Done or keep a VM of one of the operator's
	// clients, or of all clients of another principal, which it calls as it likes.
	OfClient(ctx context.Context, owner, client string) ([]job.Job, error)
	// Events returns the job's events with Seq > after, in order.
	Events(ctx context.Context, id string, after int64) ([]job.Event, error)
	// TokenHash returns the hex sha256 of the job's callback token; a job that has ended
	// has none.
	TokenHash(ctx context.Context, id string) (string, error)
	// Forget removes the jobs that ended before the given time and whose VM is
	// gone, with their files, and returns how many.
	Forget(ctx context.Context, before time.Time) (int, error)
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

// VMStore returns VMs.
type VMStore interface {
	// VMs returns the VMs that are intended, created or left alone, oldest first.
	VMs(ctx context.Context) ([]vm.VM, error)
	// VM returns the one with the ID in its marker, in any state; job.ErrNotFound.
	VM(ctx context.Context, id string) (vm.VM, error)
	// VMEvents returns what happened to one that no job has made.
	VMEvents(ctx context.Context, id string) ([]job.Event, error)
}

// PoolStore gives the VMs of pools to jobs.
type PoolStore interface {
	// Claim gives a job a VM of a pool, in one transaction: choose gets the job and
	// the pool's idle VMs, oldest first, edits the job and one VM, and returns
	// that one's index and the job's events; an index of -1 claims none, and counts as
	// a miss. It returns the job as it is then.
	Claim(ctx context.Context, id, pool string, choose func(j *job.Job, idle []vm.VM) (at int, events []job.Event)) (_ job.Job, claimed bool, err error)
}

// TokenStore stores the tokens of the API.
type TokenStore interface {
	// InsertToken adds a token with its hex sha256.
	InsertToken(ctx context.Context, t job.Token, hash string) error
	// Tokens returns all tokens, by name.
	Tokens(ctx context.Context) ([]job.Token, error)
	// Token returns the token with an ID, TokenByHash the one with a hex sha256;
	// job.ErrNotFound.
	Token(ctx context.Context, id string) (job.Token, error)
	TokenByHash(ctx context.Context, hash string) (job.Token, error)
	// DeleteTokens removes the token with an ID, or all tokens of a name, and returns
	// them; job.ErrNotFound.
	DeleteTokens(ctx context.Context, ref string) ([]job.Token, error)
}

// CordonStore stores which nodes are cordoned.
type CordonStore interface {
	// Cordons returns the nodes that get no new VMs, by name.
	Cordons(ctx context.Context) ([]string, error)
	// SetCordon adds a node to those, or removes it.
	SetCordon(ctx context.Context, node string, cordoned bool) error
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
