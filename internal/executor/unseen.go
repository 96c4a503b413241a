package executor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// sshTime is how long SSH may take to show a task before the host is asked about its VM.
const sshTime = 3 * time.Second

// lookTime bounds the host's answer about a VM whose task SSH does not show.
const lookTime = time.Minute

// errProbeSuperseded ends a check whose answer is no longer needed.
var errProbeSuperseded = errors.New("the check is over")

// probeTask asks for a task's state over SSH. If that takes long, or the last check was not answered,
// it also asks the host about the VM and, if the VM runs, its guest through the hypervisor: an engine
// may end before SSH gives up. seen is what the host reports if SSH did not show the task.
func (e *Executor) probeTask(ctx context.Context, j job.Job, clock *contactClock) (state job.RunState, seen job.Seen, err error) {
	looking, end := context.WithCancelCause(ctx)
	defer end(nil)
	patient, hurry := context.WithTimeout(ctx, sshTime)
	defer hurry()
	if clock.probeStarted(func() { end(errProbeSuperseded) }) {
		hurry()
	}
	lookedUp := make(chan struct{})
	go func() {
		defer close(lookedUp)
		select {
		case <-looking.Done():
			return
		case <-patient.Done():
		}
		if seen = e.lookUpOnHost(looking, j); sshIsHopeless(j, seen) {
			end(errProbeSuperseded)
		}
	}()
	state, err = e.o.Runner.Probe(looking, j)
	switch {
	case err == nil:
		clock.seen(ctx)
		end(nil)
		<-lookedUp
		return state, job.Seen{}, nil
	case context.Cause(looking) != nil:
		<-lookedUp
		return state, seen, errProbeSuperseded
	}
	hurry() // SSH has failed
	<-lookedUp
	return state, seen, err
}

// sshIsHopeless reports whether a VM's state shows that SSH cannot succeed. A VM that restarted at
// the same address will respond again, and knows its task's outcome.
func sshIsHopeless(j job.Job, seen job.Seen) bool {
	return seen.Status.Down() || elsewhere(j, seen)
}

func elsewhere(j job.Job, seen job.Seen) bool {
	return seen.IP != "" && !vm.SameAddress(seen.IP, j.VM.IP)
}

func restarted(j job.Job, seen job.Seen) bool {
	return seen.BootID != "" && j.BootID != "" && seen.BootID != j.BootID
}

// lookUpOnHost asks the host about a VM whose task SSH does not show. The status vm.Unknown proves nothing.
func (e *Executor) lookUpOnHost(ctx context.Context, j job.Job) job.Seen {
	timed, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	seen, err := e.o.Provider.Look(timed, *j.VM)
	if err != nil {
		e.o.Log.Debug("the host does not report the VM's status", "job_id", j.ID, "vm_id", j.VM.ID, "err", err)
		return job.Seen{Status: vm.Unknown}
	}
	if seen.Node != "" && seen.Node != j.VM.Node {
		e.relocate(ctx, j, seen.Node)
	}
	return seen
}

// whileUnseen handles a task that SSH does not show because of err. It follows a VM to a new address
// (moved). If the VM is down, has restarted, or was silent for too long, it returns the job's outcome.
func (e *Executor) whileUnseen(ctx context.Context, j job.Job, clock *contactClock, seen job.Seen, err error) (outcome *job.Outcome, moved bool) {
	lost := func(text string) *job.Outcome {
		o := lostOutcome(text + unconfirmed(j))
		return &o
	}
	if seen.Status.Down() {
		return lost((&downError{seen.Status}).Error()), false
	}
	if elsewhere(j, seen) {
		moved = e.move(ctx, j, seen.IP)
	}
	unheard, unseen := clock.lasts()
	switch {
	case !moved && restarted(j, seen) && j.Reported == "": // a task with a reported end may have ended before the restart, and its VM knows
		return lost("the VM restarted while the task ran"), false
	case unheard > e.o.HeartbeatThreshold:
		text := fmt.Sprintf("no heartbeat and no answer over SSH for %s", e.o.HeartbeatThreshold)
		if !errors.Is(err, errProbeSuperseded) {
			text += ": " + err.Error()
		}
		return lost(text), false
	case unseen > overdue(j)+e.o.HeartbeatThreshold: // callbacks still arrive, and might forever
		o := taskOutcome(j.Manifest, job.RunState{Reason: "timeout", Duration: unseen}, "")
		return &o, false
	}
	return nil, moved
}

// move records ip as the address of a running job's VM, whose host key stays pinned. It reports
// whether it could: another VM may have the address.
func (e *Executor) move(ctx context.Context, j job.Job, ip string) bool {
	v := *j.VM
	v.IP = ip
	event := job.Event{
		Kind: job.EventProgress, Phase: job.PhaseRun,
		Text: fmt.Sprintf("VM %d is now at %s, according to its guest, and no longer at %s", v.ID, ip, j.VM.IP),
	}
	err := e.o.Fleet.Identify(ctx, v)
	if err == nil {
		_, err = e.update(ctx, j.ID, recordEvents(event))
	}
	if err != nil {
		e.o.Log.Warn("the VM's new address was not accepted", "job_id", j.ID, "vm_id", v.ID, "address", ip, "err", err)
		return false
	}
	e.o.Log.Info("the VM has another address", "job_id", j.ID, "vm_id", v.ID, "address", ip, "before", j.VM.IP)
	e.o.Runner.Forget(j)
	return true
}

// relocate records that the job's VM is on another node, with events in the rows of the job and of
// the job that made the VM.
func (e *Executor) relocate(ctx context.Context, j job.Job, node string) {
	e.o.Log.Info("the VM is on another node", "job_id", j.ID, "vm_id", j.VM.ID, "node", node, "before", j.VM.Node)
	told, err := e.o.Fleet.Moved(ctx, j.VM.Job, node)
	if err == nil && j.VM.Job != j.ID && len(told) > 0 {
		_, err = e.update(ctx, j.ID, recordEvents(told...))
	}
	if err != nil && ctx.Err() == nil {
		e.o.Log.Warn("record of a VM's node failed", "job_id", j.ID, "err", err)
	}
}
