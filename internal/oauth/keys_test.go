package oauth_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"linus/internal/job"
	"linus/internal/leaktest"
	"linus/internal/oauth"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestKeys_AreFetchedAgainForAnUnknownOne(t *testing.T) {
	first, second := key(t, jose.ES256, "first"), key(t, jose.ES256, "second")
	i := newIssuer(t, first)
	v := i.verifier(t)
	signed := func(k jose.JSONWebKey) error {
		_, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(nil), nil))
		return err
	}
	if err := signed(first); err != nil {
		t.Fatal(err)
	}
	i.publish(second) // the first one is not valid any more
	if err := signed(second); !errors.Is(err, job.ErrUnauthorized) || i.count() != 1 {
		t.Errorf("a moment after the last attempt: %v, %d attempts", err, i.count())
	}
	v.Later(11 * time.Second)
	if err := signed(second); err != nil || i.count() != 2 {
		t.Errorf("the new key: %v, %d attempts", err, i.count())
	}
	if err := signed(first); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("the old key: %v", err)
	}
}

// Whatever clients send, the issuer is asked at most once in a while, and only for tokens
// that may be its.
func TestKeys_FloodOfUnknownOnes(t *testing.T) {
	known := key(t, jose.ES256, "known")
	i := newIssuer(t, known)
	v := i.verifier(t)
	v.Rest()
	v.Later(time.Minute)
	stray := token(t, jose.ES256, key(t, jose.ES256, "stray"), i.claims(map[string]any{"iss": "https://evil.example"}), nil)
	if _, err := v.Authenticate(t.Context(), stray); !errors.Is(err, job.ErrUnauthorized) || i.count() != 1 {
		t.Errorf("a token of another issuer: %v, %d attempts", err, i.count())
	}
	var flood sync.WaitGroup
	for n := range 50 {
		text := token(t, jose.ES256, key(t, jose.ES256, fmt.Sprint("unknown", n)), i.claims(nil), nil)
		flood.Go(func() {
			if _, err := v.Authenticate(t.Context(), text); !errors.Is(err, job.ErrUnauthorized) {
				t.Errorf("%v", err)
			}
		})
	}
	flood.Wait()
	if i.count() != 2 {
		t.Errorf("%d attempts, want one at the start and one of the flood", i.count())
	}
	if _, err := v.Authenticate(t.Context(), token(t, jose.ES256, known, i.claims(nil), nil)); err != nil {
		t.Errorf("the known key: %v", err)
	}
}

// A token that names no key is of the only one that fits, or of none.
func TestKeys_WithoutAName(t *testing.T) {
	nameless := key(t, jose.ES256, "")
	i := newIssuer(t, key(t, jose.RS256, "rsa"), nameless)
	v := i.verifier(t)
	text := token(t, jose.ES256, nameless.Key, i.claims(nil), nil)
	if _, err := v.Authenticate(t.Context(), text); err != nil {
		t.Error(err)
	}
	i.publish(key(t, jose.ES256, "another"), nameless) // the last one would pass
	v.Later(11 * time.Minute)
	_, _ = v.Authenticate(t.Context(), text) // begins to fetch them
	v.Rest()
	if _, err := v.Authenticate(t.Context(), text); !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("one of two: %v", err)
	}
}

// Keys for encryption, weak ones, and secrets that an issuer publishes by mistake sign
// nothing.
func TestKeys_ThatMayNotSign(t *testing.T) {
	encryption, other, private := key(t, jose.ES256, "enc"), key(t, jose.ES256, "alg"), key(t, jose.ES256, "private")
	encryption.Use, other.Algorithm = "enc", "ES384"
	bound, weak := key(t, jose.RS256, "bound"), key(t, jose.RS256, "weak")
	bound.Algorithm = "RS384"
	short, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // that is what is refused
	if err != nil {
		t.Fatal(err)
	}
	weak.Key = short
	good := key(t, jose.ES256, "good")
	i := newIssuer(t, encryption, other, bound, weak, good)
	i.mu.Lock()
	i.keys = append(i.keys, private, jose.JSONWebKey{Key: []byte("a secret that both sides have, 32"), KeyID: "secret"}, map[string]string{"kty": "new"}, 7)
	i.mu.Unlock()
	v := i.verifier(t)
	for _, k := range []jose.JSONWebKey{encryption, other, private, bound, weak} {
		signer, alg := jose.JSONWebKey{Key: k.Key, KeyID: k.KeyID}, jose.ES256
		if _, is := k.Key.(*rsa.PrivateKey); is {
			alg = jose.RS256
		}
		if _, err := v.Authenticate(t.Context(), token(t, alg, signer, i.claims(nil), nil)); !errors.Is(err, job.ErrUnauthorized) {
			t.Errorf("%s: %v", k.KeyID, err)
		}
	}
	if _, err := v.Authenticate(t.Context(), token(t, jose.ES256, good, i.claims(nil), nil)); err != nil {
		t.Error(err)
	}
}

