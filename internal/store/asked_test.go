package store

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// askedFor returns a VM that a principal asks for.
func askedFor(principal string) vm.VM {
	id := uuid.Must(uuid.NewV7()).String()
	return vm.VM{
		Job: id, Name: vm.DefaultName(id), State: vm.Reserved, Own: &vm.Own{},
		Made: vm.Made{Principal: principal, CreatedAt: time.Now().UTC(), Resources: vm.Resources{Memory: "1G", Disk: "10G"}},
	}
}

// The life of a VM that no job makes allows the same changes of its state as that of a job's.
func TestUpdateVM_AllowsOnlyWhatTheTableOfVMsAllows(t *testing.T) {
	s := newStore(t)
	states := append([]vm.State{"", "nonsense"}, vm.States...)
	for _, from := range states {
		for _, to := range states {
			v := askedFor("")
			v.State = from
			if _, _, err := s.InsertVM(t.Context(), v, "", job.Limits{}); err != nil {
				t.Fatal(err)
			}
			_, err := s.UpdateVM(t.Context(), v.Job, func(v *vm.VM) ([]job.Event, error) {
				v.State = to
				return nil, nil
			})
			want := from == to || from.CanBecome(to)
			if (err == nil) != want || err != nil && !errors.Is(err, ErrForbidden) {
				t.Errorf("%q to %q: allowed %v, got %v", from, to, want, err)
			}
			stored, err := s.VM(t.Context(), v.Job)
			if err != nil || want && stored.State != to || !want && stored.State != from {
				t.Errorf("%q to %q: it is %q, %v", from, to, stored.State, err)
			}
		}
	}
}

// A VM that somebody has asked for counts for both jobs and VMs, from when it is asked for
// until it is gone or forgotten.
func TestInsert_CountsVMsThatNoJobMakes(t *testing.T) {
	s := newStore(t)
	for says, l := range map[string]job.Limits{
		"limit vms of this token is 1 VMs; 1 are in use":                           {VMs: 1},
		"memory_mb of this token is 2000 MiB of memory of VMs; 1024 are in use":    {MemoryMB: 2000},
		"disk_mb of this token is 20000 MiB of disk; 10240 are in use (VMs 10240)": {DiskMB: 20000},
	} {
		name := says[:7]
		insertVM := func() (vm.VM, error) {
			v, _, err := s.InsertVM(t.Context(), askedFor(name), "", l)
			return v, err
		}
		first, err := insertVM()
		if err != nil {
			t.Fatal(says, err)
		}
		for _, state := range []vm.State{vm.Reserved, vm.Intended, vm.Created, vm.LeftAlone} {
			if _, err := s.UpdateVM(t.Context(), first.Job, func(v *vm.VM) ([]job.Event, error) { v.State = state; return nil, nil }); err != nil {
				t.Fatal(err)
			}
			var field *job.FieldError
			if _, _, err := s.Insert(t.Context(), of(t, name), "", l); !errors.As(err, &field) || !strings.Contains(err.Error(), says) {
				t.Errorf("a job beside a VM that is %s: %v", state, err)
			}
			if _, err := insertVM(); !errors.As(err, &field) || !strings.Contains(err.Error(), says) {
				t.Errorf("a VM beside one that is %s: %v", state, err)
			}
		}
		if _, err := s.UpdateVM(t.Context(), first.Job, func(v *vm.VM) ([]job.Event, error) { v.State = vm.Forgotten; return nil, nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := insertVM(); err != nil {
			t.Errorf("beside a VM that is forgotten: %v", err)
		}
	}
}
