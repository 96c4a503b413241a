package token_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/store"
	"linus/internal/storetest"
	"linus/internal/token"
)

// rig is a Keeper that watches, over a real store.
type rig struct {
	*token.Keeper
	t     *testing.T
	store *store.Store
	log   bytes.Buffer
	seen  []string // token, whether it was created, by whom
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	return newRigHere(t)
}

// newRigHere is newRig for a test in a bubble of testing/synctest.
func newRigHere(t *testing.T) *rig {
	t.Helper()
	s, err := storetest.Open(context.Background(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	r := &rig{t: t, store: s}
	r.Keeper = token.New(token.Options{
		Store: s, Limits: job.Defaults{Memory: "2G", Disk: "10G"}.TokenLimits(2), Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Observer: func(h job.Happening) {
			c := h.(job.TokenChange) //nolint:errcheck // nothing else happens to tokens
			r.seen = append(r.seen, fmt.Sprint(c.Token.ID, " ", c.Created, " ", c.By.Principal))
		},
	})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Watch(ctx)
	}()
	t.Cleanup(func() {
		end()
		<-done
	})
	return r
}

func (r *rig) token(s job.TokenSpec) job.NewToken {
	r.t.Helper()
	t, err := r.CreateToken(job.WithPrincipal(r.t.Context(), job.Operator()), s)
	if err != nil {
		r.t.Fatal(err)
	}
	return t
}

func TestToken_IsAPrincipalUntilItIsRevoked(t *testing.T) {
	r := newRig(t)
	spec := job.TokenSpec{Name: "ci", Role: job.RoleRun, Toolsets: []string{"jobs"}, Secrets: []string{"CI_*"}, Limits: job.Limits{Jobs: 3}}
	one, two := r.token(spec), r.token(spec)
	p, err := r.Authenticate(t.Context(), one.Secret)
	if err != nil || p.Name != "ci" || p.Token != one.ID || p.Role != job.RoleRun || p.Limits.Jobs != 3 || !slices.Equal(p.Secrets, spec.Secrets) || !slices.Equal(p.Toolsets, spec.Toolsets) {
		t.Fatalf("principal %+v, %v", p, err)
	}
	held, err := r.Holder(t.Context(), one.ID)
	if err != nil || held.Token != one.ID {
		t.Errorf("holder %+v, %v", held, err)
	}
	for what, token := range map[string]string{
		"none": "", "another": "linus_AAAAAAAAAAAAAAAAAAAAAAAAAA", "its ID": one.ID, "its beginning": one.Secret[:20], "more": one.Secret + "A",
		"lower case": strings.ToLower(one.Secret), "long": job.TokenPrefix + strings.Repeat("A", 1<<20),
	} {
		if p, err := r.Authenticate(t.Context(), token); !errors.Is(err, job.ErrUnauthorized) {
			t.Errorf("%s: %+v, %v", what, p, err)
		}
	}
	if _, err := r.Holder(t.Context(), "0000000000000000"); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("unknown ID: %v", err)
	}
	ctx, end := job.ForPrincipal(t.Context(), p)
	defer end()

	gone, err := r.RevokeToken(job.WithPrincipal(t.Context(), job.Operator()), one.ID)
	if err != nil || len(gone) != 1 || gone[0].ID != one.ID {
		t.Fatalf("revoked %+v, %v", gone, err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(30 * time.Second):
	}
	if !errors.Is(context.Cause(ctx), job.ErrUnauthorized) {
		t.Errorf("what it had open goes on: %v", context.Cause(ctx))
	}
	if _, err := r.Authenticate(t.Context(), one.Secret); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("the revoked token: %v", err)
	}
	if _, err := r.Holder(t.Context(), one.ID); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("the revoked token's ID: %v", err)
	}
	if p, err := r.Authenticate(t.Context(), two.Secret); err != nil || p.Life.Err() != nil {
		t.Errorf("the other token of that name: %v", err)
	}
	if gone, err := r.RevokeToken(t.Context(), "ci"); err != nil || len(gone) != 1 {
		t.Errorf("by name: %+v, %v", gone, err)
	}
	var field *job.FieldError
	if _, err := r.RevokeToken(t.Context(), "ci"); !errors.As(err, &field) || field.Field != "token" {
		t.Errorf("again: %v", err)
	}
	if want := []string{one.ID + " true operator", two.ID + " true operator", one.ID + " false operator", two.ID + " false "}; !slices.Equal(r.seen, want) {
		t.Errorf("observed %q, want %q", r.seen, want)
	}
	if log := r.log.String(); strings.Contains(log, one.Secret) || strings.Contains(log, job.TokenPrefix) {
		t.Errorf("a token is in the log:\n%s", log)
	}
}

