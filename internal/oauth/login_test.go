package oauth_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/oauth"
)

const (
	clientID     = "linus at example"
	clientSecret = "a-secret: of&this test"
	redirect     = "https://linus.example/login/issuer"
	nonce        = "a nonce"
	verifier     = "a-verifier-of-this-test-which-is-long-enough"
)

// provider is an issuer of logins as far as this server asks it: it takes one code, once.
type provider struct {
	*httptest.Server
	t   *testing.T
	log bytes.Buffer

	mu       sync.Mutex
	metadata map[string]any
	key      jose.JSONWebKey
	alg      jose.SignatureAlgorithm
	claims   map[string]any // of the ID token, besides those that are always right; nil removes one
	userInfo map[string]any
	used     bool                                              // the code
	token    func(w http.ResponseWriter, r *http.Request) bool // true: it has answered
	asked    http.Header                                       // of the last request for a token
	form     url.Values
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{t: t, key: key(t, jose.ES256, "first"), alg: jose.ES256, claims: map[string]any{"groups": []string{"devs"}}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch r.URL.Path {
		case "/.well-known/openid-configuration":
			_ = json.NewEncoder(w).Encode(p.metadata)
		case "/jwks":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{p.key.Public()}})
		case "/token":
			p.exchange(w, r)
		case "/me":
			if r.Header.Get("Authorization") != "Bearer an-access-token" {
				w.WriteHeader(http.StatusUnauthorized)
			}
			_ = json.NewEncoder(w).Encode(p.userInfo)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(p.Close)
	p.metadata = map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/jwks", "authorization_endpoint": p.URL + "/auth?theme=dark", "token_endpoint": p.URL + "/token"}
	return p
}

