package cluster

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"linus/internal/job"
)

// slow is how long an entry may take before the next one is asked, too. A machine that has lost
// power does not answer: its connections end half a minute later.
const slow = 3 * time.Second

type reply[T any] struct {
	entry int
	value T
	err   error
}

// firstOf has an entry do work, beginning with the one that reported last, and the next one when
// that fails or is slow. It returns the first good reply (nil good: the first without an error) or,
// if there is none, the first without an error; then tried is nil. If all entries fail, tried has
// their errors. Work whose reply no longer counts is cancelled.
func firstOf[T any](ctx context.Context, p *Provider, work func(context.Context, Node) (T, error), good func(T) bool) (best reply[T], tried []error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	p.mu.Lock()
	first := p.entry
	p.mu.Unlock()
	replies := make(chan reply[T], len(p.o.Entries))
	next := time.NewTimer(slow)
	defer next.Stop()
	asked := 0
	ask := func() {
		if asked == len(p.o.Entries) {
			return
		}
		at := (first + asked) % len(p.o.Entries)
		asked++
		next.Reset(slow)
		p.asking.Go(func() {
			value, err := work(ctx, p.o.Entries[at].Node)
			replies <- reply[T]{at, value, err}
		})
	}
	ask()
	found := false
	for answered := 0; answered < len(p.o.Entries); {
		select {
		case <-ctx.Done():
			return best, []error{context.Cause(ctx)}
		case <-next.C:
			ask()
			continue
		case r := <-replies:
			answered++
			switch {
			case ctx.Err() != nil:
				return best, []error{context.Cause(ctx)}
			case r.err != nil:
				tried = append(tried, r.err)
				p.o.Log.WarnContext(ctx, "an entry of the cluster does not do what is asked", "host", p.o.Entries[r.entry].Host, "err", r.err)
			case good == nil || good(r.value):
				return r, nil
			case !found:
				best, found = r, true
			}
			ask()
		}
	}
	if found {
		return best, nil
	}
	return best, tried
}

// ask reads the inventory from an entry in the part of the cluster with quorum; if there is none,
// from one without.
func (p *Provider) ask(ctx context.Context) (entry int, inv job.Inventory, err error) {
	r, tried := firstOf(ctx, p, func(ctx context.Context, n Node) (job.Inventory, error) { return n.Inventory(ctx) },
		func(inv job.Inventory) bool { return inv.Quorum })
	return r.entry, r.value, p.noEntry(tried)
}

// noEntry returns the error of a cluster in which no entry could do what was asked; nil if tried is
// empty.
func (p *Provider) noEntry(tried []error) error {
	switch len(tried) {
	case 0:
		return nil
	case 1:
		return tried[0]
	}
	e := &job.HostError{Op: "read the nodes of the cluster", Host: p.hosts(), Text: "no entry answers"}
	for _, err := range tried {
		if host, ok := errors.AsType[*job.HostError](err); ok {
			e.Text += "; " + host.Host + ": " + host.Text
			e.Remedy = cmp.Or(e.Remedy, host.Remedy)
			e.Own = e.Own || host.Own
			if e.Class != job.HostUnreachable { // an unreachable entry may be back, whatever is wrong with the others
				e.Class = host.Class
			}
		}
	}
	e.Class = cmp.Or(e.Class, job.HostUnreachable)
	return e
}

func (p *Provider) hosts() string {
	names := make([]string, len(p.o.Entries))
	for i, e := range p.o.Entries {
		names[i] = e.Host
	}
	return strings.Join(names, ", ")
}
