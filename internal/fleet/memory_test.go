package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// stateMB is what the memory of a VM of a test takes of disk.
const stateMB = 2*2048 + 500

// stored checks how often the host's disk has the memory of what a client has asked for, as it is
// counted.
func (r *rig) stored(when, client string, want int) {
	r.t.Helper()
	vms, err := r.store.VMs(context.Background())
	if got := takes(vms, "", client).Memory; err != nil || got != want*stateMB {
		r.t.Errorf("%s: %s has %d MiB of memory on disk, %v; want %d times %d", when, client, got, err, want, stateMB)
	}
}

// Memory counts as the VM's owner's, whoever asks for it: that of a VM that is suspended until it is
// not, a snapshot's until that is removed.
func TestDisk_OfMemory(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.persistent("dev")
		ctx := job.WithClient(context.Background(), "another")
		snapshot := func(name string, memory bool) func() (job.VMInfo, error) {
			return func() (job.VMInfo, error) { return r.SnapshotVM(ctx, "dev", name, memory) }
		}
		for _, step := range []struct {
			what string
			do   func() (job.VMInfo, error)
			want int
		}{
			{"suspended", func() (job.VMInfo, error) { return r.SuspendVM(ctx, "dev") }, 1},
			{"suspended twice", func() (job.VMInfo, error) { return r.SuspendVM(ctx, "dev") }, 1},
			{"resumed", func() (job.VMInfo, error) { return r.ResumeVM(ctx, "dev") }, 0},
			{"a snapshot", snapshot("disks", false), 0},
			{"a snapshot with memory", snapshot("first", true), 1},
			{"another", snapshot("second", true), 2},
			{"suspended, too", func() (job.VMInfo, error) { return r.SuspendVM(ctx, "dev") }, 3},
			{"started", func() (job.VMInfo, error) { return r.StartVM(ctx, "dev") }, 2},
			{"reverted", func() (job.VMInfo, error) { return r.RevertVM(ctx, "dev", "first") }, 2},
			{"one is removed", func() (job.VMInfo, error) { return r.DeleteSnapshot(ctx, "dev", "first") }, 1},
			{"that of its disks is", func() (job.VMInfo, error) { return r.DeleteSnapshot(ctx, "dev", "disks") }, 1},
		} {
			if _, err := step.do(); err != nil {
				t.Errorf("%s: %v", step.what, err)
			}
			r.stored(step.what, "cli", step.want)
		}
		r.stored("it is not", "another", 0)
		if _, err := r.DestroyVM(ctx, "dev"); err != nil {
			t.Error(err)
		}
		r.pass(time.Minute)
		r.stored("destroyed", "cli", 0)
	})
}

