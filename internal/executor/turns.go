package executor

import (
	"context"
	"sync"

	"linus/internal/job"
)

// maxReads is how many verbs with ReadsHost a principal other than the operator may call at the
// same time. Further calls wait: each call runs a script on the host, as root.
const maxReads = 4

type turns struct {
	mu sync.Mutex
	of map[string]*turn
}

type turn struct {
	places chan struct{}
	users  int // calls that have a place or wait for one
}

// take waits for the caller's turn, which ends with leave.
func (t *turns) take(ctx context.Context) (leave func(), err error) {
	p, _ := job.PrincipalFrom(ctx)
	name := p.Owner()
	if name == "" {
		return func() {}, nil
	}
	t.mu.Lock()
	own := t.of[name]
	if own == nil {
		own = &turn{places: make(chan struct{}, maxReads)}
		t.of[name] = own
	}
	own.users++
	t.mu.Unlock()
	forget := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if own.users--; own.users == 0 {
			delete(t.of, name)
		}
	}
	select {
	case own.places <- struct{}{}:
		return func() { <-own.places; forget() }, nil
	case <-ctx.Done():
		forget()
		return nil, context.Cause(ctx)
	}
}
