package web_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"linus/internal/browsertest"
	"linus/internal/web"
)

const inspector = "http://localhost:6274"

// from makes a request look sent by a browser for a page of another origin.
func from(origin string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Origin", origin) }
}

// preflight turns it into the preflight request, which has no token.
func preflight(origin string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Del("Authorization")
		r.Header.Set("Origin", origin)
		r.Header.Set("Access-Control-Request-Method", http.MethodPost)
		r.Header.Set("Access-Control-Request-Headers", "authorization,content-type")
	}
}

func TestCORS_IsForTheOriginsThatAreNamed(t *testing.T) {
	both := func(change func(*http.Request), more func(*http.Request)) func(*http.Request) {
		return func(r *http.Request) { change(r); more(r) }
	}
	wrongToken := func(r *http.Request) { r.Header.Set("Authorization", "Bearer x") }
	loggedIn := func(r *http.Request) {
		r.Header.Del("Authorization")
		w := httptest.NewRecorder()
		login := httptest.NewRequest(http.MethodGet, web.LoginPath(token), nil)
		login.Host = "127.0.0.1:8766"
		web.Handler(web.Options{Engine: sample(), MCP: echo, Token: token, Log: log}).ServeHTTP(w, login)
		r.AddCookie(w.Result().Cookies()[0]) //nolint:bodyclose // a recorder's
	}
	named := []string{"https://a.example", inspector}
	tests := []struct {
		name           string
		origins        []string
		method, target string
		change         func(*http.Request)
		code           int
		allowed        string // the origin a browser is told of
	}{
		{"nobody is named: question", nil, http.MethodOptions, "/mcp", preflight(inspector), 403, ""},
		{"nobody is named: call", nil, http.MethodPost, "/mcp", from(inspector), 403, ""},
		{"nobody is named: no page", nil, http.MethodPost, "/mcp", nil, 200, ""},
		{"question", named, http.MethodOptions, "/mcp", preflight(inspector), 204, inspector},
		{"call", named, http.MethodPost, "/mcp", from(inspector), 200, inspector},
		{"call with a slash at the end", named, http.MethodPost, "/mcp/", from(inspector), 200, inspector},
		{"the other origin's call", named, http.MethodPost, "/mcp", from("https://a.example"), 200, "https://a.example"},
		{"end of a session", named, http.MethodDelete, "/mcp", from(inspector), 200, inspector},
		{"wrong token, which the page is told", named, http.MethodPost, "/mcp", both(from(inspector), wrongToken), 401, inspector},
		{"a session's cookie is no token", named, http.MethodPost, "/mcp", both(from(inspector), loggedIn), 401, inspector},
		{"OPTIONS that is no question", named, http.MethodOptions, "/mcp", both(from(inspector), wrongToken), 401, inspector},
		{"own origin", named, http.MethodPost, "/mcp", from("http://127.0.0.1:8766"), 200, ""},
		{"other origin: question", named, http.MethodOptions, "/mcp", preflight("https://evil.example"), 403, ""},
		{"other origin: call", named, http.MethodPost, "/mcp", from("https://evil.example"), 403, ""},
		{"other port", named, http.MethodPost, "/mcp", from("http://localhost:6275"), 403, ""},
		{"other scheme", named, http.MethodPost, "/mcp", from("https://localhost:6274"), 403, ""},
		{"longer name", named, http.MethodPost, "/mcp", from("https://a.example.evil.example"), 403, ""},
		{"no origin of a file", named, http.MethodPost, "/mcp", from("null"), 403, ""},
		{"foreign host name", named, http.MethodPost, "/mcp", both(from(inspector), func(r *http.Request) { r.Host = "evil.example" }), 403, ""},
		{"page", named, http.MethodGet, "/jobs", both(from(inspector), loggedIn), 403, ""},
		{"form", named, http.MethodPost, "/jobs/" + id + "/cancel", both(from(inspector), loggedIn), 403, ""},
		{"login", named, http.MethodPost, "/login", from(inspector), 403, ""},
		{"output", named, http.MethodGet, "/jobs/" + id + "/output", from(inspector), 403, ""},
		{"metrics", named, http.MethodGet, "/metrics", from(inspector), 403, ""},
		{"question for a page", named, http.MethodOptions, "/jobs", preflight(inspector), 403, ""},
		{"what only looks like /mcp", named, http.MethodPost, "/mcp/../jobs", from(inspector), 403, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := web.Handler(web.Options{Engine: sample(), MCP: echo, Metrics: echo, Token: token, Origins: tt.origins, Log: log})
			resp := request(t, h, tt.method, tt.target, tt.change)
			got := resp.Header()
			if resp.Code != tt.code || got.Get("Access-Control-Allow-Origin") != tt.allowed {
				t.Fatalf("%d %s, allowed %q; want %d, %q", resp.Code, resp.Body, got.Get("Access-Control-Allow-Origin"), tt.code, tt.allowed)
			}
			for name := range got {
				if strings.HasPrefix(name, "Access-Control-") && tt.allowed == "" || name == "Access-Control-Allow-Credentials" {
					t.Errorf("%s: %s", name, got.Get(name))
				}
			}
			wants := map[string]string{"Access-Control-Allow-Methods": "POST", "Access-Control-Allow-Headers": "Mcp-Protocol-Version", "Access-Control-Max-Age": "600"}
			if tt.code != 204 {
				wants = map[string]string{"Access-Control-Expose-Headers": "Mcp-Session-Id"}
			}
			for name, want := range wants {
				if tt.allowed != "" && !strings.Contains(got.Get(name), want) {
					t.Errorf("%s is %q, want %q in it", name, got.Get(name), want)
				}
			}
			if kept := got.Get("Vary") == "Origin"; kept != (strings.HasPrefix(tt.target, "/mcp") && tt.code != 403 && len(tt.origins) > 0) {
				t.Errorf("Vary: %q", got.Get("Vary"))
			}
		})
	}
}

func TestBrowser_LetsPagesOfNamedOriginsCallMCP(t *testing.T) {
	ctx := browsertest.Start(t)
	mcp := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Mcp-Session-Id", "session-1")
		echo(w, r)
	})
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = fmt.Fprint(w, "<!doctype html><title>a page elsewhere</title>")
	}))
	defer page.Close()
	browsertest.Do(t, ctx, chromedp.Navigate(page.URL))
	for _, tt := range []struct {
		name    string
		origins []string
		want    string
	}{
		{"named", []string{page.URL}, "200 mcp 2 session-1"},
		{"not named", []string{inspector}, "TypeError"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			server := httptest.NewServer(web.Handler(web.Options{Engine: sample(), MCP: mcp, Token: token, Origins: tt.origins, Log: log}))
			defer server.Close()
			browsertest.Read(t, ctx, chromedp.Evaluate[bool](fmt.Sprintf(`fetch(%q, {method: "POST", body: "{}", headers: {
					"Authorization": %q, "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
					"Mcp-Session-Id": "session-0", "Mcp-Protocol-Version": "2025-11-25", "Mcp-Method": "initialize", "Mcp-Name": "x", "Last-Event-ID": "1",
				}}).then(async r => document.title = r.status + " " + await r.text() + " " + r.headers.get("Mcp-Session-Id"), e => document.title = e.name);
				true`, server.URL+"/mcp", "Bearer "+token)))
			browsertest.Shows(t, ctx, "title", tt.want)
		})
	}
}
