package executor_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
)

// deafVM is a guest that does not answer, and is waited for.
type deafVM struct{ executor.Guest }

func (deafVM) Push(ctx context.Context, _ job.Job, _ executor.Payload) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

func TestJoin_VMThatDoesNotRunIsToldByTheHostAtOnce(t *testing.T) {
	for name, undo := range map[string]func(*rig, job.VM){
		"gone":    func(r *rig, vm job.VM) { r.fake.Vanish(vm.ID) },
		"stopped": func(r *rig, vm job.VM) { _ = r.fake.StopVM(context.Background(), vm) },
	} {
		for _, answer := range []string{"refused", "none"} {
			t.Run(name+", answer "+answer, func(t *testing.T) {
				r := newRig(t, 1)
				vm := *r.makeVM("dev").VM
				if answer == "none" {
					r.stop()
					r.opts.Guest = deafVM{r.fake}
					r.restart()
				}
				undo(r, vm)
				began := time.Now()
				j := r.wait(r.submit(sharing("dev")))
				if j.Outcome.Reason != job.ReasonStartFailed || !strings.Contains(j.Outcome.Error, `vm: "dev" (VM `) || !strings.Contains(j.Outcome.Error, name) {
					t.Errorf("outcome %+v", j.Outcome)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("told after %s", took)
				}
			})
		}
	}
}