// An issuer that does not answer makes nobody wait whose key is known, lets nobody in, and
// is trusted for an hour at most.
func TestKeys_OfAnIssuerThatDoesNotAnswer(t *testing.T) {
	known := key(t, jose.ES256, "known")
	i := newIssuer(t, known)
	v := i.verifier(t)
	signed := func(k jose.JSONWebKey) error {
		_, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(nil), nil))
		return err
	}
	if err := signed(known); err != nil {
		t.Fatal(err)
	}
	asked, hold := make(chan struct{}, 10), make(chan struct{})
	i.answers(func(w http.ResponseWriter, _ *http.Request) {
		asked <- struct{}{}
		<-hold
		w.WriteHeader(http.StatusBadGateway)
	})
	v.Later(11 * time.Minute)
	if err := signed(known); err != nil { // it begins to fetch them, and does not wait
		t.Error(err)
	}
	<-asked
	if err := signed(known); err != nil {
		t.Errorf("while the issuer hangs: %v", err)
	}
	waits := make(chan error)
	go func() { waits <- signed(key(t, jose.ES256, "unknown")) }()
	close(hold)
	if err := <-waits; !errors.Is(err, job.ErrUnauthorized) {
		t.Errorf("an unknown key: %v", err)
	}
	v.Rest()
	v.Later(50 * time.Minute)
	if err := signed(known); !errors.Is(err, job.ErrUnchecked) {
		t.Errorf("after an hour: %v", err)
	}
	if err := signed(known); !errors.Is(err, job.ErrUnchecked) {
		t.Errorf("and a moment later: %v", err)
	}
	i.answers(func(w http.ResponseWriter, _ *http.Request) { i.send(w, map[string]any{"keys": i.keys}) })
	v.Later(11 * time.Second)
	if err := signed(known); err != nil {
		t.Errorf("once it is back: %v", err)
	}
}

// What an issuer says is checked, and the log says what is wrong with it.
func TestKeys_OfAnIssuerThatIsWrong(t *testing.T) {
	k := key(t, jose.ES256, "first")
	good := newIssuer(t, k)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { good.send(w, map[string]any{"keys": good.keys}) }))
	t.Cleanup(elsewhere.Close)
	large := bytes.Repeat([]byte(" "), 1<<20)
	metadata := func(i *issuer, name, uri string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			i.send(w, map[string]any{"issuer": name, "jwks_uri": uri})
		}
	}
	for _, test := range []struct {
		name, logged string
		make         func(i *issuer)
	}{
		{"another's metadata", "OAUTH_ISSUER must be the same text", func(i *issuer) { i.metadata = metadata(i, "https://evil.example", i.URL+"/jwks") }},
		{"keys without TLS elsewhere", "not an https URL", func(i *issuer) { i.metadata = metadata(i, i.URL, elsewhere.URL+"/jwks") }},
		{"keys in a file", "not an https URL", func(i *issuer) { i.metadata = metadata(i, i.URL, "file:///etc/passwd") }},
		{"no keys' URL", "not an https URL", func(i *issuer) { i.metadata = metadata(i, i.URL, "") }},
		{"keys redirected", "another host", func(i *issuer) {
			i.jwks = http.RedirectHandler(elsewhere.URL+"/jwks", http.StatusFound).ServeHTTP
		}},
		{"metadata redirected", "another host", func(i *issuer) {
			i.metadata = http.RedirectHandler(elsewhere.URL, http.StatusFound).ServeHTTP
		}},
		{"large keys", "more than", func(i *issuer) { i.jwks = func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(large) } }},
		{"no keys", "none of 0", func(i *issuer) {
			i.jwks = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"keys":[]}`) }
		}},
		{"many keys", "the limit is", func(i *issuer) {
			i.jwks = func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, `{"keys":[{}`+strings.Repeat(",{}", 200)+`]}`)
			}
		}},
		{"a page", "invalid character", func(i *issuer) {
			i.jwks = func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }
		}},
		{"an error", "502", func(i *issuer) {
			i.jwks = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }
		}},
		{"it is gone", "refused", func(i *issuer) { i.Close() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := newIssuer(t, k)
			test.make(i)
			var logged bytes.Buffer
			v := oauth.New(oauth.Options{Issuer: i.URL, Audience: audience, Log: slog.New(slog.NewTextHandler(&logged, nil))})
			_, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(nil), nil))
			v.Close()
			if !errors.Is(err, job.ErrUnchecked) || !strings.Contains(logged.String(), test.logged) {
				t.Errorf("%v; logged: %s", err, logged.String())
			}
		})
	}
}

// Metadata can be where RFC 8414 has it, also of an issuer with a path.
func TestKeys_OfAnIssuerWithAPath(t *testing.T) {
	for _, at := range []string{"/.well-known/oauth-authorization-server/realms/team", "/realms/team/.well-known/openid-configuration"} {
		k := key(t, jose.ES256, "first")
		i := newIssuer(t, k)
		i.metadata = func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != at {
				http.NotFound(w, r)
				return
			}
			i.send(w, map[string]any{"issuer": i.URL + "/realms/team", "jwks_uri": i.URL + "/jwks"})
		}
		v := oauth.New(oauth.Options{Issuer: i.URL + "/realms/team", Audience: audience, Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
		_, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(map[string]any{"iss": i.URL + "/realms/team"}), nil))
		v.Close()
		if err != nil {
			t.Errorf("%s: %v", at, err)
		}
	}
}
