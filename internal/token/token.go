// Package token owns the tokens of the API: it creates and revokes them, and identifies the
// principal of a presented token. Whatever is done with a token ends when the token does. The
// package knows nothing about jobs except their owners.
package token

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"linus/internal/job"
)

const (
	tokenCheck = 2 * time.Second // between two checks whether the tokens in use are still valid
	tokenTrust = 4 * time.Second // how long a token is trusted without such a check
	tokenID    = 16              // digits of a token's hash that form its ID
)

// Store stores tokens.
type Store interface {
	// InsertToken adds a token with its hex sha256.
	InsertToken(ctx context.Context, t job.Token, hash string) error
	// Tokens returns all tokens, by name.
	Tokens(ctx context.Context) ([]job.Token, error)
	// Token returns the token with an ID, TokenByHash the token with a hex sha256. Both return
	// job.ErrNotFound if there is none.
	Token(ctx context.Context, id string) (job.Token, error)
	TokenByHash(ctx context.Context, hash string) (job.Token, error)
	// DeleteTokens removes the token with an ID, or all tokens of a name, and returns them. It
	// returns job.ErrNotFound if there are none.
	DeleteTokens(ctx context.Context, ref string) ([]job.Token, error)
}

// Options are the options of a Keeper. Store is required.
type Options struct {
	Store    Store
	Limits   job.Limits   // of a token with role run that sets none
	Log      *slog.Logger // default: slog.Default()
	Observer job.Observer // may be nil
}

// Keeper holds the tokens that were presented to this engine, each with a context that ends with the token,
// and with it all calls and streams that use the token. Its methods may be called from any goroutine.
type Keeper struct {
	o       Options
	changed chan struct{} // tokens may have been revoked

	mu   sync.Mutex
	held map[string]*heldToken // by ID
}

type heldToken struct {
	job.Token
	hash string // empty: only its ID was presented
	life context.Context
	end  context.CancelCauseFunc
	seen time.Time // when it was last read from the store
}

// New returns a Keeper.
func New(o Options) *Keeper {
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Observer == nil {
		o.Observer = func(job.Happening) {}
	}
	return &Keeper{o: o, changed: make(chan struct{}, 1), held: map[string]*heldToken{}}
}

// CreateToken adds a token. Its secret is only in the result.
func (k *Keeper) CreateToken(ctx context.Context, s job.TokenSpec) (job.NewToken, error) {
	if err := s.Validate(); err != nil {
		return job.NewToken{}, err
	}
	if s.Role == job.RoleRun { // read starts nothing, and admin could create itself a token without limits
		s.Limits = s.Limits.WithDefaults(k.o.Limits)
	}
	secret := job.TokenPrefix + rand.Text()
	if s.E2B {
		random := make([]byte, 20)
		_, _ = rand.Read(random) // never fails
		secret = job.E2BPrefix + hex.EncodeToString(random)
	}
	t, err := k.add(ctx, job.Token{TokenSpec: s}, secret)
	return job.NewToken{Token: t, Secret: secret}, err
}

func (k *Keeper) add(ctx context.Context, t job.Token, secret string) (job.Token, error) {
	by := job.CallerFrom(ctx)
	hash := hashToken(secret)
	t.ID, t.CreatedAt, t.CreatedBy = hash[:tokenID], time.Now().UTC(), by.Principal
	if t.TTL > 0 {
		t.ExpiresAt = t.CreatedAt.Add(time.Duration(t.TTL) * time.Second)
	}
	if err := k.o.Store.InsertToken(ctx, t, hash); err != nil {
		return job.Token{}, err
	}
	k.o.Log.Info("token created", "token", t.ID, "principal", t.Name, "role", t.Role, "login", t.Login, "by", by.Principal)
	k.o.Observer(job.TokenChange{Token: t, Created: true, By: by})
	return t, nil
}

// maxLogins bounds the concurrent logins of a person.
const maxLogins = 20

// Login adds a token that is shown to nobody, for the session of a person whom an issuer has
// authenticated. called is the person's display name. The person's logins with another role end,
// since the issuer now says that the role is a different one. The person's oldest logins end if
// there are too many. Expired logins of anybody are removed.
func (k *Keeper) Login(ctx context.Context, name, called string, role job.Role, ttl time.Duration) (job.Token, error) {
	t := job.Token{TokenSpec: job.TokenSpec{Name: name, Role: role, TTL: int(ttl / time.Second)}, Login: called}
	if role == job.RoleRun { // as for other tokens
		t.Limits = t.Limits.WithDefaults(k.o.Limits)
	}
	ctx = job.WithPrincipal(ctx, t.Principal())
	left := 0
	if err := k.endLogins(ctx, func(other job.Token) bool {
		if other.Name == name && other.Role == role {
			left++
		}
		return other.Name == name && (other.Role != role || left >= maxLogins)
	}); err != nil {
		return job.Token{}, err
	}
	return k.add(ctx, t, rand.Text())
}

// EndLogins ends all logins of a principal.
func (k *Keeper) EndLogins(ctx context.Context, name string) error {
	return k.endLogins(job.WithPrincipal(ctx, job.Principal{Name: name}), func(t job.Token) bool { return t.Name == name })
}

// endLogins ends the expired logins, and those for which ends returns true. It calls ends for the
// newest first.
func (k *Keeper) endLogins(ctx context.Context, ends func(job.Token) bool) error {
	all, err := k.o.Store.Tokens(ctx)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b job.Token) int { return b.CreatedAt.Compare(a.CreatedAt) })
	for _, t := range all {
		if t.Login == "" || !t.Expired(time.Now()) && !ends(t) {
			continue
		}
		var gone *job.FieldError // another engine was faster
		if _, err := k.RevokeToken(ctx, t.ID); err != nil && !errors.As(err, &gone) {
			return err
		}
	}
	return nil
}

