package web_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/leaktest"
	"linus/internal/web"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	token = "a-token-of-some-length"
	id    = "0197a1b2-0000-7000-8000-000000000001"
)

var log = slog.New(slog.DiscardHandler)

// echo replaces the MCP handler: it returns the length of the body.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		http.Error(w, "too large", http.StatusRequestEntityTooLarge)
		return
	}
	_, _ = fmt.Fprintf(w, "mcp %d", n)
})

func request(t *testing.T, h http.Handler, method, target string, change func(*http.Request)) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	r.Host = "127.0.0.1:8766"
	r.Header.Set("Authorization", "Bearer "+token)
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func body(t *testing.T, resp *http.Response) string {
	t.Helper()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestHandler_LetsOnlyOurOwnIn(t *testing.T) {
	h := web.Handler(web.Options{Engine: &engine{}, MCP: echo, Metrics: echo, Token: token, Hosts: []string{"linus.example"}, Log: log})
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	host := func(name string) func(*http.Request) { return func(r *http.Request) { r.Host = name } }
	tests := []struct {
		name   string
		target string
		change func(*http.Request)
		want   int
	}{
		{"token", "/mcp", nil, 200},
		{"scheme in another case", "/mcp", header("Authorization", "bearer "+token), 200},
		{"no token", "/mcp", header("Authorization", ""), 401},
		{"empty token", "/mcp", header("Authorization", "Bearer "), 401},
		{"wrong token", "/mcp", header("Authorization", "Bearer "+token+"x"), 401},
		{"beginning of the token", "/mcp", header("Authorization", "Bearer "+token[:5]), 401},
		{"other scheme", "/mcp", header("Authorization", "Basic "+token), 401},
		{"token in the query only", "/mcp?token=" + token, header("Authorization", ""), 401},
		{"output without token", "/jobs/" + id + "/output", header("Authorization", ""), 401},
		{"metrics", "/metrics", nil, 200},
		{"metrics without token", "/metrics", header("Authorization", ""), 401},
		{"artifact without token", "/jobs/" + id + "/artifacts/a", header("Authorization", ""), 401},
		{"unknown route without token", "/nothing", header("Authorization", ""), 401},
		{"unknown route", "/nothing", nil, 404},
		{"health needs no token", "/health", header("Authorization", ""), 200},
		{"localhost", "/mcp", host("localhost:8766"), 200},
		{"IPv6", "/mcp", host("[::1]:8766"), 200},
		{"address without port", "/mcp", host("10.0.0.5"), 200},
		{"name of ours", "/mcp", host("Linus.Example:8766"), 200},
		{"foreign name", "/mcp", host("evil.example:8766"), 403},
		{"foreign name, health", "/health", host("evil.example"), 403},
		{"no host", "/mcp", host(""), 403},
		{"own origin", "/mcp", header("Origin", "http://127.0.0.1:8766"), 200},
		{"foreign origin", "/mcp", header("Origin", "https://evil.example"), 403},
		{"own host, other port", "/mcp", header("Origin", "http://127.0.0.1:9999"), 403},
		{"no origin of a file", "/mcp", header("Origin", "null"), 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := request(t, h, http.MethodGet, tt.target, tt.change)
			if text := resp.Body.String(); resp.Code != tt.want {
				t.Errorf("%d %s, want %d", resp.Code, text, tt.want)
			} else if tt.want >= 400 && !json.Valid([]byte(text)) {
				t.Errorf("%s is not JSON", text)
			}
			if (tt.want == 401) != (resp.Header().Get("WWW-Authenticate") != "") {
				t.Error("WWW-Authenticate is for 401")
			}
		})
	}
}

