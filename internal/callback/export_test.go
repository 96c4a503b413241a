package callback

import (
	"context"
	"log/slog"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/gate"
)

// Handler is newHandler with the bounds of the product.
func Handler(reporter Reporter, log *slog.Logger) *mux.Router {
	return newHandler(reporter, log, defaultBounds)
}

// ListenWithin is Listen on a free port of loopback, with bounds that a test can wait for.
func ListenWithin(ctx context.Context, all, address int, stall, grace time.Duration, reporter Reporter, log *slog.Logger) (*Server, error) {
	b := defaultBounds
	b.gate = gate.Bounds{All: all, Address: address, Loopback: address}
	b.stall, b.grace, b.rate, b.linger = stall, grace, 1<<10, 20*time.Millisecond
	return listen(ctx, "127.0.0.1", 0, reporter, log, b)
}

// ListenHeader is Listen on a free port of loopback, with so long for a header.
func ListenHeader(ctx context.Context, header time.Duration, reporter Reporter, log *slog.Logger) (*Server, error) {
	b := defaultBounds
	b.header, b.linger = header, time.Hour
	return listen(ctx, "127.0.0.1", 0, reporter, log, b)
}
