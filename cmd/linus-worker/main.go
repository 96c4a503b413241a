// Command linus-worker serves one session of Claude Managed Agents. linus dispatch claude copies it
// into the session's VM and starts it there; nobody else runs it.
// usage: linus-worker FILE, FILE with the work
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"linus/internal/handover"
	"linus/internal/worker"
)

// version is set by the linker: -X main.version=...
var version = ""

func main() {
	if len(os.Args) != 2 {
		_, _ = fmt.Fprintf(os.Stderr, "linus-worker %s serves a session in its VM: linus dispatch claude starts it with the file with the work\n", version)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal ends the process at once
	err := worker.Serve(ctx, os.Args[1], slog.New(slog.NewTextHandler(os.Stderr, nil)))
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "linus-worker: %v\n", err)
	}
	switch {
	case errors.Is(err, worker.ErrLeaseLost):
		os.Exit(handover.LeaseLost)
	case err != nil:
		os.Exit(1)
	}
}
