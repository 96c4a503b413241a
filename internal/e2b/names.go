package e2b

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// A sandbox that may only connect to some names does so through a proxy of an engine, which listens
// on a port of the sandbox's loopback while the sandbox runs. Of several engines, the one that
// holds the port keeps it; the others retry.

const (
	namesLook  = 5 * time.Second  // between two searches for sandboxes that need a proxy
	namesAgain = 2 * time.Second  // until a lost proxy is opened again
	namesTime  = 30 * time.Second // for the proxy of a new sandbox to open
)

// proxies are the proxies of this engine.
type proxies struct {
	look    chan struct{} // capacity 1: there is a new sandbox
	keeping sync.WaitGroup

	mu   sync.Mutex
	open map[string]chan struct{} // closed: the proxy was open once; by the ID in the VM's marker
	kept map[string]proxy
	last map[string]chan struct{} // ended channel of a proxy that was stopped and has not ended yet
}

// proxy is the proxy of one sandbox.
type proxy struct {
	names []string  // the names that it lets through
	read  time.Time // when names were read from the sandbox; zero: not yet
	stop  context.CancelFunc
	ended chan struct{} // closed: the port is free
}

func (s *server) keepProxies(ctx context.Context) {
	defer s.proxies.keeping.Wait()
	again := time.NewTicker(namesLook)
	defer again.Stop()
	for ctx.Err() == nil {
		asked := time.Now()
		if all, err := s.Sandboxes.Sandboxes(job.WithPrincipal(ctx, job.Operator())); err == nil {
			s.tendProxies(ctx, all, asked)
		}
		select {
		case <-again.C:
		case <-s.proxies.look:
		case <-ctx.Done():
		}
	}
}

// tendProxies opens and closes proxies according to all, a list of sandboxes requested at asked.
func (s *server) tendProxies(ctx context.Context, all []vm.VM, asked time.Time) {
	a := &s.proxies
	a.mu.Lock()
	defer a.mu.Unlock()
	needed := map[string]bool{}
	for _, v := range all {
		if !v.Network.Proxied() || stateOf(v) != running {
			continue
		}
		needed[v.Job] = true
		open := a.whenOpen(v, asked)
		if _, is := a.kept[v.Job]; !is {
			ctx, cancel := context.WithCancel(ctx)
			last, ended := a.last[v.Job], make(chan struct{})
			a.kept[v.Job] = proxy{stop: cancel, ended: ended}
			a.keeping.Go(func() {
				defer a.forget(v.Job, ended)
				if last != nil {
					<-last
				}
				s.keepProxy(ctx, v.Job, open, ended)
			})
		}
	}
	for id := range a.kept {
		if !needed[id] {
			a.close(id)
		}
	}
}

// close ends a sandbox's proxy; the caller holds a.mu.
func (a *proxies) close(id string) {
	a.kept[id].stop()
	a.last[id] = a.kept[id].ended
	delete(a.kept, id)
	delete(a.open, id)
}

func (a *proxies) forget(id string, ended chan struct{}) {
	close(ended)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last[id] == ended {
		delete(a.last, id)
	}
}

// whenOpen returns a channel that is closed once a sandbox's proxy has been open. It ends a proxy
// with other names, unless that read its names after v was requested. The caller holds a.mu.
func (a *proxies) whenOpen(v vm.VM, asked time.Time) chan struct{} {
	if has, is := a.kept[v.Job]; is && !has.read.IsZero() && has.read.Before(asked) && !slices.Equal(has.names, v.Network.Allow) {
		a.close(v.Job)
	}
	if a.open[v.Job] == nil {
		a.open[v.Job] = make(chan struct{})
	}
	return a.open[v.Job]
}

// noteNames records the names that a sandbox's proxy opens with.
func (a *proxies) noteNames(v vm.VM, ended chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if has := a.kept[v.Job]; has.ended == ended {
		has.names, has.read = v.Network.Allow, time.Now()
		a.kept[v.Job] = has
	}
}

func (s *server) keepProxy(ctx context.Context, id string, open, ended chan struct{}) {
	said := sync.OnceFunc(func() { close(open) })
	again := time.NewTicker(namesAgain)
	defer again.Stop()
	for ctx.Err() == nil {
		v, err := s.Sandboxes.Sandbox(job.WithPrincipal(ctx, job.Operator()), id) // its address may have changed
		if err == nil {
			s.proxies.noteNames(v, ended)
			if err = s.Proxy(ctx, v, said); err != nil && s.isProxied(ctx, v, open) {
				said()
			}
		}
		if err != nil {
			s.Log.Debug("a sandbox's proxy is not open", "vm", id, "err", err)
		}
		select {
		case <-again.C:
		case <-ctx.Done():
		}
	}
}

// isProxied reports whether another engine runs a sandbox's proxy, that is, something accepts
// connections on its port. It only checks until the proxy was open once.
func (s *server) isProxied(ctx context.Context, v vm.VM, open chan struct{}) bool {
	select {
	case <-open:
		return false
	default:
	}
	t, err := s.Engine.DialVM(job.WithPrincipal(ctx, job.Operator()), v.Job, job.ProxyPort(v.ProxyOf()))
	if err != nil {
		return false
	}
	_ = t.Close() // only a probe
	return true
}

// proxied waits until the proxy that a sandbox needs is open, and returns env with the variables by
// which programs find that proxy.
func (s *server) proxied(ctx context.Context, v vm.VM, env map[string]string) (map[string]string, error) {
	if !v.Network.Proxied() {
		return env, nil
	}
	s.proxies.mu.Lock()
	open := s.proxies.whenOpen(v, time.Now())
	s.proxies.mu.Unlock()
	select {
	case s.proxies.look <- struct{}{}:
	default:
	}
	ctx, cancel := context.WithTimeoutCause(ctx, namesTime, fmt.Errorf("the way to its names was not open after %s", namesTime))
	defer cancel()
	select {
	case <-open:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	all := job.ProxyEnv(v.ProxyOf(), v.Network)
	maps.Copy(all, env)
	return all, nil
}
