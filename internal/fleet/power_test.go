package fleet_test

import (
	"context"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// A search asks every node for all of its VMs; a look at one asks for that one.
func TestPower_IsNotFollowedByASearch(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.ask("dev")
		r.pass(time.Minute)
		before := r.host.Stats().Lists
		ctx := context.Background()
		for _, step := range []struct {
			what string
			do   func() (job.VMInfo, error)
			want vm.Status
		}{
			{"suspend", func() (job.VMInfo, error) { return r.SuspendVM(ctx, "dev") }, vm.Suspended},
			{"resume", func() (job.VMInfo, error) { return r.ResumeVM(ctx, "dev") }, vm.Running},
			{"snapshot", func() (job.VMInfo, error) { return r.SnapshotVM(ctx, "dev", "first", false) }, vm.Running},
			{"stop", func() (job.VMInfo, error) { return r.StopVM(ctx, "dev") }, vm.Stopped},
			{"show", func() (job.VMInfo, error) { return r.VM(ctx, "dev") }, vm.Stopped},
		} {
			info, err := step.do()
			if err != nil || info.Status != step.want {
				t.Errorf("%s: %s, %v; want %s", step.what, info.Status, err, step.want)
			}
			if n := r.host.Stats().Lists - before; n != 0 {
				t.Errorf("%s: the host was searched %d times", step.what, n)
			}
		}
	})
}