func TestHandler_BoundsTheBody(t *testing.T) {
	h := web.Handler(web.Options{Engine: &engine{}, MCP: echo, Token: token, Log: log})
	for _, known := range []bool{true, false} {
		resp := request(t, h, http.MethodPost, "/mcp", func(r *http.Request) {
			r.Body = io.NopCloser(io.LimitReader(zeros{}, web.MaxBody+1))
			if r.ContentLength = -1; known {
				r.ContentLength = web.MaxBody + 1
			}
		})
		if resp.Code != http.StatusRequestEntityTooLarge {
			t.Errorf("length known %v: %d %s", known, resp.Code, resp.Body)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func TestOutput_IsTheBytesFromTheOffsetAsked(t *testing.T) {
	large := strings.Repeat("0123456789\xff", 300_000)
	tests := []struct {
		name, query, want string
		code              int
		next, complete    string
	}{
		{"all", "", large, 200, "3300000", "true"},
		{"from an offset", "?offset=3299998", large[3299998:], 200, "3300000", "true"},
		{"the end", "?offset=-4", large[3299996:], 200, "3300000", "true"},
		{"a part", "?offset=5&limit=7", large[5:12], 200, "12", "false"},
		{"the last part", "?offset=3299990&limit=10", large[3299990:], 200, "3300000", "true"},
		{"beyond", "?offset=4000000", "", 200, "4000000", "true"},
		{"other stream", "?stream=stderr", "oh", 200, "2", "true"},
		{"limit is too large", "?limit=16777217", "", 400, "", ""},
		{"unknown stream", "?stream=stdin", "", 400, "", ""},
		{"offset is no number", "?offset=x", "", 400, "", ""},
		{"limit is negative", "?limit=-1", "", 400, "", ""},
		{"an unknown parameter", "?ofset=5", "", 400, "", ""},
	}
	h := web.Handler(web.Options{Engine: &engine{outputs: map[string]string{"stdout": large, "stderr": "oh"}, complete: true}, MCP: echo, Token: token, Log: log})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			resp := request(t, h, http.MethodGet, "/jobs/"+id+"/output"+tt.query, nil)
			text, h := resp.Body.String(), resp.Header()
			if resp.Code != tt.code || h.Get("Linus-Next-Offset") != tt.next || h.Get("Linus-Complete") != tt.complete {
				t.Errorf("%d, next %q, complete %q", resp.Code, h.Get("Linus-Next-Offset"), h.Get("Linus-Complete"))
			}
			if tt.code == 200 && text != tt.want {
				t.Errorf("%d bytes, want %d", len(text), len(tt.want))
			}
		})
	}
}

func TestOutput_ReportsWhatIsLeftOut(t *testing.T) {
	h := web.Handler(web.Options{Engine: &engine{outputs: map[string]string{"stdout": "head---"}, complete: true, gap: 4}, MCP: echo, Token: token, Log: log})
	resp := request(t, h, http.MethodGet, "/jobs/"+id+"/output", nil)
	if got := resp.Header(); resp.Body.String() != "headtail" || got.Get("Linus-Dropped") != "100" || got.Get("Linus-Next-Offset") != "108" || got.Get("Linus-Complete") != "true" {
		t.Errorf("%q %v", resp.Body, got)
	}
	h = web.Handler(web.Options{Engine: &engine{outputs: map[string]string{"stdout": "head---"}, complete: true, gap: 4, noTail: true}, MCP: echo, Token: token, Log: log})
	resp = request(t, h, http.MethodGet, "/jobs/"+id+"/output", nil)
	if got := resp.Header(); resp.Body.String() != "head" || got.Get("Linus-Dropped") != "100" || got.Get("Linus-Next-Offset") != "104" {
		t.Errorf("without a tail: %q %v", resp.Body, got)
	}
}

func TestArtifact_IsTheFileWhateverItsName(t *testing.T) {
	artifacts := map[string]string{
		"dist/app": "binary\x00\xff", "a b/ü?#%.txt": "x", "new\nline": "y", "page.html": "<script>", "broken": "",
	}
	server := httptest.NewServer(web.Handler(web.Options{Engine: &engine{artifacts: artifacts}, MCP: echo, Token: token, Log: log}))
	defer server.Close()
	get := func(path string) (int, http.Header, string) {
		req, err := http.NewRequest(http.MethodGet, server.URL+"/jobs/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode, resp.Header, body(t, resp)
	}
	for path, escaped := range map[string]string{
		"dist/app": "dist/app", "a b/ü?#%.txt": "a%20b/%C3%BC%3F%23%25.txt", "new\nline": "new%0Aline", "page.html": "page.html",
	} {
		code, h, text := get(id + "/artifacts/" + escaped)
		if code != 200 || text != artifacts[path] || h.Get("ETag") != `"abc"` {
			t.Errorf("%q: %d %q", path, code, text)
		}
		if h.Get("Content-Type") != "application/octet-stream" || !strings.HasPrefix(h.Get("Content-Disposition"), "attachment") || h.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%q could be shown as a page: %v", path, h)
		}
	}
	for path, code := range map[string]int{
		id + "/artifacts/none": 404, "other/artifacts/dist/app": 404, id + "/artifacts/../../x": 404, id + "/artifacts/": 404, id + "/artifacts/broken": 500,
	} {
		if got, _, text := get(path); got != code || !json.Valid([]byte(text)) {
			t.Errorf("%s: %d %s", path, got, text)
		}
	}
}

