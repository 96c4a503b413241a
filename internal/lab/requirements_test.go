package lab

import (
	"slices"
	"testing"

	"linus/internal/lab/state"
)

func TestRequirements_AreNamedWithTheirPackages(t *testing.T) {
	for _, need := range requirements {
		if need.name == "" || need.pkg == "" || len(need.drivers) == 0 || !slices.Contains(need.drivers, state.DriverQemu) {
			t.Errorf("incomplete: %+v", need)
		}
	}
}
