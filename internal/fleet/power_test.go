package fleet_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
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

// Whoever logs in to a VM is told of, as nothing on the host changes by it.
func TestLogin_IsToldOf(t *testing.T) {
	bubble(t, func(r *rig) {
		var told []string
		r.opts.Changes = &job.Changes{}
		r.opts.Changes.Read(func(h job.Happening) {
			if e, ok := h.(job.Entered); ok {
				told = append(told, e.By.Principal+" "+e.VM.Name+" "+e.How)
			}
		})
		r.start()
		r.stays("dev1")
		tunnel, err := r.LoginVM(job.WithPrincipal(context.Background(), job.Principal{Name: "ann", Role: job.RoleAdmin}), "dev1", "a key")
		if err != nil {
			t.Fatal(err)
		}
		if err := tunnel.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if want := []string{"ann dev1 login by SSH"}; !slices.Equal(told, want) {
			t.Errorf("told of %q", told)
		}
	})
}