func TestServer_CloseEndsOpenStreams(t *testing.T) {
	started := make(chan struct{})
	stream := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		close(started)
		<-r.Context().Done()
	})
	s, err := web.Listen(t.Context(), "127.0.0.1:0", web.Options{Engine: &engine{}, MCP: stream, Token: token, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := web.Listen(t.Context(), s.Addr(), web.Options{Log: log}); !errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("a second server on %s: %v", s.Addr(), err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	req, err := http.NewRequest(http.MethodPost, "http://"+s.Addr()+"/mcp", bytes.NewReader(nil))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	client := &http.Client{Transport: &http.Transport{}}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-started
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := s.Close(ctx); err != nil {
		t.Errorf("Close = %v with a stream open", err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve = %v after Close", err)
	}
	_ = body(t, resp)
	client.CloseIdleConnections()
}

// Browsers open connections ahead of requests.
func TestServer_CloseDoesNotWaitForSilentConnections(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		listener := make(memory)
		s := web.On(t.Context(), listener, web.Options{Engine: &engine{}, MCP: echo, Token: token, Log: log})
		served := make(chan error, 1)
		go func() { served <- s.Serve() }()
		silent, far := net.Pipe()
		defer silent.Close()
		listener <- far
		synctest.Wait() // it is accepted
		began := time.Now()
		if err := s.Close(t.Context()); err != nil || time.Since(began) > 3*time.Second { // net/http itself gives up on it after five
			t.Errorf("Close = %v after %s with a connection open that says nothing", err, time.Since(began))
		}
		<-served
	})
}

// The terminal is for our own pages, too, and ends with their session.
func TestHandler_GuardsTheTerminal(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan struct{})
	open := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("wait") {
			close(begun)
			<-r.Context().Done()
			close(ended)
		}
	})
	h := web.Handler(web.Options{Engine: sample(), MCP: echo, API: open, Token: token, Log: log})
	session := request(t, h, http.MethodGet, web.LoginPath(token), nil).Result().Cookies()[0] //nolint:bodyclose // a recorder's
	as := func(origin string, with bool) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Del("Authorization")
			if origin != "" {
				r.Header.Set("Origin", origin)
			}
			if with {
				r.AddCookie(session)
			}
		}
	}
	const path = "/api/v1/jobs/" + id + "/terminal"
	for name, tt := range map[string]struct {
		change func(*http.Request)
		want   int
	}{
		"a program with the token":     {nil, 200},
		"our page":                     {as("http://127.0.0.1:8766", true), 200},
		"our page without a session":   {as("http://127.0.0.1:8766", false), 401},
		"another site's page":          {as("https://evil.example", true), 403},
		"a page of another port":       {as("http://127.0.0.1:80", true), 403},
		"a session without any page":   {as("", true), 401},
		"a page that hides its origin": {as("null", true), 403},
	} {
		if w := request(t, h, http.MethodGet, path, tt.change); w.Code != tt.want {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tt.want)
		}
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		request(t, h, http.MethodGet, path+"?wait", as("http://127.0.0.1:8766", true))
	}()
	<-begun
	form := regexp.MustCompile(`name="form_token" value="([^"]+)"`).FindStringSubmatch(request(t, h, http.MethodGet, "/jobs", as("", true)).Body.String())
	if form == nil {
		t.Fatal("no form to log out with")
	}
	out := request(t, h, http.MethodPost, "/logout", func(r *http.Request) {
		as("http://127.0.0.1:8766", true)(r)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Body = io.NopCloser(strings.NewReader(url.Values{"form_token": {form[1]}}.Encode()))
	})
	if out.Code != http.StatusSeeOther {
		t.Fatalf("logout: %d %s", out.Code, out.Body)
	}
	select {
	case <-ended:
		<-served
	case <-time.After(time.Minute):
		t.Error("the terminal outlives its session")
	}
}

