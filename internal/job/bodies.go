package job

import (
	"context"
	"sync"
)

// How many bytes of requests' bodies there may be in memory: in all, of one principal, and of
// those that are not small, which leave room for those that are. Decoding one takes a few
// times as much.
const (
	allBodies   = 256 << 20
	bodiesEach  = 128 << 20
	largeBodies = 224 << 20
	smallBody   = 1 << 20
)

// Bodies is the memory that the bodies of requests have, from before they are read until the
// requests are done. No principal can have all of it, so that one whose requests are large,
// or slow, does not hold the others up. The zero value is ready.
type Bodies struct {
	// Apart is for responses, which are sent as slowly as their clients read: there is no
	// bound for all, so that who reads slowly holds up nobody else's.
	Apart bool

	mu    sync.Mutex
	all   int64
	of    map[string]int64 // by principal
	freed chan struct{}    // closed when some are done
}

// Take waits until there is room for a body of so many bytes of the context's principal, and
// keeps it until leave is called. Fewer than none is a size that is not known. It returns
// the context's error if that ends first.
func (b *Bodies) Take(ctx context.Context, bytes int64) (leave func(), err error) {
	if bytes < 0 || bytes > MaxManifest {
		bytes = MaxManifest
	}
	who, _ := PrincipalFrom(ctx)
	for {
		freed, ok := b.take(who.Name, bytes)
		if ok {
			return func() { b.leave(who.Name, bytes) }, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// take keeps room for a body; or there is none before freed is closed.
func (b *Bodies) take(who string, bytes int64) (freed <-chan struct{}, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	most := int64(allBodies)
	if bytes > smallBody {
		most = largeBodies
	}
	if !b.Apart && b.all+bytes > most || b.of[who]+bytes > bodiesEach {
		if b.freed == nil {
			b.freed = make(chan struct{})
		}
		return b.freed, false
	}
	if b.of == nil {
		b.of = map[string]int64{}
	}
	b.all += bytes
	b.of[who] += bytes
	return nil, true
}

func (b *Bodies) leave(who string, bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all -= bytes
	if b.of[who] -= bytes; b.of[who] == 0 {
		delete(b.of, who)
	}
	if b.freed != nil {
		close(b.freed)
		b.freed = nil
	}
}
