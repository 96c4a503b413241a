// Package daemon is the engine of a state directory as a process. A lock allows one
// at a time. It is wired from its parts, started in the background when a client
// needs it, and ended when it is idle. The package prints nothing and knows no command
// line, and the parts do not know it.
package daemon

import (
	"log/slog"
	"net/http"
	"time"

	"linus/internal/config"
	"linus/internal/control"
)

// Options of an engine, to run it or to attach to it.
type Options struct {
	Config  config.Config
	Version string // of this binary
	Log     *slog.Logger
	Backend NewBackend

	// Patience is how long a call waits for a database that is away; 0: as long as the store
	// finds right.
	Patience time.Duration

	// Hooks returns what hears events for a dispatcher of this process, or nil. May be nil.
	Hooks func(dispatcher string) http.Handler
	// Stopping is called when the engine is to stop, before anything of it does. May be nil.
	Stopping func()

	// Start are the arguments that make this program run ServeInBackground.
	Start []string
	// OtherVersion is called when Attach uses an engine of another version. May be
	// nil.
	OtherVersion func(control.Info)
}
