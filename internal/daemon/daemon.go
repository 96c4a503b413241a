// Package daemon is the engine of a state directory as a process; a lock allows one at a time. The
// package wires the engine from its parts, starts it in the background when a client needs it, and
// ends it when it is idle. It prints nothing and knows no command line, and the parts do not know
// it.
package daemon

import (
	"log/slog"
	"net/http"
	"time"

	"linus/internal/config"
	"linus/internal/control"
)

// Options configure an engine, to run it or to attach to it.
type Options struct {
	Config  config.Config
	Version string // of this binary
	Log     *slog.Logger
	Backend NewBackend

	// Patience is how long a call waits for a database that is away; 0: the store's default.
	Patience time.Duration

	// Hooks returns the handler of events for a dispatcher of this process, or nil. May be nil.
	Hooks func(dispatcher string) http.Handler
	// Stopping is called when the engine is to stop, before any part of it stops. May be nil.
	Stopping func()

	// Start are the arguments that make this program run ServeInBackground.
	Start []string
	// OtherVersion is called when Attach uses an engine of another version. May be nil.
	OtherVersion func(control.Info)
}
