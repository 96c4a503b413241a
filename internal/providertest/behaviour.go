package providertest

import (
	"context"
	"time"

	"linus/internal/job"
)

// Behaviour is what a Fake does. The zero value makes VMs at once, and tasks
// that print nothing and succeed at once.
type Behaviour struct {
	StepDelay time.Duration // of each step of Create
	FailStep  string        // Create fails at this step, e.g. "start_vm", after undoing its work
	Fail      error         // with this; nil: a *job.HostError of class HostVM
	Warning   string        // told while Create works

	// Errors the calls answer, in order; nil in between lets a call through.
	// A list used up lets all through.
	Destroys, Lists, Pushes, Starts, Probes, Reads, Stops, Powers, Inputs, Statuses []error

	// Ways are what Callbacks finds, in order; a list used up: direct.
	Ways []job.CallbackWay

	// Reach is what a started VM's guest says of how it is reached. Nil: the truth.
	Reach func(job.VM) job.VM

	// Task says what a job's task does. Nil: succeed in silence.
	Task func(job.Payload) Task
	// OnStart is told of each task as it starts, from a goroutine of Start.
	OnStart func(job.Job, job.Payload)
	// LateID: Create fails at the end without ever telling the VM's ID, and
	// leaves the VM, as after a lost connection.
	LateID bool
}

// Task is what a task does in a fake VM.
type Task struct {
	Stdout, Stderr []byte
	ExitCode       int
	Text           string          // what the runner says of its end
	Until          <-chan struct{} // it runs until this is closed; nil: no longer than For
	For            time.Duration   // how long it runs without Until
	Ahead          time.Duration   // by so much longer the VM's clock says it has run

	DiskFull  bool              // its VM's disk is full meanwhile
	Echo      bool              // what comes on its open stdin it prints; the end of stdin ends it
	Artifacts map[string][]byte // files it leaves, by relative path
	LeftOut   []job.SkippedArtifact
}

// Set changes the behaviour, for calls that begin from now on.
func (f *Fake) Set(b Behaviour) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.behaviour = b
}

// next takes the next error of a list in Behaviour.
func next(list *[]error) error {
	if len(*list) == 0 {
		return nil
	}
	err := (*list)[0]
	*list = (*list)[1:]
	return err
}

// pause waits, and returns an error when ctx ends first or has ended.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return context.Cause(ctx)
	}
}
