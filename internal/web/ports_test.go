package web_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/web"
)

// guestPage is a program in a VM, and what it was asked last at each path.
type guestPage struct {
	*httptest.Server

	mu   sync.Mutex
	seen map[string]*http.Request
}

func newGuestPage(t *testing.T, more map[string]http.HandlerFunc) *guestPage {
	t.Helper()
	g := &guestPage{seen: map[string]*http.Request{}}
	pages := map[string]http.HandlerFunc{
		"/": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello from the VM") },
		"/echo": func(w http.ResponseWriter, r *http.Request) {
			ws, err := websocket.Accept(w, r, nil) // compares Origin and Host
			if err != nil {
				return
			}
			defer ws.CloseNow() //nolint:errcheck // it has ended
			for {
				kind, data, err := ws.Read(context.Background())
				if err != nil || ws.Write(context.Background(), kind, data) != nil {
					return
				}
			}
		},
		"/events": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: one\n\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		},
	}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		g.seen[r.URL.Path] = r.Clone(context.Background())
		g.mu.Unlock()
		for _, from := range []map[string]http.HandlerFunc{more, pages} {
			if page := from[r.URL.Path]; page != nil {
				page(w, r)
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

// at returns what the program was asked last at a path; nil: nothing.
func (g *guestPage) at(path string) *http.Request {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen[path]
}

// exposing is an engine with exposed ports, by their IDs.
type exposing struct {
	*engine

	mu     sync.Mutex
	at     map[string]string // addresses of the programs
	owners map[string]string
}

func (e *exposing) ListPorts(ctx context.Context, ref string) ([]job.ExposedPort, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	id, _ := strings.CutPrefix(ref, job.PortRef)
	if e.at[id] == "" || !job.Visible(ctx, e.owners[id]) {
		return nil, &job.FieldError{Field: "vm", Problem: "is not a VM of ours", Fault: job.FaultUnknown}
	}
	return []job.ExposedPort{{Name: "other", ID: "other"}, {Name: "web", Port: 3000, ID: id}}, nil
}

func (e *exposing) DialVM(ctx context.Context, ref string, port int) (job.Tunnel, error) {
	if who, ok := job.PrincipalFrom(ctx); !ok || !who.May(job.VerbDialVM) {
		return nil, job.ErrNoPrincipal
	}
	e.mu.Lock()
	addr := e.at[strings.TrimPrefix(ref, job.PortRef)]
	e.mu.Unlock()
	if port != 3000 || addr == "" {
		return nil, &job.FieldError{Field: "port", Problem: "nothing accepts connections", Remedy: "start what is to listen there"}
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

const (
	webID   = "web-abcdefghijkl"
	otherID = "web-zyxwvutsrqpo"
)

// portRig is a server with two exposed ports of VMs, and a browser that finds it under every
// name.
type portRig struct {
	*testing.T
	e          *exposing
	vm, other  *guestPage
	addr       string
	client     *http.Client
	wildcard   bool
	principals map[string]job.Principal // by token
}

func newPortRig(t *testing.T, wildcard bool, more map[string]http.HandlerFunc) *portRig {
	t.Helper()
	r := &portRig{T: t, vm: newGuestPage(t, more), other: newGuestPage(t, nil), wildcard: wildcard, principals: map[string]job.Principal{}}
	r.e = &exposing{engine: sample(), at: map[string]string{webID: r.vm.Listener.Addr().String(), otherID: r.other.Listener.Addr().String()}, owners: map[string]string{webID: "alice", otherID: "bob"}}
	o := web.Options{Engine: r.e, MCP: echo, API: echo, Token: token, Log: log, Hosts: []string{"linus.example"}, URL: func() string { return "http://linus.example" }}
	o.Authenticate = func(_ context.Context, bearer string) (job.Principal, error) {
		if p, ok := r.principals[bearer]; ok {
			return p, nil
		}
		return job.Principal{}, job.ErrUnauthorized
	}
	o.Holder = o.Authenticate // a token's ID is the token
	if wildcard {
		o.PortDomain = "vms.example"
	}
	addr, end := listen(t, "127.0.0.1:0", o)
	t.Cleanup(end)
	r.addr = addr
	r.newBrowser()
	return r
}

// newBrowser forgets all cookies.
func (r *portRig) newBrowser() {
	r.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		r.Fatal(err)
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", r.addr)
	}}
	r.Cleanup(transport.CloseIdleConnections)
	r.client = &http.Client{Jar: jar, Transport: transport}
}

func (r *portRig) login() {
	r.Helper()
	if code, _, text := r.get("http://linus.example"+web.LoginPath(token), nil); code != 200 {
		r.Fatalf("log in: %d %s", code, text)
	}
}

func (r *portRig) request(method, to string, change func(*http.Request)) (*http.Response, string) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
	r.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, to, http.NoBody)
	if err != nil {
		r.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	if change != nil {
		change(req)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.Fatal(err)
	}
	defer resp.Body.Close()
	return resp, body(r.T, resp)
}

// get is a request of a browser, which follows where a page leads on.
func (r *portRig) get(to string, change func(*http.Request)) (int, *http.Response, string) {
	r.Helper()
	for range 5 {
		resp, text := r.request(http.MethodGet, to, change)
		next, ok := strings.CutPrefix(resp.Header.Get("Refresh"), "0; url=")
		if !ok {
			return resp.StatusCode, resp, text
		}
		at, err := resp.Request.URL.Parse(next)
		if err != nil {
			r.Fatal(err)
		}
		to = at.String()
	}
	r.Fatal("it leads on and on")
	return 0, nil, ""
}

// open returns the address of a port's page, once the browser has it.
func (r *portRig) open() string {
	r.Helper()
	to := "http://linus.example/ports/" + webID + "/"
	if r.wildcard {
		to = "http://" + webID + ".vms.example/"
	}
	code, resp, text := r.get(to, nil)
	if code != 200 || text != "hello from the VM" {
		r.Fatalf("%s: %d %s", to, code, text)
	}
	return strings.TrimSuffix(resp.Request.URL.String(), "/")
}

// sending returns a change of a request's headers.
func sending(header, value string, more ...string) func(*http.Request) {
	return func(r *http.Request) {
		r.Header.Set(header, value)
		for i := 0; i < len(more); i += 2 {
			r.Header.Set(more[i], more[i+1])
		}
	}
}

// In both ways: what the VM gets is nothing of this server's, and what it sets nothing for it.
func TestPort_NothingOfThisServerReachesTheVM(t *testing.T) {
	hostile := func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		for _, name := range []string{"Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Nel", "Report-To", "X-Accel-Redirect", "X-Sendfile"} {
			h.Set(name, "x")
		}
		h["Set-Cookie"] = []string{"linus-port=x", "__Host-linus-port=x; Secure; Path=/", "LINUS-x=y", "its=own; Domain=vms.example; Path=/; HttpOnly", "=linus-port=x", "=x", "odd"}
		h.Set("WWW-Authenticate", `Basic realm="linus"`)
		h.Set("Content-Security-Policy", "sandbox allow-scripts allow-same-origin")
		h.Set("Link", "</early>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		_, _ = io.WriteString(w, "hostile")
	}
	for _, wildcard := range []bool{false, true} {
		t.Run(fmt.Sprint("wildcard ", wildcard), func(t *testing.T) {
			r := newPortRig(t, wildcard, map[string]http.HandlerFunc{"/hostile": hostile})
			r.login()
			page := r.open()
			code, resp, text := r.get(page+"/hostile?a=1;b=%zz", sending("Authorization", "Bearer "+token, "X-Forwarded-Host", "evil.example", "X-Forwarded-For", "10.0.0.1"))
			if code != 200 || text != "hostile" {
				t.Fatalf("%d %s", code, text)
			}
			got := r.vm.at("/hostile")
			if h := got.Header; h.Get("Authorization") != "" || h.Get("Cookie") != "" || h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("X-Forwarded-Host") == "evil.example" || got.Host != "localhost:3000" || got.URL.RawQuery != "a=1;b=%zz" {
				t.Errorf("the VM gets %s %s %v", got.Host, got.URL.RawQuery, h)
			}
			for _, name := range []string{"Clear-Site-Data", "Strict-Transport-Security", "Alt-Svc", "Nel", "Report-To", "X-Accel-Redirect", "X-Sendfile"} {
				if resp.Header.Get(name) != "" {
					t.Errorf("%s passes", name)
				}
			}
			set := resp.Header["Set-Cookie"]
			policies := resp.Header["Content-Security-Policy"]
			if wildcard {
				if len(set) != 2 || set[0] != "its=own; Path=/; HttpOnly" || !strings.HasPrefix(set[1], "linus-mark-its=") {
					t.Errorf("cookies %q", set)
				}
				if resp.Header.Get("Origin-Agent-Cluster") != "?1" {
					t.Error("document.domain is allowed")
				}
			} else if len(set) > 0 || resp.Header.Get("Www-Authenticate") != "" || resp.Header.Get("Link") != "" || len(policies) != 2 || !strings.HasPrefix(policies[1], "sandbox allow-scripts") || strings.Contains(policies[1], "same-origin") || resp.Header.Get("Referrer-Policy") != "no-referrer" {
				t.Errorf("%v", resp.Header)
			}
			// A token of another kind is between the page and its program.
			if r.get(page+"/", sending("Authorization", "Bearer its-own")); r.vm.at("/").Header.Get("Authorization") != "Bearer its-own" {
				t.Error("the page's own token does not pass")
			}
			if r.get(page+"/", sending("Authorization", "bearer "+job.TokenPrefix+"revoked")); r.vm.at("/").Header.Get("Authorization") != "" {
				t.Error("an old token of this server passes")
			}
		})
	}
}

// What follows a response's body has been looked at by nobody: it does not pass, announced or not.
func TestPort_TrailersDoNotPass(t *testing.T) {
	for _, wildcard := range []bool{false, true} {
		r := newPortRig(t, wildcard, map[string]http.HandlerFunc{"/trailers": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "Set-Cookie, Clear-Site-Data")
			_, _ = io.WriteString(w, "body")
			_ = http.NewResponseController(w).Flush()
			for _, prefix := range []string{"", http.TrailerPrefix} {
				w.Header().Set(prefix+"Set-Cookie", "linus-port=x")
				w.Header().Set(prefix+"Clear-Site-Data", `"*"`)
			}
			w.Header().Set(http.TrailerPrefix+"X-Unannounced", "x")
		}})
		r.login()
		code, resp, text := r.get(r.open()+"/trailers", nil)
		if code != 200 || text != "body" || len(resp.Trailer) > 0 || resp.Header.Get("Trailer") != "" {
			t.Errorf("wildcard %v: %d %q, %v after it", wildcard, code, text, resp.Trailer)
		}
	}
}

