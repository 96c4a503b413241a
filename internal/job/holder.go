package job

import (
	"context"
	"fmt"
)

// Holder is a job that gets a VM, holds it and gives it back, as who owns the life of VMs needs
// it. The job's row and that of the VM that it has made are changed in one commit.
type Holder interface {
	// Job returns the job as it is stored.
	Job(ctx context.Context) (Job, error)
	// Update changes the job and its VM, and records events with that.
	Update(ctx context.Context, change func(*Job) ([]Event, error)) (Job, error)
	// Claimed tells of a change that was stored already, with its events.
	Claimed(j Job, events []Event)
	// Tell shows a step or a warning, and records it soon.
	Tell(ctx context.Context, p Progress)
	// Wait shows why the VM has no node yet; nil: it has one, or does not wait.
	Wait(ctx context.Context, full *NoRoomError) error
	// Told returns the job's events.
	Told(ctx context.Context) ([]Event, error)
	// Removed is called with the job when its VM is gone, or its node is offline (gone is
	// false), before the job's row says so.
	Removed(ctx context.Context, j Job, gone bool) error
}

// Line is a step in one line for people.
func (p Progress) Line() string {
	if p.Of > 0 {
		return fmt.Sprintf("%d/%d %s", p.N, p.Of, p.Text)
	}
	return p.Text
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
