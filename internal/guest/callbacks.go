package guest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// waysTimeout bounds one check, from inside a VM, whether callbacks would arrive.
const waysTimeout = 30 * time.Second

// errNoAnswer means that no linus server answers the VM at a URL.
var errNoAnswer = errors.New("no server answers there")

// Callbacks finds a way for the runner's callbacks and switches the runner to it: directly to url, if
// there is one, or else through a tunnel to local. The tunnel is kept open, over this connection and
// later ones, until Forget or the next call. Every way is tried from inside the VM before it is chosen.
func (g *Guest) Callbacks(ctx context.Context, j job.Job, url, local string) (job.CallbackWay, error) {
	g.endTunnel(j.ID)
	if url != "" {
		err := g.sendCallbacks(ctx, j, url)
		if err == nil {
			return job.CallbacksDirect, nil
		}
		if !errors.Is(err, errNoAnswer) {
			return "", g.fault(ctx, "find a way for callbacks from", j, result.Result{}, err)
		}
	}
	if local == "" {
		return job.CallbacksNone, nil
	}
	t, err := g.openTunnel(ctx, j, local)
	switch {
	case errors.Is(err, errNoAnswer), errors.Is(err, remote.ErrNoForwarding):
		g.o.Log.WarnContext(ctx, "no callbacks from the VM", "vm_id", j.VM.ID, "job_id", j.ID, "err", err)
		return job.CallbacksNone, nil
	case err != nil:
		return "", g.fault(ctx, "open a way for callbacks from", j, result.Result{}, err)
	}
	g.keepTunnel(ctx, j, local, t)
	return job.CallbacksTunnel, nil
}

// sendCallbacks makes the runner send callbacks to url. If no server answers there it returns
// errNoAnswer and changes nothing.
func (g *Guest) sendCallbacks(ctx context.Context, j job.Job, url string) error {
	ctx, cancel := context.WithTimeout(ctx, waysTimeout)
	defer cancel()
	res, err := g.runner(ctx, j, "callback", url)
	if err != nil {
		return err
	}
	switch answer := res.Get("LINUS_CALLBACK"); answer {
	case "reached":
		return nil
	case "unreachable":
		return fmt.Errorf("%s: %w", url, errNoAnswer)
	default:
		return fmt.Errorf("the job runner returned callback %q", answer)
	}
}

// openTunnel opens a tunnel and switches the runner to it.
func (g *Guest) openTunnel(ctx context.Context, j job.Job, local string) (*remote.Tunnel, error) {
	ctx, cancel := context.WithTimeout(ctx, waysTimeout)
	defer cancel()
	pool, err := g.pool(ctx, j)
	if err != nil {
		return nil, err
	}
	t, err := pool.Tunnel(ctx, local)
	if err != nil {
		return nil, err
	}
	if err := g.sendCallbacks(ctx, j, "http://"+t.Addr()); err != nil {
		t.Close()
		return nil, err
	}
	return t, nil
}

// keptTunnel is a tunnel that a goroutine keeps open.
type keptTunnel struct {
	stop context.CancelFunc
	done chan struct{} // closed when the goroutine has stopped
}

// keepTunnel reopens the tunnel whenever its connection is lost, until endTunnel, regardless of
// ctx. The runner is told the new tunnel's port, which differs: the old port may stay in use until
// the VM notices the loss.
func (g *Guest) keepTunnel(ctx context.Context, j job.Job, local string, t *remote.Tunnel) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	held := keptTunnel{stop: stop, done: make(chan struct{})}
	g.mu.Lock()
	g.tunnels[j.ID] = held
	g.mu.Unlock()
	log := g.o.Log.With("vm_id", j.VM.ID, "job_id", j.ID)
	go func() {
		defer close(held.done)
		for {
			select {
			case <-ctx.Done():
				t.Close()
				return
			case <-t.Ended():
			}
			log.Info("tunnel for callbacks lost, reopening it")
			next, err := backoff.Retry(ctx, func() (*remote.Tunnel, error) {
				next, err := g.openTunnel(ctx, j, local)
				if errors.Is(err, remote.ErrNoForwarding) {
					err = backoff.Permanent(err)
				}
				return next, err
			}, backoff.WithBackOff(backoff.NewExponentialBackOff()), backoff.WithMaxElapsedTime(10*time.Minute))
			if err != nil {
				if ctx.Err() == nil {
					log.Warn("tunnel for callbacks given up", "err", err)
				}
				return
			}
			t = next
		}
	}()
}

func (g *Guest) endTunnel(job string) {
	g.mu.Lock()
	held, ok := g.tunnels[job]
	delete(g.tunnels, job)
	g.mu.Unlock()
	if ok {
		held.stop()
		<-held.done
	}
}
