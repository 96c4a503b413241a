package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// The lock that keeps other engines from a VM's life is held for as long as it is made or
// destroyed, and no longer.
func TestTend_HoldsTheLifeThatItWorksOn(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		p := newPeers(r, s)
		r.opts.Engines = p
		r.start()
		id, seen := "", 0
		for _, call := range []string{"Create", "Destroy"} {
			during := func() error {
				if seen++; !p.held("life of " + id) {
					t.Errorf("at %s another engine may work on it, too", call)
				}
				return nil
			}
			s.before(call, 0, during)
			s.after(call, 0, during)
		}
		id = r.ask("dev")
		r.pass(time.Minute)
		if p.held("life of " + id) {
			t.Error("it is held when the VM is made")
		}
		if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
			t.Error(err)
		}
		r.pass(time.Minute)
		if p.held("life of "+id) || seen != 4 || r.vm(id).State != vm.Destroyed {
			t.Errorf("it is %s after %d steps; held: %v", r.vm(id).State, seen, p.held("life of "+id))
		}
	})
}

// Who may have what is decided by one engine at a time, until it is stored.
func TestDecide_IsHeldUntilItIsStored(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		p := newPeers(r, s)
		r.opts.Engines = p
		r.start()
		r.source()
		ctx := job.WithClient(context.Background(), "cli")
		seen := 0
		for _, tt := range []struct {
			call string
			does func() error
		}{
			{"InsertVM", func() error {
				_, err := r.CreateVM(ctx, job.Submission{Client: "cli", Manifest: job.Manifest{VMName: "other"}.ForVM()})
				return err
			}},
			{"InsertVM", func() error { _, err := r.fork(job.ForkSpec{Count: 1, Name: "copy"}); return err }},
			{"InsertVM", func() error { _, err := r.CreateCheckpoint(ctx, job.CheckpointSpec{}); return err }},
			{"InsertVolume", func() error { _, err := r.CreateVolume(ctx, job.VolumeSpec{Name: "data", Size: "5G"}); return err }},
			{"InsertSaved", func() error { _, err := r.SaveVM(ctx, "dev", "setup", false); return err }},
			{"GrowVM", func() error { _, err := r.SnapshotVM(ctx, "dev", "first", true); return err }},
			{"UpdateVM", func() error { _, err := r.DestroyVM(ctx, "dev"); return err }},
		} {
			s.before(tt.call, 1, func() error {
				if seen++; !p.held("deciding") {
					t.Errorf("at %s, time %d, another engine may decide, too", tt.call, seen)
				}
				return nil
			})
			err := tt.does()
			if err != nil || p.held("deciding") {
				t.Errorf("%s: %v; held: %v", tt.call, err, p.held("deciding"))
			}
			r.pass(time.Minute)
		}
		if seen != 7 {
			t.Errorf("decided %d times", seen)
		}
	})
}

// A node that is chosen, and an address that a VM shows, are one VM's until that is recorded.
func TestChoose_IsHeldUntilItIsRecorded(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		p := newPeers(r, s)
		r.opts.Engines, r.opts.Placer = p, &placer{place: func(job.Placement) (string, error) { return "pve", nil }}
		r.start()
		recorded := 0
		record := func(lock string) error {
			if recorded++; !p.held(lock) {
				t.Errorf("another engine may take the lock %s before it is recorded", lock)
			}
			return nil
		}
		ctx := context.Background()
		chosen := r.Choose(ctx, job.VMSpec{}, "", func(job.Placed) error { return record("choosing") })
		accepted := r.Accept(ctx, "id", vm.VM{IP: "10.0.0.9"}, func(context.Context) error { return record("claiming") })
		if chosen != nil || accepted != nil || recorded != 2 || p.held("choosing") || p.held("claiming") {
			t.Errorf("%v, %v, %d recorded; held: %v, %v", chosen, accepted, recorded, p.held("choosing"), p.held("claiming"))
		}
	})
}

