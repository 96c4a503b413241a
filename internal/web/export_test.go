package web

import (
	"context"
	"net"

	"linus/internal/gate"
)

// On is Listen on a listener that is there already.
func On(ctx context.Context, l net.Listener, o Options) *Server { return listen(ctx, l, o) }

// Within are options with bounds that a test can reach: of connections in all and from one
// address, and of each principal's requests.
func (o Options) Within(all, address, each int) Options {
	o.bounds = bounds{gate: gate.Bounds{All: all, Address: address, Loopback: address}, each: each}
	return o
}
