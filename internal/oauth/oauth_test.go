package oauth_test

import (
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"linus/internal/job"
	"linus/internal/oauth"
)

func TestAuthenticate_TakesTokensOfTheIssuer(t *testing.T) {
	algorithms := []jose.SignatureAlgorithm{jose.RS256, jose.PS512, jose.ES256, jose.ES512, jose.EdDSA}
	var keys []jose.JSONWebKey
	for _, alg := range algorithms {
		keys = append(keys, key(t, alg, string(alg)))
	}
	i := newIssuer(t, keys...)
	v := i.verifier(t)
	for n, alg := range algorithms {
		p, err := v.Authenticate(t.Context(), token(t, alg, keys[n], i.claims(nil), nil))
		if err != nil || p.Role != job.RoleRun || !strings.HasSuffix(p.Name, ":alice") || !p.OAuth {
			t.Errorf("%s: %+v, %v", alg, p, err)
		}
		if left := time.Until(p.Until); left < time.Hour || left > time.Hour+time.Minute {
			t.Errorf("%s: ends in %v", alg, left)
		}
	}
	for _, test := range []struct {
		name            string
		claims, headers map[string]any
		want            job.Role
	}{
		{"all scopes", map[string]any{"scope": "linus:admin linus:read linus:run"}, nil, job.RoleAdmin},
		{"read", map[string]any{"scope": "linus:read"}, nil, job.RoleRead},
		{"a list of scopes", map[string]any{"scope": []string{"linus:read", "x"}}, nil, job.RoleRead},
		{"scp", map[string]any{"scope": nil, "scp": []string{"linus:admin"}}, nil, job.RoleAdmin},
		{"several audiences", map[string]any{"aud": []string{"other", audience}}, nil, job.RoleRun},
		{"expired a moment ago", map[string]any{"exp": time.Now().Add(-10 * time.Second).Unix()}, nil, job.RoleRun},
		{"valid in a moment", map[string]any{"nbf": time.Now().Add(10 * time.Second).Unix()}, nil, job.RoleRun},
		{"at+jwt", nil, map[string]any{"typ": "at+jwt"}, job.RoleRun},
		{"its long form", nil, map[string]any{"typ": "application/at+JWT"}, job.RoleRun},
		{"JWT", nil, map[string]any{"typ": "JWT"}, job.RoleRun},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := v.Authenticate(t.Context(), token(t, jose.ES256, keys[2], i.claims(test.claims), test.headers))
			if err != nil || p.Role != test.want {
				t.Errorf("%+v, %v; want role %s", p, err, test.want)
			}
		})
	}
}

// Records name a token by what is none.
func TestAuthenticate_NamesTheToken(t *testing.T) {
	t.Parallel()
	signing := key(t, jose.ES256, "first")
	i := newIssuer(t, signing)
	v := i.verifier(t)
	hash := regexp.MustCompile(`^[0-9a-f]{16}$`)
	for _, test := range []struct {
		name string
		jti  any
		want *regexp.Regexp
	}{
		{"an ID", "4f1c~A-b.9", regexp.MustCompile(`^jti:4f1c~A-b\.9$`)},
		{"no ID", nil, hash},
		{"two lines", "a\nb", hash},
		{"a long ID", strings.Repeat("a", 65), hash},
	} {
		text := token(t, jose.ES256, signing, i.claims(map[string]any{"jti": test.jti}), nil)
		p, err := v.Authenticate(t.Context(), text)
		if err != nil || !test.want.MatchString(p.Token) || strings.Contains(text, p.Token) {
			t.Errorf("%s: %q, %v", test.name, p.Token, err)
		}
	}
}

