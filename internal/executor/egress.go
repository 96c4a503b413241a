package executor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/job"
	"linus/internal/lock"
	"linus/internal/vm"
)

// NamesProxy is the way out of a VM that may reach names only.
type NamesProxy interface {
	Dial(ctx context.Context) (net.Conn, error)
	Close()
}

// proxyPatience is how long the start of a task waits for its proxy.
const proxyPatience = 2 * time.Minute

// networkOf returns the network of the VM that a job runs in.
func networkOf(j job.Job) vm.Network {
	if j.Shares() {
		return j.VM.Network
	}
	return j.Manifest.Network
}

// proxied returns a manifest whose task finds the job's proxy. What the manifest sets
// itself stays.
func proxied(m job.Manifest, id string) job.Manifest {
	proxy := "http://127.0.0.1:" + strconv.Itoa(job.ProxyPort(id))
	const direct = "localhost,127.0.0.1,::1"
	env := map[string]string{
		"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "http_proxy": proxy, "https_proxy": proxy, "NO_PROXY": direct, "no_proxy": direct,
		"NODE_USE_ENV_PROXY": "1",
	}
	for _, name := range m.Secrets {
		delete(env, name)
	}
	maps.Copy(env, m.Env)
	m.Env = env
	return m
}

// proxy is the work of a job's proxy.
type proxy struct {
	cancel context.CancelFunc
	done   chan struct{}
	opened chan struct{} // closed when the VM first reaches it

	mu  sync.Mutex
	err error // why the VM did not, the last time it was tried
}

// openProxy starts the proxy of a job whose VM may reach names only, until closeProxy;
// nil for others. It can be called again.
func (e *Executor) openProxy(ctx context.Context, r *run, j job.Job) *proxy {
	if r.proxy != nil {
		return r.proxy
	}
	network := networkOf(j)
	if network.Mode() != vm.EgressAllow || e.o.Proxy == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &proxy{cancel: cancel, done: make(chan struct{}), opened: make(chan struct{})}
	seen := &traffic{tell: func(events ...job.Event) {
		if _, err := e.update(context.WithoutCancel(ctx), r.id, recordEvents(events...)); err != nil {
			e.o.Log.Warn("connections of a job could not be recorded", "job_id", r.id, "err", err)
		}
	}, all: map[destination]*tally{}}
	server := e.o.Proxy(network.Allow, func(c job.Connection) {
		if e.o.Connected != nil {
			e.o.Connected(c)
		}
		seen.note(c)
	})
	r.proxy = p
	go func() {
		defer close(p.done)
		defer seen.end()
		defer server.Close()
		e.keepProxy(ctx, p, j, server)
	}()
	return p
}

// keepProxy opens the way from the VM again whenever it is lost.
func (e *Executor) keepProxy(ctx context.Context, p *proxy, j job.Job, server NamesProxy) {
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = 10 * time.Second
	for ctx.Err() == nil {
		now, err := e.o.Jobs.Job(ctx, j.ID) // its VM may have another address
		if err == nil {
			err = e.o.Runner.Proxy(ctx, now, job.ProxyPort(j.ID), server.Dial, func() {
				pause.Reset()
				select {
				case <-p.opened:
				default:
					close(p.opened)
				}
			})
		}
		p.mu.Lock()
		p.err = err
		p.mu.Unlock()
		_ = lock.Sleep(ctx, pause.NextBackOff())
	}
}

// wait returns when the VM reaches the proxy; nil for no proxy.
func (p *proxy) wait(ctx context.Context) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, proxyPatience, errors.New("it was tried for "+proxyPatience.String()))
	defer cancel()
	select {
	case <-p.opened:
		return nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("egress allow needs forwarding by the VM's SSH server (AllowTcpForwarding), and a free port: %w", cmp.Or(p.err, context.Cause(ctx)))
}

// closeProxy ends the job's proxy, and records what passed.
func (r *run) closeProxy() {
	if r.proxy != nil {
		r.proxy.cancel()
		<-r.proxy.done
		r.proxy = nil
	}
}

// mostDestinations bounds the names whose connections are recorded one by one.
const mostDestinations = 100

// destination is a name and port, as a job asked for them, and the answer.
type destination struct {
	name    string
	allowed bool
	why     string
}

type tally struct {
	count   int
	out, in int64
	told    int // connections that are in an event
}

// traffic adds up a job's connections. An event records the first to a name, and then
// each time that their number has doubled; the last events have the totals.
type traffic struct {
	tell func(...job.Event)

	mu  sync.Mutex
	all map[destination]*tally
}

func (t *traffic) note(c job.Connection) {
	key := destination{c.Target(), c.Allowed, c.Why}
	t.mu.Lock()
	sum := t.all[key]
	if sum == nil && len(t.all) >= mostDestinations {
		key = destination{"other names", c.Allowed, ""}
		sum = t.all[key]
	}
	if sum == nil {
		sum = &tally{}
		t.all[key] = sum
	}
	if c.Ended {
		sum.out, sum.in = sum.out+c.Out, sum.in+c.In
		t.mu.Unlock()
		return
	}
	sum.count++
	if bits.OnesCount(uint(sum.count)) != 1 {
		t.mu.Unlock()
		return
	}
	sum.told = sum.count
	event := sum.event(key)
	t.mu.Unlock()
	t.tell(event)
}

// end records everything that is in no event yet.
func (t *traffic) end() {
	t.mu.Lock()
	var events []job.Event
	for _, key := range slices.SortedFunc(maps.Keys(t.all), func(a, b destination) int { return strings.Compare(a.name+a.why, b.name+b.why) }) {
		if sum := t.all[key]; sum.told != sum.count || sum.out+sum.in > 0 {
			events = append(events, sum.event(key))
		}
	}
	t.all = map[destination]*tally{}
	t.mu.Unlock()
	if len(events) > 0 {
		t.tell(events...)
	}
}

func (s *tally) event(d destination) job.Event {
	text := d.name + " allowed"
	if !d.allowed {
		text = d.name + " refused"
		if d.why != "" {
			text += ": " + d.why
		}
	}
	if s.count > 1 {
		text += fmt.Sprintf(", %d times", s.count)
	}
	if s.out+s.in > 0 {
		text += fmt.Sprintf(", %d bytes sent, %d received", s.out, s.in)
	}
	return job.Event{Kind: job.EventNetwork, Text: text}
}