func TestHandler_GuardsTheAPI(t *testing.T) {
	h := web.Handler(web.Options{Engine: sample(), MCP: echo, API: echo, Token: token, Log: log, Origins: []string{inspector}})
	login := request(t, h, http.MethodGet, web.LoginPath(token), nil)
	tests := []struct {
		name   string
		change func(*http.Request)
		want   int
		code   string
	}{
		{"token", nil, 200, ""},
		{"no token", func(r *http.Request) { r.Header.Del("Authorization") }, 401, "unauthorized"},
		{"token in the URL", func(r *http.Request) { r.Header.Del("Authorization"); r.URL.RawQuery = "token=" + token }, 401, "unauthorized"},
		{"a browser's session", func(r *http.Request) {
			r.Header.Del("Authorization")
			r.AddCookie(login.Result().Cookies()[0]) //nolint:bodyclose // a recorder's
		}, 401, "unauthorized"},
		{"another host's name", func(r *http.Request) { r.Host = "evil.example" }, 403, "forbidden"},
		{"another site's page", func(r *http.Request) { r.Header.Set("Origin", "https://evil.example") }, 403, "forbidden"},
		{"a page that may call /mcp", func(r *http.Request) { r.Header.Set("Origin", inspector) }, 403, "forbidden"},
		{"the question of such a page", preflight(inspector), 403, "forbidden"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := request(t, h, http.MethodPost, "/api/v1/jobs", tt.change)
			if w.Code != tt.want || tt.code != "" && !strings.HasPrefix(w.Body.String(), `{"type":"urn:linus:problem:`+tt.code+`","title":"`) {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, tt.want, tt.code)
			}
		})
	}
}

// Events for a dispatcher need no token, for their signature is the dispatcher's to check; they are
// bounded, and nobody else is reached by them.
func TestHooks_ReachTheirDispatcherAlone(t *testing.T) {
	t.Parallel()
	hears := func(name string) http.Handler {
		if name != "here" {
			return nil
		}
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := io.ReadAll(r.Body); err != nil {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
		})
	}
	h := web.Handler(web.Options{Engine: &engine{}, MCP: echo, Token: token, Hooks: hears, Log: log})
	none := web.Handler(web.Options{Engine: &engine{}, MCP: echo, Token: token, Log: log})
	for _, tt := range []struct {
		name, method, path string
		to                 http.Handler
		body, want         int
	}{
		{"its own", http.MethodPost, "/hooks/here", h, 10, 200},
		{"too large", http.MethodPost, "/hooks/here", h, 1<<20 + 1, 413},
		{"nobody's", http.MethodPost, "/hooks/there", h, 10, 404},
		{"not posted", http.MethodGet, "/hooks/here", h, 0, 405},
		{"where there are none", http.MethodPost, "/hooks/here", none, 10, 404},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), tt.method, "http://127.0.0.1"+tt.path, strings.NewReader(strings.Repeat("x", tt.body)))
		if tt.to.ServeHTTP(w, r); w.Code != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, w.Code, tt.want)
		}
	}
}

// Who has shown nothing yet fills no memory with events: so many are read at once.
func TestHooks_AreReadAFewAtOnce(t *testing.T) {
	t.Parallel()
	reads, end := make(chan struct{}, 1000), make(chan struct{})
	h := web.Handler(web.Options{Engine: &engine{}, MCP: echo, Token: token, Log: log, Hooks: func(string) http.Handler {
		return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reads <- struct{}{}; <-end })
	}})
	send := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "http://127.0.0.1/hooks/here", strings.NewReader("x")))
		return w.Code
	}
	var sent sync.WaitGroup
	refused := make(chan int, 100)
	for range 100 {
		sent.Go(func() {
			if code := send(); code != http.StatusOK {
				refused <- code
			}
		})
	}
	for range 36 {
		select {
		case code := <-refused:
			if code != http.StatusTooManyRequests {
				t.Errorf("%d", code)
			}
		case <-time.After(time.Minute):
			t.Fatalf("%d are read at once", len(reads))
		}
	}
	close(end)
	sent.Wait()
	if code := send(); len(refused) > 0 || code != http.StatusOK {
		t.Errorf("%d more are refused; afterwards: %d", len(refused), code)
	}
}