// What precedes an answer does not pass either, and cannot go on without end.
func TestPort_EarlyHintsEnd(t *testing.T) {
	r := newPortRig(t, false, map[string]http.HandlerFunc{"/hints": func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		for n := 0; err == nil && n < 16<<10; n++ {
			_, err = io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nX-A: "+strings.Repeat("x", 2000)+"\r\n\r\n")
		}
		if err == nil {
			t.Error("all of them were read")
		}
		_ = conn.Close()
	}})
	r.login()
	if code, _, text := r.get(r.open()+"/hints", nil); code != http.StatusBadGateway {
		t.Errorf("%d %s", code, text)
	}
}

// A page without an origin reaches its own port, by its grant, and nothing else.
func TestPort_SandboxedByPath(t *testing.T) {
	r := newPortRig(t, false, map[string]http.HandlerFunc{
		"/away": func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/there", http.StatusFound) },
		"/abs": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+r.Host+"/there", http.StatusFound)
		},
		"/there": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "multipart/x-mixed-replace; boundary=x")
		},
	})
	if code, _, text := r.get("http://linus.example/ports/"+webID+"/", nil); code != 401 || !strings.Contains(text, `name="token"`) {
		t.Errorf("without a session: %d %s", code, text)
	}
	r.login()
	page := r.open()
	grant := strings.TrimPrefix(page, "http://linus.example/ports/"+webID+"/~")
	r.newBrowser() // what the page loads comes without cookies
	for path, want := range map[string]int{
		page + "/": 200, page: 200, page + "/missing": 404,
		strings.Replace(page, webID, otherID, 1) + "/":                             401,
		"http://linus.example/ports/" + webID + "/~" + grant[1:] + "/":             401,
		"http://linus.example/ports/" + webID + "/~/":                              401,
		"http://linus.example/ports/" + webID + "/":                                401,
		strings.Replace(page, "linus.example", "evil.example", 1) + "/":            403,
		"http://linus.example/ports/" + webID + "/..%2f..%2fjobs":                  401,
		"http://linus.example/ports/" + webID + "/~" + grant + "/../../../../jobs": 404,
	} {
		if code, _, text := r.get(path, nil); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, text, want)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"another site": sending("Origin", "https://evil.example"), "this server's own page": sending("Origin", "http://linus.example"), "a service worker": sending("Service-Worker", "script"),
		"a script of this server's own page": sending("Sec-Fetch-Site", "same-origin", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"),
	} {
		if code, _, text := r.get(page+"/", change); code != 403 {
			t.Errorf("%s: %d %s", name, code, text)
		}
	}
	if code, resp, _ := r.get(page+"/", sending("Origin", "null")); code != 200 || resp.Header.Get("Access-Control-Allow-Origin") != "null" || r.vm.at("/").Header.Get("Origin") != "http://localhost:3000" {
		t.Errorf("what its script loads: %d %v", code, resp.Header)
	}
	asks, _ := r.request(http.MethodOptions, page+"/", sending("Origin", "null", "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "x-csrf"))
	if asks.StatusCode != 204 || asks.Header.Get("Access-Control-Allow-Methods") != "PUT" || asks.Header.Get("Access-Control-Allow-Headers") != "x-csrf" {
		t.Errorf("a preflight: %d %v", asks.StatusCode, asks.Header)
	}
	for _, path := range []string{"/away", "/abs"} {
		if code, resp, _ := r.get(page+path, nil); code != 200 || resp.Request.URL.String() != page+"/there" || resp.Header.Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%s leads to %s: %d %v", path, resp.Request.URL, code, resp.Header)
		}
	}
	r.login()
	if code, _, text := r.get("http://linus.example/ports/"+webID+"/script.js", sending("Accept", "*/*")); code != 401 || r.vm.at("/script.js") != nil {
		t.Errorf("what a page elsewhere loads, without TLS: %d %s", code, text)
	}
	r.newBrowser()
	// Programs send their token.
	p := sending("Authorization", "Bearer "+token)
	if resp, text := r.request(http.MethodPut, "http://linus.example/ports/"+webID+"/a/b", p); resp.StatusCode != 404 || !strings.Contains(text, "404 page not found") || r.vm.at("/a/b") == nil || r.vm.at("/a/b").Header.Get("Authorization") != "" {
		t.Errorf("a program: %d %s", resp.StatusCode, text)
	}
	r.login()
	if resp, text := r.request(http.MethodPost, "http://linus.example/ports/"+webID+"/", sending("Origin", "http://linus.example")); resp.StatusCode != 405 {
		t.Errorf("a form with the session alone: %d %s", resp.StatusCode, text)
	}
}

