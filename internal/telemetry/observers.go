package telemetry

import (
	"time"

	"linus/internal/job"
)

// Observers are notified one after the other.
type Observers []job.Observer

// Changed notifies all observers.
func (all Observers) Changed(j job.Job, events []job.Event) {
	for _, o := range all {
		o.Changed(j, events)
	}
}

// PhaseEnded notifies all observers.
func (all Observers) PhaseEnded(j job.Job, phase string, began time.Time, result job.PhaseResult, err error) {
	for _, o := range all {
		o.PhaseEnded(j, phase, began, result, err)
	}
}

// Leaked notifies all observers.
func (all Observers) Leaked(vms int) {
	for _, o := range all {
		o.Leaked(vms)
	}
}

// Pooled notifies all observers.
func (all Observers) Pooled(e job.PoolEvent) {
	for _, o := range all {
		o.Pooled(e)
	}
}
