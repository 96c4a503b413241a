package proxmox

import (
	"slices"
	"testing"
)

func TestSaid_LeavesWhatItReturned(t *testing.T) {
	var q said
	q.set([]string{"100 a", "101 b"})
	before := q.get()
	came, went := q.set([]string{"101 b", "102 c"})
	if !slices.Equal(came, []string{"102 c"}) || !slices.Equal(went, []string{"100 a"}) || !slices.Equal(before, []string{"100 a", "101 b"}) {
		t.Errorf("came %q, went %q; what was read before is %q now", came, went, before)
	}
}
