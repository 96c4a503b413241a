package providertest

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Behaviour controls what a Fake does. With the zero value, VMs are created at once, and tasks
// print nothing and succeed at once.
type Behaviour struct {
	StepDelay time.Duration // duration of each step of Create
	FailStep  string        // Create fails at this step, such as "start_vm", after undoing its work
	Fail      error         // the error; nil: a *job.HostError of class HostVM
	Warning   string        // reported during Create
	// Hold makes Create wait, once the VM exists and its ID is reported, until Hold is closed or
	// Create is cancelled. Nil: Create does not wait.
	Hold <-chan struct{}

	// Errors that calls return, in order. For a nil entry, and after the last one, calls succeed.
	Destroys, Lists, Pushes, Starts, Probes, Reads, Stops, Powers, Inputs, Statuses, Pings, Renames, Volumes []error

	// Room is what the host has left. The zero value has room for everything, and FakeGeneration as
	// FakeTemplate's generation. Rooms are the errors of reading it.
	Room  job.HostRoom
	Rooms []error

	// Has is what FakeTemplate lists as installed; nil: it lists nothing.
	Has []string

	// Ways are what Callbacks finds, in order; after the last one: direct.
	Ways []job.CallbackWay

	Unfit bool // no checkpoint is usable any more

	ForkFromDisk bool // no VM can be copied with its memory

	LoggedIn bool // somebody that no engine knows of is logged in to VMs

	// Reach returns the address and host key that a started VM's guest reports. Nil: the true ones.
	Reach func(vm.VM) vm.VM

	// Task returns what a job's task does. Nil: it succeeds and prints nothing.
	Task func(job.Payload) Task
	// OnStart is called in Start for each task.
	OnStart func(job.Job, job.Payload)
	// LateID makes Create fail at the end without reporting the VM's ID, and leave the VM, as
	// after a lost connection.
	LateID bool
}

// Task describes what a task does in a fake VM.
type Task struct {
	Stdout, Stderr []byte
	ExitCode       int
	Text           string          // what the runner reports when the task ends
	Until          <-chan struct{} // the task runs until this is closed; nil: for the duration For
	For            time.Duration   // how long it runs without Until
	Ahead          time.Duration   // how much longer it has run by the VM's clock

	DiskFull  bool              // the VM's disk is full while the task runs
	Echo      bool              // it prints its open stdin, and ends when stdin does
	Artifacts map[string][]byte // files it leaves, by relative path
	LeftOut   []job.SkippedArtifact
}

// Set changes the behaviour of calls that start from now on.
func (f *Fake) Set(b Behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behaviour = b
}

// next removes and returns the next error of a list in Behaviour.
func next(list *[]error) error {
	if len(*list) == 0 {
		return nil
	}
	err := (*list)[0]
	*list = (*list)[1:]
	return err
}

// asked returns the error of a cancelled call, or else the next one of a list in Behaviour.
func asked(ctx context.Context, op string, errs *[]error) error {
	if ctx.Err() != nil {
		return fault(op, job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	return next(errs)
}

// held waits until hold, if not nil, is closed. It returns false if ctx ends first.
func held(ctx context.Context, hold <-chan struct{}) bool {
	if hold == nil {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-hold:
		return true
	}
}
