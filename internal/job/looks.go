package job

import (
	"context"
	"sync"
	"time"
)

// Looks shares reads among callers who follow the same thing: one reads, and all others get its result.
type Looks[K comparable, V any] struct {
	mu    sync.Mutex
	all   map[K]*sharedLook[V]
	swept time.Time
}

type sharedLook[V any] struct {
	began time.Time
	done  chan struct{}
	value V
	err   error
}

// oldestLook is how long a result is kept.
const oldestLook = 5 * time.Second

// Do returns what read returns for a key: from a read of another caller that is under way or began
// at most age ago, if there is one. The key must include whose data it is.
func (l *Looks[K, V]) Do(ctx context.Context, key K, age time.Duration, read func(context.Context) (V, error)) (V, error) {
	for {
		l.mu.Lock()
		at := l.all[key]
		if at == nil || at.ended() && time.Since(at.began) > age {
			at = &sharedLook[V]{began: time.Now(), done: make(chan struct{})}
			l.keep(key, at)
			l.mu.Unlock()
			defer close(at.done)
			at.value, at.err = read(ctx)
			return at.value, at.err
		}
		l.mu.Unlock()
		select {
		case <-at.done:
		case <-ctx.Done():
			var none V
			return none, ctx.Err()
		}
		if at.err == nil || ctx.Err() != nil {
			return at.value, at.err
		}
		l.mu.Lock() // the error is the reader's own: it may have gone, or may not be allowed to read
		if l.all[key] == at {
			delete(l.all, key)
		}
		l.mu.Unlock()
	}
}

func (s *sharedLook[V]) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// keep adds a look and drops old ones. The caller holds l.mu.
func (l *Looks[K, V]) keep(key K, at *sharedLook[V]) {
	if l.all == nil {
		l.all = map[K]*sharedLook[V]{}
	}
	if now := at.began; now.Sub(l.swept) > oldestLook {
		l.swept = now
		for key, old := range l.all {
			if old.ended() && now.Sub(old.began) > oldestLook {
				delete(l.all, key)
			}
		}
	}
	l.all[key] = at
}

type followingKey struct{}

// Following returns a context for a caller who follows an output and will soon read again: with an
// engine of Shared, a result up to age old is good enough.
func Following(ctx context.Context, age time.Duration) context.Context {
	return context.WithValue(ctx, followingKey{}, age)
}

// Shared returns an engine on which all that follow the same output, for the same principal and
// token, share one read.
func Shared(e Engine) Engine {
	type view struct {
		principal, token string
		of               Stretch
	}
	looks := &Looks[view, any]{}
	return Through(func(ctx context.Context, v *Verb, in any) (any, error) {
		age, following := ctx.Value(followingKey{}).(time.Duration)
		of, output := in.(Stretch)
		if !following || !output {
			return v.Do(ctx, e, in)
		}
		who, _ := PrincipalFrom(ctx)
		return looks.Do(ctx, view{who.Name, who.Token, of}, age, func(ctx context.Context) (any, error) { return v.Do(ctx, e, in) })
	})
}
