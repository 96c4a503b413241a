package web_test

import (
	"bufio"
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/loops"
	"linus/internal/web"
)

// cookieOf returns the visitor's session.
func (v *visitor) cookieOf() *http.Cookie {
	v.Helper()
	req := httptest.NewRequest(http.MethodGet, v.server.URL, nil)
	all := v.client.Jar.Cookies(req.URL)
	if len(all) != 1 {
		v.Fatalf("cookies %v", all)
	}
	return all[0]
}

// with returns what a request with the cookie alone gets.
func with(t *testing.T, h http.Handler, path string, c *http.Cookie) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a stream that is not refused goes on
	defer cancel()
	return request(t, h, http.MethodGet, path, func(r *http.Request) {
		r.Header.Del("Authorization")
		r.AddCookie(c)
		*r = *r.WithContext(ctx)
	}).Code
}

func TestLogout_EndsTheSessionForGood(t *testing.T) {
	file := filepath.Join(t.TempDir(), "logouts")
	e := sample()
	options := web.Options{Engine: e, MCP: echo, Metrics: echo, Token: token, Logouts: file, Log: log}
	out, stays := visitWith(t, options), visitWith(t, options) // two servers, as before and after a restart
	for _, v := range []*visitor{out, stays} {
		if code, text := v.get(web.LoginPath(token)); code != 200 {
			t.Fatalf("log in: %d %s", code, text)
		}
	}
	copied, other := out.cookieOf(), stays.cookieOf()
	paths := []string{"/metrics", "/jobs", "/jobs/" + id, "/jobs/" + id + "/output", "/jobs/live"}
	if got := with(t, out.server.Config.Handler, "/metrics", copied); got != 200 {
		t.Fatalf("before: %d", got)
	}
	if code, text := out.do(http.MethodPost, "/logout", "form_token="+out.formToken(), nil); code.Path != "/login" {
		t.Fatalf("log out: %v %s", code, text)
	}
	for name, h := range map[string]http.Handler{"at once": out.server.Config.Handler, "after a restart": web.Handler(options)} {
		for _, path := range paths {
			if got := with(t, h, path, copied); got != 401 {
				t.Errorf("%s, %s with the old cookie: %d", name, path, got)
			}
		}
		if got := with(t, h, "/metrics", other); got != 200 {
			t.Errorf("%s, with another session: %d", name, got)
		}
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if data, err := os.ReadFile(file); err != nil || strings.Contains(string(data), copied.Value) || bytes.Count(data, []byte("\n")) != 1 {
		t.Errorf("kept: %q, %v", data, err)
	}
	// Where it is not known any more who has logged out, everybody has.
	if err := os.WriteFile(file, []byte("no session\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	options.Log = slog.New(slog.NewTextHandler(&said, nil))
	h := web.Handler(options)
	if got := with(t, h, "/metrics", other); got != 401 || !strings.Contains(said.String(), "log in again") {
		t.Errorf("with a broken file: %d, %s", got, said.String())
	}
}

// What a page follows ends with its session.
func TestLogout_EndsOpenStreams(t *testing.T) {
	loops.NotInCheck(t)
	for _, path := range []string{"/jobs/live", "/jobs/" + id + "/live", "/vms/live"} {
		t.Run(path, func(t *testing.T) {
			v := loggedIn(t, sample())
			form := v.formToken()
			resp, err := v.client.Get(v.server.URL + path)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			lines := bufio.NewScanner(resp.Body)
			lines.Buffer(nil, 1<<20)
			if !lines.Scan() {
				t.Fatal("no stream")
			}
			if code, _ := v.do(http.MethodPost, "/logout", "form_token="+form, nil); code.Path != "/login" {
				t.Fatalf("log out: %v", code)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for lines.Scan() {
				}
			}()
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the stream goes on")
			}
		})
	}
}

// Servers on other ports of a machine get each other's cookies.
func TestLogin_CookieIsOfOneServer(t *testing.T) {
	var names []string
	var cookies []*http.Cookie
	var handlers []http.Handler
	for _, scope := range []string{"127.0.0.1:8766", "127.0.0.1:8767"} {
		h := web.Handler(web.Options{Engine: sample(), MCP: echo, Metrics: echo, Token: token, Scope: scope, Log: log})
		c, err := http.ParseSetCookie(request(t, h, http.MethodGet, web.LoginPath(token), nil).Header().Get("Set-Cookie"))
		if err != nil {
			t.Fatal(err)
		}
		names, cookies, handlers = append(names, c.Name), append(cookies, c), append(handlers, h)
	}
	if names[0] == names[1] {
		t.Errorf("both are called %s", names[0])
	}
	if got := with(t, handlers[0], "/metrics", cookies[0]); got != 200 {
		t.Errorf("its own: %d", got)
	}
	if got := with(t, handlers[1], "/metrics", &http.Cookie{Name: names[1], Value: cookies[0].Value}); got != 401 {
		t.Errorf("another's under its name: %d", got)
	}
}
