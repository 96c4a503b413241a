package fleet

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// unread is a store that cannot be read just now.
type unread struct{ Store }

func (unread) VM(context.Context, string) (vm.VM, error) {
	return vm.VM{}, errors.New("cannot be read")
}

// What was not begun, since the VM could not be read, is not said to be under way for ever:
// nobody would destroy that VM.
func TestBegin_OfAVMThatCannotBeRead(t *testing.T) {
	f := New(Options{Store: unread{}})
	f.begin(t.Context(), vm.VM{Job: "a", Member: &vm.Member{Pool: "p"}})
	f.background.Wait()
	if f.isMaking("a") {
		t.Error("it is being made still")
	}
}

// oneVM is a store that has one VM, and nothing else.
type oneVM struct {
	Store
	vm      vm.VM
	changes int
}

func (s *oneVM) UpdateVM(_ context.Context, _ string, change func(*vm.VM) ([]job.Event, error)) (vm.VM, error) {
	s.changes++
	_, err := change(&s.vm)
	return s.vm, err
}

func (s *oneVM) VM(context.Context, string) (vm.VM, error) { return s.vm, nil }

// What was decided of a VM while it is made stays decided, whatever making it writes.
func TestOwnBook_KeepsWhatWasDecided(t *testing.T) {
	doomed := &vm.Member{Pool: "p", State: vm.MemberDoomed}
	for name, tt := range map[string]struct {
		before vm.VM
		want   bool // it is unwanted
	}{
		"nothing":        {vm.VM{Own: &vm.Own{}}, false},
		"unwanted":       {vm.VM{Own: &vm.Own{}, Unwanted: true}, true},
		"a doomed one":   {vm.VM{Own: &vm.Own{}, Member: doomed}, true},
		"one being made": {vm.VM{Own: &vm.Own{}, Member: &vm.Member{Pool: "p", State: vm.MemberMaking}}, false},
	} {
		s := &oneVM{vm: tt.before}
		f := New(Options{Store: s, Log: slog.New(slog.DiscardHandler)})
		f.makes = map[string]*making{"a": {}}
		_, err := vmRecorder{f, "a"}.Change(t.Context(), func(v *vm.VM) ([]job.Event, error) {
			v.State, v.ID, v.Unwanted = vm.Created, 100, false
			return nil, nil
		})
		if err != nil || s.vm.Unwanted != tt.want || !s.vm.Kept || s.vm.ID != 100 || s.vm.State != vm.Created || !f.makes["a"].Begun {
			t.Errorf("%s: %+v, begun %v, %v", name, s.vm, f.makes["a"].Begun, err)
		}
	}
}

// The host's lease on a VM that no job has outlasts its time; one that is suspended then has none
// there, which would destroy it.
func TestSpecOf_HasTheLeaseOfTheVMsEnd(t *testing.T) {
	f := New(Options{Store: &oneVM{}, Log: slog.New(slog.DiscardHandler), Lease: time.Minute})
	for name, tt := range map[string]struct {
		v    vm.VM
		want time.Duration
	}{
		"without end":      {vm.VM{Own: &vm.Own{}}, 0},
		"destroyed":        {vm.VM{Own: &vm.Own{TTL: 600}}, 11 * time.Minute},
		"suspended":        {vm.VM{Own: &vm.Own{TTL: 600}, Made: vm.Made{AtEnd: vm.EndSuspend}}, 0},
		"for a checkpoint": {vm.VM{Own: &vm.Own{}, Checkpoint: &vm.Checkpoint{}}, checkpointLease},
	} {
		tt.v.Resources.Memory, tt.v.Resources.Disk = "2G", "10G"
		if spec, err := f.specOf(tt.v); err != nil || spec.Lease != tt.want {
			t.Errorf("%s: %s, %v", name, spec.Lease, err)
		}
		if spec, err := New(Options{Store: &oneVM{}}).specOf(tt.v); err != nil || spec.Lease != 0 {
			t.Errorf("%s, without leases: %s, %v", name, spec.Lease, err)
		}
	}
}

// A second call to have a VM destroyed takes nothing from the first: who asked stays, and one
// that is gone is not unwanted again.
func TestDiscardOwn_IsDecidedOnce(t *testing.T) {
	for name, before := range map[string]vm.VM{
		"unwanted": {Job: "a", Own: &vm.Own{EndedBy: "first"}, State: vm.Created, Unwanted: true},
		"gone":     {Job: "a", Own: &vm.Own{EndedBy: "first"}, State: vm.Destroyed},
	} {
		s := &oneVM{vm: before}
		f := New(Options{Store: s, Log: slog.New(slog.DiscardHandler)})
		err := f.discardOwn(job.WithCaller(t.Context(), job.Caller{Client: "second"}), "a", "cancelled")
		if err != nil || s.vm.Own.EndedBy != "first" || s.vm.Unwanted != before.Unwanted {
			t.Errorf("%s: %+v, %v", name, s.vm, err)
		}
	}
}

// A member that was given up in the middle of its making, and is there nevertheless, is
// destroyed; one that is unwanted already, or gone, is not given up again.
func TestReconcile_ADoomedMemberThatIsThere(t *testing.T) {
	for name, tt := range map[string]struct {
		state    vm.State
		unwanted bool
		why      string // it is given up, for that
	}{
		"ready meanwhile": {vm.Created, false, "no room"},
		"unwanted":        {vm.Created, true, ""},
		"gone":            {vm.Destroyed, false, ""},
	} {
		s := &oneVM{vm: vm.VM{Job: "a", State: tt.state, Unwanted: tt.unwanted, Own: &vm.Own{}, Member: &vm.Member{Pool: "p", State: vm.MemberDoomed, Why: "no room"}}}
		f := New(Options{Store: s, Log: slog.New(slog.DiscardHandler)})
		if f.reconcile(t.Context(), s.vm) {
			t.Errorf("%s: the pool counts on it", name)
		}
		if (s.changes > 0) != (tt.why != "") || tt.why != "" && !s.vm.Unwanted {
			t.Errorf("%s: %d changes, %+v", name, s.changes, s.vm)
		}
	}
}

func (s *oneVM) VMs(context.Context) ([]vm.VM, error)      { return []vm.VM{s.vm}, nil }
func (s *oneVM) Cordons(context.Context) ([]string, error) { return nil, nil }

// A VM that must go on from a checkpoint goes on from one that another engine has just made.
func TestRestorable_OfAnotherEngine(t *testing.T) {
	made := vm.Made{Template: "t", Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}}
	f := New(Options{Store: &oneVM{vm: vm.VM{ID: 100, Job: "c", State: vm.Created, Made: made, Checkpoint: &vm.Checkpoint{SavedAt: now()}}}})
	f.noteSaved(nil) // the last look
	for _, must := range []bool{false, true} {
		from, err := f.restorable(t.Context(), vm.VM{State: vm.Reserved, Made: made}, must)
		if err != nil || (from != nil) != must {
			t.Errorf("must %v: from %+v, %v", must, from, err)
		}
	}
}