// The API and the pages are closed to the pages of ports, whatever they send.
func TestPort_ItsPageCannotCallThisServer(t *testing.T) {
	for _, wildcard := range []bool{false, true} {
		r := newPortRig(t, wildcard, nil)
		r.login()
		for _, path := range []string{"/jobs", "/vms/105/destroy", "/jobs/" + id + "/output", "/ports/" + webID + "/", "/metrics", "/api/v1/jobs", "/mcp", "/api/v1/jobs/" + id + "/terminal"} {
			for name, change := range map[string]func(*http.Request){
				"a script without origin":   sending("Origin", "null", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty"),
				"a script of a port":        sending("Origin", "http://"+webID+".vms.example", "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"),
				"a picture":                 sending("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"),
				"a frame":                   sending("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"),
				"a WebSocket":               sending("Origin", "null", "Connection", "Upgrade", "Upgrade", "websocket"),
				"a picture of another site": sending("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"),
			} {
				if resp, text := r.request(http.MethodGet, "http://linus.example"+path, change); resp.StatusCode != 403 {
					t.Errorf("%s of %s: %d %.100s", name, path, resp.StatusCode, text)
				}
			}
		}
		link := sending("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
		if resp, text := r.request(http.MethodGet, "http://linus.example/jobs", link); resp.StatusCode != 200 {
			t.Errorf("a link: %d %s", resp.StatusCode, text)
		}
	}
}

// With a host name of its own, a port has cookies of its own, and a login by this server's.
func TestPort_HostOfItsOwn(t *testing.T) {
	r := newPortRig(t, true, map[string]http.HandlerFunc{
		"/set": func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Set-Cookie"] = []string{`sid="a b"; Path=/; SameSite=Lax`, "theme=dark", "gone=; Max-Age=0"}
		},
		"/away": func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://"+r.Host+"/there", http.StatusFound)
		},
	})
	const host, sibling = "http://" + webID + ".vms.example", "http://" + otherID + ".vms.example"
	if resp, text := r.request(http.MethodGet, host+"/", sending("Accept", "*/*")); resp.StatusCode != 401 {
		t.Errorf("a program without a token: %d %s", resp.StatusCode, text)
	}
	if code, _, text := r.get(host+"/", nil); code != 401 || !strings.Contains(text, `name="token"`) {
		t.Errorf("a browser without a session: %d %s", code, text)
	}
	if r.vm.at("/") != nil {
		t.Error("the VM was asked")
	}
	r.login()
	code, resp, _ := r.get(host+"/deep/page?x=1", nil)
	if code != 404 || resp.Request.URL.String() != host+"/deep/page?x=1" || r.vm.at("/deep/page").Header.Get("Cookie") != "" {
		t.Errorf("%d at %s", code, resp.Request.URL)
	}
	if code, resp, _ := r.get(host+"/away", nil); code != 404 || resp.Request.URL.String() != host+"/there" {
		t.Errorf("a redirect leads to %s: %d", resp.Request.URL, code)
	}
	if resp, _ := r.request(http.MethodGet, "http://linus.example/ports/"+webID+"/x", nil); resp.Header.Get("Refresh") != "0; url="+host {
		t.Errorf("the path leads to %q", resp.Header.Get("Refresh"))
	}

	// Its own cookies come back to it, and those that a page has set for the whole domain do not.
	r.get(host+"/set", nil)
	u, _ := url.Parse(host + "/")
	r.client.Jar.SetCookies(u, []*http.Cookie{{Name: "tossed", Value: "x"}, {Name: "linus-mark-tossed", Value: "x"}, {Name: "linus-secret", Value: "x"}})
	r.get(host+"/there", nil)
	if got := r.vm.at("/there").Header.Get("Cookie"); got != `sid="a b"; theme=dark` && got != `theme=dark; sid="a b"` {
		t.Errorf("the VM gets the cookies %q", got)
	}
	var mark string
	for _, c := range r.client.Jar.Cookies(u) {
		if c.Name == "linus-mark-theme" {
			mark = c.Value
		}
	}
	r.get(sibling+"/", nil) // logs in there
	at, _ := url.Parse(sibling + "/")
	r.client.Jar.SetCookies(at, []*http.Cookie{{Name: "theme", Value: "dark"}, {Name: "linus-mark-theme", Value: mark}})
	if r.get(sibling+"/", nil); r.other.at("/") == nil || r.other.at("/").Header.Get("Cookie") != "" {
		t.Errorf("another VM gets them: %v", r.other.at("/"))
	}

	// Pages of other hosts do not make requests in its name, although a browser sends its cookies.
	for name, change := range map[string]func(*http.Request){
		"a script":               sending("Origin", sibling, "Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors"),
		"an old one":             sending("Origin", sibling),
		"a picture":              sending("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "image"),
		"a frame":                sending("Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"),
		"a WebSocket":            sending("Origin", sibling, "Connection", "Upgrade", "Upgrade", "websocket"),
		"without one":            sending("Origin", "null"),
		"a picture, without TLS": sending("Accept", "image/*", "Referer", sibling+"/"), "one that hides it": sending("Accept", "*/*"),
		"this server":  sending("Origin", "http://linus.example", "Sec-Fetch-Site", "same-site"),
		"another port": sending("Origin", host+":81"),
	} {
		if resp, text := r.request(http.MethodGet, host+"/never", change); resp.StatusCode != 403 || r.vm.at("/never") != nil {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	for name, change := range map[string]func(*http.Request){
		"its own": sending("Origin", host, "Sec-Fetch-Site", "same-origin"), "its own form without a referrer": sending("Origin", "null", "Sec-Fetch-Site", "same-origin"),
		"a link": sending("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"),
	} {
		if code, resp, text := r.get(host+"/", change); code != 200 || resp.Header.Get("Referrer-Policy") != "same-origin" || resp.Header.Get("Content-Security-Policy") != "frame-ancestors 'self'" {
			t.Errorf("%s: %d %s %v", name, code, text, resp.Header)
		}
	}
	if got := r.vm.at("/").Header.Get("Referer"); got != "" {
		t.Errorf("the VM learns where one comes from: %s", got)
	}
	if code, _, text := r.get(host+"/picture", sending("Accept", "image/*", "Referer", host+"/")); code != 404 || r.vm.at("/picture") == nil {
		t.Errorf("its own picture, without TLS: %d %s", code, text)
	}

	// A grant is for one port.
	var grant string
	for _, c := range r.client.Jar.Cookies(u) {
		if c.Name == "linus-port" {
			grant = c.Value
		}
	}
	r.newBrowser()
	r.client.Jar.SetCookies(at, []*http.Cookie{{Name: "linus-port", Value: grant}})
	if resp, text := r.request(http.MethodGet, sibling+"/", sending("Accept", "*/*")); resp.StatusCode != 401 {
		t.Errorf("another port's grant: %d %s", resp.StatusCode, text)
	}
	for _, name := range []string{"none.vms.example", "a.b.vms.example", "vms.example"} {
		if resp, text := r.request(http.MethodGet, "http://"+name+"/", sending("Authorization", "Bearer "+token)); resp.StatusCode != 404 && resp.StatusCode != 403 {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	if resp, text := r.request(http.MethodPut, host+"/a/b", sending("Authorization", "Bearer "+token, "Accept", "*/*")); resp.StatusCode != 404 || r.vm.at("/a/b").Header.Get("Authorization") != "" {
		t.Errorf("a program: %d %s", resp.StatusCode, text)
	}
}

// A code is for one port and one browser, and used once.
func TestPort_CodeIsUsedOnce(t *testing.T) {
	r := newPortRig(t, true, nil)
	r.login()
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	const host = "http://" + webID + ".vms.example"
	resp, _ := r.request(http.MethodGet, host+"/page", nil)
	to := resp.Header.Get("Location")
	if !strings.HasPrefix(to, "http://linus.example/ports/"+webID+"?state=") {
		t.Fatal(to)
	}
	resp, _ = r.request(http.MethodGet, to, nil)
	back, _ := strings.CutPrefix(resp.Header.Get("Refresh"), "0; url=")
	if !strings.HasPrefix(back, host+"/.linus/login?code=") {
		t.Fatal(back)
	}
	jar := r.client.Jar
	r.newBrowser()
	r.client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if resp, _ := r.request(http.MethodGet, back, nil); resp.StatusCode != 403 || len(resp.Cookies()) > 0 {
		t.Errorf("in another browser: %d %v", resp.StatusCode, resp.Cookies())
	}
	r.client.Jar = jar
	if resp, _ := r.request(http.MethodGet, strings.Replace(back, webID, otherID, 1), nil); resp.StatusCode != 403 {
		t.Errorf("at another port: %d", resp.StatusCode)
	}
	evil := regexp.MustCompile(`to=[^&]*`).ReplaceAllString(back, "to="+url.QueryEscape("//evil.example/x"))
	if resp, _ := r.request(http.MethodGet, evil, nil); resp.StatusCode != 303 || resp.Header.Get("Location") != "/x" {
		t.Errorf("%d to %s", resp.StatusCode, resp.Header.Get("Location"))
	}
	if resp, _ := r.request(http.MethodGet, back, nil); resp.StatusCode != 403 {
		t.Errorf("twice: %d", resp.StatusCode)
	}
	// A strict cookie does not come with a link of another site: a page of ours leads on.
	r.newBrowser()
	from := sending("Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document")
	if resp, _ := r.request(http.MethodGet, to, from); resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Refresh"), "0; url=/ports/"+webID+"?state=") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}

func TestPort_IsForThoseWhoMayReachTheVM(t *testing.T) {
	for _, wildcard := range []bool{false, true} {
		r := newPortRig(t, wildcard, nil)
		r.principals = map[string]job.Principal{
			"alice-run": {Name: "alice", Token: "alice-run", Role: job.RoleRun}, "alice-read": {Name: "alice", Token: "alice-read", Role: job.RoleRead}, "bob-run": {Name: "bob", Token: "bob-run", Role: job.RoleRun},
			"alice-files": {Name: "alice", Token: "alice-files", Role: job.RoleRun, Toolsets: []string{"files"}},
		}
		at := "http://linus.example/ports/" + webID + "/"
		if wildcard {
			at = "http://" + webID + ".vms.example/"
		}
		for who, want := range map[string]int{"alice-run": 200, "alice-read": 403, "bob-run": 404, "alice-files": 403, "nobody": 401} {
			r.newBrowser()
			if resp, text := r.request(http.MethodGet, at, sending("Authorization", "Bearer "+who)); resp.StatusCode != want {
				t.Errorf("%s, wildcard %v: %d %s", who, wildcard, resp.StatusCode, text)
			}
			resp, err := r.client.PostForm("http://linus.example/login", url.Values{"token": {who}})
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			code, _, text := r.get(at, nil)
			if code != want || want == 404 && !strings.Contains(text, "There is no such port, or its VM is gone.") {
				t.Errorf("%s in a browser, wildcard %v: %d %s", who, wildcard, code, text)
			}
		}
		r.newBrowser()
		if resp, err := r.client.PostForm("http://linus.example/login", url.Values{"token": {"alice-run"}}); err != nil {
			t.Fatal(err)
		} else {
			resp.Body.Close()
		}
		page := r.open()
		delete(r.principals, "alice-run") // revoked
		if resp, text := r.request(http.MethodGet, page+"/x", sending("Accept", "*/*")); resp.StatusCode != 401 {
			t.Errorf("after it was revoked: %d %s", resp.StatusCode, text)
		}
	}
}

// WebSockets and event streams pass, and end with the port's URL.
func TestPort_StreamsPassAndEnd(t *testing.T) {
	loops.NotInCheck(t)
	for _, wildcard := range []bool{false, true} {
		r := newPortRig(t, wildcard, nil)
		r.login()
		page := r.open()
		origin := "null"
		if wildcard {
			origin = page
		}
		ws, resp, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(page, "http")+"/echo", &websocket.DialOptions{HTTPClient: r.client, HTTPHeader: http.Header{"Origin": {origin}}}) //nolint:bodyclose // it is the connection's
		if err != nil {
			t.Fatal(err, resp)
		}
		defer ws.CloseNow() //nolint:errcheck // it has ended
		if err := ws.Write(t.Context(), websocket.MessageText, []byte("ping")); err != nil {
			t.Fatal(err)
		}
		if _, data, err := ws.Read(t.Context()); err != nil || string(data) != "ping" {
			t.Fatalf("%q, %v", data, err)
		}
		ask, err := http.NewRequestWithContext(context.Background(), http.MethodGet, page+"/events", nil) // it ends with the server
		if err != nil {
			t.Fatal(err)
		}
		ask.Header.Set("Referer", page+"/")
		stream, err := r.client.Do(ask)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Body.Close()
		lines := bufio.NewScanner(stream.Body)
		if !lines.Scan() || lines.Text() != "data: one" {
			t.Fatalf("%q", lines.Text())
		}
		for _, other := range []string{"https://evil.example", "http://" + otherID + ".vms.example"} {
			if _, _, err := websocket.Dial(t.Context(), "ws"+strings.TrimPrefix(page, "http")+"/echo", &websocket.DialOptions{HTTPClient: r.client, HTTPHeader: http.Header{"Origin": {other}}}); err == nil { //nolint:bodyclose // there is none
				t.Errorf("a page of %s connects", other)
			}
		}
		r.e.mu.Lock()
		delete(r.e.at, webID) // unexposed
		r.e.mu.Unlock()
		ended := make(chan error, 2)
		go func() {
			_, _, err := ws.Read(context.Background())
			ended <- err
		}()
		go func() {
			for lines.Scan() { //nolint:revive // to its end
			}
			ended <- io.EOF
		}()
		for range 2 {
			select {
			case err := <-ended:
				if err == nil {
					t.Error("it goes on")
				}
			case <-time.After(time.Minute):
				t.Fatal("it outlives the port's URL")
			}
		}
	}
}

// following is an engine with a program whose response never ends.
type following struct{ *exposing }

func (following) DialVM(context.Context, string, int) (job.Tunnel, error) {
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
			_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: one\n\n")
			_, _ = far.Read(make([]byte, 1)) // until the other end closes
		}
	}()
	return halfClosed{near}, nil
}

// Whoever logs out, or whose session has had its time, is also out of every port: by what was
// granted, by a code that is not used yet, and in streams that are open.
func TestPort_EndsWithTheSession(t *testing.T) {
	const week = 7 * 24 * time.Hour
	for _, wildcard := range []bool{false, true} {
		for name, tt := range map[string]struct {
			before time.Duration // from the login until the port is opened
			logout bool
		}{"logout": {time.Hour, true}, "time": {week - 10*time.Second, false}} {
			t.Run(fmt.Sprint(name, ", wildcard ", wildcard), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					o := web.Options{
						Engine: following{&exposing{engine: sample(), at: map[string]string{webID: "x"}, owners: map[string]string{}}},
						MCP:    echo, API: echo, Token: token, Log: log, Hosts: []string{"linus.example"}, URL: func() string { return "http://linus.example" },
					}
					if wildcard {
						o.PortDomain = "vms.example"
					}
					h := web.Handler(o)
					jar, err := cookiejar.New(nil)
					if err != nil {
						t.Fatal(err)
					}
					ask := func(method, to, form string) (*httptest.ResponseRecorder, *http.Request) {
						r := httptest.NewRequest(method, to, strings.NewReader(form))
						r.Header.Set("Accept", "text/html")
						if form != "" {
							r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
							r.Header.Set("Origin", "http://linus.example")
						}
						for _, c := range jar.Cookies(r.URL) {
							r.AddCookie(c)
						}
						return httptest.NewRecorder(), r
					}
					visit := func(method, to, form string) *httptest.ResponseRecorder {
						w, r := ask(method, to, form)
						ctx, leave := context.WithTimeout(t.Context(), time.Second) // a stream would not end
						defer leave()
						h.ServeHTTP(w, r.WithContext(ctx))
						jar.SetCookies(r.URL, w.Result().Cookies()) //nolint:bodyclose // a recorder's
						return w
					}
					visit(http.MethodGet, "http://linus.example"+web.LoginPath(token), "")
					time.Sleep(tt.before)

					page, code := "", ""
					if wildcard {
						page = "http://" + webID + ".vms.example/"
						to := visit(http.MethodGet, page, "").Header().Get("Location")
						enter := func() string {
							return strings.TrimPrefix(visit(http.MethodGet, to, "").Header().Get("Refresh"), "0; url=")
						}
						visit(http.MethodGet, enter(), "")
						code = enter()
					} else {
						page = "http://linus.example" + visit(http.MethodGet, "http://linus.example/ports/"+webID+"/", "").Header().Get("Location")
					}
					w, r := ask(http.MethodGet, page, "")
					ctx, leave := context.WithCancel(t.Context())
					defer leave()
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						defer func() { _ = recover() }() // http.ErrAbortHandler
						h.ServeHTTP(w, r.WithContext(ctx))
					}()
					time.Sleep(8 * time.Second)
					synctest.Wait()
					select {
					case <-ended:
						t.Fatalf("the stream has ended while the session goes on: %d %s", w.Code, w.Body)
					default:
					}
					if tt.logout {
						form := regexp.MustCompile(`name="form_token" value="([^"]+)"`).FindStringSubmatch(visit(http.MethodGet, "http://linus.example/jobs", "").Body.String())
						if got := visit(http.MethodPost, "http://linus.example/logout", "form_token="+url.QueryEscape(form[1])); got.Code != 303 {
							t.Fatalf("log out: %d %s", got.Code, got.Body)
						}
					}
					time.Sleep(8 * time.Second)
					synctest.Wait()
					select {
					case <-ended:
						if w.Code != 200 || w.Body.String() != "data: one\n\n" {
							t.Errorf("the stream: %d %s", w.Code, w.Body)
						}
					default:
						t.Error("the stream goes on")
					}
					if got := visit(http.MethodGet, page+"x", ""); got.Code != 303 || strings.Contains(got.Header().Get("Location"), "~") {
						t.Errorf("by the grant: %d to %s", got.Code, got.Header().Get("Location"))
					}
					if code != "" {
						if got := visit(http.MethodGet, code, ""); got.Code != 403 {
							t.Errorf("by a code: %d to %s", got.Code, got.Header().Get("Location"))
						}
					}
				})
			})
		}
	}
}

