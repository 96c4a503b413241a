package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
)

// Where the state's disk is nearly full no job is accepted, and what runs goes on.
func TestSubmit_LeavesSpaceForWhatRuns(t *testing.T) {
	r := newRig(t, 2)
	var full atomic.Bool
	r.stop()
	r.opts.Spare = func() error {
		if full.Load() {
			return &job.OwnFault{Err: errors.New("the state directory has 3 MiB free")}
		}
		return nil
	}
	r.restart()
	until := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("all of it\n"), Until: until})}, true)
	id := r.submit()
	full.Store(true)
	_, err := r.Submit(t.Context(), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}})
	if !job.IsEngineFault(err) || !strings.Contains(err.Error(), "no job is accepted: the state directory has 3 MiB free") {
		t.Errorf("%v", err)
	}
	if err := r.opts.Fleet.Admit(t.Context(), job.Submission{}, job.DiskAlone(1)); err != nil {
		t.Errorf("a disk of the hosts' alone: %v", err)
	}
	report, err := r.CheckHost(context.Background())
	if err != nil || report.OK || !slices.ContainsFunc(report.Checks, func(c job.Check) bool { return c.Name == "state" && c.Level == "fail" && c.Remedy != "" }) {
		t.Errorf("%+v, %v", report, err)
	}
	close(until)
	if j := r.wait(id); j.Status != job.Success || j.Stdout.Held != 10 {
		t.Errorf("%+v", j)
	}
	full.Store(false)
	r.wait(r.submit())
}