// What goes with a job is the job's to destroy.
func TestDestroyVM_NotOfAJob(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		member := r.filled(1, 0)[0]
		r.engine.set(func(e *engine) { e.holds["a-job"] = time.Hour })
		r.change(member.Job, func(v *vm.VM) { v.Member.State, v.Member.Claimer = vm.MemberClaimed, "a-job" })
		if _, err := r.DestroyVM(context.Background(), member.Name); err == nil || !strings.Contains(err.Error(), "goes with job a-job: cancel that") {
			t.Error(err)
		}
		r.pass(time.Minute)
		r.kept(member.Job, vm.MemberClaimed)
	})
}

// What another has is neither shown nor counted.
func TestVMs_OfAnother(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.source(func(v *vm.VM) { v.Principal = "alice" })
		for name, want := range map[string]int{"alice": 1, "bob": 0} {
			ctx := job.WithPrincipal(context.Background(), job.Principal{Name: name, Role: job.RoleRun})
			shown, err := r.VMs(ctx)
			asked, askedErr := r.AskedBy(ctx, name, "cli")
			_, one := r.VM(ctx, "dev")
			if err != nil || askedErr != nil || len(shown) != want || len(asked) != want || (one == nil) != (want == 1) {
				t.Errorf("%s has %d, and %d to count; %v, %v, %v", name, len(shown), len(asked), err, askedErr, one)
			}
		}
		r.change(id, func(v *vm.VM) { v.Principal = "" })
		for client, want := range map[string]int{"cli": 1, "mcp": 0} {
			if asked, err := r.AskedBy(context.Background(), "", client); err != nil || len(asked) != want {
				t.Errorf("%s has %d to count, %v", client, len(asked), err)
			}
		}
	})
}

// Where the ID is another VM's by now, ours is looked for by its marker.
func TestRemove_UnderAnotherID(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		v := r.persistent("dev")
		s.before("Destroy", 1, func() error { return hostError(job.HostForeign, "the ID is another's") })
		if removed, err := r.Remove(context.Background(), v); !removed || err != nil || len(r.host.VMs()) != 0 {
			t.Errorf("removed: %v, %v; the host has %v", removed, err, r.names())
		}
		s.before("Destroy", 1, func() error { return hostError(job.HostForeign, "the ID is another's") })
		if removed, err := r.Remove(context.Background(), v); removed || err != nil {
			t.Errorf("removed what is gone: %v, %v", removed, err)
		}
	})
}

// What is intended or unwanted is another engine's work while that has the volumes.
func TestVolumes_AreHeldWhileOneIsMadeOrRemoved(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		p := newPeers(r, s)
		r.opts.Engines, r.opts.SweepInterval = p, time.Minute
		r.start()
		seen := 0
		for _, call := range []string{"CreateVolume", "RemoveVolume"} {
			s.before(call, 0, func() error {
				if seen++; !p.held("volumes") {
					t.Errorf("at %s, time %d, another engine may do it, too", call, seen)
				}
				return nil
			})
		}
		r.volume("data")
		left := r.volume("left")
		if _, err := r.RemoveVolume(context.Background(), "data"); err != nil {
			t.Error(err)
		}
		if _, err := r.store.UpdateVolume(context.Background(), left.ID, func(v *vm.Volume) error { v.State = vm.VolumeUnwanted; return nil }); err != nil {
			t.Error(err)
		}
		r.pass(5 * time.Minute)
		if seen != 4 || p.held("volumes") || r.volumeRow("left").ID != "" {
			t.Errorf("%d times; held: %v; of what was left there is %+v", seen, p.held("volumes"), r.volumeRow("left"))
		}
	})
}