// What a program in a VM does to a connection is bounded, and nobody's fault but its own.
func TestPort_OfAHostileProgram(t *testing.T) {
	r := newPortRig(t, false, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // a test's
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var mu sync.Mutex
	says := ""
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = http.ReadRequest(bufio.NewReader(c))
				mu.Lock()
				text := says
				mu.Unlock()
				_, _ = io.WriteString(c, text)
			}()
		}
	}()
	r.e.at[webID] = l.Addr().String()
	for name, text := range map[string]string{
		"not HTTP": "SSH-2.0-OpenSSH_9.2\r\n", "nothing": "", "headers without end": "HTTP/1.1 200 OK\r\n" + strings.Repeat("X-A: "+strings.Repeat("a", 1000)+"\r\n", 200),
		"another protocol": "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
	} {
		mu.Lock()
		says = text
		mu.Unlock()
		if resp, text := r.request(http.MethodGet, "http://linus.example/ports/"+webID+"/", sending("Authorization", "Bearer "+token)); resp.StatusCode != 502 || !slices.Contains(resp.Header["Content-Security-Policy"], "sandbox allow-scripts allow-forms allow-modals allow-popups allow-downloads allow-pointer-lock") {
			t.Errorf("%s: %d %s", name, resp.StatusCode, text)
		}
	}
	r.e.at[webID] = "127.0.0.1:1"
	r.e.mu.Lock()
	r.e.mu.Unlock() //nolint:staticcheck // it orders
	if resp, _ := r.request(http.MethodGet, "http://linus.example/ports/"+webID+"/", sending("Authorization", "Bearer "+token)); resp.StatusCode != 502 {
		t.Errorf("nothing there: %d", resp.StatusCode)
	}
}