func (p *provider) exchange(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		p.t.Error(err)
	}
	p.asked, p.form = r.Header, r.PostForm
	if p.token != nil && p.token(w, r) {
		return
	}
	sum := sha256.Sum256([]byte(verifier))
	if p.used || r.PostForm.Get("code") != "a code" || r.PostForm.Get("redirect_uri") != redirect || r.PostForm.Get("grant_type") != "authorization_code" ||
		base64.RawURLEncoding.EncodeToString(sum[:]) != challenge(r.PostForm.Get("code_verifier")) {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"the <code>\u001b[31m is not good"}`))
		return
	}
	p.used = true
	_ = json.NewEncoder(w).Encode(map[string]any{"id_token": token(p.t, p.alg, p.key, p.all(), nil), "access_token": "an-access-token", "token_type": "Bearer"})
}

func challenge(verifier string) string {
	sum := sha256.Sum256([]byte(verifier))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// all are the claims of the ID token.
func (p *provider) all() map[string]any {
	now := time.Now()
	all := map[string]any{"iss": p.URL, "aud": clientID, "sub": "alice", "nonce": nonce, "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(), "preferred_username": "Alice Ä."}
	maps.Copy(all, p.claims)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func (p *provider) login(change func(o *oauth.LoginOptions)) *oauth.Login {
	p.t.Helper()
	o := oauth.LoginOptions{
		Issuer: p.URL, ClientID: clientID, ClientSecret: clientSecret, Redirect: redirect, Scopes: []string{"openid", "profile"}, GroupsClaim: "groups",
		Roles: map[string]job.Role{"admins": job.RoleAdmin, "devs": job.RoleRun, "watchers": job.RoleRead}, Log: slog.New(slog.NewTextHandler(&p.log, nil)),
	}
	if change != nil {
		change(&o)
	}
	l := oauth.NewLogin(o)
	p.t.Cleanup(l.Close)
	return l
}

func back(code string) url.Values { return url.Values{"state": {"s"}, "code": {code}} }

func TestLogin_SendsBrowsersToTheIssuer(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	p.metadata["end_session_endpoint"] = p.URL + "/out"
	l := p.login(nil)
	at, err := l.URL(t.Context(), "a state", nonce, verifier)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(at)
	if err != nil || !strings.HasPrefix(at, p.URL+"/auth?") {
		t.Fatal(at, err)
	}
	want := url.Values{
		"theme": {"dark"}, "response_type": {"code"}, "client_id": {clientID}, "redirect_uri": {redirect}, "scope": {"openid profile"}, "state": {"a state"}, "nonce": {nonce},
		"code_challenge": {challenge(verifier)}, "code_challenge_method": {"S256"},
	}
	if diff := cmp.Diff(want, u.Query()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got, want := l.LogoutURL(), p.URL+"/out?client_id="+url.QueryEscape(clientID); got != want {
		t.Errorf("out by %s, want %s", got, want)
	}
	p.mu.Lock()
	p.metadata["end_session_endpoint"] = "javascript:alert(1)"
	p.mu.Unlock()
	l = p.login(nil)
	if _, err := l.URL(t.Context(), "s", nonce, verifier); err != nil || l.LogoutURL() != "" {
		t.Errorf("out by a script: %s, %v", l.LogoutURL(), err)
	}
}

// A person has the name that access tokens of the same issuer give, and the greatest role of
// the groups.
func TestLogin_IsAPersonWithARole(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		claims   map[string]any
		userInfo map[string]any
		change   func(o *oauth.LoginOptions)
		role     job.Role // empty: refused
		called   string
	}{
		{"one group", nil, nil, nil, job.RoleRun, "Alice Ä."},
		{"several", map[string]any{"groups": []string{"watchers", "other", "admins", "devs"}}, nil, nil, job.RoleAdmin, "Alice Ä."},
		{"a text", map[string]any{"groups": "watchers"}, nil, nil, job.RoleRead, "Alice Ä."},
		{"another claim", map[string]any{"https://x.example/roles": []string{"watchers"}}, nil, func(o *oauth.LoginOptions) { o.GroupsClaim = "https://x.example/roles" }, job.RoleRead, "Alice Ä."},
		{"an e-mail address", map[string]any{"preferred_username": nil, "email": "a@x.example"}, nil, nil, job.RoleRun, "a@x.example"},
		{"a name that is none", map[string]any{"preferred_username": "\x1b[31m", "email": "<a>", "name": strings.Repeat("a", 65)}, nil, nil, job.RoleRun, ""},
		{"several audiences", map[string]any{"aud": []string{clientID, "other"}, "azp": clientID}, nil, nil, job.RoleRun, "Alice Ä."},
		{"groups in the userinfo", map[string]any{"groups": nil}, map[string]any{"sub": "alice", "groups": []string{"admins"}, "preferred_username": "Bob"}, nil, job.RoleAdmin, "Alice Ä."},
		{"groups in both", nil, map[string]any{"sub": "alice", "groups": []string{"admins"}}, nil, job.RoleRun, "Alice Ä."},
		{"everybody", map[string]any{"groups": nil}, nil, func(o *oauth.LoginOptions) { o.Roles["*"] = job.RoleRead }, job.RoleRead, "Alice Ä."},
		{"more than everybody", nil, nil, func(o *oauth.LoginOptions) { o.Roles["*"] = job.RoleRead }, job.RoleRun, "Alice Ä."},
		{"no groups", map[string]any{"groups": nil}, nil, nil, "", "Alice Ä."},
		{"other groups", map[string]any{"groups": []string{"dev", "Devs", "*", ""}}, nil, nil, "", "Alice Ä."},
		{"groups that are none", map[string]any{"groups": map[string]any{"devs": true}}, nil, nil, "", "Alice Ä."},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			maps.Copy(p.claims, test.claims)
			if p.userInfo = test.userInfo; test.userInfo != nil {
				p.metadata["userinfo_endpoint"] = p.URL + "/me"
			}
			l := p.login(test.change)
			got, err := l.Finish(t.Context(), back("a code"), nonce, verifier)
			l.Close()
			v := oauth.New(oauth.Options{Issuer: p.URL, Audience: audience, Log: slog.New(slog.DiscardHandler)})
			defer v.Close()
			who, tokenErr := v.Authenticate(t.Context(), token(t, p.alg, p.key, map[string]any{"iss": p.URL, "aud": audience, "sub": "alice", "scope": "linus:read", "exp": time.Now().Add(time.Minute).Unix()}, nil))
			if tokenErr != nil {
				t.Fatal(tokenErr)
			}
			if test.called == "" {
				test.called = who.Name
			}
			if diff := cmp.Diff(oauth.Person{Name: who.Name, Called: test.called, Role: test.role}, got); diff != "" {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
			var refused *job.RefusedError
			switch {
			case test.role != "" && err != nil:
				t.Error(err)
			case test.role == "" && !strings.Contains(p.log.String(), "in no group of OIDC_ROLES"):
				t.Errorf("logged: %s", p.log.String())
			case test.role == "" && (!errors.As(err, &refused) || refused.Why != "Alice Ä. ("+who.Name+") is in none of the groups that may log in: admins, devs, watchers"):
				t.Errorf("refused: %v", err)
			}
		})
	}
}

func TestLogin_RefusesAllOthers(t *testing.T) {
	t.Parallel()
	other := key(t, jose.ES256, "first")
	claims := func(changes map[string]any) func(p *provider) {
		return func(p *provider) { maps.Copy(p.claims, changes) }
	}
	answers := func(status int, text string) func(p *provider) {
		return func(p *provider) {
			p.token = func(w http.ResponseWriter, _ *http.Request) bool {
				w.WriteHeader(status)
				_, _ = w.Write([]byte(text))
				return true
			}
		}
	}
	idToken := func(make func(p *provider) string) func(p *provider) {
		return func(p *provider) {
			p.token = func(w http.ResponseWriter, _ *http.Request) bool {
				_ = json.NewEncoder(w).Encode(map[string]string{"id_token": make(p)})
				return true
			}
		}
	}
	encoded := func(v any) string {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString(data)
	}
	for _, test := range []struct {
		name, says string // of a RefusedError; empty: it is another error
		change     func(p *provider)
		back       url.Values
		verifier   string
	}{
		{"the code of another login", `the issuer says invalid_grant: the <code> [31m is not good`, nil, back("b code"), ""},
		{"a used code", "invalid_grant", func(p *provider) { p.used = true }, nil, ""},
		{"another browser's verifier", "invalid_grant", nil, nil, "another-verifier"},
		{"no code", "no code", nil, url.Values{}, ""},
		{"no consent", "the issuer says access_denied", nil, url.Values{"error": {"access_denied"}}, ""},
		{"a long text", "the issuer says x: yyyy", nil, url.Values{"error": {"x"}, "error_description": {strings.Repeat("y", 10000)}}, ""},
		{"the answer of another issuer", "from another issuer", nil, url.Values{"code": {"a code"}, "iss": {"https://evil.example"}}, ""},
		{"an answer of nobody", "from another issuer", func(p *provider) { p.metadata["authorization_response_iss_parameter_supported"] = true }, nil, ""},
		{"another nonce", "from another login", claims(map[string]any{"nonce": "another"}), nil, ""},
		{"no nonce", "from another login", claims(map[string]any{"nonce": nil}), nil, ""},
		{"another audience", "for another audience", claims(map[string]any{"aud": "other"}), nil, ""},
		{"no audience", "for another audience", claims(map[string]any{"aud": nil}), nil, ""},
		{"another party", "to another client", claims(map[string]any{"azp": "other"}), nil, ""},
		{"audiences of no party", "to another client", claims(map[string]any{"aud": []string{clientID, "other"}}), nil, ""},
		{"another issuer's", "from another issuer", claims(map[string]any{"iss": "https://evil.example"}), nil, ""},
		{"expired", "has expired", claims(map[string]any{"exp": time.Now().Add(-time.Minute).Unix()}), nil, ""},
		{"for ever", "has no expiry", claims(map[string]any{"exp": nil}), nil, ""},
		{"of tomorrow", "not valid yet", claims(map[string]any{"iat": time.Now().Add(time.Hour).Unix()}), nil, ""},
		{"of nobody", "has no subject", claims(map[string]any{"sub": nil}), nil, ""},
		{"another's key", "signature is not the issuer's", idToken(func(p *provider) string { return token(t, jose.ES256, other, p.all(), nil) }), nil, ""},
		{"alg none", "not a JWT signed", idToken(func(p *provider) string { return encoded(map[string]any{"alg": "none"}) + "." + encoded(p.all()) + "." }), nil, ""},
		{"the client's secret as a key", "not a JWT signed", idToken(func(p *provider) string {
			return token(t, jose.HS256, jose.JSONWebKey{Key: []byte(strings.Repeat(clientSecret, 2)), KeyID: "first"}, p.all(), nil)
		}), nil, ""},
		{"an access token", "type is not accepted", idToken(func(p *provider) string { return token(t, p.alg, p.key, p.all(), map[string]any{"typ": "at+jwt"}) }), nil, ""},
		{"a logout token", "type is not accepted", idToken(func(p *provider) string { return token(t, p.alg, p.key, p.all(), map[string]any{"typ": "logout+jwt"}) }), nil, ""},
		{"no ID token", "OIDC_SCOPES must have openid", answers(200, `{"access_token":"x"}`), nil, ""},
		{"a wrong secret", "the issuer says invalid_client", answers(401, `{"error":"invalid_client"}`), nil, ""},
		{"the userinfo of another", "about somebody else", func(p *provider) {
			p.claims["groups"], p.metadata["userinfo_endpoint"], p.userInfo = nil, p.URL+"/me", map[string]any{"sub": "bob", "groups": []string{"admins"}}
		}, nil, ""},
		{"userinfo that fails", "", func(p *provider) { p.claims["groups"], p.metadata["userinfo_endpoint"] = nil, p.URL+"/me/not" }, nil, ""},
		{"a page", "", answers(200, "<html>a-secret-in-it"), nil, ""},
		{"an error", "", answers(502, "{}"), nil, ""},
		{"a long answer", "", answers(200, `{"id_token":"`+strings.Repeat("x", 1<<20)+`"}`), nil, ""},
		{"a long token", "too long", answers(200, `{"id_token":"`+strings.Repeat("x", 20<<10)+`"}`), nil, ""},
		{"a redirect with the code", "", func(p *provider) {
			p.token = func(w http.ResponseWriter, r *http.Request) bool {
				http.Redirect(w, r, p.URL+"/token", http.StatusTemporaryRedirect)
				return true
			}
		}, nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			if test.change != nil {
				test.change(p)
			}
			if test.back == nil {
				test.back = back("a code")
			}
			if test.verifier == "" {
				test.verifier = verifier
			}
			l := p.login(nil)
			got, err := l.Finish(t.Context(), test.back, nonce, test.verifier)
			l.Close()
			var refused *job.RefusedError
			if is := errors.As(err, &refused); err == nil || is != (test.says != "") || is && (!strings.Contains(refused.Why, test.says) || len(refused.Why) > 400) || got != (oauth.Person{}) {
				t.Errorf("%+v, %v; want %q", got, err, test.says)
			}
			if said := fmt.Sprint(err) + p.log.String(); strings.Contains(said, clientSecret) || strings.Contains(said, "a-secret-in-it") || strings.Contains(said, verifier) {
				t.Errorf("what nobody may know is said: %s", said)
			}
		})
	}
}

// An issuer is told once who asks, in the way that it takes.
func TestLogin_ProvesItself(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		methods any
		secret  string
		basic   bool
		form    bool
	}{
		{"as usual", nil, clientSecret, true, false},
		{"by both", []string{"client_secret_post", "client_secret_basic"}, clientSecret, true, false},
		{"in the form", []string{"client_secret_post", "private_key_jwt"}, clientSecret, false, true},
		{"not at all", nil, "", false, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			p.metadata["token_endpoint_auth_methods_supported"] = test.methods
			if _, err := p.login(func(o *oauth.LoginOptions) { o.ClientSecret = test.secret }).Finish(t.Context(), back("a code"), nonce, verifier); err != nil {
				t.Fatal(err)
			}
			id, secret, basic := (&http.Request{Header: p.asked}).BasicAuth()
			if basic != test.basic || basic && (id != url.QueryEscape(clientID) || secret != url.QueryEscape(clientSecret)) {
				t.Errorf("basic: %v %q %q", basic, id, secret)
			}
			if (p.form.Get("client_id") == clientID) != !basic || (p.form.Get("client_secret") == clientSecret) != test.form || p.form.Has("client_secret") != test.form {
				t.Errorf("form: %v", p.form)
			}
		})
	}
}

func TestLogin_OfAnIssuerThatChangesItsKey(t *testing.T) {
	t.Parallel()
	p := newProvider(t)
	l := p.login(nil)
	if _, err := l.Finish(t.Context(), back("a code"), nonce, verifier); err != nil {
		t.Fatal(err)
	}
	l.Later(time.Minute)
	p.mu.Lock()
	p.key, p.used = key(t, jose.ES256, "second"), false
	p.mu.Unlock()
	if _, err := l.Finish(t.Context(), back("a code"), nonce, verifier); err != nil {
		t.Error(err)
	}
}

// As long as the issuer cannot be reached, or is not one, nobody is sent anywhere.
func TestLogin_OfAnIssuerThatIsWrong(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		logged string
		change func(p *provider)
	}{
		"it is gone":            {"connection refused", func(p *provider) { p.Close() }},
		"it is another":         {"OIDC_ISSUER must be the same text", func(p *provider) { p.metadata["issuer"] = "https://evil.example" }},
		"a script":              {"authorization_endpoint", func(p *provider) { p.metadata["authorization_endpoint"] = "javascript:alert(1)" }},
		"no TLS elsewhere":      {"authorization_endpoint", func(p *provider) { p.metadata["authorization_endpoint"] = "http://evil.example/auth" }},
		"the code without TLS":  {"token_endpoint", func(p *provider) { p.metadata["token_endpoint"] = "http://evil.example/token" }},
		"no place for the code": {"token_endpoint", func(p *provider) { delete(p.metadata, "token_endpoint") }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newProvider(t)
			test.change(p)
			l := p.login(nil)
			at, err := l.URL(t.Context(), "s", nonce, verifier)
			_, finishErr := l.Finish(t.Context(), back("a code"), nonce, verifier)
			l.Close()
			if at != "" || !errors.Is(err, job.ErrUnchecked) || !errors.Is(finishErr, job.ErrUnchecked) || !strings.Contains(p.log.String(), test.logged) {
				t.Errorf("%q, %v, %v; logged: %s", at, err, finishErr, p.log.String())
			}
		})
	}
}
