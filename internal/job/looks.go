package job

import (
	"context"
	"sync"
	"time"
)

// Looks are at what many follow at once: one looks, and all others have what it saw.
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

// oldestLook is how long what was seen is kept.
const oldestLook = 5 * time.Second

// Do returns what read returns for a key: of a look that another makes, or has begun at most
// age ago, if there is one. Whose key it is must be part of it.
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
		l.mu.Lock() // who has looked may have gone, or may not: its error is its own
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

// keep adds a look and drops old ones. l.mu is held.
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

// Following is a context of one who follows an output and looks again soon: what was seen age
// ago will do, on an engine of Shared.
func Following(ctx context.Context, age time.Duration) context.Context {
	return context.WithValue(ctx, followingKey{}, age)
}

// Shared returns an engine on which all that follow the same output, for the same principal
// and token, look at it together.
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
