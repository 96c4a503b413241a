package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"linus/internal/job"
	"linus/internal/view"
)

// people is an issuer at which whoever comes is logged in as who, a member of groups.
type people struct {
	*httptest.Server
	signer jose.Signer

	mu     sync.Mutex
	who    string
	groups []string
	nonce  string // of the login that was begun last
}

func newPeople(t *testing.T) *people {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p := &people{}
	if p.signer, err = jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "k"}}, nil); err != nil {
		t.Fatal(err)
	}
	p.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		defer p.mu.Unlock()
		switch r.URL.Path {
		case "/jwks":
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private.Public(), KeyID: "k"}}})
		case "/token":
			text, err := p.sign("linus", map[string]any{"nonce": p.nonce, "groups": p.groups, "email": p.who + "@x.example"})
			if _, secret, _ := r.BasicAuth(); err != nil || secret != "a-client-secret" {
				t.Errorf("%v, secret %q", err, secret)
			}
			_ = json.NewEncoder(w).Encode(map[string]string{"id_token": text})
		default:
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": p.URL, "jwks_uri": p.URL + "/jwks", "authorization_endpoint": p.URL + "/auth", "token_endpoint": p.URL + "/token"})
		}
	}))
	t.Cleanup(p.Close)
	return p
}

func (p *people) sign(audience string, more map[string]any) (string, error) {
	return jwt.Signed(p.signer).Claims(jwt.Claims{Issuer: p.URL, Subject: p.who, Audience: jwt.Audience{audience}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}).Claims(more).Serialize()
}

// A person who logs in by an issuer is one owner, however often and with whatever; has the
// role of the issuer's groups; and is logged out everywhere by a revoke, and by the issuer.
func TestLogin_IsOnePersonUntilItIsRevoked(t *testing.T) {
	p := newPeople(t)
	ca := caOf(t, p.Server)
	const audience = "https://linus.example/mcp"
	e, at := servedBy(t, map[string]string{
		"LINUS_STATE_DIR": t.TempDir(), "CALLBACK_PORT": "0", "HTTP_ADDR": "127.0.0.1:0", "HTTP_TOKEN": "a-token-of-this-test", "HTTP_URL": "https://linus.example", "HTTP_HOSTS": "linus.example",
		"OAUTH_ISSUER": p.URL, "OAUTH_AUDIENCE": audience, "OAUTH_CA_FILE": ca,
		"OIDC_ISSUER": p.URL, "OIDC_CLIENT_ID": "linus", "OIDC_CLIENT_SECRET": "a-client-secret", "OIDC_ROLES": "admins=admin, devs=run", "OIDC_CA_FILE": ca, "OIDC_SESSION_HOURS": "2",
	})
	send := func(client *http.Client, bearer, method, path, body string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if bearer != "" {
			req.Header.Set("Authorization", "Bearer "+bearer)
			req.Header.Set("Content-Type", "application/json")
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		if to := resp.Header.Get("Location"); resp.StatusCode == http.StatusSeeOther {
			return resp.StatusCode, to
		}
		return resp.StatusCode, string(text)
	}
	// login logs who, of groups, in with a new browser.
	login := func(who string, groups ...string) (*http.Client, int, string) {
		t.Helper()
		jar, err := cookiejar.New(nil)
		if err != nil {
			t.Fatal(err)
		}
		client := &http.Client{Jar: jar, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		code, to := send(client, "", http.MethodGet, "/login/begin", "")
		u, err := url.Parse(to)
		if err != nil || code != http.StatusSeeOther || u.Query().Get("redirect_uri") != "https://linus.example/login/issuer" {
			t.Fatalf("begin: %d %s", code, to)
		}
		p.mu.Lock()
		p.who, p.groups, p.nonce = who, groups, u.Query().Get("nonce")
		p.mu.Unlock()
		code, text := send(client, "", http.MethodGet, "/login/issuer?"+url.Values{"state": {u.Query().Get("state")}, "code": {"a code"}}.Encode(), "")
		return client, code, text
	}
	sees := func(client *http.Client, path string) int {
		t.Helper()
		code, _ := send(client, "", http.MethodGet, path, "")
		return code
	}

	alice, code, text := login("alice", "devs")
	again, againCode, _ := login("alice", "devs", "others")
	boss, bossCode, _ := login("boss", "admins")
	if code != http.StatusOK || againCode != http.StatusOK || bossCode != http.StatusOK {
		t.Fatalf("logins: %d, %d, %d, %s", code, againCode, bossCode, text)
	}
	tokens, err := e.Tokens(t.Context())
	if err != nil || len(tokens) != 3 || tokens[0].Login != "alice@x.example" || tokens[0].Role != job.RoleRun || tokens[0].Limits.Jobs == 0 || tokens[0].TTL != 2*3600 || tokens[2].Role != job.RoleAdmin {
		t.Fatalf("%+v, %v", tokens, err)
	}
	name := tokens[0].Name

	p.mu.Lock()
	p.who = "alice"
	p.mu.Unlock()
	access, err := p.sign(audience, map[string]any{"scope": "linus:run"})
	if err != nil {
		t.Fatal(err)
	}
	_, text = send(http.DefaultClient, access, http.MethodPost, "/api/v1/jobs", `{"manifest":{"task":"true","agent_type":"script","template":"9000"}}`)
	var made job.Job
	if err := view.Unmarshal([]byte(text), &made); err != nil || made.Principal != name {
		t.Fatalf("a job of %q, not of %q: %s, %v", made.Principal, name, text, err)
	}
	for who, client := range map[string]*http.Client{"its owner": alice, "its owner elsewhere": again, "an admin": boss} {
		if code := sees(client, "/jobs/"+made.ID); code != http.StatusOK {
			t.Errorf("%s sees it: %d", who, code)
		}
	}
	bob, _, _ := login("bob", "devs")
	if code := sees(bob, "/jobs/"+made.ID); code != http.StatusNotFound {
		t.Errorf("somebody else sees it: %d", code)
	}
	if alice, admin := sees(alice, "/tokens"), sees(boss, "/tokens"); alice != http.StatusForbidden || admin != http.StatusOK {
		t.Errorf("tokens are seen: %d, %d", alice, admin)
	}

	if gone, err := e.RevokeToken(t.Context(), name); err != nil || len(gone) != 2 {
		t.Fatalf("%+v, %v", gone, err)
	}
	for who, client := range map[string]*http.Client{"alice": alice, "alice elsewhere": again} {
		if code := sees(client, "/jobs"); code != http.StatusUnauthorized {
			t.Errorf("%s after the revoke: %d", who, code)
		}
	}
	if _, code, text := login("bob", "others"); code != http.StatusForbidden || !strings.Contains(text, "bob@x.example") || !strings.Contains(text, "admins, devs") {
		t.Errorf("of no group: %d %s", code, text)
	}
	if code := sees(bob, "/jobs"); code != http.StatusUnauthorized {
		t.Errorf("whom the issuer does not let in any more: %d", code)
	}
	if tokens, err := e.Tokens(t.Context()); err != nil || len(tokens) != 1 || sees(boss, "/jobs") != http.StatusOK {
		t.Errorf("%+v, %v", tokens, err)
	}
}