// VMs that have expired are one engine's to destroy.
func TestExpire_IsForWhoLeads(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.source(func(v *vm.VM) { v.Own.TTL = 3600 })
		r.engine.set(func(e *engine) { e.follows = true })
		r.pass(2 * time.Hour)
		if v := r.vm(id); v.State != vm.Created || v.Unwanted || v.ExpiresAt.IsZero() {
			t.Errorf("where another leads it is %s", v.State)
		}
		r.engine.set(func(e *engine) { e.follows = false })
		r.pass(time.Hour)
		if v := r.vm(id); v.State != vm.Destroyed {
			t.Errorf("it is %s", v.State)
		}
	})
}

// No more copies are made of a VM that is to go, though it cannot go yet.
func TestFork_OfWhatIsDestroyedMeanwhile(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		id := r.source()
		r.host.set(func(h *hypervisor) { h.failName, h.hold = "copy", make(chan struct{}) })
		forked := make(chan error, 1)
		go func() {
			_, err := r.fork(job.ForkSpec{Count: 2, Name: "copy-%d"})
			forked <- err
		}()
		r.pass(time.Minute)
		copies := r.vm(id).Forking.IDs
		s.before("Destroy", 0, func() error { return hostError(job.HostUnreachable, "no route to host") })
		if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
			t.Error(err)
		}
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Created || len(copies) != 2 {
			t.Errorf("dev is %s, and had %d copies", v.State, len(copies))
		}
		for _, id := range copies {
			if v := r.vm(id); !v.Unwanted || !strings.Contains(v.Own.Failed, "no longer exists") {
				t.Errorf("%s goes on: %+v", v.Name, v.Own)
			}
		}
		if err := <-forked; err == nil || !strings.Contains(err.Error(), "no longer exists") {
			t.Errorf("forked: %v", err)
		}
	})
}

// alone returns a VM that the host leaves alone.
func (r *rig) alone() vm.VM {
	r.t.Helper()
	made := r.persistent("dev")
	id := made.Job
	r.host.Doubt(made.ID, true)
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		r.t.Fatal(err)
	}
	r.pass(time.Minute)
	v := r.vm(id)
	if v.State != vm.LeftAlone {
		r.t.Fatalf("the VM is %s", v.State)
	}
	return v
}

// One that the host does not give up is not forgotten.
func TestForget_WhereTheHostRefuses(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		v := r.alone()
		s.before("ForgetVM", 1, func() error { return hostError(job.HostVM, "it proves to be ours") })
		if _, err := r.ForgetVM(context.Background(), "dev"); err == nil || !strings.Contains(err.Error(), "proves to be ours") || r.vm(v.Job).State != vm.LeftAlone {
			t.Errorf("%v, and it is %s", err, r.vm(v.Job).State)
		}
		if _, err := r.ForgetVM(context.Background(), "dev"); err != nil || r.vm(v.Job).State != vm.Forgotten {
			t.Errorf("%v, and it is %s", err, r.vm(v.Job).State)
		}
	})
}

// Each try is in the host's log: none is made while its proof is known not to be whole.
func TestLeftAlone_IsTriedWhenItIsProven(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.opts.SweepInterval = time.Minute
		r.start()
		v := r.alone()
		tried := 0
		s.before("Destroy", 0, func() error { tried++; return nil })
		r.pass(3 * r.opts.SweepInterval)
		if tried != 0 {
			t.Errorf("tried %d times", tried)
		}
		r.host.Doubt(v.ID, false)
		r.pass(2 * r.opts.SweepInterval)
		if v := r.vm(v.Job); tried != 1 || v.State != vm.Destroyed {
			t.Errorf("tried %d times; it is %s", tried, v.State)
		}
	})
}