// What would be too much is refused before the host is asked, by the settings' limit and by the
// owner's token's; an admin's own is another's.
func TestDisk_OfMemoryIsLimited(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		ada := job.Principal{Name: "ada", Role: job.RoleRun}
		r.persistent("dev")
		r.persistent("theirs", func(v *vm.VM) { v.Principal = "ada" })
		asked := 0
		for _, call := range []string{"SuspendVM", "SnapshotVM"} {
			s.before(call, 0, func() error { asked++; return nil })
		}
		suspend := func(ctx context.Context, ref string) error { _, err := r.SuspendVM(ctx, ref); return err }
		snapshot := func(ctx context.Context, ref string) error {
			_, err := r.SnapshotVM(ctx, ref, "first", true)
			return err
		}
		refused := func(when string, err error, wants ...string) {
			t.Helper()
			over, is := errors.AsType[*job.FieldError](err)
			if !is || over.Fault != job.FaultLimit || over.Field != "vm" || asked != 0 {
				t.Errorf("%s: %v; the host was asked %d times", when, err, asked)
			}
			for _, want := range append(wants, "remove a snapshot with memory", fmt.Sprintf("asks for %d", stateMB)) {
				if err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s: %q does not say %q", when, err, want)
				}
			}
		}
		ctx, most := job.WithClient(context.Background(), "cli"), 10<<10+stateMB
		r.engine.set(func(e *engine) { e.diskMB = most - 1 })
		refused("suspended", suspend(ctx, "dev"), "LIMIT_DISK allows 14835", "stop it instead")
		refused("a snapshot", snapshot(ctx, "dev"), "LIMIT_DISK allows 14835", "take it without memory")
		refused("of a VM of ada's", suspend(job.WithPrincipal(ctx, ada), "theirs"), "LIMIT_DISK")
		r.engine.set(func(e *engine) { e.diskMB = 0 })
		ada.Limits = job.Limits{DiskMB: most - 1}
		refused("by a token", suspend(job.WithPrincipal(ctx, ada), "theirs"), "limit disk_mb of this token is 14835", "10240 are in use (VMs 10240)", "this suspension", "stop it instead")
		refused("a snapshot by a token", snapshot(job.WithPrincipal(ctx, ada), "theirs"), "this snapshot", "take it without memory")
		if v, err := r.store.VMs(ctx); err != nil || v[0].TimesStored()+v[1].TimesStored() != 0 {
			t.Errorf("what was refused counts: %v", err)
		}
		admin := job.Principal{Name: "root", Role: job.RoleAdmin, Limits: job.Limits{DiskMB: 1}}
		if err := suspend(job.WithPrincipal(ctx, admin), "theirs"); err != nil || asked != 1 {
			t.Errorf("by an admin, whose it is not: %v", err)
		}
		ada.Limits = job.Limits{DiskMB: most}
		if err := suspend(job.WithPrincipal(ctx, ada), "theirs"); err != nil { // it counts already
			t.Errorf("suspended again: %v", err)
		}
		r.engine.set(func(e *engine) { e.diskMB = most })
		if err := errors.Join(suspend(ctx, "dev"), suspend(ctx, "dev")); err != nil {
			t.Errorf("as much as it may have, twice: %v", err)
		}
		r.stored("suspended", "cli", 1)
	})
}

// A VM that is suspended because it was idle is not refused that, and counts.
func TestDisk_OfVMsThatAreIdle(t *testing.T) {
	bubble(t, func(r *rig) {
		r.engine.set(func(e *engine) { e.diskMB = 10 << 10 })
		r.start()
		v := r.persistent("dev", func(v *vm.VM) { v.IdleSuspend = 60 })
		r.pass(5 * time.Minute)
		if r.vm(v.Job).SuspendedAt.IsZero() {
			t.Fatal("it is not suspended")
		}
		r.stored("idle", "cli", 1)
		ctx := job.WithClient(context.Background(), "cli")
		if _, err := r.SuspendVM(ctx, "dev"); err != nil {
			t.Errorf("it counts already: %v", err)
		}
		r.stored("as somebody has asked", "cli", 1)
		if _, err := r.ResumeVM(ctx, "dev"); err != nil {
			t.Error(err)
		}
		r.stored("resumed", "cli", 0)
	})
}

// What fails counts until the host is seen without it; one that was there before counts on.
func TestDisk_OfMemoryThatIsNotStored(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		r.persistent("dev")
		ctx := job.WithClient(context.Background(), "cli")
		failed := errors.New("no space left")
		s.before("SuspendVM", 1, func() error { return failed })
		if _, err := r.SuspendVM(ctx, "dev"); !errors.Is(err, failed) {
			t.Error(err)
		}
		r.stored("not suspended", "cli", 0)
		s.before("SnapshotVM", 1, func() error { return failed })
		if _, err := r.SnapshotVM(ctx, "dev", "first", true); !errors.Is(err, failed) {
			t.Error(err)
		}
		r.stored("no snapshot", "cli", 0)
		s.after("SnapshotVM", 1, func() error { return failed })
		if _, err := r.SnapshotVM(ctx, "dev", "first", true); !errors.Is(err, failed) {
			t.Error(err)
		}
		r.stored("it failed and is there", "cli", 1)
		if _, err := r.SnapshotVM(ctx, "dev", "first", true); err == nil || !strings.Contains(err.Error(), "already used") {
			t.Error(err)
		}
		r.stored("its name is taken", "cli", 1)
		s.after("SuspendVM", 1, func() error {
			r.host.set(func(h *hypervisor) { h.unsure = true })
			return failed
		})
		if _, err := r.SuspendVM(ctx, "dev"); !errors.Is(err, failed) {
			t.Error(err)
		}
		r.stored("the host does not say", "cli", 2)
		r.host.set(func(h *hypervisor) { h.unsure = false })
		if _, err := r.ResumeVM(ctx, "dev"); err != nil {
			t.Error(err)
		}
		r.stored("resumed", "cli", 1)
	})
}

