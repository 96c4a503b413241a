package job

import (
	"context"
	"sync"
)

// Bounds of the bytes of request bodies in memory: in total, per principal, and of bodies that are not
// small, so that room is left for small ones. Decoding a body takes a few times its size.
const (
	allBodies   = 256 << 20
	bodiesEach  = 128 << 20
	largeBodies = 224 << 20
	smallBody   = 1 << 20
)

// Bodies accounts for the memory of request bodies, from before they are read until their requests
// are done. No principal can have all of it, so that a principal with large or slow requests does
// not hold up others. The zero value is ready.
type Bodies struct {
	// Apart is set for responses, which are sent as slowly as their clients read. There is no common
	// bound then, so that a slow reader holds up nobody else.
	Apart bool

	mu    sync.Mutex
	all   int64
	of    map[string]int64 // by principal
	freed chan struct{}    // closed when room becomes free
}

// Take waits until there is room for a body of the context's principal with this many bytes, and
// reserves it until leave is called. A negative number means that the size is not known. Take
// returns the context's error if the context ends first.
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

// take reserves room for a body. If there is not enough, freed is closed when it is worth another try.
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
