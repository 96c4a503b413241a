package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

func TestTokens(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	of := func(id, name string, minute int) job.Token {
		return job.Token{ID: id, TokenSpec: job.TokenSpec{Name: name, Role: job.RoleRun, Limits: job.Limits{Jobs: 2}}, CreatedAt: at.Add(time.Duration(minute) * time.Minute)}
	}
	b2, a1, b1 := of("3", "b", 3), of("1", "a", 2), of("2", "b", 1)
	for _, tok := range []job.Token{b2, a1, b1} {
		if err := s.InsertToken(t.Context(), tok, "hash of "+tok.ID); err != nil {
			t.Fatal(err)
		}
	}
	for _, again := range []job.Token{of("1", "c", 0), of("4", "c", 0)} { // of an ID, and of a hash
		if err := s.InsertToken(t.Context(), again, "hash of 1"); err == nil {
			t.Errorf("%s was inserted", again.ID)
		}
	}
	check := func(want ...job.Token) {
		t.Helper()
		got, err := s.Tokens(t.Context())
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%v, want -, got +:\n%s", err, diff)
		}
	}
	check(a1, b1, b2)
	byHash, err := s.TokenByHash(t.Context(), "hash of 2")
	byID, idErr := s.Token(t.Context(), "2")
	if diff := cmp.Diff([]job.Token{b1, b1}, []job.Token{byHash, byID}); diff != "" || err != nil || idErr != nil {
		t.Errorf("%v, %v, %s", err, idErr, diff)
	}
	if gone, err := s.DeleteTokens(t.Context(), "b"); err != nil || len(gone) != 2 {
		t.Errorf("removed %+v, %v", gone, err)
	}
	check(a1)
	for _, ref := range []string{"b", "2", "hash of 1", ""} {
		if _, err := s.DeleteTokens(t.Context(), ref); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("%q: %v", ref, err)
		}
	}
	if _, err := s.TokenByHash(t.Context(), "hash of 2"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("a removed token: %v", err)
	}
	check(a1)
}
