package oauth

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"linus/internal/job"
)

// Of all texts only the token that the issuer has signed is one, and what comes out is
// what it says.
func FuzzAuthenticate(f *testing.F) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	claims, _ := json.Marshal(map[string]any{"iss": "https://issuer", "aud": "linus", "sub": "alice", "scope": "linus:run", "exp": time.Now().Add(time.Hour).Unix()})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "k"}}, nil)
	if err != nil {
		f.Fatal(err)
	}
	signed, err := signer.Sign(claims)
	if err != nil {
		f.Fatal(err)
	}
	good, err := signed.CompactSerialize()
	if err != nil {
		f.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	v := &Verifier{o: Options{Issuer: "https://issuer", Audience: "linus", Log: log}, audiences: []string{"linus"}}
	v.keys = newKeys(nil, log)
	v.keys.end() // it asks nobody
	v.keys.set, v.keys.at = []jose.JSONWebKey{{Key: private.Public(), KeyID: "k"}}, time.Now()
	if _, err := v.Authenticate(f.Context(), good); err != nil {
		f.Fatal(err)
	}
	parts := strings.Split(good, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`))
	for _, text := range []string{
		good, "", ".", "..", parts[0] + ".." + parts[2], none + "." + parts[1] + ".", parts[0] + "." + parts[1] + ".", good + ".x.y", " " + good, good + "=", signed.FullSerialize(),
		`{"payload":"` + parts[1] + `","signatures":[{},{}]}`, parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":[],"exp":1e400,"scope":{}}`)) + "." + parts[2],
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := v.Authenticate(t.Context(), text)
		var refused *job.RefusedError
		switch {
		case err == nil:
			if !strings.HasSuffix(p.Name, ":alice") || p.Role != job.RoleRun || !strings.Contains(text, parts[1]) {
				t.Errorf("%q is %+v", text, p)
			}
		case p.Name != "" || p.Role != "" || !errors.As(err, &refused) || refused.Why == "":
			t.Errorf("%q: %+v, %v", text, p, err)
		}
	})
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Whatever an issuer publishes, its keys are public ones that can sign with an algorithm
// that is taken.
func FuzzKeySet(f *testing.F) {
	public, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		f.Fatal(err)
	}
	key, err := jose.JSONWebKey{Key: public.Public(), KeyID: "k"}.MarshalJSON()
	if err != nil {
		f.Fatal(err)
	}
	private, err := jose.JSONWebKey{Key: public, KeyID: "k"}.MarshalJSON()
	if err != nil {
		f.Fatal(err)
	}
	const metadata = `{"issuer":"https://issuer","jwks_uri":"https://issuer/keys"}`
	for _, keys := range []string{
		`{"keys":[` + string(key) + `]}`, `{"keys":[` + string(private) + `,{"kty":"oct","k":"AAAA"},{"kty":"RSA","n":"AQAB","e":"AQAB"},{}]}`, `{"keys":{}}`, `[]`, ``,
		`{"keys":[{"kty":"EC","crv":"P-256","x":"AA","y":"AA"},{"kty":"OKP","crv":"Ed25519","x":"AA"},{"kty":"RSA","n":"","e":""},{"kty":"RSA","x5c":["AA"]},null,1]}`,
	} {
		f.Add(metadata, keys)
		f.Add(strings.ReplaceAll(metadata, "https://issuer/keys", "http://issuer/keys"), keys)
	}
	f.Fuzz(func(t *testing.T, metadata, keys string) {
		s := &source{issuer: "https://issuer", client: &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			body := metadata
			if !strings.Contains(r.URL.Path, "/.well-known/") {
				body = keys
				if r.URL.Scheme != "https" {
					t.Errorf("keys are fetched from %s", r.URL)
				}
			}
			return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body))}, nil
		})}}
		set, err := s.fetch(t.Context())
		if (err == nil) != (len(set) > 0) {
			t.Errorf("%d keys, %v", len(set), err)
		}
		for _, k := range set {
			fit := false
			for _, alg := range algorithms {
				fit = fit || fits(&k, string(alg))
			}
			if !fit || !k.IsPublic() || !k.Valid() {
				t.Errorf("%+v", k)
			}
		}
	})
}