func TestPortURL(t *testing.T) {
	for _, tt := range []struct{ base, domain, want string }{
		{"", "", ""}, {"http://127.0.0.1:8766", "", "http://127.0.0.1:8766/ports/web-1/"}, {"https://linus.example", "vms.example", "https://web-1.vms.example/"},
		{"http://127.0.0.1:8766", "localhost", "http://web-1.localhost:8766/"}, {"http://[::1]:8766", "localhost", "http://web-1.localhost:8766/"},
	} {
		if got := web.PortURL(tt.base, tt.domain, "web-1"); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.base, tt.domain, got, tt.want)
		}
	}
}

// Over TLS no other host of the domain can set what stands for a login.
func TestPort_CookiesAreOfOneHost(t *testing.T) {
	h := web.Handler(web.Options{
		Engine: &exposing{engine: sample()}, MCP: echo, Token: token, Log: log, Hosts: []string{"linus.example"},
		PortDomain: "vms.example", URL: func() string { return "https://linus.example" },
	})
	var session *http.Cookie
	for at, name := range map[string]string{"https://linus.example" + web.LoginPath(token): "__Host-linus-", "https://" + webID + ".vms.example/": "__Host-linus-state"} {
		r := httptest.NewRequest(http.MethodGet, at, http.NoBody)
		r.Header.Set("Accept", "text/html")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		c, err := http.ParseSetCookie(w.Header().Get("Set-Cookie"))
		if err != nil || !strings.HasPrefix(c.Name, name) || !c.Secure || !c.HttpOnly || c.Domain != "" || c.Path != "/" {
			t.Fatalf("%s sets %v, %v", at, c, err)
		}
		if !strings.HasSuffix(c.Name, "state") {
			session = c
		}
	}
	for name, want := range map[string]int{session.Name: 200, strings.TrimPrefix(session.Name, "__Host-"): 401} {
		r := httptest.NewRequest(http.MethodGet, "https://linus.example/jobs", http.NoBody)
		r.AddCookie(&http.Cookie{Name: session.Name, Value: "tossed"})
		r.AddCookie(&http.Cookie{Name: name, Value: session.Value})
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("with %s: %d", name, w.Code)
		}
	}
}