// An issuer whose certificate nobody vouches for is not asked for its keys.
func TestAuthenticate_TrustsRootsForTheIssuer(t *testing.T) {
	t.Parallel()
	signing := key(t, jose.ES256, "first")
	i := newIssuer(t, signing)
	secured := httptest.NewTLSServer(i.Config.Handler)
	t.Cleanup(secured.Close)
	i.URL = secured.URL
	roots := x509.NewCertPool()
	roots.AddCert(secured.Certificate())
	text := token(t, jose.ES256, signing, i.claims(nil), nil)
	for name, test := range map[string]struct {
		roots *x509.CertPool
		want  error
	}{"known": {roots, nil}, "unknown": {x509.NewCertPool(), job.ErrUnchecked}, "the system's": {nil, job.ErrUnchecked}} {
		v := oauth.New(oauth.Options{Issuer: i.URL, Audience: audience, Roots: test.roots, Log: slog.New(slog.DiscardHandler)})
		t.Cleanup(v.Close)
		if _, err := v.Authenticate(t.Context(), text); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAuthenticate_RefusesAllOthers(t *testing.T) {
	good, other := key(t, jose.RS256, "first"), key(t, jose.RS256, "first")
	i := newIssuer(t, good)
	v := i.verifier(t)
	public := good.Key.(*rsa.PrivateKey).Public()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	pemKey := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	jwk, err := json.Marshal(jose.JSONWebKey{Key: public, KeyID: "first"})
	if err != nil {
		t.Fatal(err)
	}
	secret := func(k []byte) jose.JSONWebKey { return jose.JSONWebKey{Key: k, KeyID: "first"} }
	sign := func(changes, headers map[string]any) string {
		return token(t, jose.RS256, good, i.claims(changes), headers)
	}
	encoded := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(data)
	}
	valid := strings.Split(sign(nil, nil), ".")
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).Unix() }
	for name, text := range map[string]string{
		"empty":                         "",
		"opaque":                        "ya29.a0AfH6SMBx",
		"long":                          strings.Repeat("a", 1<<20),
		"alg none":                      encoded(map[string]any{"alg": "none", "kid": "first"}) + "." + encoded(i.claims(nil)) + ".",
		"alg none, signed":              encoded(map[string]any{"alg": "None"}) + "." + encoded(i.claims(nil)) + "." + valid[2],
		"no signature":                  valid[0] + "." + valid[1] + ".",
		"other claims":                  valid[0] + "." + encoded(i.claims(map[string]any{"sub": "root"})) + "." + valid[2],
		"HS256 with the public key PEM": token(t, jose.HS256, secret(pemKey), i.claims(nil), nil),
		"HS256 with the public key DER": token(t, jose.HS256, secret(der), i.claims(nil), nil),
		"HS256 with the public JWK":     token(t, jose.HS256, secret(jwk), i.claims(nil), nil),
		"another's key":                 token(t, jose.RS256, other, i.claims(nil), nil),
		"a key in the token":            token(t, jose.RS256, other.Key, i.claims(nil), map[string]any{"kid": "first", "jwk": jose.JSONWebKey{Key: other.Key.(*rsa.PrivateKey).Public(), KeyID: "first"}}),
		"an unknown critical header":    sign(nil, map[string]any{"crit": []string{"x"}, "x": 1}),
		"type of a logout":              sign(nil, map[string]any{"typ": "logout+jwt"}),
		"type of a proof":               sign(nil, map[string]any{"typ": "dpop+jwt"}),
		"other issuer":                  sign(map[string]any{"iss": "https://evil.example"}, nil),
		"issuer with a slash":           sign(map[string]any{"iss": i.URL + "/"}, nil),
		"no issuer":                     sign(map[string]any{"iss": nil}, nil),
		"other audience":                sign(map[string]any{"aud": "https://other.example/mcp"}, nil),
		"longer audience":               sign(map[string]any{"aud": audience + "/"}, nil),
		"no audience":                   sign(map[string]any{"aud": nil}, nil),
		"expired":                       sign(map[string]any{"exp": ago(time.Minute)}, nil),
		"no expiry":                     sign(map[string]any{"exp": nil}, nil),
		"not yet valid":                 sign(map[string]any{"nbf": ago(-time.Minute)}, nil),
		"of tomorrow":                   sign(map[string]any{"iat": ago(-24 * time.Hour)}, nil),
		"no subject":                    sign(map[string]any{"sub": nil}, nil),
		"bound to a key":                sign(map[string]any{"cnf": map[string]string{"jkt": "x"}}, nil),
		"odd claims":                    sign(map[string]any{"scope": 7}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			p, err := v.Authenticate(t.Context(), text)
			var why *job.RefusedError
			if !errors.Is(err, job.ErrUnauthorized) || !errors.As(err, &why) || why.Why == "" || p.Name != "" || p.Role != "" {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
	if p, err := v.Authenticate(t.Context(), strings.Join(valid, ".")); err != nil {
		t.Errorf("and the valid one: %+v, %v", p, err)
	}
}

func TestAuthenticate_WithoutAScopeIsNotAllowed(t *testing.T) {
	k := key(t, jose.ES256, "first")
	i := newIssuer(t, k)
	v := i.verifier(t)
	for _, scope := range []any{nil, "", "openid profile", "linus", "linus:", "linus:runner", "Linus:run", "linus:read,linus:run", []string{"linus:read linus:run"}} {
		p, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(map[string]any{"scope": scope}), nil))
		if !errors.Is(err, job.ErrNoScope) || p.Name != "" {
			t.Errorf("scope %v: %+v, %v", scope, p, err)
		}
	}
}

