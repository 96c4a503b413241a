package job

import (
	"context"
	"time"

	"linus/internal/vm"
)

// VMOrder is a VM that is to be made for a job.
type VMOrder struct {
	Planned vm.VM         // as it is to be; its row may have it already, or more
	Spec    VMSpec        // but for the node
	Adopted bool          // it may have been begun before
	TTL     time.Duration // after which it expires; 0: it does not
	Book    VMBook
}

// VMBook is where what becomes of a VM that is being made is written down: its row, and what
// whoever it is for is shown.
type VMBook interface {
	// Change changes the VM, as it is stored or else planned, and records events with that.
	Change(ctx context.Context, change func(*vm.VM) ([]Event, error)) (vm.VM, error)
	// Tell records a step or a warning soon.
	Tell(ctx context.Context, p Progress)
	// Wait says why the VM has no node yet; nil: it has one, or does not wait.
	Wait(ctx context.Context, full *NoRoomError) error
	// Told returns the events of steps and warnings that are recorded, by kind, phase and text.
	Told(ctx context.Context) (map[Event]bool, error)
}

// Event returns the event of a step or a warning; the zero Event if it is neither.
func (p Progress) Event() Event {
	switch {
	case p.Warning != "":
		return Event{Kind: EventWarning, Phase: PhaseProvision, Text: p.Warning}
	case p.Step != "":
		return Event{Kind: EventProgress, Phase: p.Step, Text: p.Text}
	}
	return Event{}
}
