package providertest

import (
	"context"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// Behaviour is what a Fake does. With the zero value VMs are created at once, and tasks
// print nothing and succeed at once.
type Behaviour struct {
	StepDelay time.Duration // duration of each step of Create
	FailStep  string        // Create fails at this step, such as "start_vm", after undoing its work
	Fail      error         // the error; nil: a *job.HostError of class HostVM
	Warning   string        // reported during Create
	// Hold makes Create wait, once the VM exists and its ID is reported, until it is
	// closed or Create is cancelled. Nil: it does not wait.
	Hold <-chan struct{}

	// Errors that calls return, in order; for a nil entry, and after the last one,
	// calls succeed.
	Destroys, Lists, Pushes, Starts, Probes, Reads, Stops, Powers, Inputs, Statuses, Pings, Renames, Volumes []error

	// Room is what the host has left. The zero value has room for everything, and
	// FakeTemplate as its first generation; Rooms are the errors of reading it.
	Room  job.HostRoom
	Rooms []error

	// Has is what FakeTemplate says was installed in it; nil: it does not.
	Has []string

	// Ways are what Callbacks finds, in order; after the last one: direct.
	Ways []job.CallbackWay

	Unfit bool // no checkpoint can be used any more

	ForkFromDisk bool // no VM can be copied with its memory

	LoggedIn bool // somebody is in VMs whom no engine knows

	// Reach is the address and host key that a started VM's guest reports. Nil: the
	// true ones.
	Reach func(vm.VM) vm.VM

	// Task returns what a job's task does. Nil: it succeeds and prints nothing.
	Task func(job.Payload) Task
	// OnStart is called in Start for each task.
	OnStart func(job.Job, job.Payload)
	// LateID: Create fails at the end without ever reporting the VM's ID, and leaves
	// the VM, as after a lost connection.
	LateID bool
}

// Task is what a task does in a fake VM.
type Task struct {
	Stdout, Stderr []byte
	ExitCode       int
	Text           string          // what the runner reports as its end
	Until          <-chan struct{} // it runs until this is closed; nil: for For
	For            time.Duration   // how long it runs without Until
	Ahead          time.Duration   // how much longer it has run by the VM's clock

	DiskFull  bool              // its VM's disk is full while it runs
	Echo      bool              // it prints its open stdin, and ends with it
	Artifacts map[string][]byte // files it leaves, by relative path
	LeftOut   []job.SkippedArtifact
}

// Set changes the behaviour of calls that begin from now on.
func (f *Fake) Set(b Behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behaviour = b
}

// next returns the next error of a list in Behaviour.
func next(list *[]error) error {
	if len(*list) == 0 {
		return nil
	}
	err := (*list)[0]
	*list = (*list)[1:]
	return err
}

// asked is the error of a provider's call that was cancelled, or the next one of a list in
// Behaviour.
func asked(ctx context.Context, op string, errs *[]error) error {
	if ctx.Err() != nil {
		return fault(op, job.HostCancelled, context.Cause(ctx).Error(), "")
	}
	return next(errs)
}

// held waits until hold is closed, where there is one. It returns false when ctx ends first.
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
