package daemon

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/view"
)

// An issuer's tokens are taken beside the engine's own and the operator's, with the same
// rules: roles, and what belongs to whom.
func TestHTTP_TakesTokensOfAnIssuer(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var issuer *httptest.Server
	issuer = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/jwks" {
			_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: private.Public(), KeyID: "k"}}})
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": issuer.URL, "jwks_uri": issuer.URL + "/jwks"})
	}))
	defer issuer.Close()
	ca := caOf(t, issuer)
	const audience = "https://linus.example/mcp"
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: private, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	access := func(subject, scope string) string {
		text, err := jwt.Signed(signer).Claims(jwt.Claims{Issuer: issuer.URL, Subject: subject, Audience: jwt.Audience{audience}, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}).
			Claims(map[string]any{"scope": scope}).Serialize()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}

	const operator = "a-token-of-this-test"
	e, at := servedBy(t, map[string]string{
		"LINUS_STATE_DIR": t.TempDir(), "CALLBACK_PORT": "0", "HTTP_ADDR": "127.0.0.1:0", "HTTP_TOKEN": operator,
		"OAUTH_ISSUER": issuer.URL, "OAUTH_AUDIENCE": audience, "OAUTH_CA_FILE": ca,
	})
	send := func(bearer, method, path, body string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, at+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+bearer)
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // read to its end
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(text)
	}

	own, err := e.CreateToken(t.Context(), job.TokenSpec{Name: "alice", Role: job.RoleRun})
	if err != nil {
		t.Fatal(err)
	}
	const submission = `{"manifest":{"task":"true","agent_type":"script","template":"9000"}}`
	resp, text := send(access("alice", "linus:run"), "POST", "/api/v1/jobs", submission)
	var made job.Job
	if err := view.Unmarshal([]byte(text), &made); err != nil || resp.StatusCode != http.StatusCreated || !strings.HasPrefix(made.Principal, "oauth:") {
		t.Fatalf("submit: %s %s, %v", resp.Status, text, err)
	}
	for _, test := range []struct {
		name, bearer string
		want         int
	}{
		{"the same one", access("alice", "linus:read"), http.StatusOK},
		{"an admin", access("carol", "linus:admin"), http.StatusOK},
		{"the operator", operator, http.StatusOK},
		{"another", access("bob", "linus:run"), http.StatusNotFound},
		{"a token of that name", own.Secret, http.StatusNotFound},
		{"nobody", access("alice", "openid"), http.StatusForbidden},
		{"a token that is none", "linus_x", http.StatusUnauthorized},
	} {
		if resp, text := send(test.bearer, "GET", "/api/v1/jobs/"+made.ID, ""); resp.StatusCode != test.want {
			t.Errorf("%s: %s %s", test.name, resp.Status, text)
		}
	}
	resp, text = send(access("alice", "linus:read"), "POST", "/api/v1/jobs", submission)
	if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != http.StatusForbidden || got != `Bearer error="insufficient_scope", scope="linus:run"` {
		t.Errorf("a reader submits: %s %q %s", resp.Status, got, text)
	}
	const call = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"submit_job"}}`
	resp, text = send(access("alice", "linus:read"), "POST", "/mcp", call)
	const challenge = `Bearer realm="linus", resource_metadata="https://linus.example/.well-known/oauth-protected-resource/mcp", scope="linus:run", error="insufficient_scope"`
	if got := resp.Header.Get("WWW-Authenticate"); resp.StatusCode != http.StatusForbidden || got != challenge {
		t.Errorf("a reader submits by MCP: %s %q %s", resp.Status, got, text)
	}
}

// caOf returns a file with the certificate of a server.
func caOf(t *testing.T, s *httptest.Server) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// servedBy returns an engine with settings, and the URL of its HTTP server, until the test ends.
func servedBy(t *testing.T, settings map[string]string) (*engine, string) {
	t.Helper()
	for name, value := range settings {
		t.Setenv(name, value)
	}
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context()) // it outlasts the test's own
	fake := providertest.NewFake()
	o := Options{Config: c, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Backend: func(config.Config, Installation, *slog.Logger) Backend {
		return Backend{Provider: fake, Guest: fake, Close: func() {}}
	}}
	e, err := openEngine(ctx, o)
	if err == nil {
		err = e.start(ctx, func(error) {})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.close(ctx) })
	face, err := openHTTP(ctx, o, e, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = face.close(ctx) })
	return e, "http://" + face.Addr
}
