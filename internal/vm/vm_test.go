package vm

import (
	"slices"
	"testing"
)

// follows is the life of a VM once more, by hand: for each state, those that may be next.
var follows = map[State][]State{
	"":        {Reserved, Intended, Created},
	Reserved:  {Intended, Destroyed},
	Intended:  {Reserved, Created, Destroyed, LeftAlone},
	Created:   {"", Intended, Destroyed, Released, LeftAlone},
	Destroyed: {LeftAlone},
	Released:  {},
	LeftAlone: {Destroyed, Forgotten},
	Forgotten: {},
}

func TestState_EveryPair(t *testing.T) {
	all := append([]State{"", "nonsense"}, States...)
	if len(follows) != len(States)+1 {
		t.Fatalf("%d states are described here, there are %d and none", len(follows), len(States))
	}
	for _, from := range all {
		for _, to := range all {
			if got, want := from.CanBecome(to), slices.Contains(follows[from], to); got != want {
				t.Errorf("from %q to %q: %v", from, to, got)
			}
		}
	}
}

func TestState_Sets(t *testing.T) {
	for _, s := range append([]State{""}, States...) {
		if got, want := s.Planned(), s == "" || s == Reserved; got != want {
			t.Errorf("%q is planned: %v", s, got)
		}
		if got, want := s.Settled(), s == Destroyed || s == Released || s == LeftAlone || s == Forgotten; got != want {
			t.Errorf("%q is settled: %v", s, got)
		}
	}
}

// A VM stays, or is doomed, by what is wanted of it together with what it is.
func TestVM_StaysOrIsDoomed(t *testing.T) {
	for _, s := range append([]State{""}, States...) {
		for _, l := range []Lifecycle{Ephemeral, Persistent, Pooled} {
			for bits := range 4 {
				v := VM{State: s, Unwanted: bits&1 > 0, Kept: bits&2 > 0, Made: Made{Lifecycle: l}}
				if got, want := v.Stays(), s == Created && !v.Unwanted && l != Ephemeral; got != want {
					t.Errorf("%+v stays: %v", v, got)
				}
				if got, want := v.Doomed(), (s == Created || s == Intended) && v.Unwanted && v.Kept; got != want {
					t.Errorf("%+v is doomed: %v", v, got)
				}
			}
		}
	}
}

func TestVM_IsAllOfOneJob(t *testing.T) {
	v := VM{Job: "a"}
	pools := VM{Job: "a", Member: &Member{Claimer: "b"}}
	for _, tt := range []struct {
		vm   VM
		job  string
		want bool
	}{{v, "a", true}, {v, "b", false}, {pools, "b", true}, {pools, "c", false}} {
		if got := tt.vm.AllOf(tt.job); got != tt.want {
			t.Errorf("%+v is all of %s: %v", tt.vm, tt.job, got)
		}
	}
}

func TestVM_CloneSharesNothing(t *testing.T) {
	v := VM{Member: &Member{State: MemberWarm}}
	v.Clone().Member.State = MemberDoomed
	if v.Member.State != MemberWarm {
		t.Error("the clone's member is the VM's")
	}
}

func TestSameAddress(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"", "", false}, {"10.0.0.1", "10.0.0.1", true}, {"10.0.0.1", "10.0.0.2", false}, {"::ffff:10.0.0.1", "10.0.0.1", true},
		{"fd00::1", "FD00:0:0::1", true}, {"x", "x", true}, {"x", "y", false}, {"10.0.0.1", "", false},
	} {
		if got := SameAddress(tt.a, tt.b); got != tt.want {
			t.Errorf("%q and %q: %v", tt.a, tt.b, got)
		}
	}
}
