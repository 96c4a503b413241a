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

// Cordoned notifies all observers.
func (all Observers) Cordoned(node string, cordoned bool, by job.Caller) {
	for _, o := range all {
		o.Cordoned(node, cordoned, by)
	}
}

// TokenChanged notifies all observers.
func (all Observers) TokenChanged(t job.Token, created bool, by job.Caller) {
	for _, o := range all {
		o.TokenChanged(t, created, by)
	}
}

// Notified notifies all observers.
func (all Observers) Notified(d job.Delivery) {
	for _, o := range all {
		o.Notified(d)
	}
}

// Pooled notifies all observers.
func (all Observers) Pooled(e job.PoolEvent) {
	for _, o := range all {
		o.Pooled(e)
	}
}
