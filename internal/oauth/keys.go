package oauth

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"

	"linus/internal/job"
)

const (
	freshTime = 10 * time.Minute // after which keys in use are fetched again
	trustTime = time.Hour        // after which keys are no longer used
	pauseTime = 10 * time.Second // between two attempts, whatever they are for
	fetchTime = 10 * time.Second // for one attempt
)

// keys are the issuer's keys, as last fetched. Only requests that cannot be decided without it wait
// for an attempt.
type keys struct {
	fetch func(ctx context.Context) ([]jose.JSONWebKey, error)
	log   *slog.Logger
	now   func() time.Time

	running sync.WaitGroup
	end     context.CancelFunc
	ctx     context.Context //nolint:containedctx // of the attempts, which outlive the requests that begin them

	mu       sync.Mutex
	set      []jose.JSONWebKey
	at       time.Time     // of the last successful attempt
	tried    time.Time     // when the last attempt began
	attempt  chan struct{} // closed when the attempt in progress has ended; nil: there is none
	failures int           // since the last successful attempt
}

func newKeys(fetch func(ctx context.Context) ([]jose.JSONWebKey, error), log *slog.Logger) *keys {
	k := &keys{fetch: fetch, log: log, now: time.Now}
	k.ctx, k.end = context.WithCancel(context.Background())
	return k
}

func (k *keys) close() {
	k.mu.Lock()
	k.end() // no attempt begins after this
	k.mu.Unlock()
	k.running.Wait()
}

// find returns the key that has signed a token. If it does not know the key, it asks the issuer
// once, unless it did so less than pauseTime ago.
func (k *keys) find(ctx context.Context, kid, alg string) (key *jose.JSONWebKey, err error) {
	known := k.look(ctx, func(set []jose.JSONWebKey) bool {
		key = pick(set, kid, alg)
		return key != nil
	})
	switch {
	case key != nil:
		return key, nil
	case !known:
		return nil, job.ErrUnchecked
	}
	return nil, &job.RefusedError{Why: "the issuer has no such key"}
}

// ready returns once there are trusted keys, and with them the metadata fetched together. It
// returns job.ErrUnchecked if there are none, and none can be fetched at the moment.
func (k *keys) ready(ctx context.Context) error {
	if !k.look(ctx, func([]jose.JSONWebKey) bool { return true }) {
		return cmp.Or(ctx.Err(), job.ErrUnchecked)
	}
	return nil
}

// look reports whether there are keys that are still trusted. If enough does not accept them, it
// waits for the attempt in progress, or begins one. It also begins an attempt if the keys are older
// than freshTime, without waiting.
func (k *keys) look(ctx context.Context, enough func([]jose.JSONWebKey) bool) (known bool) {
	for waited := false; ; waited = true {
		k.mu.Lock()
		age := k.now().Sub(k.at)
		known = !k.at.IsZero() && age < trustTime
		found := known && enough(k.set)
		if !found || age >= freshTime {
			k.begin()
		}
		attempt := k.attempt
		k.mu.Unlock()
		if found || waited || attempt == nil {
			return known
		}
		select {
		case <-attempt:
		case <-ctx.Done():
			return false
		}
	}
}

func (k *keys) refresh() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begin()
}

// begin begins an attempt, unless one runs or began less than pauseTime ago; k.mu must be held.
func (k *keys) begin() {
	if k.attempt != nil || k.ctx.Err() != nil || !k.tried.IsZero() && k.now().Sub(k.tried) < pauseTime {
		return
	}
	done := make(chan struct{})
	k.attempt, k.tried = done, k.now()
	k.running.Go(func() {
		ctx, cancel := context.WithTimeout(k.ctx, fetchTime)
		defer cancel()
		set, err := k.fetch(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		k.attempt = nil
		close(done)
		k.ended(set, err)
	})
}

// ended stores what an attempt has fetched; the caller holds k.mu.
func (k *keys) ended(set []jose.JSONWebKey, err error) {
	switch {
	case err == nil:
		if k.at.IsZero() || k.failures > 0 {
			k.log.Info("the OAuth issuer's keys are known", "keys", len(set))
		}
		k.set, k.at, k.failures = set, k.now(), 0
	case k.ctx.Err() == nil:
		k.failures++
		k.log.Warn("the OAuth issuer's keys cannot be fetched; its tokens and logins are refused once the keys known so far are an hour old", "attempt", k.failures, "known", !k.at.IsZero() && k.now().Sub(k.at) < trustTime, "err", err)
	}
}

// pick returns the key of a set with an ID, or nil. Without an ID it returns the only key that
// fits.
func pick(set []jose.JSONWebKey, kid, alg string) *jose.JSONWebKey {
	var found *jose.JSONWebKey
	for i := range set {
		key := &set[i]
		if kid != "" && key.KeyID != kid || !fits(key, alg) {
			continue
		}
		if found != nil {
			return nil
		}
		found = key
	}
	return found
}

// fits reports whether a key may sign with an algorithm.
func fits(key *jose.JSONWebKey, alg string) bool {
	if key.Use != "" && key.Use != "sig" || key.Algorithm != "" && key.Algorithm != alg {
		return false
	}
	switch public := key.Key.(type) {
	case *rsa.PublicKey:
		return public.N.BitLen() >= 2048 && (strings.HasPrefix(alg, "RS") || strings.HasPrefix(alg, "PS"))
	case *ecdsa.PublicKey:
		return map[string]string{"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}[alg] == public.Curve.Params().Name
	case ed25519.PublicKey:
		return alg == string(jose.EdDSA)
	}
	return false // a secret that both sides have, or a private key
}
