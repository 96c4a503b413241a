package e2b

import (
	"context"
	"net/http"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// endAt has a sandbox end after so many seconds from now, of which there is one at least.
func (s *server) endAt(ctx context.Context, v vm.VM, seconds int) (vm.VM, error) {
	if err := checkTime("timeout", seconds); err != nil {
		return v, err
	}
	at := time.Now().UTC().Add(time.Duration(max(seconds, 1)) * time.Second)
	if err := s.until(ctx, v, at); err != nil {
		return v, err
	}
	return s.Sandboxes.Sandbox(ctx, v.Job)
}

// until has a sandbox end at a time; zero: never.
func (s *server) until(ctx context.Context, v vm.VM, at time.Time) error {
	p, _ := job.PrincipalFrom(ctx)
	if err := p.Refusal(job.VerbSetVM); err != nil {
		return err
	}
	return s.Sandboxes.EndSandbox(ctx, v.Job, at)
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
	if v.Off != "" {
		if _, err := s.Engine.StartVM(ctx, v.Job); err != nil {
			return v, err
		}
	}
	s.ways.drop(idOf(v.Job))
	conn, err := s.Sandboxes.DialSandbox(ctx, v.Job) // it is resumed if it was suspended as it was idle
	if err != nil {
		return v, err
	}
	if err := conn.Close(); err != nil {
		return v, err
	}
	return s.endAt(ctx, v, seconds)
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
	if err := s.until(r.Context(), v, time.Time{}); err != nil { // it stays until somebody resumes or ends it
		return err
	}
	still := s.Engine.SuspendVM
	if in.Memory != nil && !*in.Memory {
		still = s.Engine.StopVM
	}
	if _, err := still(r.Context(), v.Job); err != nil {
		return err
	}
	s.ways.drop(idOf(v.Job))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// leastTime is what a sandbox gets that is resumed, in seconds, until it runs.
const leastTime = 120
