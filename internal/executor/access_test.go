package executor

import "testing"

// Work that has begun keeps its VM, and no other, until it is finished, and does
// not keep the next decision waiting.
func TestAccess_WorkKeepsItsVMUntilItIsFinished(t *testing.T) {
	var a access
	d := a.decide()
	finished := d.begin("a", "started")
	d.end()
	if !a.busy() {
		t.Error("a VM is worked on, and nothing is busy")
	}
	d = a.decide()
	if got := d.workOn("a"); got != "started" {
		t.Errorf("work on a: %q", got)
	}
	if got := d.workOn("b"); got != "" {
		t.Errorf("work on b: %q", got)
	}
	finished() // while somebody decides: work never waits to be done
	if got := d.workOn("a"); got != "" || a.busy() {
		t.Errorf("work on a after its end: %q, busy %t", got, a.busy())
	}
	d.end()
}

// Who decides sees all that was decided before.
func TestAccess_OneDecisionAtATime(t *testing.T) {
	var a access
	first := a.decide()
	second := make(chan string)
	go func() {
		d := a.decide()
		defer d.end()
		second <- d.workOn("a")
	}()
	if a.deciding.TryLock() {
		t.Fatal("two decide at once")
	}
	finished := first.begin("a", "stopped")
	first.end()
	if got := <-second; got != "stopped" {
		t.Errorf("the second decision does not see the first: %q", got)
	}
	finished()
}
