package fleet

import (
	"context"
	"testing"
)

// Work that has begun keeps its VM, and no other, until it is finished, and does
// not keep the next decision waiting.
func TestAccess_WorkKeepsItsVMUntilItIsFinished(t *testing.T) {
	a := newAccess(nil)
	d := decides(t, a)
	finished := begins(t, d, "a", "started")
	d.end()
	if !a.busy() {
		t.Error("a VM is worked on, and nothing is busy")
	}
	d = decides(t, a)
	if got := worksOn(t, d, "a"); got != "started" {
		t.Errorf("work on a: %q", got)
	}
	if got := worksOn(t, d, "b"); got != "" {
		t.Errorf("work on b: %q", got)
	}
	finished() // while somebody decides: work never waits to be done
	if got := worksOn(t, d, "a"); got != "" || a.busy() {
		t.Errorf("work on a after its end: %q, busy %t", got, a.busy())
	}
	d.end()
}

// Who decides sees all that was decided before.
func TestAccess_OneDecisionAtATime(t *testing.T) {
	a := newAccess(nil)
	first := decides(t, a)
	second := make(chan string)
	go func() {
		d := decides(t, a)
		defer d.end()
		second <- worksOn(t, d, "a")
	}()
	ended, end := context.WithCancel(t.Context())
	end()
	if d, err := a.decide(ended); err == nil {
		d.end()
		t.Fatal("two decide at once")
	}
	finished := begins(t, first, "a", "stopped")
	first.end()
	if got := <-second; got != "stopped" {
		t.Errorf("the second decision does not see the first: %q", got)
	}
	finished()
}

func decides(t *testing.T, a *access) decision {
	t.Helper()
	d, err := a.decide(t.Context())
	if err != nil {
		t.Error(err)
	}
	return d
}

func begins(t *testing.T, d decision, id, work string) (finished func()) {
	t.Helper()
	finished, err := d.begin(t.Context(), id, work)
	if err != nil {
		t.Error(err)
	}
	return finished
}

func worksOn(t *testing.T, d decision, id string) string {
	t.Helper()
	work, err := d.a.workOn(t.Context(), id)
	if err != nil {
		t.Error(err)
	}
	return work
}
