package fleet

import (
	"context"
	"errors"
	"testing"

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