// An audience without a path is one with / to many clients' libraries.
func TestAuthenticate_AudienceWithoutAPath(t *testing.T) {
	k := key(t, jose.ES256, "first")
	i := newIssuer(t, k)
	v := oauth.New(oauth.Options{Issuer: i.URL, Audience: "https://linus.example", Log: slog.New(slog.DiscardHandler)})
	t.Cleanup(v.Close)
	for aud, want := range map[string]bool{"https://linus.example": true, "https://linus.example/": true, "https://linus.example/mcp": false, "https://linus.example.evil/": false} {
		_, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(map[string]any{"aud": aud}), nil))
		if (err == nil) != want {
			t.Errorf("%s: %v", aud, err)
		}
	}
}

// Nobody whom the issuer names gets the name of a token's principal, the operator's, or
// one of somebody else.
func TestAuthenticate_NamesAreNobodyElses(t *testing.T) {
	k := key(t, jose.ES256, "first")
	seen := map[string]string{}
	name := func(i *issuer, v *oauth.Verifier, subject string) string {
		t.Helper()
		p, err := v.Authenticate(t.Context(), token(t, jose.ES256, k, i.claims(map[string]any{"sub": subject}), nil))
		if err != nil {
			t.Fatal(err)
		}
		return p.Name
	}
	for n := range 2 {
		i := newIssuer(t, k)
		v := i.verifier(t)
		subjects := []string{"operator", "alice", "Alice", "alice ", "auth0|5f7c", "a:b", "~", strings.Repeat("a", 41), strings.Repeat("a", 10000), "ä", "\x1b[31m", "'; DROP TABLE jobs"}
		hashed := name(i, v, "Alice")
		subjects = append(subjects, hashed, hashed[strings.LastIndexByte(hashed, ':')+1:], strings.TrimLeft(hashed[strings.LastIndexByte(hashed, ':')+1:], "~"))
		for _, subject := range subjects {
			got := name(i, v, subject)
			if err := (job.TokenSpec{Name: got, Role: job.RoleRun}).Validate(); err == nil {
				t.Errorf("a token can have the name %q", got)
			}
			if who := fmt.Sprint(n, subject); seen[got] != "" {
				t.Errorf("%q and %q are both %q", seen[got], who, got)
			} else {
				seen[got] = who
			}
			if p := (job.Principal{Name: got}); p.Owner() == "" || len(got) > 64 || strings.ContainsAny(got, " \x1b'\"/") {
				t.Errorf("%q is %q", subject, got)
			}
			if again := name(i, v, subject); again != got {
				t.Errorf("%q is %q, and then %q", subject, got, again)
			}
		}
	}
}
