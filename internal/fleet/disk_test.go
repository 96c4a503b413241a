package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"linus/internal/job"
	"linus/internal/vm"
)

// A saved template counts as the disk of whoever has saved it, until the host has it no more; a
// save that fails counts no longer.
func TestDisk_OfSavedTemplates(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		v := r.persistent("dev")
		ctx := job.WithClient(context.Background(), "cli")
		counts := func(client string, want ...job.Job) {
			t.Helper()
			r.TendSaved(context.Background())
			has, err := r.DisksOf(context.Background(), "", client)
			if diff := cmp.Diff(want, has, cmpopts.EquateEmpty()); err != nil || diff != "" {
				t.Errorf("%v, %s has (-want +got):\n%s", err, client, diff)
			}
		}
		size := job.Disk(job.KindSaved, job.SizeMB(v.Resources.Disk))
		saved, err := r.SaveVM(ctx, "dev", "setup", false)
		if err != nil {
			t.Fatal(err)
		}
		counts("cli", size)
		counts("another")
		if _, err := r.SaveVM(ctx, "dev", "setup", false); err == nil || !strings.Contains(err.Error(), "is called") {
			t.Errorf("a second of the name: %v", err)
		}
		counts("cli", size)
		r.engine.set(func(e *engine) { e.admits = 1 })
		if _, err := r.SaveVM(ctx, "dev", "more", false); err == nil || !strings.Contains(err.Error(), "no more than 1") {
			t.Errorf("one more than may be: %v", err)
		}
		counts("cli", size)
		r.host.Vanish(saved.VMID)
		counts("cli")
		if _, err := r.SaveVM(ctx, "dev", "taken", true); err != nil {
			t.Errorf("in place, which takes no more: %v", err)
		}
		counts("cli", size)
	})
}

// What is saved of a VM in which a template is built is stored as made by that build; the name of a VM
// makes none.
func TestDisk_OfABuildsTemplate(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.persistent("build-a", func(v *vm.VM) {
			v.Own.Sandbox = &vm.Sandbox{Build: true}
			v.Resources.CPU, v.Resources.Memory = 8, "16G"
		})
		r.persistent("build-b", func(v *vm.VM) { v.Own.Sandbox = &vm.Sandbox{} })
		r.persistent("build-c")
		got := map[string]string{}
		for _, name := range []string{"a", "b", "c"} {
			if _, err := r.SaveVM(context.Background(), "build-"+name, name, false); err != nil {
				t.Fatal(err)
			}
		}
		rows, err := r.store.SavedTemplates(context.Background())
		for _, row := range rows {
			if got[row.Name] = row.Build; row.Build != "" {
				got[row.Name] += fmt.Sprintf(" %d %d", row.CPU, row.MemoryMB)
			}
		}
		if diff := cmp.Diff(map[string]string{"a": "build-a 8 16384", "b": "", "c": ""}, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

// A checkpoint counts as the disk of whoever has asked for it, with its memory; nobody has asked
// for what is made by itself.
func TestDisk_OfCheckpoints(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		c, err := r.CreateCheckpoint(job.WithClient(context.Background(), "cli"), job.CheckpointSpec{})
		if err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		size := job.Disk(job.KindCheckpoint, job.SizeMB(c.Resources.Disk)+job.SizeMB(c.Resources.Memory))
		if has, err := r.DisksOf(context.Background(), "", "cli"); err != nil || !cmp.Equal(has, []job.Job{size}) || r.found(c.ID).Status != job.CheckpointReady {
			t.Errorf("%+v, %v, of %+v", has, err, r.found(c.ID))
		}
		if vms, err := r.AskedBy(context.Background(), "", "cli"); err != nil || len(vms) != 0 {
			t.Errorf("it counts as a VM, too: %+v, %v", vms, err)
		}
		r.engine.set(func(e *engine) { e.admits = 1 })
		if _, err := r.CreateCheckpoint(job.WithClient(context.Background(), "cli"), job.CheckpointSpec{Node: "", Template: "9001"}); err == nil || !strings.Contains(err.Error(), "no more than 1") {
			t.Errorf("one more than may be: %v", err)
		}
	})
}
