package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/web"
)

// keyring knows tokens of other principals than the operator.
type keyring struct {
	mu     sync.Mutex
	tokens map[string]job.Principal
}

func (k *keyring) authenticate(_ context.Context, bearer string) (job.Principal, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p, ok := k.tokens[bearer]
	if !ok {
		return job.Principal{}, job.ErrUnauthorized
	}
	return p, nil
}

func (k *keyring) holder(_ context.Context, id string) (job.Principal, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.tokens {
		if p.Token == id {
			return p, nil
		}
	}
	return job.Principal{}, job.ErrUnauthorized
}

func (k *keyring) revoke(bearer string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.tokens, bearer)
}

// asking notes on whose behalf the engine is asked.
type asking struct {
	job.Engine
	mu  sync.Mutex
	who []string
}

func (e *asking) List(ctx context.Context, f job.Filter) (job.Page, error) {
	p, _ := job.PrincipalFrom(ctx)
	e.mu.Lock()
	e.who = append(e.who, p.Name+" "+p.Token)
	e.mu.Unlock()
	return e.Engine.List(ctx, f)
}

func (e *asking) last() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.who) == 0 {
		return ""
	}
	return e.who[len(e.who)-1]
}

func TestLogin_WithATokenIsItsPrincipalUntilItIsRevoked(t *testing.T) {
	life, end := context.WithCancelCause(t.Context())
	keys := &keyring{tokens: map[string]job.Principal{
		"linus_alice": {Name: "alice", Token: "a1", Role: job.RoleRun, Life: life},
		"jwt":         {Name: "oidc", Role: job.RoleRun}, // nobody could ask for it by an ID
	}}
	e := &asking{Engine: sample()}
	v := visitWith(t, web.Options{Engine: e, MCP: echo, Metrics: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
	form := func(token string) string { return url.Values{"token": {token}, "next": {"/jobs"}}.Encode() }
	for what, wrong := range map[string]string{"unknown": "linus_bob", "without an ID": "jwt", "its ID": "a1", "empty": ""} {
		if to, text := v.do(http.MethodPost, "/login", form(wrong), nil); to.Path != "/login" {
			t.Errorf("token that is %s: %v %s", what, to, text)
		}
	}
	if code, _ := v.get("/login?token=linus_alice"); code != http.StatusUnauthorized {
		t.Errorf("a token in an address: %d", code)
	}
	if to, text := v.do(http.MethodPost, "/login", form("linus_alice"), nil); to.Path != "/jobs" || e.last() != "alice a1" {
		t.Fatalf("log in: %v as %q, %s", to, e.last(), text)
	}
	cookie := v.cookieOf()
	forged := *cookie
	forged.Value = strings.Replace(cookie.Value, ".a1.", ".", 1) // the operator's
	if code := with(t, v.server.Config.Handler, "/jobs", &forged); code != http.StatusUnauthorized {
		t.Errorf("a forged cookie: %d", code)
	}

	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, v.server.URL+"/jobs/live", nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := v.client.Do(req)
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatal(stream, err)
	}
	defer stream.Body.Close() //nolint:errcheck // read to its end
	keys.revoke("linus_alice")
	end(job.ErrUnauthorized)
	body(t, stream) // returns when the stream has ended

	for _, path := range []string{"/jobs", "/jobs/live", "/jobs/" + id + "/output", "/metrics"} {
		if code := with(t, v.server.Config.Handler, path, cookie); code != http.StatusUnauthorized {
			t.Errorf("%s with the cookie of a revoked token: %d", path, code)
		}
	}
	if _, text := v.get("/jobs"); strings.Contains(text, "Log out") || !strings.Contains(text, "Log in") {
		t.Errorf("the page of a revoked token: %s", text)
	}
}

func TestBearer_IsItsPrincipal(t *testing.T) {
	life, end := context.WithCancelCause(t.Context())
	keys := &keyring{tokens: map[string]job.Principal{"linus_alice": {Name: "alice", Token: "a1", Role: job.RoleRead, Life: life}}}
	var got job.Principal
	began, ended := make(chan struct{}), make(chan error, 1)
	mcp := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		got, _ = job.PrincipalFrom(r.Context())
		close(began)
		<-r.Context().Done()
		ended <- context.Cause(r.Context())
	})
	h := web.Handler(web.Options{Engine: sample(), MCP: mcp, Metrics: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
	bearer := func(token string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set("Authorization", "bearer "+token) }
	}
	go func() {
		<-began
		end(job.ErrUnauthorized)
	}()
	request(t, h, http.MethodPost, "/mcp", bearer("linus_alice"))
	if cause := <-ended; got.Name != "alice" || got.Token != "a1" || cause == nil || cause.Error() != job.ErrUnauthorized.Error() {
		t.Errorf("principal %+v, ended by %v", got, cause)
	}
	for _, wrong := range []string{"linus_bob", "", "a1"} {
		if code := request(t, h, http.MethodPost, "/mcp", bearer(wrong)).Code; code != http.StatusUnauthorized {
			t.Errorf("%q: %d", wrong, code)
		}
	}
}

