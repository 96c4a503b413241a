package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
)

// lookTime bounds how long the host is asked for a VM whose task SSH does not show.
const lookTime = time.Minute

// errKnown ends a look that need not be waited for: what is known suffices.
var errKnown = errors.New("the look is over")

// lookFor asks for a task over SSH. Where that takes long, or the last look found
// nothing either, the host is asked for the VM at the same time, and, where the
// VM runs and is not reached, its guest through the hypervisor: engines may live
// shorter than SSH takes to give up. seen is what the host says where SSH did not
// show the task.
func (e *Executor) lookFor(ctx context.Context, j job.Job, quiet *silence) (state job.RunState, seen job.Seen, err error) {
	looking, end := context.WithCancelCause(ctx)
	defer end(nil)
	patient, hurry := context.WithTimeout(ctx, lookAfter)
	defer hurry()
	if quiet.asked(func() { end(errKnown) }) {
		hurry()
	}
	sought := make(chan struct{})
	go func() {
		defer close(sought)
		select {
		case <-looking.Done():
			return
		case <-patient.Done():
		}
		if seen = e.seek(looking, j); tells(j, seen) {
			end(errKnown)
		}
	}()
	state, err = e.o.Guest.Probe(looking, j)
	switch {
	case err == nil:
		quiet.seen(ctx)
		end(nil)
		<-sought
		return state, job.Seen{}, nil
	case context.Cause(looking) != nil:
		<-sought
		return state, seen, errKnown
	}
	hurry() // SSH has said all it will
	<-sought
	return state, seen, err
}

// tells reports whether what is seen of a VM shows that SSH asks in vain. One that
// has restarted where it was responds again, and knows how its task ended.
func tells(j job.Job, seen job.Seen) bool {
	return seen.Status == job.VMGone || seen.Status == job.VMStopped || elsewhere(j, seen)
}

func elsewhere(j job.Job, seen job.Seen) bool { return seen.IP != "" && !sameAddress(seen.IP, j.VM.IP) }

func restarted(j job.Job, seen job.Seen) bool {
	return seen.BootID != "" && j.BootID != "" && seen.BootID != j.BootID
}

// seek asks the host for a VM whose task SSH does not show. Nothing known proves
// nothing.
func (e *Executor) seek(ctx context.Context, j job.Job) job.Seen {
	timed, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	seen, err := e.o.Provider.Look(timed, *j.VM)
	if err != nil {
		e.o.Log.Debug("the host does not say how the VM stands", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		return job.Seen{Status: job.VMUnknown}
	}
	return seen
}

// whileUnseen does what can be done for a task that SSH does not show, because
// of err. A VM that is at another address is followed there. One that is down,
// that has restarted, or that nothing was heard of for too long, ends the job:
// the outcome says so.
func (e *Executor) whileUnseen(ctx context.Context, j job.Job, quiet *silence, seen job.Seen, err error) (outcome *job.Outcome, moved bool) {
	lost := func(text string) *job.Outcome {
		o := lostOutcome(text + unconfirmed(j))
		return &o
	}
	if seen.Status == job.VMGone || seen.Status == job.VMStopped {
		return lost((&downError{seen.Status}).Error()), false
	}
	if elsewhere(j, seen) {
		moved = e.move(ctx, j, seen.IP)
	}
	unheard, unseen := quiet.lasts()
	switch {
	case !moved && restarted(j, seen) && j.Reported == "": // else it may have ended before, and its VM knows
		return lost("the VM restarted while the task ran"), false
	case unheard > e.o.HeartbeatThreshold:
		text := fmt.Sprintf("no heartbeat and no answer over SSH for %s", e.o.HeartbeatThreshold)
		if !errors.Is(err, errKnown) {
			text += ": " + err.Error()
		}
		return lost(text), false
	case unseen > overdue(j)+e.o.HeartbeatThreshold: // callbacks come, and could for ever
		o := taskOutcome(j.Manifest, job.RunState{Reason: "timeout", Duration: unseen}, "")
		return &o, false
	}
	return nil, moved
}

// move takes ip for the address of a running job's VM, whose host key stays
// pinned, and reports whether it could: another of our VMs may have it.
func (e *Executor) move(ctx context.Context, j job.Job, ip string) bool {
	vm := *j.VM
	vm.IP = ip
	event := job.Event{
		Kind: job.EventProgress, Phase: job.PhaseRun,
		Text: fmt.Sprintf("VM %d is at %s now, as its guest says, and not at %s any more", vm.ID, ip, j.VM.IP),
	}
	note := func(j *job.Job) ([]job.Event, error) {
		j.VM.IP = ip
		return []job.Event{event}, nil
	}
	mine := note
	if j.Shares() { // the address is the maker's row's, and a copy is in this one
		mine = telling()
	}
	_, err := e.claim(ctx, vm.Job, vm, mine)
	if err == nil && j.Shares() {
		_, err = e.update(ctx, j.ID, note)
	}
	if err != nil {
		e.o.Log.Warn("the VM is not followed to another address", "job_id", j.ID, "vm_id", vm.ID, "address", ip, "err", err)
		return false
	}
	e.o.Log.Info("the VM has another address", "job_id", j.ID, "vm_id", vm.ID, "address", ip, "before", j.VM.IP)
	e.o.Guest.Forget(j)
	return true
}