// It counts from before it can be there: an engine that is killed leaves what the next one counts,
// until the host, which may go on for a while, is seen without it.
func TestDisk_OfMemoryWhoseEngineIsKilled(t *testing.T) {
	for _, tt := range []struct {
		name string
		kill func(s *steps)
		left int
	}{
		{"before the host is asked", func(s *steps) { s.before("SuspendVM", 1, s.crash); s.before("SnapshotVM", 1, s.crash) }, 0},
		{"when it is there", func(s *steps) { s.after("SuspendVM", 1, s.crash); s.after("SnapshotVM", 1, s.crash) }, 1},
	} {
		for _, what := range []string{"suspended", "a snapshot"} {
			t.Run(what+" "+tt.name, func(t *testing.T) {
				faulty(t, func(r *rig, s *steps) {
					r.start()
					r.persistent("dev")
					tt.kill(s)
					ctx := job.WithClient(context.Background(), "cli")
					var err error
					if what == "suspended" {
						_, err = r.SuspendVM(ctx, "dev")
					} else {
						_, err = r.SnapshotVM(ctx, "dev", "first", true)
					}
					if !errors.Is(err, errCrashed) {
						t.Error(err)
					}
					r.stored("killed", "cli", 1)
					r.restart(s)
					r.TendMemory(ctx)
					r.stored("the next engine has looked", "cli", 1)
					r.pass(2 * time.Hour)
					r.restart(s) // which looks, as from time to time
					r.stored("later", "cli", tt.left)
				})
			})
		}
	}
}

// What an engine finds missing is not what another stores anew meanwhile.
func TestDisk_OfMemoryThatIsStoredAnew(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		v := r.persistent("dev")
		ctx := job.WithClient(context.Background(), "cli")
		note := func(at time.Time) {
			r.change(v.Job, func(v *vm.VM) { v.Memories = []vm.Memory{{Snapshot: "first", At: at.UTC()}} })
		}
		long := time.Now().Add(-24 * time.Hour)
		note(long)
		s.before("SnapshotVM", 1, func() error { r.TendMemory(ctx); return nil })
		if _, err := r.SnapshotVM(ctx, "dev", "first", true); err != nil {
			t.Error(err)
		}
		r.stored("found missing as it is taken", "cli", 1)
		if _, err := r.DeleteSnapshot(ctx, "dev", "first"); err != nil {
			t.Error(err)
		}
		note(long)
		s.before("UpdateVM", 1, func() error { note(time.Now()); return nil })
		r.TendMemory(ctx)
		r.stored("taken after it was found missing", "cli", 1)
		note(long)
		if _, err := r.DeleteSnapshot(ctx, "dev", "first"); err == nil || !strings.Contains(err.Error(), "does not exist") {
			t.Error(err)
		}
		r.stored("it is not there to be removed", "cli", 0)
	})
}

// What the host does not say to be gone counts on; a snapshot of the same name that somebody has
// taken there without memory is another.
func TestDisk_OfMemoryThatIsNotSeen(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		v := r.persistent("dev")
		ctx := job.WithClient(context.Background(), "cli")
		note := func(snapshot string) {
			r.change(v.Job, func(v *vm.VM) {
				v.Memories = []vm.Memory{{Snapshot: snapshot, At: time.Now().Add(-24 * time.Hour).UTC()}}
			})
		}
		looks := func(when string, want int) {
			t.Helper()
			r.TendMemory(ctx)
			r.stored(when, "cli", want)
		}
		note("")
		r.host.Doubt(v.ID, true)
		looks("suspended, and not proven ours", 1)
		r.host.Doubt(v.ID, false)
		looks("it runs", 0)
		if err := r.host.SnapshotVM(ctx, r.vm(v.Job), "first", false); err != nil {
			t.Fatal(err)
		}
		note("first")
		r.host.set(func(h *hypervisor) { h.partial = true })
		looks("a snapshot that is not whole", 1)
		r.host.set(func(h *hypervisor) { h.partial = false })
		looks("one without memory", 0)
	})
}
