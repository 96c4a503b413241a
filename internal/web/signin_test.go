package web_test

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/web"
)

// fakeIssuer lets a code in once for the nonce and the verifier with which it was asked last.
type fakeIssuer struct {
	mu              sync.Mutex
	nonce, verifier string
	asked           int // to exchange a code
	ended           []string
	err             error
}

func (i *fakeIssuer) Host() string { return "id.example" }

func (i *fakeIssuer) LogoutURL() string { return "https://id.example/out?client_id=linus" }

func (i *fakeIssuer) Begin(_ context.Context, state, nonce, verifier string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.nonce, i.verifier = nonce, verifier
	return "https://id.example/auth?state=" + url.QueryEscape(state), i.err
}

func (i *fakeIssuer) Finish(_ context.Context, back url.Values, nonce, verifier string) (string, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.asked++
	if i.err == nil && (back.Get("code") != "good" || nonce != i.nonce || verifier != i.verifier || len(nonce) < 32 || len(verifier) < 43 || nonce == verifier) {
		return "", errors.New("the code, the nonce or the verifier is another")
	}
	return "a11ce", i.err
}

func (i *fakeIssuer) End(_ context.Context, token string) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.ended = append(i.ended, token)
	return nil
}

// browser is a handler's user: it keeps cookies, and follows nothing.
type browser struct {
	*testing.T
	h       http.Handler
	cookies map[string]*http.Cookie
}

func (b *browser) get(path string, change func(*http.Request)) *httptest.ResponseRecorder {
	b.Helper()
	return b.send(http.MethodGet, path, "", change)
}

func (b *browser) send(method, path, form string, change func(*http.Request)) *httptest.ResponseRecorder {
	b.Helper()
	r := httptest.NewRequest(method, path, strings.NewReader(form))
	r.Host = "linus.example"
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Origin", "https://linus.example")
	}
	for _, c := range b.cookies {
		r.AddCookie(c)
	}
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	b.h.ServeHTTP(w, r)
	for _, c := range w.Result().Cookies() { //nolint:bodyclose // it has none
		if b.cookies[c.Name] = c; c.MaxAge < 0 {
			delete(b.cookies, c.Name)
		}
	}
	return w
}

// begin begins a login and returns the state that the issuer is given.
func (b *browser) begin(next string) string {
	b.Helper()
	w := b.get("/login/begin?next="+url.QueryEscape(next), nil)
	u, err := url.Parse(w.Header().Get("Location"))
	if err != nil || w.Code != http.StatusSeeOther || u.Host != "id.example" || len(u.Query().Get("state")) < 32 {
		b.Fatalf("begin: %d %v %s", w.Code, w.Header(), w.Body)
	}
	return u.Query().Get("state")
}

func back(state, code string) string {
	return "/login/issuer?" + url.Values{"state": {state}, "code": {code}}.Encode()
}

// newSignIns serves with an issuer; newBrowser is another browser of the same server.
func newSignIns(t *testing.T) (i *fakeIssuer, newBrowser func() *browser) {
	t.Helper()
	i = &fakeIssuer{}
	h := web.Handler(web.Options{
		Engine: sample(), MCP: echo, Metrics: echo, Token: token, Log: log, Issuer: i, Hosts: []string{"linus.example"}, URL: func() string { return "https://linus.example" },
		Holder: func(_ context.Context, id string) (job.Principal, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			if id != "a11ce" || len(i.ended) > 0 {
				return job.Principal{}, job.ErrUnauthorized
			}
			return job.Principal{Name: "oauth:1:alice", Login: "Alice <b>", Token: id, Role: job.RoleRun}, nil
		},
	})
	return i, func() *browser { return &browser{t, h, map[string]*http.Cookie{}} }
}

