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
	"strings"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/job"
	"linus/internal/sleep"
	"linus/internal/vm"
)

// NamesProxy is the way out of a VM that may reach only certain names, and of one that uses credentials.
type NamesProxy interface {
	Dial(ctx context.Context) (net.Conn, error)
	CA() []byte // PEM that the VM must trust; nil: none
	Close()
}

// ProxyOptions configure a job's proxy.
type ProxyOptions struct {
	Names       []string // names that may be reached
	Record      func(job.Connection)
	Anywhere    func(ctx context.Context, address string) (net.Conn, error) // everything else, from the VM; nil: nothing
	Credentials []string
	Used        func(job.CredentialUse) // called with each request to the credentials' hosts
}

// needsProxy reports whether a job needs a proxy, and whether everything that the VM reaches goes
// through it (only).
func needsProxy(j job.Job) (needs, only bool) {
	only = networkOf(j).Proxied()
	return only || len(j.Manifest.Credentials) > 0, only
}

// proxyPatience is how long the start of a task waits for its proxy.
const proxyPatience = 2 * time.Minute

func networkOf(j job.Job) vm.Network {
	if j.Shares() {
		return j.VM.Network
	}
	return j.Manifest.Network
}

// proxied returns a manifest that points the task to the job's proxy. Variables that the manifest
// sets itself stay.
func proxied(m job.Manifest, id string, n vm.Network, only bool) job.Manifest {
	env := job.ProxyEnv(id, n)
	if !only { // credentials are not for plain HTTP
		delete(env, "HTTP_PROXY")
		delete(env, "http_proxy")
	}
	for _, name := range m.Secrets {
		delete(env, name)
	}
	maps.Copy(env, m.Env)
	m.Env = env
	return m
}

type proxy struct {
	cancel context.CancelFunc
	done   chan struct{}
	opened chan struct{} // closed when the VM first reaches it

	mu  sync.Mutex
	job job.Job // as last read
	err error   // why the VM did not reach it at the last attempt
}

// openProxy starts the proxy of a job that needs one, to run until closeProxy; it returns nil for
// other jobs. It can be called again.
func (e *Executor) openProxy(ctx context.Context, r *run, j job.Job) *proxy {
	if r.proxy != nil {
		return r.proxy
	}
	needs, only := needsProxy(j)
	if !needs || e.o.Proxy == nil {
		return nil
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	p := &proxy{cancel: cancel, done: make(chan struct{}), opened: make(chan struct{})}
	seen := e.trafficOf(ctx, r)
	o := ProxyOptions{
		Names: networkOf(j).Allow,
		Record: func(c job.Connection) {
			if e.o.Connected != nil {
				e.o.Connected(c)
			}
			seen.note(c)
		},
		Credentials: j.Manifest.Credentials, Used: seen.used,
	}
	if !only {
		o.Anywhere = func(ctx context.Context, address string) (net.Conn, error) {
			p.mu.Lock()
			now := p.job
			p.mu.Unlock()
			return e.o.Runner.Connect(ctx, now, address)
		}
	}
	r.proxy = p
	go func() {
		defer close(p.done)
		defer seen.end()
		e.keepProxy(ctx, p, j, o)
	}()
	return p
}

// keepProxy reopens the way from the VM whenever it is lost. The VM must trust the proxy's CA
// first: each engine that works on the job has another CA.
func (e *Executor) keepProxy(ctx context.Context, p *proxy, j job.Job, o ProxyOptions) {
	pause := backoff.NewExponentialBackOff()
	pause.MaxInterval = 10 * time.Second
	var server NamesProxy
	trusted := false
	for ctx.Err() == nil {
		now, err := e.o.Jobs.Job(ctx, j.ID) // the VM may have another address
		if err == nil && server == nil {
			if server, err = e.o.Proxy(ctx, o); err == nil {
				defer server.Close()
			}
		}
		if err == nil {
			p.mu.Lock()
			p.job = now
			p.mu.Unlock()
		}
		if err == nil && !trusted && server.CA() != nil {
			err = e.o.Runner.Trust(ctx, now, server.CA())
		}
		if err == nil {
			trusted = true
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
		_ = sleep.For(ctx, pause.NextBackOff())
	}
}

// wait returns when the VM reaches the proxy. A nil proxy needs no wait.
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
	return fmt.Errorf("egress allow and credentials need forwarding by the VM's SSH server (AllowTcpForwarding), and a free port: %w", cmp.Or(p.err, context.Cause(ctx)))
}

// closeProxy ends the job's proxy and records the traffic.
func (r *run) closeProxy() {
	if r.proxy != nil {
		r.proxy.cancel()
		<-r.proxy.done
		r.proxy = nil
	}
}

// mostDestinations bounds the names whose connections are recorded individually.
const mostDestinations = 100

// destination is a name and port that a job asked for, and the answer.
type destination struct {
	name    string // for a request with a credential: its whole text
	request bool
	allowed bool
	why     string
}

type tally struct {
	count   int
	out, in int64
	told    int // connections that are already in an event
}

// traffic adds up a job's connections. It records an event for the first connection to a name, and
// each time the number has doubled; the last events have the totals.
type traffic struct {
	tell func(...job.Event)

	mu  sync.Mutex
	all map[destination]*tally
}

func (e *Executor) trafficOf(ctx context.Context, r *run) *traffic {
	return &traffic{tell: func(events ...job.Event) {
		if _, err := e.update(context.WithoutCancel(ctx), r.id, recordEvents(events...)); err != nil {
			e.o.Log.Warn("connections of a job could not be recorded", "job_id", r.id, "err", err)
		}
	}, all: map[destination]*tally{}}
}

func (t *traffic) note(c job.Connection) {
	key := destination{name: c.Target(), allowed: c.Allowed, why: c.Why}
	other := destination{name: "other names", allowed: c.Allowed}
	if !c.Ended {
		t.count(key, other)
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	_, sum := t.sum(key, other)
	sum.out, sum.in = sum.out+c.Out, sum.in+c.In
}

func (t *traffic) used(u job.CredentialUse) {
	t.count(destination{name: u.Text(), request: true}, destination{name: "other requests with credentials", request: true})
}

// sum returns the key and tally of a destination, or those of other if there are too many
// destinations. The caller holds t.mu.
func (t *traffic) sum(key, other destination) (destination, *tally) {
	if t.all[key] == nil && len(t.all) >= mostDestinations {
		key = other
	}
	if t.all[key] == nil {
		t.all[key] = &tally{}
	}
	return key, t.all[key]
}

// count counts one more, and records an event when one is due.
func (t *traffic) count(key, other destination) {
	t.mu.Lock()
	key, sum := t.sum(key, other)
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

// end records everything that is not in an event yet.
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
	text := d.name
	switch {
	case d.request:
	case d.allowed:
		text += " allowed"
	default:
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