// asleep is an engine whose VM takes a while to be resumed.
type asleep struct {
	*exposing
	takes time.Duration
}

func (e asleep) DialVM(ctx context.Context, _ string, _ int) (job.Tunnel, error) {
	woken := time.NewTimer(e.takes)
	defer woken.Stop()
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-woken.C:
	}
	near, far := net.Pipe()
	go func() {
		defer far.Close()
		if _, err := http.ReadRequest(bufio.NewReader(far)); err == nil {
			_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nawake")
		}
	}()
	return halfClosed{near}, nil
}

type halfClosed struct{ net.Conn }

func (halfClosed) CloseWrite() error { return nil }

// deaf is an engine whose VM takes connections, and nothing of what is sent.
type deaf struct{ *exposing }

func (deaf) DialVM(context.Context, string, int) (job.Tunnel, error) {
	near, _ := net.Pipe()
	return halfClosed{near}, nil
}

// A VM that does not take a request's body holds neither its place nor its principal's: as long as
// that has not ended, nobody learns that the client has gone.
func TestPort_EndsWhenTheVMDoesNotTakeABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := deaf{&exposing{engine: sample(), at: map[string]string{webID: "x"}, owners: map[string]string{}}}
		h := web.Handler(web.Options{Engine: e, MCP: echo, API: echo, Token: token, Log: log, Hosts: []string{"linus.example"}})
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		req := httptest.NewRequestWithContext(ctx, http.MethodPost, "http://linus.example/ports/"+webID+"/", strings.NewReader(strings.Repeat("x", 1<<20)))
		req.Header.Set("Authorization", "Bearer "+token)
		began, w := time.Now(), httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code != 503 || time.Since(began) > 6*time.Minute {
			t.Errorf("after %s: %d %s", time.Since(began), w.Code, w.Body)
		}
		synctest.Wait()
	})
}