func TestToken_OnlyItsHashIsStored(t *testing.T) {
	r := newRig(t)
	n := r.token(job.TokenSpec{Name: "ci", Role: job.RoleRead})
	if !strings.HasPrefix(n.Secret, "linus_") || len(n.Secret) < 32 {
		t.Errorf("token %q", n.Secret)
	}
	all, err := r.Tokens(t.Context())
	if err != nil || len(all) != 1 || strings.Contains(fmt.Sprintf("%+v", all), n.Secret) {
		t.Errorf("%+v, %v", all, err)
	}
	if sum := sha256.Sum256([]byte(n.Secret)); !strings.HasPrefix(hex.EncodeToString(sum[:]), n.ID) {
		t.Errorf("ID %s is not the beginning of the hash", n.ID)
	}
}

// E2B's clients check how their key looks.
func TestToken_InTheFormOfE2B(t *testing.T) {
	r := newRig(t)
	n := r.token(job.TokenSpec{Name: "ci", Role: job.RoleRun, E2B: true})
	if digits, ok := strings.CutPrefix(n.Secret, "e2b_"); !ok || len(digits) != 40 || strings.Trim(digits, "0123456789abcdef") != "" {
		t.Errorf("token %q", n.Secret)
	}
	if p, err := r.Authenticate(t.Context(), n.Secret); err != nil || p.Name != "ci" {
		t.Errorf("it is of %q, %v", p.Name, err)
	}
	if _, err := r.Authenticate(t.Context(), "e2b_"+strings.Repeat("0", 40)); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("another one: %v", err)
	}
}

// In a bubble: a busy machine may need longer than a token lives to show it once.
func TestToken_RevokedOrExpiredElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t)
		kept, revoked, expired := r.token(job.TokenSpec{Name: "a", Role: job.RoleRun}), r.token(job.TokenSpec{Name: "b", Role: job.RoleRun}), r.token(job.TokenSpec{Name: "c", Role: job.RoleRun, TTL: 1})
		lives := map[string]job.Principal{}
		for _, n := range []job.NewToken{kept, revoked, expired} {
			p, err := r.Authenticate(t.Context(), n.Secret)
			if err != nil {
				t.Fatal(err)
			}
			lives[n.ID] = p
		}
		if _, err := r.store.DeleteTokens(t.Context(), revoked.ID); err != nil { // by another engine of the database
			t.Fatal(err)
		}
		for _, id := range []string{revoked.ID, expired.ID} {
			select {
			case <-lives[id].Life.Done():
			case <-time.After(30 * time.Second):
				t.Errorf("what token %s had open goes on", id)
			}
		}
		for _, n := range []job.NewToken{revoked, expired} {
			if _, err := r.Authenticate(t.Context(), n.Secret); !errors.Is(err, job.ErrUnauthorized) {
				t.Errorf("token of %s: %v", n.Name, err)
			}
		}
		if _, err := r.Authenticate(t.Context(), kept.Secret); err != nil || lives[kept.ID].Life.Err() != nil {
			t.Errorf("the valid token: %v, %v", err, lives[kept.ID].Life.Err())
		}
	})
}

func TestToken_Invalid(t *testing.T) {
	r := newRig(t)
	for says, s := range map[string]job.TokenSpec{
		"not a principal's name":     {Name: "A b", Role: job.RoleRun},
		"can open the engine's":      {Name: "operator", Role: job.RoleRun},
		"is not a role":              {Name: "a", Role: "root"},
		`"pets" is unknown`:          {Name: "a", Role: job.RoleRun, Toolsets: []string{"pets"}},
		`secrets: "a b"`:             {Name: "a", Role: job.RoleRun, Secrets: []string{"a b"}},
		`storages: "a/b"`:            {Name: "a", Role: job.RoleRun, Storages: []string{"a/b"}},
		`templates: "["`:             {Name: "a", Role: job.RoleRun, Templates: []string{"["}},
		`"30-20" is not a VLAN tag`:  {Name: "a", Role: job.RoleRun, Networks: []string{"30-20"}},
		"jobs: -2 is negative":       {Name: "a", Role: job.RoleRun, Limits: job.Limits{Jobs: -2}},
		"ttl: -1 is negative":        {Name: "a", Role: job.RoleRun, TTL: -1},
		"memory_mb: -2 is negative":  {Name: "a", Role: job.RoleRun, Limits: job.Limits{MemoryMB: -2}},
		"jobs_per_hour: -2 is negat": {Name: "a", Role: job.RoleRun, Limits: job.Limits{PerHour: -2}},
	} {
		if _, err := r.CreateToken(t.Context(), s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v; want %s", s, err, says)
		}
	}
}

