package e2b

import (
	"context"
	"errors"
	"net/http"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// pauses reports whether a sandbox is paused at its end, and not destroyed.
func pauses(v vm.VM) bool { return v.AtEnd == vm.EndSuspend }

// endAt has a sandbox end after so many seconds from now, of which there is one at least.
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

// On the way to a pause and back, a pause is what becomes of a sandbox at its end, whatever it was
// before and is after: an engine that dies meanwhile leaves neither one that runs for ever, nor one
// that is destroyed while it is paused. Only who has found another end brings it back: of several on
// the way the others have found the pause. The way is gone to its end though the client leaves; where
// an engine has died on it, the next that is gone to its end brings the other end back.

func onTheWay(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), makingTime)
}

// endOf returns what becomes of a sandbox at its end; nil: a pause, which stays as it is.
func endOf(v vm.VM) *vm.End {
	if pauses(v) {
		return nil
	}
	return new(vm.EndDestroy)
}

// endAfter is endOf once the way is gone to its end.
func endAfter(v vm.VM) *vm.End {
	if v.Meanwhile {
		return new(vm.EndDestroy)
	}
	return endOf(v)
}

// secondsLeft returns how long a sandbox has until its end; 0: it has none.
func secondsLeft(v vm.VM) int {
	if v.ExpiresAt.IsZero() {
		return 0
	}
	return min(max(int(time.Until(v.ExpiresAt)/time.Second), 1), maxTime)
}

// resumed returns a sandbox that runs, for so many seconds from now at least.
func (s *server) resumed(ctx context.Context, v vm.VM, seconds int) (vm.VM, error) {
	if stateOf(v) == running && !v.Meanwhile {
		return s.extend(ctx, v, seconds)
	}
	if err := checkTime("timeout", seconds); err != nil {
		return v, err
	}
	if stateOf(v) == running { // on a way that nobody may be left to go to its end
		seconds = max(seconds, secondsLeft(v))
	}
	left := ctx.Done()
	ctx, cancel := onTheWay(ctx)
	defer cancel()
	// First its time: one whose time is over is not to be paused again meanwhile.
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
	conn, err := s.Sandboxes.DialSandbox(ctx, v.Job) // it is resumed if it was suspended as it was idle
	if err == nil {
		err = conn.Close()
	}
	v, other := s.change(ctx, v, job.VMChange{TTL: new(max(seconds, 1)), AtEnd: endAfter(v)})
	return v, errors.Join(err, other)
}

// started starts a sandbox that is off. One whose time was over may be about to be stopped just now,
// and is started when that is done, if its client is still there: so it is started also where it does
// not seem to be off.
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

// pause has a sandbox stand still, with what runs in it or without.
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
	if err != nil { // it runs, and is to end when it would have
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

// startAgain is between two attempts to start a sandbox on which others work.
const startAgain = 500 * time.Millisecond

// leastWake is how long one runs at least that was resumed by a request to it, in seconds.
const leastWake = 300

// leastTime is what a sandbox gets that is resumed, in seconds, until it runs.
const leastTime = 120