func elsewhere(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") }

func TestSignIn_IsASessionUntilLogout(t *testing.T) {
	i, newBrowser := newSignIns(t)
	b := newBrowser()
	if w := b.get("/jobs?status=failed", nil); w.Code != http.StatusUnauthorized || !strings.Contains(w.Body.String(), `href="https://linus.example/login/begin?next=%2Fjobs%3Fstatus%3Dfailed">Log in with id.example</a>`) {
		t.Fatalf("the login page: %d %s", w.Code, w.Body)
	}
	state := b.begin("/jobs?status=failed")
	if len(b.cookies) != 1 {
		t.Fatalf("cookies %v", b.cookies)
	}
	for _, c := range b.cookies {
		if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.MaxAge != 600 || strings.Contains(c.Value, state) || strings.Contains(c.Value, i.verifier) {
			t.Errorf("cookie %+v", c)
		}
	}
	w := b.get(back(state, "good"), elsewhere)
	if w.Code != http.StatusOK || w.Header().Get("Refresh") != "0; url=/jobs?status=failed" || w.Header().Get("Cache-Control") != "no-store" {
		t.Fatalf("back: %d %v %s", w.Code, w.Header(), w.Body)
	}
	if len(b.cookies) != 1 {
		t.Errorf("cookies %v", b.cookies)
	}
	for _, c := range b.cookies {
		if c.SameSite != http.SameSiteStrictMode || !c.HttpOnly {
			t.Errorf("the session's cookie %+v", c)
		}
	}
	page := b.get("/jobs", nil)
	if page.Code != http.StatusOK || !strings.Contains(page.Body.String(), `<span class="who" title="oauth:1:alice">Alice &lt;b&gt;</span>`) {
		t.Fatalf("logged in: %d %s", page.Code, page.Body)
	}
	if w := b.get(back(state, "good"), elsewhere); w.Code != http.StatusBadRequest || i.asked != 1 {
		t.Errorf("once more: %d, asked %d times", w.Code, i.asked)
	}
	_, form, _ := strings.Cut(page.Body.String(), `name="form_token" value="`)
	form, _, _ = strings.Cut(form, `"`)
	if w := b.send(http.MethodPost, "/logout", "form_token="+form, nil); w.Code != http.StatusSeeOther || len(i.ended) != 1 || i.ended[0] != "a11ce" || len(b.cookies) != 0 || w.Header().Get("Location") != "/login?left" {
		t.Errorf("log out: %d, %v, %v", w.Code, i.ended, b.cookies)
	}
}

func TestSignIn_LeadsOutOfTheIssuer(t *testing.T) {
	_, newBrowser := newSignIns(t)
	const link = `href="https://id.example/out?client_id=linus">log out at id.example</a>`
	if w := newBrowser().get("/login?left", nil); !strings.Contains(w.Body.String(), link) {
		t.Errorf("after a logout: %s", w.Body)
	}
	if w := newBrowser().get("/login", nil); strings.Contains(w.Body.String(), "log out at") {
		t.Errorf("without one: %s", w.Body)
	}
}

// Over TLS, which may end at a proxy, no other host can set the cookies, and a page that came without
// TLS is another origin. By another name, as on the server's own machine, it is as that is reached.
func TestSignIn_CookiesOverTLS(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*http.Request)
		secure bool
	}{
		"here":                    {func(r *http.Request) { r.TLS, r.Host = &tls.ConnectionState{}, "127.0.0.1:8766" }, true},
		"at a proxy":              {nil, true},
		"nowhere":                 {func(r *http.Request) { r.Host = "127.0.0.1:8766" }, false},
		"at another port's proxy": {func(r *http.Request) { r.Host = "linus.example:8766" }, false},
	} {
		_, newBrowser := newSignIns(t)
		b := newBrowser()
		b.get("/login/begin", tt.change)
		b.get(web.LoginPath(token), tt.change)
		if len(b.cookies) != 2 {
			t.Errorf("%s: cookies %v", name, b.cookies)
		}
		for cookie, c := range b.cookies {
			if strings.HasPrefix(cookie, "__Host-") != tt.secure || c.Secure != tt.secure {
				t.Errorf("%s: cookie %+v", name, c)
			}
		}
		if w := b.get("/jobs", tt.change); w.Code != http.StatusOK {
			t.Errorf("%s: logged in: %d", name, w.Code)
		}
		if !tt.secure {
			continue
		}
		for cookie, c := range b.cookies { // as another host of its domain could set it
			delete(b.cookies, cookie)
			c.Name = strings.TrimPrefix(cookie, "__Host-")
			b.cookies[c.Name] = c
		}
		if w := b.get("/jobs", tt.change); w.Code != http.StatusUnauthorized {
			t.Errorf("%s: with another's cookie: %d", name, w.Code)
		}
		if w := b.get("/health", func(r *http.Request) {
			if tt.change != nil {
				tt.change(r)
			}
			r.Header.Set("Origin", "http://"+r.Host)
		}); w.Code != http.StatusForbidden {
			t.Errorf("%s: a page that came without TLS: %d", name, w.Code)
		}
	}
}

