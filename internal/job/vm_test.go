package job

import (
	"slices"
	"testing"

	"linus/internal/vm"
)

// The whole life of a job's VM, every pair decided by hand: a row is the state now, a
// column the one that may follow (x). none is a job without a VM.
const vmLife = `
              none reserved intended created destroyed released left_alone forgotten
none          .    x        x        x       .         .        .          .
reserved      .    .        x        .       x         .        .          .
intended      .    x        .        x       x         .        x          .
created       x    .        x        .       x         x        x          .
destroyed     .    .        .        .       .         .        x          .
released      .    .        .        .       .         .        .          .
left_alone    .    .        .        .       x         .        .          x
forgotten     .    .        .        .       .         .        .          .
`

func TestVMState_EveryPairIsDecided(t *testing.T) {
	const none = vm.State("none")
	all := append([]vm.State{none}, vm.States...)
	stored := func(s vm.State) vm.State {
		if s == none {
			return ""
		}
		return s
	}
	for pair, want := range pairs(t, vmLife, all) {
		if !slices.Contains(all, pair[0]) || !slices.Contains(all, pair[1]) {
			t.Fatalf("%v is in the picture, and is no pair of states", pair)
		}
		if got := stored(pair[0]).CanBecome(stored(pair[1])); got != want {
			t.Errorf("%s can become %s: %v, want %v", pair[0], pair[1], got, want)
		}
	}
	for _, s := range append([]vm.State{""}, vm.States...) {
		if s.CanBecome("nonsense") || vm.State("nonsense").CanBecome(s) {
			t.Errorf("%q and a state that is unknown follow each other", s)
		}
	}
}

func TestVMState_OfAJob(t *testing.T) {
	if got := (Job{}).VMState(); got != "" {
		t.Errorf("without a VM: %q", got)
	}
	if got := (Job{VM: &vm.VM{State: vm.Created}}).VMState(); got != vm.Created {
		t.Errorf("with one: %q", got)
	}
}
