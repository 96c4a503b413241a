package cluster

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"linus/internal/job"
)

// slow is how long an entry may take before the next one is asked, too. A machine that
// has lost its power says nothing: its connections end half a minute later.
const slow = 3 * time.Second

// reply is what an entry returned.
type reply[T any] struct {
	entry int
	value T
	err   error
}

// firstOf has work done by an entry, beginning with the one that reported last, and by
// the next one when that has failed, or is slow. It returns the first reply without error
// that is good (nil: each is), else the first without error, and then no errors; or all
// entries' errors. Work may be done by several entries, and is ended where its reply does
// not count any more.
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

// ask reads the inventory from an entry that is in the part of the cluster with quorum;
// without any such, from one that has none.
func (p *Provider) ask(ctx context.Context) (entry int, inv job.Inventory, err error) {
	r, tried := firstOf(ctx, p, func(ctx context.Context, n Node) (job.Inventory, error) { return n.Inventory(ctx) },
		func(inv job.Inventory) bool { return inv.Quorum })
	return r.entry, r.value, p.noEntry(tried)
}

// noEntry is the error of a cluster none of whose entries could do what was asked; nil
// without errors of theirs.
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
			if e.Class != job.HostUnreachable { // one that is away may be back, whatever is wrong with the others
				e.Class = host.Class
			}
		}
	}
	e.Class = cmp.Or(e.Class, job.HostUnreachable)
	return e
}

// hosts names the entries.
func (p *Provider) hosts() string {
	names := make([]string, len(p.o.Entries))
	for i, e := range p.o.Entries {
		names[i] = e.Host
	}
	return strings.Join(names, ", ")
}