// Tokens returns all tokens, by name.
func (k *Keeper) Tokens(ctx context.Context) ([]job.Token, error) { return k.o.Store.Tokens(ctx) }

// RevokeToken removes a token by its ID, or all tokens of a name.
func (k *Keeper) RevokeToken(ctx context.Context, ref string) ([]job.Token, error) {
	gone, err := k.o.Store.DeleteTokens(ctx, ref)
	if errors.Is(err, job.ErrNotFound) {
		err = &job.FieldError{Field: "token", Problem: fmt.Sprintf("%.80q is neither a token's ID nor a name that has tokens", ref), Remedy: "linus token list shows them", Fault: job.FaultUnknown}
	}
	if err != nil {
		return nil, err
	}
	by := job.CallerFrom(ctx)
	for _, t := range gone {
		k.drop(t.ID)
		k.o.Log.Info("token revoked", "token", t.ID, "principal", t.Name, "by", by.Principal)
		k.o.Observer(job.TokenChange{Token: t, By: by})
	}
	return gone, nil
}

// Authenticate returns the principal of a token, or job.ErrUnauthorized if the token is unknown,
// revoked or expired.
func (k *Keeper) Authenticate(ctx context.Context, token string) (job.Principal, error) {
	if !job.IsToken(token) {
		return job.Principal{}, job.ErrUnauthorized
	}
	hash := hashToken(token)
	return k.holder(ctx, hash[:tokenID], hash, func(ctx context.Context) (job.Token, error) { return k.o.Store.TokenByHash(ctx, hash) })
}

// Holder returns the principal of a token that was presented before, by the token's ID. It returns
// job.ErrUnauthorized if the token was revoked or has expired.
func (k *Keeper) Holder(ctx context.Context, id string) (job.Principal, error) {
	return k.holder(ctx, id, "", func(ctx context.Context) (job.Token, error) { return k.o.Store.Token(ctx, id) })
}

// holder returns the principal of a token, which it reads from the store by read unless the token
// was read a moment ago. An empty hash matches every token.
func (k *Keeper) holder(ctx context.Context, id, hash string, read func(context.Context) (job.Token, error)) (job.Principal, error) {
	if p, ok := k.trusted(id, hash); ok {
		return p, nil
	}
	began := time.Now()
	t, err := read(ctx)
	switch {
	case errors.Is(err, job.ErrNotFound):
		if hash == "" {
			k.drop(id)
		}
		return job.Principal{}, job.ErrUnauthorized
	case err != nil:
		return job.Principal{}, err
	case t.Expired(time.Now()):
		return job.Principal{}, job.ErrUnauthorized
	}
	return k.hold(t, hash, began), nil
}

// trusted returns the principal of a token that was read from the store a moment ago.
func (k *Keeper) trusted(id, hash string) (job.Principal, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[id]
	if h == nil || h.life.Err() != nil || time.Since(h.seen) > tokenTrust || h.Expired(time.Now()) {
		return job.Principal{}, false
	}
	if hash != "" && subtle.ConstantTimeCompare([]byte(h.hash), []byte(hash)) != 1 {
		return job.Principal{}, false
	}
	return h.principal(), true
}

// hold keeps a token that was read from the store at a time.
func (k *Keeper) hold(t job.Token, hash string, at time.Time) job.Principal {
	k.mu.Lock()
	defer k.mu.Unlock()
	h := k.held[t.ID]
	if h == nil || h.life.Err() != nil {
		h = &heldToken{Token: t}
		h.life, h.end = context.WithCancelCause(context.Background())
		k.held[t.ID] = h
	}
	if hash != "" {
		h.hash = hash
	}
	h.seen = at
	return h.principal()
}

func (h *heldToken) principal() job.Principal {
	p := h.Token.Principal()
	p.Life = h.life
	return p
}

// drop ends everything that is done with a token.
func (k *Keeper) drop(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h := k.held[id]; h != nil {
		h.end(job.ErrUnauthorized)
		delete(k.held, id)
	}
}

// Watch ends what is done with tokens that were revoked on another engine, or have expired, until
// ctx ends. While the store does not answer, nothing can be learned about tokens, nor about anything
// that their principals own.
func (k *Keeper) Watch(ctx context.Context) {
	tick := time.NewTicker(tokenCheck)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-k.changed:
		case <-ctx.Done():
			return
		}
		if !k.any() {
			continue
		}
		began := time.Now()
		all, err := k.o.Store.Tokens(ctx)
		if err != nil {
			if ctx.Err() == nil {
				k.o.Log.Warn("tokens cannot be checked, will be tried again", "err", err)
			}
			continue
		}
		k.keep(all, began)
	}
}

// Recheck makes Watch check now, because tokens may have been revoked.
func (k *Keeper) Recheck() {
	select {
	case k.changed <- struct{}{}:
	default:
	}
}

func (k *Keeper) any() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.held) > 0
}

// keep drops the held tokens that have expired or are missing from all, which was read at or after began.
func (k *Keeper) keep(all []job.Token, began time.Time) {
	valid := map[string]bool{}
	for _, t := range all {
		valid[t.ID] = !t.Expired(time.Now())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, h := range k.held {
		switch {
		case valid[id]:
			if began.After(h.seen) {
				h.seen = began
			}
		case h.seen.Before(began): // a token read later may not have been stored at that time
			h.end(job.ErrUnauthorized)
			delete(k.held, id)
		}
	}
}

func hashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
