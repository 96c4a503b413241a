package store

import (
	"errors"
	"testing"

	"linus/internal/job"
)

func TestCredentials_AreKeptByNameUntilTheyAreRemoved(t *testing.T) {
	s := openStore(t, Options{Dir: t.TempDir()})
	for _, name := range []string{"b", "a"} {
		if added, err := s.InsertCredential(t.Context(), job.Credential{CredentialSpec: job.CredentialSpec{Name: name, Host: name + ".example"}}); err != nil || !added {
			t.Fatal(added, err)
		}
	}
	if added, err := s.InsertCredential(t.Context(), job.Credential{CredentialSpec: job.CredentialSpec{Name: "a", Host: "evil.example"}}); err != nil || added {
		t.Errorf("a second of the name: %v, %v", added, err)
	}
	if all, err := s.Credentials(t.Context()); err != nil || len(all) != 2 || all[0].Host != "a.example" {
		t.Errorf("%+v, %v", all, err)
	}
	if err := s.DeleteCredential(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Credential(t.Context(), "a"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("a removed one: %v", err)
	}
	if c, err := s.Credential(t.Context(), "b"); err != nil || c.Host != "b.example" {
		t.Errorf("%+v, %v", c, err)
	}
}