// What a role may not do, no form of it is shown.
func TestForms_AreShownToThoseWhoMay(t *testing.T) {
	keys := &keyring{tokens: map[string]job.Principal{
		"linus_reader": {Name: "reader", Token: "r1", Role: job.RoleRead, Life: t.Context()},
		"linus_runner": {Name: "runner", Token: "r2", Role: job.RoleRun, Life: t.Context()},
	}}
	o := web.Options{Engine: sample(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log}
	for who, shown := range map[string]string{
		"linus_reader": "",
		"linus_runner": "/jobs/new /vms/new /vms/105/destroy /vms/105/revert?snapshot=x",
		token:          "/jobs/new /vms/new /vms/105/destroy /vms/105/revert?snapshot=x /vms/105/forget /pools/new /tokens/new",
	} {
		v := visitWith(t, o)
		v.do(http.MethodPost, "/login", url.Values{"token": {who}}.Encode(), nil)
		for _, path := range []string{"/jobs/new", "/vms/new", "/vms/105/destroy", "/vms/105/revert?snapshot=x", "/vms/105/forget", "/pools/new", "/tokens/new"} {
			want := http.StatusForbidden
			if slices.Contains(strings.Fields(shown), path) {
				want = http.StatusOK
			}
			if code, text := v.get(path); code != want || code != http.StatusOK && strings.Contains(text, `<form method="post" action="/vms`) {
				t.Errorf("%s as %s: %d, want %d", path, who, code, want)
			}
		}
	}
}

// A page offers what the token's toolsets have, and a login leads to the first section that
// it may see.
func TestButtons_AreThoseOfTheTokensToolsets(t *testing.T) {
	t.Parallel()
	crumb := regexp.MustCompile(`<p class="crumb">.*`)
	offer := regexp.MustCompile(`id="(again|cancel|kill|terminal|files|send|new-job|new-vm|new-here|open-terminal|take|start|stop|suspend|destroy|forget)"|<a href="/(jobs|vms|pools|tokens|host)"( aria-current="page")?>|(artifacts/)`)
	for toolset, want := range map[string]string{
		"jobs":  "at /jobs: jobs new-job | running: jobs again cancel | done: jobs again artifacts/ | VM: jobs new-here | 200 403",
		"exec":  "at /jobs/new: files send | running: again kill send | done: again | VM: new-here open-terminal | 200 403",
		"vm":    "at /vms: vms new-vm | running: vms | done: vms | VM: vms stop suspend destroy take | 403 200",
		"files": "at /help: | running: files | done: | VM: files | 403 403",
		"admin": "at /host: pools tokens host | running: pools tokens host | done: pools tokens host | VM: pools tokens host | 403 403",
		"":      "at /jobs: jobs vms pools tokens host new-job | running: jobs vms pools tokens host again files cancel kill send | done: jobs vms pools tokens host again artifacts/ | VM: jobs vms pools tokens host new-here files stop suspend destroy open-terminal take | 200 200",
	} {
		keys := &keyring{tokens: map[string]job.Principal{"linus_narrow": {Name: "narrow", Token: "n1", Role: job.RoleAdmin, Toolsets: strings.Fields(toolset), Life: t.Context()}}}
		v := visitWith(t, web.Options{Engine: sample(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
		to, text := v.do(http.MethodPost, "/login", url.Values{"token": {"linus_narrow"}}.Encode(), nil)
		offers := func(text string) (found string) {
			for _, m := range offer.FindAllStringSubmatch(crumb.ReplaceAllString(text, ""), -1) {
				if name := " " + m[1] + m[2] + m[4]; !strings.Contains(found+" ", name+" ") {
					found += name
				}
			}
			return found
		}
		page := func(path string) string { _, text := v.get(path); return offers(text) }
		code := func(path string) int { code, _ := v.get(path); return code }
		got := fmt.Sprintf("at %s:%s | running:%s | done:%s | VM:%s | %d %d", to.Path, offers(text), page("/jobs/"+id), page("/jobs/"+doneID), page("/vms/105"), code("/jobs/new"), code("/vms/new"))
		if got != want {
			t.Errorf("%s:\n%s, want\n%s", toolset, got, want)
		}
	}
}

// Forms whose files come slowly keep nobody else from sending one: each principal has places
// of its own.
func TestUploads_OfOneHoldNobodyElseUp(t *testing.T) {
	t.Parallel()
	keys := &keyring{tokens: map[string]job.Principal{"linus_bob": {Name: "bob", Token: "b1", Role: job.RoleRun, Life: t.Context()}}}
	v := visitWith(t, web.Options{Engine: withFiles(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
	v.do(http.MethodPost, "/login", url.Values{"token": {"linus_bob"}}.Encode(), nil)
	at, err := url.Parse(v.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // all that one principal may have
		conn, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // it is cut off
		head := "POST /jobs/new HTTP/1.1\r\nHost: " + at.Host + "\r\nOrigin: " + v.server.URL + "\r\nCookie: " + v.client.Jar.Cookies(at)[0].String() +
			"\r\nContent-Type: multipart/form-data; boundary=x\r\nContent-Length: 64000000\r\nExpect: 100-continue\r\n\r\n"
		_ = conn.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.WriteString(conn, head); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") { // there is room for it
			t.Fatalf("%q, %v", line, err)
		}
	}
	v.do(http.MethodPost, "/login", url.Values{"token": {token}}.Encode(), nil)
	v.client.Timeout = time.Minute
	if resp, text := v.upload("/jobs/"+id+"/files?path=src", part{"form_token", v.formToken(), ""}, part{"files", "x", "operators"}); resp.StatusCode != http.StatusOK {
		t.Errorf("%+v %s", resp, text)
	}
}

// Bodies cost memory: there is so much for all, and less for each principal and for large
// ones, whether they come to MCP, the API or a form.
func TestBodies_AreBoundedTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys := &keyring{tokens: map[string]job.Principal{
			"linus_bob": {Name: "bob", Token: "b1", Role: job.RoleRun, Life: t.Context()},
			"linus_ada": {Name: "ada", Token: "a1", Role: job.RoleRun, Life: t.Context()},
		}}
		var reading atomic.Int64
		ended := make(chan struct{})
		mcp := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			reading.Add(1)
			<-ended
		})
		h := web.Handler(web.Options{Engine: sample(), MCP: mcp, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
		var all sync.WaitGroup
		for _, step := range []struct {
			bearer string
			size   int64
			n      int   // requests
			want   int64 // that are read, of all so far
		}{{"linus_bob", 50 << 20, 10, 2}, {token, 50 << 20, 10, 4}, {"linus_ada", 50 << 20, 10, 4}, {"linus_ada", -1, 1, 4}, {"linus_bob", 1000, 10, 14}, {"linus_ada", 1000, 10, 24}} {
			for range step.n {
				all.Go(func() {
					r := httptest.NewRequest(http.MethodPost, "/mcp", strings.NewReader(""))
					r.Host, r.ContentLength = "127.0.0.1", step.size
					r.Header.Set("Authorization", "Bearer "+step.bearer)
					h.ServeHTTP(httptest.NewRecorder(), r)
				})
			}
			synctest.Wait()
			if reading.Load() != step.want {
				t.Errorf("after %+v %d are read", step, reading.Load())
			}
		}
		close(ended)
		all.Wait()
	})
}

// An OAuth token begins no session, since nobody can say later whether it is still valid;
// least of all one of somebody else, whatever its issuer calls it.
func TestLogin_IsNotForOAuthTokens(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"jti:abc", "jti:a.b", "jti:a.b.c", "jti:.", "0123456789abcdef", ""} {
		keys := &keyring{tokens: map[string]job.Principal{"a-jwt": {Name: "oauth:0a:eve", Token: name, Role: job.RoleRead, OAuth: true, Life: t.Context()}}}
		v := visitWith(t, web.Options{Engine: sample(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
		if resp, _ := v.do(http.MethodPost, "/login", url.Values{"token": {"a-jwt"}}.Encode(), nil); resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("%q logs in: %+v", name, resp)
		}
		if code, _ := v.get("/tokens"); code != http.StatusUnauthorized {
			t.Errorf("%q sees the tokens: %d", name, code)
		}
	}
}

// A session is that of the token it began with, and of nobody if that is in doubt.
func TestSession_OfATokenWithAnOddName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a.b", "a.b.c", "."} {
		keys := &keyring{tokens: map[string]job.Principal{"linus_eve": {Name: "eve", Token: name, Role: job.RoleRead, Life: t.Context()}}}
		v := visitWith(t, web.Options{Engine: sample(), MCP: echo, Token: token, Authenticate: keys.authenticate, Holder: keys.holder, Log: log})
		v.do(http.MethodPost, "/login", url.Values{"token": {"linus_eve"}}.Encode(), nil)
		if code, _ := v.get("/tokens"); code == http.StatusOK {
			t.Errorf("a session of %q is the operator's", name)
		}
	}
}

// Each response has the ID of its request, those of whoever may not enter included.
func TestHandler_EveryResponseHasTheIDOfItsRequest(t *testing.T) {
	t.Parallel()
	h := web.Handler(web.Options{Engine: sample(), MCP: echo, Token: token, API: http.NotFoundHandler()})
	for _, path := range []string{"/api/v1/jobs", "/health", "/jobs", "/nothing"} {
		for given, want := range map[string]string{"mine-1": "mine-1", "": "", "not one": ""} {
			r := httptest.NewRequest(http.MethodGet, path, nil)
			r.Header.Set("Request-Id", given)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if id := w.Header().Get("Request-Id"); want != "" && id != want || want == "" && len(id) < 10 {
				t.Errorf("%s, called %q: %d with the ID %q", path, given, w.Code, id)
			}
		}
	}
}