// A job of one's own is bounded unless whoever makes the token says otherwise. Whoever may
// make tokens is not bounded by one, and who may begin nothing needs no bound.
func TestToken_OfRunHasLimitsUnlessToldOtherwise(t *testing.T) {
	r := newRig(t)
	all := job.Limits{Jobs: 8, VMs: 8, MemoryMB: 8 * 2048, DiskMB: 8 * 10240, StoredMB: 10240}
	for _, tt := range []struct {
		role         job.Role
		given, wants job.Limits
	}{
		{job.RoleRun, job.Limits{}, all},
		{job.RoleRun, job.Limits{Jobs: 100, VMs: job.NoLimit, PerHour: 5}, job.Limits{Jobs: 100, VMs: job.NoLimit, MemoryMB: all.MemoryMB, DiskMB: all.DiskMB, StoredMB: all.StoredMB, PerHour: 5}},
		{job.RoleRead, job.Limits{}, job.Limits{}},
		{job.RoleAdmin, job.Limits{}, job.Limits{}},
		{job.RoleAdmin, job.Limits{Jobs: 1}, job.Limits{Jobs: 1}},
	} {
		n := r.token(job.TokenSpec{Name: "ci", Role: tt.role, Limits: tt.given})
		p, err := r.Authenticate(t.Context(), n.Secret)
		if err != nil || n.Limits != tt.wants || p.Limits != tt.wants {
			t.Errorf("%s, given %+v: %+v, and of its principal %+v, %v; want %+v", tt.role, tt.given, n.Limits, p.Limits, err, tt.wants)
		}
	}
}

// A login is a token that nobody has: the sessions of one person are one principal, and
// whoever revokes its name logs the person out everywhere.
func TestLogin_IsAPrincipalUntilItIsRevoked(t *testing.T) {
	r := newRig(t)
	const name = "oauth:1a2b3c4d:alice"
	login := func(role job.Role) job.Token {
		t.Helper()
		l, err := r.Login(t.Context(), name, "Alice", role, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	one, two := login(job.RoleRun), login(job.RoleRun)
	p, err := r.Holder(t.Context(), one.ID)
	if err != nil || p.Name != name || p.Login != "Alice" || p.Role != job.RoleRun || p.Limits.Jobs != 8 || p.Token != one.ID || one.ID == two.ID {
		t.Fatalf("%+v, %v", p, err)
	}
	if left := time.Until(one.ExpiresAt); left < 59*time.Minute || left > time.Hour {
		t.Errorf("ends in %v", left)
	}
	if gone, err := r.RevokeToken(t.Context(), name); err != nil || len(gone) != 2 || p.Life.Err() == nil {
		t.Errorf("revoked: %+v, %v, %v", gone, err, p.Life.Err())
	}
	if _, err := r.Holder(t.Context(), one.ID); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("a revoked login: %v", err)
	}
	if want := []string{one.ID + " true " + name, two.ID + " true " + name, one.ID + " false ", two.ID + " false "}; !slices.Equal(r.seen, want) {
		t.Errorf("observed %q, want %q", r.seen, want)
	}
	if reads := login(job.RoleRead); reads.Limits != (job.Limits{}) {
		t.Errorf("who begins nothing is bounded: %+v", reads.Limits)
	}
}

// What the issuer says last of a person is what counts, and logins do not pile up.
func TestLogin_EndsOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t)
		ids := func() (ids []string) {
			t.Helper()
			all, err := r.Tokens(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, tok := range all {
				ids = append(ids, tok.ID)
			}
			return ids
		}
		login := func(name string, role job.Role, ttl time.Duration) string {
			t.Helper()
			time.Sleep(time.Millisecond) // of the bubble: one is older than the other
			l, err := r.Login(t.Context(), name, "x", role, ttl)
			if err != nil {
				t.Fatal(err)
			}
			return l.ID
		}
		kept := r.token(job.TokenSpec{Name: "alice", Role: job.RoleRun, TTL: 1}) // no login, so it stays
		login("oauth:1:alice", job.RoleAdmin, time.Hour)
		login("oauth:1:carol", job.RoleRead, time.Second)
		bob := login("oauth:1:bob", job.RoleAdmin, time.Hour)
		time.Sleep(2 * time.Second)
		alice := login("oauth:1:alice", job.RoleRun, time.Hour)
		if want := []string{kept.ID, alice, bob}; !slices.Equal(ids(), want) {
			t.Errorf("with another role, and when one has expired: %v, want %v", ids(), want)
		}
		var last []string
		for range 25 {
			last = append(last, login("oauth:1:alice", job.RoleRun, time.Hour))
		}
		if want := append(append([]string{kept.ID}, last[5:]...), bob); !slices.Equal(ids(), want) {
			t.Errorf("many: %d of %v", len(ids()), ids())
		}
		for range 25 {
			login("oauth:1:dave", job.RoleRun, time.Second)
		}
		last = append(last, login("oauth:1:alice", job.RoleRun, time.Hour))
		if got := ids(); len(got) != 42 || slices.Contains(got, last[5]) || !slices.Contains(got, last[6]) {
			t.Errorf("beside another's: %d of %v", len(got), got)
		}
		time.Sleep(time.Second)
		if err := r.EndLogins(t.Context(), "oauth:1:alice"); err != nil || !slices.Equal(ids(), []string{kept.ID, bob}) {
			t.Errorf("all of one: %v, %v", ids(), err)
		}
		if err := r.EndLogins(t.Context(), "alice"); err != nil || !slices.Equal(ids(), []string{kept.ID, bob}) {
			t.Errorf("of one who has none: %v, %v", ids(), err)
		}
	})
}
