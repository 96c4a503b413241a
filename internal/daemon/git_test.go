package daemon

import (
	"context"
	"strings"
	"testing"

	"linus/internal/credential"
	"linus/internal/git"
	"linus/internal/gittest"
	"linus/internal/job"
	"linus/internal/store"
)

// Between a job's submission and its fetch or push, its credential may have gone or be another one.
func TestRepositoryWays_TellOfTheCredential(t *testing.T) {
	st, err := store.Open(t.Context(), store.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	k := credential.New(credential.Options{Store: st, Dir: t.TempDir()})
	_, key := gittest.Key(t)
	const host = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHGe1OWk1wF2aK2fVZ6hM3Ch0qVrXbLwC3mWxXkYg5fB"
	for _, n := range []job.NewCredential{
		{CredentialSpec: job.CredentialSpec{Name: "git", Host: "git.example", Path: "/acme/", Header: "Authorization: Bearer"}, Value: "a-token-of-some-length"},
		{CredentialSpec: job.CredentialSpec{Name: "deploy", Host: "git.example", Path: "/acme/", HostKey: host}, Value: strings.TrimSpace(string(key))},
	} {
		if _, err := k.CreateCredential(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	open := func(url, name string) (git.Transport, error) {
		return repositoryWays(k)(context.WithoutCancel(t.Context()), job.Repository{URL: url, Credential: name}, func(job.CredentialUse) {})
	}
	for _, of := range []struct{ url, credential, want string }{
		{"https://git.example/acme/app", "gone", `credential "gone" no longer exists`},
		{"ssh://git@git.example/acme/app", "gone", `credential "gone" no longer exists`},
		{"https://git.example/other/app", "git", "is for paths that begin with /acme/"},
		{"ssh://git@git.example/other/app", "deploy", "is for paths that begin with /acme/"},
		{"https://git.example/acme/app", "deploy", "is a key for SSH"},
	} {
		if _, err := open(of.url, of.credential); err == nil || !strings.Contains(err.Error(), of.want) {
			t.Errorf("%s with %s: %v, want %q", of.url, of.credential, err, of.want)
		}
	}
	for url, name := range map[string]string{"https://git.example/acme/app": "git", "ssh://git@git.example/acme/app": "deploy"} {
		way, err := open(url, name)
		if err != nil {
			t.Fatal(err)
		}
		other := job.Repository{URL: strings.Replace(url, "acme", "other", 1)}
		if way.Reads == nil || way.Reads(other) == nil {
			t.Errorf("%s leads to a submodule %s", url, other.URL)
		}
		way.Close()
	}
}
