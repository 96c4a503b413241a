package executor

import (
	"testing"

	"linus/internal/job"
	"linus/internal/vm"
)

// A job whose VM nobody wants any more is looked for at once, whichever row that was recorded in.
func TestHeed_LooksForTheJobOfAnUnwantedVM(t *testing.T) {
	unwanted := vm.VM{Job: "a", State: vm.Created, Unwanted: true}
	gone, own, wanted := unwanted, unwanted, unwanted
	gone.State, own.Own, wanted.Unwanted = vm.Destroyed, &vm.Own{}, false
	for name, tt := range map[string]struct {
		happened job.Happening
		looks    int
	}{
		"in the VM's row":      {job.VMChanged{VM: unwanted}, 1},
		"in its job's":         {job.Change{Job: job.Job{ID: "a", VM: &unwanted}}, 1},
		"in that of a guest":   {job.Change{Job: job.Job{ID: "b", VM: &unwanted}}, 0},
		"one that is gone":     {job.VMChanged{VM: gone}, 0},
		"one that no job made": {job.VMChanged{VM: own}, 0},
		"one that is wanted":   {job.VMChanged{VM: wanted}, 0},
	} {
		e := New(Options{})
		if e.heed(tt.happened); len(e.reopened) != tt.looks {
			t.Errorf("%s: %d looks, want %d", name, len(e.reopened), tt.looks)
		}
	}
}
