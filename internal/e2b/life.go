package e2b

import (
	"context"
	"errors"
	"net/http"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// pauses reports whether a sandbox is paused, not destroyed, at its end.
func pauses(v vm.VM) bool { return v.AtEnd == vm.EndSuspend }

// endAt sets a sandbox to end in so many seconds, at least one.
func (s *server) endAt(ctx context.Context, v vm.VM, seconds int) (vm.VM, error) {
	if err := checkTime("timeout", seconds); err != nil {
		return v, err
	}
	return s.change(ctx, v, job.VMChange{TTL: new(max(seconds, 1))})
}

func (s *server) change(ctx context.Context, v vm.VM, change job.VMChange) (vm.VM, error) {
	if _, err := s.Engine.SetVM(ctx, v.Job, change); err != nil {
		return v, err
	}
	return s.Sandboxes.Sandbox(ctx, v.Job)
}

// While a sandbox is being paused or resumed, its action at the end is a pause, whatever it was
// before and will be afterwards: an engine that dies meanwhile leaves neither a sandbox that runs
// forever, nor one that is destroyed while it is paused. Of several concurrent requests only the
// one that found another action restores it, because the others found the pause. A transition
// completes even if the client leaves. If an engine dies in a transition (VM.Meanwhile stays set),
// the next completed transition restores the other action.

func onTheWay(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), makingTime)
}

// endOf returns what becomes of a sandbox at its end; nil: a pause, which stays unchanged.
func endOf(v vm.VM) *vm.End {
	if pauses(v) {
		return nil
	}
	return new(vm.EndDestroy)
}

// endAfter is endOf for a transition that has completed.
func endAfter(v vm.VM) *vm.End {
	if v.Meanwhile {
		return new(vm.EndDestroy)
	}
	return endOf(v)
}

// secondsLeft returns how long a sandbox has until its end; 0: it has no end.
func secondsLeft(v vm.VM) int {
	if v.ExpiresAt.IsZero() {
		return 0
	}
	return min(max(int(time.Until(v.ExpiresAt)/time.Second), 1), maxTime)
}

// resumed returns a sandbox that runs for at least so many seconds from now.
func (s *server) resumed(ctx context.Context, v vm.VM, seconds int) (vm.VM, error) {
	if stateOf(v) == running && !v.Meanwhile {
		return s.extend(ctx, v, seconds)
	}
	if err := checkTime("timeout", seconds); err != nil {
		return v, err
	}
	if stateOf(v) == running { // in a transition that perhaps no engine completes
		seconds = max(seconds, secondsLeft(v))
	}
	left := ctx.Done()
	ctx, cancel := onTheWay(ctx)
	defer cancel()
	// Set the TTL first: a sandbox whose time is over must not be paused again meanwhile.
	if _, err := s.change(ctx, v, job.VMChange{TTL: new(max(seconds, leastTime)), AtEnd: new(vm.EndSuspend), Meanwhile: true}); err != nil {
		return v, err
	}
	if err := s.started(ctx, left, v.Job); err != nil {
		if is, other := s.Engine.VM(ctx, v.Job); other == nil && !pauses(v) && (is.Status == vm.Suspended || is.Status == vm.Stopped) { // it stays as it was
			_, other = s.change(ctx, v, job.VMChange{TTL: new(secondsLeft(v)), AtEnd: endOf(v)})
			err = errors.Join(err, other)
		}
		return v, err
	}
	s.ways.drop(vm.SandboxID(v.Job))
	conn, err := s.Sandboxes.DialSandbox(ctx, v.Job) // resumes it if it was suspended because it was idle
	if err == nil {
		err = conn.Close()
	}
	v, other := s.change(ctx, v, job.VMChange{TTL: new(max(seconds, 1)), AtEnd: endAfter(v)})
	return v, errors.Join(err, other)
}

// started starts a sandbox that is off. A sandbox whose time was over may be about to be stopped,
// so started calls StartVM even if the sandbox does not seem to be off, and tries again until the
// stop is done, as long as the client is still there.
func (s *server) started(ctx context.Context, left <-chan struct{}, id string) error {
	again := time.NewTicker(startAgain)
	defer again.Stop()
	for {
		_, err := s.Engine.StartVM(ctx, id)
		if field, ok := errors.AsType[*job.FieldError](err); !ok || field.Fault != job.FaultState {
			return err
		}
		select {
		case <-again.C:
		case <-left:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

// pause pauses a sandbox, with its memory or without.
func (s *server) pause(w http.ResponseWriter, r *http.Request, v vm.VM) error {
	var in struct {
		Memory *bool `json:"memory"`
	}
	if err := decode(r, &in); err != nil {
		return err
	}
	if stateOf(v) == paused {
		return &refusal{http.StatusConflict, "the sandbox is paused already"}
	}
	ctx, cancel := onTheWay(r.Context())
	defer cancel()
	if _, err := s.change(ctx, v, job.VMChange{AtEnd: new(vm.EndSuspend), Meanwhile: true}); err != nil {
		return err
	}
	still := s.Engine.SuspendVM
	if in.Memory != nil && !*in.Memory {
		still = s.Engine.StopVM
	}
	after := job.VMChange{TTL: new(0), AtEnd: endAfter(v)} // it stays until somebody resumes or ends it
	_, err := still(ctx, v.Job)
	if err != nil { // it still runs, and keeps its end
		after = job.VMChange{AtEnd: endOf(v)}
	}
	if ctx.Err() == nil {
		_, other := s.change(ctx, v, after)
		err = errors.Join(err, other)
	}
	if err != nil {
		return err
	}
	s.ways.drop(vm.SandboxID(v.Job))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// startAgain is the time between two attempts to start a sandbox that another operation holds.
const startAgain = 500 * time.Millisecond

// leastWake is the minimum time, in seconds, that a sandbox runs after a request has resumed it.
const leastWake = 300

// leastTime is the minimum TTL, in seconds, of a sandbox while it is being resumed.
const leastTime = 120