// A request waits while its VM is resumed, and not for ever: a browser then tries again by itself.
func TestPort_WaitsForAVMThatIsResumed(t *testing.T) {
	for _, c := range []struct {
		name    string
		takes   time.Duration
		browser bool
		code    int
		text    string
	}{
		{"some seconds", 20 * time.Second, false, 200, "awake"},
		{"too long for a program", time.Hour, false, 503, "not ready after 50s"},
		{"too long for a browser", time.Hour, true, 503, "not ready after 50s"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := asleep{&exposing{engine: sample(), at: map[string]string{webID: "x"}, owners: map[string]string{}}, c.takes}
				h := web.Handler(web.Options{Engine: e, MCP: echo, API: echo, Token: token, Log: log, Hosts: []string{"linus.example"}})
				req := httptest.NewRequest(http.MethodGet, "http://linus.example/ports/"+webID+"/", nil)
				req.Header.Set("Authorization", "Bearer "+token)
				if c.browser {
					req.Header.Set("Accept", "text/html")
				}
				began, w := time.Now(), httptest.NewRecorder()
				h.ServeHTTP(w, req)
				if w.Code != c.code || !strings.Contains(w.Body.String(), c.text) || time.Since(began) > time.Minute {
					t.Errorf("after %s: %d %s", time.Since(began), w.Code, w.Body)
				}
				if again := w.Code == 503; (w.Header().Get("Retry-After") != "") != again || (w.Header().Get("Refresh") != "") != (again && c.browser) {
					t.Errorf("headers %v", w.Header())
				}
				synctest.Wait()
			})
		})
	}
}
