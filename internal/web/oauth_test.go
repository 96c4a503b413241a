package web_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/web"
)

// withOAuth serves with an authenticator of tokens whose text says what they are.
func withOAuth(mcp http.Handler, resource string) http.Handler {
	return web.Handler(web.Options{
		Engine: sample(), MCP: mcp, API: echo, Metrics: echo, Token: token, Log: log,
		Origins: []string{"http://inspector.example:6274"},
		OAuth:   &web.OAuth{Issuer: "https://id.example/realms/team", Resource: resource},
		Authenticate: func(_ context.Context, bearer string) (job.Principal, error) {
			switch bearer {
			case "good":
				return job.Principal{Name: "oauth:0:alice", Role: job.RoleRun}, nil
			case "short":
				return job.Principal{Name: "oauth:0:alice", Role: job.RoleRun, Until: time.Now().Add(50 * time.Millisecond)}, nil
			case "scopeless":
				return job.Principal{}, job.ErrNoScope
			case "unknown":
				return job.Principal{}, job.ErrUnchecked
			}
			return job.Principal{}, &job.RefusedError{Why: "the token has expired"}
		},
	})
}

func TestOAuth_ChallengesSayWhereTokensAre(t *testing.T) {
	const at = `resource_metadata="https://linus.example:8766/.well-known/oauth-protected-resource/mcp", scope="linus:run"`
	h := withOAuth(echo, "https://linus.example:8766/mcp")
	for _, path := range []string{"/mcp", "/api/v1/jobs", "/jobs/" + id + "/output", "/metrics"} {
		for bearer, want := range map[string]struct {
			code      int
			challenge string
		}{
			"":          {http.StatusUnauthorized, `Bearer realm="linus", ` + at},
			"expired":   {http.StatusUnauthorized, `Bearer realm="linus", ` + at + `, error="invalid_token", error_description="the token has expired"`},
			"scopeless": {http.StatusForbidden, `Bearer realm="linus", ` + at + `, error="insufficient_scope"`},
			"unknown":   {http.StatusServiceUnavailable, ""},
			"good":      {http.StatusOK, ""},
			token:       {http.StatusOK, ""},
		} {
			got := request(t, h, http.MethodGet, path, func(r *http.Request) {
				r.Header.Del("Authorization")
				if bearer != "" {
					r.Header.Set("Authorization", "Bearer "+bearer)
				}
			})
			if challenge := got.Header().Get("WWW-Authenticate"); got.Code != want.code || challenge != want.challenge {
				t.Errorf("%s with %q: %d %s\nwant %d %s", path, bearer, got.Code, challenge, want.code, want.challenge)
			}
		}
	}
}

func TestOAuth_Metadata(t *testing.T) {
	h := withOAuth(echo, "https://linus.example:8766")
	want := map[string]any{
		"resource": "https://linus.example:8766", "authorization_servers": []any{"https://id.example/realms/team"},
		"scopes_supported": []any{"linus:read", "linus:run", "linus:admin"}, "bearer_methods_supported": []any{"header"}, "resource_name": "linus",
	}
	const path = "/.well-known/oauth-protected-resource"
	foreign := func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Origin", "http://inspector.example:6274")
	}
	for _, at := range []string{path, path + "/mcp"} {
		got := request(t, h, http.MethodGet, at, foreign)
		var body map[string]any
		if err := json.Unmarshal(got.Body.Bytes(), &body); err != nil {
			t.Fatalf("%s: %d %v", at, got.Code, err)
		}
		if diff := cmp.Diff(want, body); diff != "" || got.Header().Get("Access-Control-Allow-Origin") == "" {
			t.Errorf("%s: %s%v", at, diff, got.Header())
		}
		if code := request(t, h, http.MethodPost, at, nil).Code; code != http.StatusMethodNotAllowed {
			t.Errorf("POST: %d", code)
		}
	}
	if c := request(t, h, http.MethodGet, "/mcp", func(r *http.Request) { r.Header.Del("Authorization") }).Header().Get("WWW-Authenticate"); !strings.Contains(c, `resource_metadata="https://linus.example:8766`+path+`"`) {
		t.Errorf("challenge %s", c)
	}
	without := web.Handler(web.Options{Engine: sample(), MCP: echo, Metrics: echo, Token: token, Log: log})
	if code := request(t, without, http.MethodGet, path, func(r *http.Request) { r.Header.Del("Authorization") }).Code; code != http.StatusUnauthorized {
		t.Errorf("without OAuth: %d", code)
	}
}

func TestOAuth_OpenStreamEndsWithItsToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := withOAuth(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusOK)
			<-r.Context().Done()
			if cause := context.Cause(r.Context()); cause != job.ErrUnauthorized { //nolint:errorlint // nothing else is meant
				t.Errorf("it ended for %v", cause)
			}
		}), "https://linus.example")
		got := request(t, h, http.MethodGet, "/mcp", func(r *http.Request) { r.Header.Set("Authorization", "Bearer short") })
		if got.Code != http.StatusOK { // it has ended
			t.Errorf("%d %s", got.Code, got.Body)
		}
	})
}