// Of two that decide what becomes of a VM that is left alone, the second one sees what the first
// has done.
func TestForget_WhileItIsDestroyed(t *testing.T) {
	for _, forgets := range []bool{false, true} {
		t.Run(fmt.Sprintf("forgotten first: %v", forgets), func(t *testing.T) {
			faulty(t, func(r *rig, s *steps) {
				r.start()
				v := r.alone()
				destroy := func() error { return r.DestroyLeftAlone(context.Background(), v.Job) }
				forget := func() error { return r.Forget(context.Background(), v.Job) }
				first, second, at, other, want := destroy, forget, "Destroy", "ForgetVM", vm.Destroyed
				if forgets {
					first, second, at, other, want = forget, destroy, "ForgetVM", "Destroy", vm.Forgotten
				}
				r.host.Doubt(v.ID, forgets)
				goOn, results := make(chan struct{}), make(chan error, 2)
				s.before(at, 1, func() error { <-goOn; return nil })
				s.before(other, 0, func() error { t.Errorf("%s is asked of the host, too", other); return nil })
				go func() { results <- first() }()
				synctest.Wait()
				go func() { results <- second() }()
				synctest.Wait()
				close(goOn)
				errs := []error{<-results, <-results}
				if r.vm(v.Job).State != want || errs[0] != nil || (errs[1] == nil) != forgets {
					t.Errorf("it is %s: %v", r.vm(v.Job).State, errs)
				}
			})
		})
	}
}

// Nothing boots where it is not seen that what an attempt to go on from a checkpoint has left is gone.
func TestCheckpoint_NothingBootsBesideWhatAnAttemptHasLeft(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		r.checkpoint()
		before, _ := r.host.seen()
		s.before("Create", 1, func() error { return hostError(job.HostVM, "it does not answer") })
		s.before("Destroy", 0, func() error { return hostError(job.HostUnreachable, "no route to host") })
		id := r.ask("dev")
		r.pass(10 * time.Minute)
		specs, _ := r.host.seen()
		if v := r.vm(id); len(specs) != len(before) || !strings.Contains(v.Own.Failed, "remove what an earlier attempt left") || v.State == vm.Destroyed {
			t.Errorf("%d creates; it is %s: %s", len(specs)-len(before), v.State, v.Own.Failed)
		}
	})
}

// The disk of a template counts from before it can be, by whichever engine it is made, and until
// it is known that there is none.
func TestDisk_OfASaveWhoseEngineIsKilled(t *testing.T) {
	for _, tt := range []struct {
		name string
		fail func(s *steps)
		made bool
	}{
		{name: "before the host is asked", fail: func(s *steps) { s.before("SaveVM", 1, s.crash) }},
		{name: "when it is made", fail: func(s *steps) { s.after("SaveVM", 1, s.crash) }, made: true},
		{name: "as it is recorded", fail: func(s *steps) { s.before("UpdateSaved", 1, s.crash) }, made: true},
		{name: "an engine that stops", fail: func(s *steps) { s.after("SaveVM", 1, func() error { return job.ErrDetach }) }, made: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faulty(t, func(r *rig, s *steps) {
				r.start()
				v := r.persistent("dev")
				ctx := job.WithClient(context.Background(), "cli")
				counts := func(when string, want int) {
					t.Helper()
					r.TendSaved(ctx)
					if has, err := r.DisksOf(ctx, "", "cli"); err != nil || len(has) != want {
						t.Errorf("%s: %d disks, %v; want %d", when, len(has), err, want)
					}
				}
				tt.fail(s)
				if _, err := r.SaveVM(ctx, "dev", "setup", false); err == nil {
					t.Error("it is said to be saved")
				}
				r.restart(s)
				counts("by the next engine", 1)
				rows, err := r.store.SavedTemplates(ctx)
				if err != nil || len(rows) != 1 || (rows[0].VMID != 0) != tt.made || rows[0].DiskMB != job.SizeMB(v.Resources.Disk) {
					t.Errorf("%+v, %v", rows, err)
				}
				r.pass(9 * time.Hour)
				counts("much later", map[bool]int{true: 1}[tt.made])
				if tt.made && len(rows) == 1 {
					r.host.Vanish(rows[0].VMID)
					counts("when the template is gone", 0)
				}
			})
		})
	}
}
