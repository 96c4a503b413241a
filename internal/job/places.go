package job

import (
	"context"
	"sync"
)

const (
	placesEach = 4       // for each principal
	smallBody  = 1 << 20 // bytes of a request that takes no place
)

// Places are taken by requests that cost memory. Each principal has its own, so that one
// whose requests are large, or slow, holds nobody else up. The zero value is ready.
type Places struct {
	mu    sync.Mutex
	taken map[string]chan struct{} // by principal
}

// TakeFor is Take for a request of so many bytes, or fewer than none if that is not known.
// A small one takes no place.
func (p *Places) TakeFor(ctx context.Context, bytes int64) (leave func(), err error) {
	if bytes >= 0 && bytes <= smallBody {
		return func() {}, nil
	}
	return p.Take(ctx)
}

// Take waits for a place of the context's principal, until leave is called. It returns the
// context's error if that ends first.
func (p *Places) Take(ctx context.Context) (leave func(), err error) {
	who, _ := PrincipalFrom(ctx)
	p.mu.Lock()
	if p.taken == nil {
		p.taken = map[string]chan struct{}{}
	}
	taken := p.taken[who.Name]
	if taken == nil {
		taken = make(chan struct{}, placesEach)
		p.taken[who.Name] = taken
	}
	p.mu.Unlock()
	select {
	case taken <- struct{}{}:
		return func() { <-taken }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
