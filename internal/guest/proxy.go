package guest

import (
	"context"
	"net"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// maxProxied is how many connections of one job to its proxy there are at once.
const maxProxied = 64

// Proxy carries connections to a port of the VM's loopback to what dial returns. It
// calls opened when it does, and returns when the connection to the VM is lost or ctx
// ends: it is to be called again until the job is over.
func (g *Guest) Proxy(ctx context.Context, j job.Job, port int, dial func(context.Context) (net.Conn, error), opened func()) error {
	timed, cancel := context.WithTimeout(ctx, waysTimeout)
	defer cancel()
	var t *remote.Tunnel
	err := g.retry(timed, j, func(pool *remote.Pool) (err error) {
		t, err = pool.TunnelFrom(timed, port, maxProxied, dial)
		return err
	})
	if err != nil {
		return g.fault(ctx, "open the way to the proxy from", j, result.Result{}, err)
	}
	opened()
	select {
	case <-ctx.Done():
		t.Close()
	case <-t.Ended():
	}
	return nil
}
