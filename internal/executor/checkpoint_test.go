package executor_test

import (
	"context"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// checkpoint makes a checkpoint of the default shape.
func (r *rig) checkpoint() job.CheckpointInfo {
	r.t.Helper()
	c, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.wait(c.ID)
	if c, err = r.Checkpoint(context.Background(), c.ID); err != nil || c.Status != job.CheckpointReady {
		r.t.Fatalf("checkpoint %+v, %v", c, err)
	}
	return c
}

func starts(mode job.StartMode) func(*job.Manifest) { return func(m *job.Manifest) { m.Start = mode } }

func TestCheckpoint_AJobGoesOnFromIt(t *testing.T) {
	r := newRig(t, 2)
	c := r.checkpoint()
	for mode, want := range map[job.StartMode]vm.Source{"": vm.Restored, job.StartRestore: vm.Restored, job.StartCold: vm.Cold} {
		j := r.wait(r.submit(starts(mode)))
		from := map[vm.Source]string{vm.Restored: c.ID}[want]
		if j.Status != job.Success || j.VM.Source != want || j.VM.From != from || j.VM.State != vm.Destroyed {
			t.Errorf("start %q: %s, VM %+v; want it %s", mode, j.Status, j.VM, want)
		}
	}
	if _, err := r.RemoveCheckpoint(context.Background(), c.ID); err != nil {
		t.Fatal(err)
	}
	r.gone()
	j := r.wait(r.submit(starts(job.StartRestore)))
	if j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "no checkpoint of template") {
		t.Errorf("where there is none: %+v", j.Outcome)
	}
	if j = r.wait(r.submit()); j.Status != job.Success || j.VM.Source != vm.Cold {
		t.Errorf("one that may boot: %+v", j.VM)
	}
	r.noLeaks()
}

// An engine that is killed while a VM is restored goes on with it, and boots it if that fails.
func TestCheckpoint_AJobIsGoneOnWith(t *testing.T) {
	for name, fails := range map[string]bool{"it is restored": false, "it boots": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			r.checkpoint()
			hold := make(chan struct{})
			r.fake.Set(providertest.Behaviour{Hold: hold})
			id := r.submit()
			r.until(id, func(j job.Job) bool { return j.VM != nil && j.VM.ID != 0 })
			r.stop()
			r.fake.Set(providertest.Behaviour{Unfit: fails})
			close(hold)
			r.restart()
			j := r.wait(id)
			want := vm.Restored
			if fails {
				want = vm.Cold
			}
			if j.Status != job.Success || j.VM.Source != want {
				t.Errorf("%s, %+v: %+v", j.Status, j.Outcome, j.VM)
			}
		})
	}
}
