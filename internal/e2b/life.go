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
	seconds = max(seconds, 1)
	if _, err := s.Engine.SetVM(ctx, v.Job, job.VMChange{TTL: &seconds}); err != nil {
		return v, err
	}
	return s.Sandboxes.Sandbox(ctx, v.Job)
}

// resumed returns a sandbox that runs, for so many seconds from now at least.
func (s *server) resumed(ctx context.Context, v vm.VM, seconds int) (vm.VM, error) {
	if stateOf(v) == running {
		return s.extend(ctx, v, seconds)
	}
	// First its time: one whose time is over is not to be paused again meanwhile.
	v, err := s.endAt(ctx, v, max(seconds, leastTime))
	if err != nil {
		return v, err
	}
	if err := s.started(ctx, v.Job); err != nil {
		return v, err
	}
	s.ways.drop(vm.SandboxID(v.Job))
	conn, err := s.Sandboxes.DialSandbox(ctx, v.Job) // it is resumed if it was suspended as it was idle
	if err != nil {
		return v, err
	}
	if err := conn.Close(); err != nil {
		return v, err
	}
	return s.endAt(ctx, v, seconds)
}

// started starts a sandbox that is off. One whose time was over may be about to be stopped just now,
// and is started when that is done: so it is started also where it does not seem to be off.
func (s *server) started(ctx context.Context, id string) error {
	again := time.NewTicker(startAgain)
	defer again.Stop()
	for {
		_, err := s.Engine.StartVM(ctx, id)
		if field, ok := errors.AsType[*job.FieldError](err); !ok || field.Fault != job.FaultState {
			return err
		}
		select {
		case <-again.C:
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
	stays := 0 // until somebody resumes or ends it
	if _, err := s.Engine.SetVM(r.Context(), v.Job, job.VMChange{TTL: &stays}); err != nil {
		return err
	}
	still := s.Engine.SuspendVM
	if in.Memory != nil && !*in.Memory {
		still = s.Engine.StopVM
	}
	if _, err := still(r.Context(), v.Job); err != nil {
		if left := time.Until(v.ExpiresAt); !v.ExpiresAt.IsZero() && r.Context().Err() == nil { // it runs, and is to end when it would have
			_, again := s.endAt(r.Context(), v, min(int(left/time.Second), maxTime))
			err = errors.Join(err, again)
		}
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
