package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func newVolume(id, name string) vm.Volume {
	return vm.Volume{ID: id, Name: name, Owner: "o", State: vm.VolumeIntended, SizeGB: 20, Principal: "ci", CreatedAt: time.Now().UTC()}
}

func TestVolumes(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	ctx := t.Context()
	for _, v := range []vm.Volume{newVolume("2", "b"), newVolume("1", "a")} {
		if added, err := s.InsertVolume(ctx, v, job.Limits{}); err != nil || !added {
			t.Fatal(added, err)
		}
	}
	if added, err := s.InsertVolume(ctx, newVolume("3", "a"), job.Limits{}); err != nil || added {
		t.Errorf("a name that is taken: %v, %v", added, err)
	}
	v, err := s.UpdateVolume(ctx, "1", func(v *vm.Volume) error {
		v.State, v.Uses = vm.VolumeCreated, []vm.VolumeUse{{VM: "j", Path: "/x"}}
		return nil
	})
	if err != nil || v.State != vm.VolumeCreated {
		t.Fatal(v, err)
	}
	refused := errors.New("no")
	if _, err := s.UpdateVolume(ctx, "1", func(v *vm.Volume) error { v.Uses = nil; return refused }); !errors.Is(err, refused) {
		t.Error(err)
	}
	if _, err := s.UpdateVolume(ctx, "9", func(*vm.Volume) error { return nil }); !errors.Is(err, job.ErrNotFound) {
		t.Error(err)
	}
	all, err := s.Volumes(ctx)
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[0].UsedBy("j") == nil {
		t.Errorf("%+v, %v", all, err)
	}
	if err := s.DeleteVolume(ctx, "1"); err != nil {
		t.Error(err)
	}
	if all, err = s.Volumes(ctx); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// Volumes count against the limit of disks beside VMs, whichever of them is asked for.
func TestVolumes_CountAsDisk(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	limits := job.Limits{DiskMB: 35 << 10, VMs: 1, PerHour: 1}
	insert := func(j job.Job) error {
		_, _, err := s.Insert(t.Context(), j, "", limits)
		return err
	}
	if err := insert(of(t, "ci")); err != nil {
		t.Fatal(err)
	}
	if added, err := s.InsertVolume(t.Context(), newVolume("1", "a"), limits); err != nil || !added {
		t.Fatalf("a volume is neither a VM nor a job: %v, %v", added, err)
	}
	_, err := s.InsertVolume(t.Context(), newVolume("2", "b"), limits)
	over, ok := errors.AsType[*job.FieldError](err)
	if !ok || over.Fault != job.FaultLimit || over.Limit.Name != "disk_mb" || !strings.Contains(over.Problem, "30720 are in use (VMs 10240, volumes 20480), and this volume asks for 20480") {
		t.Errorf("a volume over the limit: %v", err)
	}
	limits = job.Limits{DiskMB: 35 << 10}
	if err := insert(of(t, "ci")); err == nil || !strings.Contains(err.Error(), "30720 are in use (VMs 10240, volumes 20480), and this job asks for 10240") {
		t.Errorf("a job over the limit: %v", err)
	}
	other := newVolume("3", "c")
	other.Principal = "others"
	if added, err := s.InsertVolume(t.Context(), other, limits); err != nil || !added {
		t.Errorf("another principal: %v, %v", added, err)
	}
}

// All that takes disk counts, but for checkpoints that nobody has asked for; and nothing else of
// what is no VM. An error says what takes how much.
func TestDisk_AllOfItCounts(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	limits := job.Limits{DiskMB: 60 << 10, MemoryMB: 2048, VMs: 2}
	checkpoint := func(n int, asked bool) error {
		v := vm.VM{
			Job: fmt.Sprintf("019aa000-0000-7000-8000-00000000000%d", n), State: vm.Reserved, Kept: true, Own: &vm.Own{}, Checkpoint: &vm.Checkpoint{Asked: asked},
			Made: vm.Made{Lifecycle: vm.Checkpointed, Principal: "ci", Resources: vm.Resources{Memory: "2G", Disk: "10G"}, CreatedAt: time.Now()},
		}
		_, _, err := s.InsertVM(t.Context(), v, "", limits)
		return err
	}
	saved := vm.SavedTemplate{ID: "1", Name: "setup", DiskMB: 10 << 10, Principal: "ci", At: time.Now()}
	first, others := of(t, "ci"), saved
	others.ID, others.Principal = "2", "others"
	_, _, err := s.Insert(t.Context(), first, "", limits)
	_, volumeErr := s.InsertVolume(t.Context(), newVolume("1", "a"), limits)
	if err := errors.Join(err, volumeErr, checkpoint(1, true), checkpoint(2, false), s.InsertSaved(t.Context(), saved, limits), s.InsertSaved(t.Context(), others, limits)); err != nil {
		t.Fatal(err)
	}
	const has = "53248 are in use (VMs 10240, volumes 20480, checkpoints 12288, saved templates 10240), and this "
	saved.ID = "3"
	_, _, err = s.Insert(t.Context(), of(t, "ci"), "", job.Limits{DiskMB: limits.DiskMB})
	for asks, err := range map[string]error{
		"job asks for 10240": err, "checkpoint asks for 12288": checkpoint(3, true), "saved template asks for 10240": s.InsertSaved(t.Context(), saved, limits),
	} {
		over, ok := errors.AsType[*job.FieldError](err)
		if !ok || over.Limit.Name != "disk_mb" || !strings.Contains(over.Problem, has+asks) || !strings.Contains(over.Remedy, "remove a saved template") {
			t.Errorf("%s: %v", asks, err)
		}
	}
	saved.ID, saved.VMID = "1", 107
	if err := s.UpdateSaved(t.Context(), saved); err != nil {
		t.Fatal(err)
	}
	if all, err := s.SavedTemplates(t.Context()); err != nil || len(all) != 2 || all[0].VMID != 107 || all[1].Principal != "others" {
		t.Errorf("%+v, %v", all, err)
	}
	saved.ID = "3"
	if err := errors.Join(s.DeleteSaved(t.Context(), "1"), s.DeleteSaved(t.Context(), "1"), s.InsertSaved(t.Context(), saved, limits)); err != nil {
		t.Errorf("when another is gone: %v", err)
	}
}

// Memory of VMs on the hosts' disks counts, of those that jobs have made and of those that were
// asked for: with what is inserted, and where a VM is to have more of it. What is refused is not
// written.
func TestDisk_MemoryCounts(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	const each = 2*2048 + 500
	size := vm.Resources{Memory: "2G", Disk: "10G"}
	limits := job.Limits{DiskMB: 2*10<<10 + 3*each}
	made := of(t, "ci", func(j *job.Job) { j.Manifest.Lifecycle, j.Manifest.Resources = vm.Persistent, size })
	asked := vm.VM{
		Job: "019aa000-0000-7000-8000-000000000001", State: vm.Reserved, Kept: true, Own: &vm.Own{}, SuspendedAt: at,
		Made: vm.Made{Lifecycle: vm.Persistent, Principal: "ci", Resources: size, CreatedAt: time.Now()},
	}
	_, _, err := s.Insert(t.Context(), made, "", limits)
	_, _, askedErr := s.InsertVM(t.Context(), asked, "", limits)
	if err := errors.Join(err, askedErr); err != nil {
		t.Fatal(err)
	}
	update(t, s, made.ID, func(j *job.Job) ([]job.Event, error) {
		j.VM = &vm.VM{Job: j.ID, State: vm.Created, Made: vm.Made{Principal: "ci", Resources: size}}
		return nil, nil
	})
	grow := func(id, snapshot string, within job.Limits) error {
		v, err := s.VM(t.Context(), id)
		if err != nil {
			return err
		}
		_, err = s.GrowVM(t.Context(), v, "snapshot", each, within, func(v *vm.VM) ([]job.Event, error) {
			v.Memories = append(slices.Clone(v.Memories), vm.Memory{Snapshot: snapshot, At: at})
			return nil, nil
		})
		return err
	}
	if err := errors.Join(grow(made.ID, "a", limits), grow(asked.Job, "", limits), grow(asked.Job, "b", limits)); err != nil { // it counts once that one is suspended
		t.Fatal(err)
	}
	const has = "34268 are in use (VMs 20480, memory of VMs 13788), and this "
	_, _, err = s.Insert(t.Context(), of(t, "ci"), "", limits)
	for asks, err := range map[string]error{"job asks for 10240": err, "snapshot asks for 4596": grow(made.ID, "c", limits)} {
		over, ok := errors.AsType[*job.FieldError](err)
		if !ok || over.Limit.Name != "disk_mb" || !strings.Contains(over.Problem, has+asks) || !strings.Contains(over.Remedy, "resume a suspended VM") {
			t.Errorf("%s: %v", asks, err)
		}
	}
	for id, want := range map[string]int{made.ID: 1, asked.Job: 2} {
		if v, err := s.VM(t.Context(), id); err != nil || v.TimesStored() != want {
			t.Errorf("%+v is stored %d times, %v; want %d", v.Memories, v.TimesStored(), err, want)
		}
	}
	if err := grow(made.ID, "c", job.Limits{}); err != nil {
		t.Errorf("without limits: %v", err)
	}
	for _, id := range []string{"", "unknown"} {
		if _, err := s.GrowVM(t.Context(), vm.VM{Job: id}, "snapshot", 1, limits, nil); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("of no VM: %v", err)
		}
	}
	end := func(v *vm.VM) ([]job.Event, error) { v.State = vm.Destroyed; return nil, nil }
	if _, err := s.UpdateVM(t.Context(), asked.Job, end); err != nil {
		t.Fatal(err)
	}
	if err := grow(made.ID, "d", limits); err != nil {
		t.Errorf("when another VM is gone with what it had: %v", err)
	}
}

func TestVolume_OneWritesOrManyRead(t *testing.T) {
	v := vm.Volume{Uses: []vm.VolumeUse{{VM: "a", ReadOnly: true}}}
	for _, tt := range []struct {
		next vm.VolumeUse
		want bool
	}{{vm.VolumeUse{VM: "b", ReadOnly: true}, true}, {vm.VolumeUse{VM: "b"}, false}, {vm.VolumeUse{VM: "a"}, true}} {
		if got := v.Conflict(tt.next) == nil; got != tt.want {
			t.Errorf("beside a reader, %+v: %v", tt.next, got)
		}
	}
	v.Uses[0].ReadOnly = false
	if v.Conflict(vm.VolumeUse{VM: "b", ReadOnly: true}) == nil {
		t.Error("a reader beside a writer")
	}
}