// Nobody can log somebody else in, with a login of their own or by a link.
func TestSignIn_IsOfTheBrowserThatBeganIt(t *testing.T) {
	i, newBrowser := newSignIns(t)
	victim, attacker := newBrowser(), newBrowser()
	theirs := attacker.begin("/jobs")
	refused := func(what string, b *browser, path string) {
		t.Helper()
		w := b.get(path, elsewhere)
		if w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "was not begun in this browser") || !strings.Contains(w.Body.String(), "Log in with id.example") {
			t.Errorf("%s: %d %s", what, w.Code, w.Body)
		}
	}
	refused("a browser without a login", victim, back(theirs, "good"))
	own := victim.begin("/jobs")
	refused("the state of another", victim, back(theirs, "good"))
	refused("no state", victim, "/login/issuer?code=good")
	refused("a longer state", victim, back(own+"x", "good"))
	for name, c := range attacker.cookies { // its time and where it leads are changed
		parts := strings.Split(c.Value, ".")
		for n, text := range []string{"9999999999", "00000000000000000000000000000000", "Ly9ldmlsLmV4YW1wbGU"} {
			forged := append([]string{}, parts...)
			forged[n] = text
			b := newBrowser()
			b.cookies[name] = &http.Cookie{Name: name, Value: strings.Join(forged, ".")}
			refused("a forged cookie", b, back(theirs, "good"))
		}
	}
	if i.asked != 0 {
		t.Errorf("the issuer was asked %d times", i.asked)
	}
	if w := victim.get(back(own, "good"), elsewhere); w.Code != http.StatusOK {
		t.Errorf("its own: %d %s", w.Code, w.Body)
	}
	if w := newBrowser().get("/login/begin?next=/jobs", elsewhere); w.Code != http.StatusOK || w.Header().Get("Set-Cookie") != "" || !strings.Contains(w.Body.String(), "Log in with id.example") {
		t.Errorf("begun by a page elsewhere: %d %v", w.Code, w.Header())
	}
	for _, path := range []string{"/login/begin", back(own, "good")} {
		if w := newBrowser().send(http.MethodHead, path, "", nil); w.Code != http.StatusMethodNotAllowed {
			t.Errorf("HEAD %s: %d", path, w.Code)
		}
	}
}

func TestSignIn_LeadsToPathsOfThisServer(t *testing.T) {
	for _, next := range []string{"https://evil.example/", "//evil.example", `/\evil.example`, "javascript:alert(1)", "/login", "/login/begin", "/login/issuer?state=x", "/logout", "", "/jobs/" + strings.Repeat("x", 2000)} {
		_, newBrowser := newSignIns(t)
		b := newBrowser()
		if w := b.get(back(b.begin(next), "good"), elsewhere); w.Header().Get("Refresh") != "0; url=/jobs" {
			t.Errorf("next=%.100s leads to %q", next, w.Header().Get("Refresh"))
		}
	}
}

func TestSignIn_SaysWhatIsWrong(t *testing.T) {
	for _, test := range []struct {
		err  error
		code int
		says string
	}{
		{&job.RefusedError{Why: "Bob <b> is in none of the groups"}, http.StatusForbidden, "You are not logged in: Bob &lt;b&gt; is in none of the groups."},
		{errors.New("dial 10.0.0.1: refused"), http.StatusBadGateway, "id.example cannot be asked at the moment: try again."},
		{job.ErrUnchecked, http.StatusBadGateway, "id.example cannot be asked at the moment: try again."},
	} {
		i, newBrowser := newSignIns(t)
		b := newBrowser()
		state := b.begin("/vms")
		i.err = test.err
		w := b.get(back(state, "good"), elsewhere)
		if text := w.Body.String(); w.Code != test.code || !strings.Contains(text, test.says) || !strings.Contains(text, "next=%2Fvms") || strings.Contains(text, "10.0.0.1") || !strings.Contains(text, "<title>Log in – linus</title>") || !strings.Contains(text, `id="problem">`) || !strings.Contains(text, `aria-describedby="problem"`) || len(b.cookies) != 0 {
			t.Errorf("%v: %d, cookies %v, %s", test.err, w.Code, b.cookies, text)
		}
		if w := b.get("/login/begin", nil); w.Code != test.code || w.Header().Get("Location") != "" || len(b.cookies) != 0 {
			t.Errorf("begin, %v: %d %v", test.err, w.Code, w.Header())
		}
	}
}

func TestSignIn_HasTenMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i, newBrowser := newSignIns(t)
		b := newBrowser()
		state := b.begin("/jobs")
		time.Sleep(10*time.Minute + time.Second)
		if w := b.get(back(state, "good"), elsewhere); w.Code != http.StatusBadRequest || i.asked != 0 {
			t.Errorf("%d, asked %d times", w.Code, i.asked)
		}
	})
}

// Without an issuer there is nothing of it.
func TestSignIn_OfNobody(t *testing.T) {
	for _, path := range []string{"/login/begin", "/login/issuer?state=x&code=y"} {
		if w := request(t, web.Handler(web.Options{Engine: sample(), MCP: echo, Metrics: echo, Token: token, Log: log}), http.MethodGet, path, nil); w.Code != http.StatusNotFound {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if code, text := visit(t, sample()).get("/login"); code != http.StatusUnauthorized || strings.Contains(text, "Log in with") {
		t.Errorf("%d %s", code, text)
	}
}
