package oauth_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"linus/internal/oauth"
)

// issuer is an authorization server as far as a resource server sees it.
type issuer struct {
	*httptest.Server

	mu       sync.Mutex
	keys     []any // JWKs as published
	metadata func(w http.ResponseWriter, r *http.Request)
	jwks     func(w http.ResponseWriter, r *http.Request)
	fetches  int // of the keys
}

// newIssuer publishes the public halves of keys, and its metadata as OpenID Connect does.
func newIssuer(t *testing.T, keys ...jose.JSONWebKey) *issuer {
	t.Helper()
	i := &issuer{}
	i.publish(keys...)
	i.metadata = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/.well-known/openid-configuration" {
			http.NotFound(w, r)
			return
		}
		i.send(w, map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/jwks"})
	}
	i.jwks = func(w http.ResponseWriter, _ *http.Request) { i.send(w, map[string]any{"keys": i.keys}) }
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		handle := i.metadata
		if r.URL.Path == "/jwks" {
			i.fetches++
			handle = i.jwks
		}
		i.mu.Unlock()
		handle(w, r)
	}))
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) send(w http.ResponseWriter, body any) {
	i.mu.Lock()
	defer i.mu.Unlock()
	_ = json.NewEncoder(w).Encode(body)
}

// publish replaces the keys.
func (i *issuer) publish(keys ...jose.JSONWebKey) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keys = nil
	for _, k := range keys {
		i.keys = append(i.keys, k.Public())
	}
}

// answers replaces the answer to requests for the keys.
func (i *issuer) answers(h http.HandlerFunc) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.jwks = h
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fetches
}

const audience = "https://linus.example:8766/mcp"

func (i *issuer) verifier(t *testing.T) *oauth.Verifier {
	t.Helper()
	v := oauth.New(oauth.Options{Issuer: i.URL, Audience: audience, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))})
	t.Cleanup(v.Close)
	return v
}

// claims of a valid token, with changes; a nil value removes one.
func (i *issuer) claims(changes map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{
		"iss": i.URL, "aud": audience, "sub": "alice", "scope": "openid linus:run",
		"iat": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// token signs claims with a key, and headers besides alg and kid.
func token(t *testing.T, alg jose.SignatureAlgorithm, key any, claims any, headers map[string]any) string {
	t.Helper()
	o := &jose.SignerOptions{}
	for name, value := range headers {
		o.WithHeader(jose.HeaderKey(name), value)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, o)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := s.Sign(data)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// key makes a private key for an algorithm.
func key(t *testing.T, alg jose.SignatureAlgorithm, kid string) jose.JSONWebKey {
	t.Helper()
	var private crypto.PrivateKey
	var err error
	switch {
	case alg == jose.EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	case strings.HasPrefix(string(alg), "ES"):
		private, err = ecdsa.GenerateKey(map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()}[alg], rand.Reader)
	default:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: kid}
}
