package token

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
)

// shelf is a store that may be down, as a whole or for what removes tokens.
type shelf struct {
	mu                  sync.Mutex           // Watch is a goroutine of its own
	tokens              map[string]job.Token // by hash
	down, blind, jammed error
}

func (s *shelf) InsertToken(_ context.Context, t job.Token, hash string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down == nil {
		s.tokens[hash] = t
	}
	return s.down
}

func (s *shelf) Tokens(context.Context) (all []job.Token, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.tokens {
		all = append(all, t)
	}
	return all, errors.Join(s.down, s.blind)
}

func (s *shelf) Token(ctx context.Context, id string) (job.Token, error) {
	for hash, t := range s.tokens {
		if t.ID == id {
			return s.TokenByHash(ctx, hash)
		}
	}
	return s.TokenByHash(ctx, "")
}

func (s *shelf) TokenByHash(_ context.Context, hash string) (job.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, is := s.tokens[hash]
	if s.down == nil && !is {
		return t, job.ErrNotFound
	}
	return t, s.down
}

func (s *shelf) DeleteTokens(_ context.Context, ref string) (gone []job.Token, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for hash, t := range s.tokens {
		if err = errors.Join(s.down, s.jammed); err == nil && t.ID == ref {
			delete(s.tokens, hash)
			gone = append(gone, t)
		}
	}
	return gone, err
}

func (s *shelf) fails(with error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = with
}

var errDown = errors.New("the store does not answer")

// onShelf runs a test with a keeper that has one token, and does not watch.
func onShelf(t *testing.T, test func(t *testing.T, k *Keeper, s *shelf, one job.NewToken)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shelf{tokens: map[string]job.Token{}}
		k := New(Options{Store: s, Log: slog.New(slog.DiscardHandler)})
		one, err := k.CreateToken(t.Context(), job.TokenSpec{Name: "ci", Role: job.RoleRun, TTL: 60})
		if err != nil {
			t.Fatal(err)
		}
		test(t, k, s, one)
	})
}

// A token that was read is trusted for a moment, as what it was: not another of the same ID, nor
// beyond its end, nor for longer.
func TestAuthenticate_TrustsForAMoment(t *testing.T) {
	onShelf(t, func(t *testing.T, k *Keeper, s *shelf, one job.NewToken) {
		is := func(when string, want error) {
			t.Helper()
			if _, err := k.Authenticate(t.Context(), one.Secret); !errors.Is(err, want) {
				t.Errorf("%s: %v", when, err)
			}
		}
		other := one.ID + hashToken("another of the same ID")[tokenID:]
		if _, err := k.Holder(t.Context(), one.ID); err != nil {
			t.Fatal(err)
		}
		if _, is := k.trusted(one.ID, other); is {
			t.Error("whose ID was shown is whoever comes")
		}
		is("first", nil)
		if _, is := k.trusted(one.ID, other); is {
			t.Error("another of the same ID is the same")
		}
		kept := s.tokens[hashToken(one.Secret)]
		clear(s.tokens) // by another engine, of which this one knows nothing yet
		is("a moment later", nil)
		time.Sleep(tokenTrust + time.Millisecond)
		is("later", job.ErrUnauthorized)

		s.tokens[hashToken(one.Secret)] = kept
		time.Sleep(time.Minute - tokenTrust - 2*time.Millisecond)
		is("at the end", nil)
		time.Sleep(2 * time.Millisecond)
		is("after it", job.ErrUnauthorized)
	})
}

// While the store does not answer nobody is let in by it, and nobody loses what is open.
func TestAuthenticate_WhileTheStoreIsDown(t *testing.T) {
	onShelf(t, func(t *testing.T, k *Keeper, s *shelf, one job.NewToken) {
		go k.Watch(t.Context())
		p, err := k.Authenticate(t.Context(), one.Secret)
		if err != nil {
			t.Fatal(err)
		}
		s.fails(errDown)
		time.Sleep(20 * time.Second)
		if p.Life.Err() != nil {
			t.Error("what it had open has ended")
		}
		_, shown := k.Authenticate(t.Context(), one.Secret)
		_, held := k.Holder(t.Context(), one.ID)
		_, made := k.CreateToken(t.Context(), job.TokenSpec{Name: "ci", Role: job.RoleRead})
		_, login := k.Login(t.Context(), "oauth:1:alice", "Alice", job.RoleRead, time.Hour)
		for what, err := range map[string]error{"shown": shown, "its ID": held, "a new one": made, "a login": login} {
			if !errors.Is(err, errDown) {
				t.Errorf("%s: %v", what, err)
			}
		}
		s.fails(nil)
		time.Sleep(time.Minute)
		if !errors.Is(context.Cause(p.Life), job.ErrUnauthorized) {
			t.Error("it does not end when it has expired")
		}
	})
}

// However often it is read: what was begun first ends, too.
func TestRevoke_EndsAllThatWasBegun(t *testing.T) {
	onShelf(t, func(t *testing.T, k *Keeper, _ *shelf, one job.NewToken) {
		var all []job.Principal
		for range 3 {
			p, err := k.Authenticate(t.Context(), one.Secret)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
			time.Sleep(tokenTrust + time.Second)
		}
		if _, err := k.RevokeToken(t.Context(), one.ID); err != nil {
			t.Fatal(err)
		}
		for i, p := range all {
			if p.Life.Err() == nil {
				t.Errorf("what was begun at time %d goes on", i)
			}
		}
	})
}

// A login of another role is let in where those before it have ended, by whomever, and not where
// they cannot be ended.
func TestLogin_WhereOthersCannotBeEnded(t *testing.T) {
	onShelf(t, func(t *testing.T, k *Keeper, s *shelf, _ job.NewToken) {
		login := func(role job.Role) (job.Token, error) {
			return k.Login(t.Context(), "oauth:1:alice", "Alice", role, time.Hour)
		}
		if _, err := login(job.RoleAdmin); err != nil {
			t.Fatal(err)
		}
		s.jammed = errDown
		if _, err := login(job.RoleRead); !errors.Is(err, errDown) {
			t.Errorf("beside a login as admin: %v", err)
		}
		s.jammed, s.blind = nil, errDown
		if _, err := login(job.RoleRead); !errors.Is(err, errDown) {
			t.Errorf("beside a login that is not seen: %v", err)
		}
		s.jammed, s.blind = job.ErrNotFound, nil
		if _, err := login(job.RoleRead); err != nil {
			t.Errorf("where another engine has ended it: %v", err)
		}
	})
}
