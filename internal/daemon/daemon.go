// Package daemon is the engine of a state directory as a process: one at a time,
// held by a lock; wired from its parts; started in the background when a client
// needs it, and ended when nobody does. It prints nothing and knows no command
// line, and the parts know nothing of it.
package daemon

import (
	"log/slog"

	"linus/internal/config"
	"linus/internal/control"
)

// Options say what an engine is to be, for who runs one and for who attaches to
// one.
type Options struct {
	Config  config.Config
	Version string // of this binary
	Log     *slog.Logger
	Backend NewBackend

	// Start are the arguments with which this program runs ServeInBackground.
	Start []string
	// OtherVersion is told of an engine of another version that is attached to
	// all the same. Nil: nobody.
	OtherVersion func(control.Info)
}
