package e2b

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// portLab is a lab whose sandboxes have a web server at port 3000 and nothing elsewhere.
func portLab(t *testing.T, public bool, page http.HandlerFunc) *lab {
	t.Helper()
	l := newLab(t)
	site := httptest.NewServer(page)
	t.Cleanup(site.Close)
	l.Domain, l.PublicPorts = "boxes.example:8767", public
	l.Engine = job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) {
		if v.Name != "DialVM" {
			return l.call(ctx, v, in)
		}
		p, _ := job.PrincipalFrom(ctx)
		if err := p.Refusal(v); err != nil {
			return nil, err
		}
		if p.Name != "ann" {
			return nil, errors.New("not as its owner, but as " + p.Name)
		}
		if port := fmt.Sprint(in); !strings.HasSuffix(port, " 3000}") {
			return nil, &job.FieldError{Field: "port", Problem: "nothing accepts connections at " + port}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", site.Listener.Addr().String())
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	})
	return l
}

// Of several engines the one that has a sandbox's proxy may be another than the one that makes it.
func TestNetwork_AnotherEngineHasTheProxy(t *testing.T) {
	l := newLab(t)
	l.Engine = job.Through(func(ctx context.Context, v *job.Verb, in any) (any, error) {
		if v.Name != "DialVM" {
			return l.call(ctx, v, in)
		}
		if id := l.vms[0].Job; fmt.Sprint(in) != fmt.Sprintf("{%s %d}", id, job.ProxyPort(id)) {
			return nil, &job.FieldError{Field: "port", Problem: fmt.Sprintf("nothing accepts connections at %v", in)}
		}
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", strings.TrimPrefix(l.url, "http://"))
		if err != nil {
			return nil, err
		}
		return conn.(*net.TCPConn), nil
	})
	l.Proxy = func(context.Context, vm.VM, func()) error { return errors.New("the port is in use") }
	ctx, cancel := context.WithCancel(t.Context())
	kept := make(chan struct{})
	go func() { defer close(kept); l.keepProxies(ctx) }()
	defer func() { cancel(); <-kept }()
	l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"network":{"allowOut":["*.example.com"],"denyOut":["0.0.0.0/0"]}}`)
}

// A look at sandboxes that began before one's names were changed leaves its new proxy alone.
func TestNetwork_ProxyOutlastsAnOlderLook(t *testing.T) {
	l := newLab(t)
	opened, closed := make(chan []string), make(chan []string, 10)
	l.Proxy = func(ctx context.Context, v vm.VM, _ func()) error {
		opened <- v.Network.Allow
		<-ctx.Done()
		closed <- v.Network.Allow
		return nil
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer func() { cancel(); l.proxies.keeping.Wait() }()
	to := func(names ...string) []vm.VM {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.vms = []vm.VM{{Job: "one", State: vm.Created, Made: vm.Made{Network: vm.Network{Egress: vm.EgressAllow, Allow: names}}, Own: &vm.Own{ReadyAt: time.Now(), Sandbox: &vm.Sandbox{}}}}
		return l.vms
	}
	before, old := time.Now(), to("a.example")
	now := to("b.example")
	l.tendProxies(ctx, old, before)
	if got := <-opened; !slices.Equal(got, []string{"b.example"}) {
		t.Fatalf("it has the names %q", got)
	}
	kept := l.proxies.keeper("one")
	l.tendProxies(ctx, old, before)
	l.tendProxies(ctx, now, time.Now())
	if l.proxies.keeper("one") != kept {
		t.Error("it was closed")
	}
	l.tendProxies(ctx, to("c.example"), time.Now())
	if got := [2][]string{<-closed, <-opened}; !slices.Equal(got[0], []string{"b.example"}) || !slices.Equal(got[1], []string{"c.example"}) {
		t.Errorf("after a change one was closed, one opened: %q", got)
	}
}

// keeper is the same as long as a sandbox's proxy is.
func (a *proxies) keeper(id string) chan struct{} {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept[id].ended
}

// visit asks a port's host, and returns the status, the headers and the body.
func (l *lab) visit(t *testing.T, host, path string, headers ...string) (int, http.Header, string) {
	t.Helper()
	return l.send(t, http.MethodGet, path, "", append(headers, "Host", host)...)
}

func show(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "max-age=1")
	w.Header().Set("Alt-Svc", `h3=":1"`)
	w.Header().Set("Trailer", "X-Late")
	http.SetCookie(w, &http.Cookie{Name: "of", Value: "mine", Domain: "boxes.example"})
	if r.URL.Path == "/away" {
		http.Redirect(w, r, "http://localhost:3000//evil.example/x", http.StatusFound)
		return
	}
	_, _ = fmt.Fprintln(w, r.Method, r.Host, r.URL, r.Header)
	w.Header().Set("X-Late", "trailer")
}

func TestPort_IsReachedWithATokenAndSeesNone(t *testing.T) {
	l := portLab(t, false, show)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"network":{"allowPublicTraffic":false}}`)
	if made.Domain != "boxes.example:8767" || made.Traffic == "" || made.Traffic == made.Token {
		t.Fatalf("it is answered as %+v", made)
	}
	host := "3000-" + made.ID + "." + made.Domain
	for _, h := range [][]string{{"E2b-Traffic-Access-Token", made.Traffic}, {"X-Access-Token", made.Token}} {
		code, header, text := l.visit(t, host, "/a%2Fb?c=d", append(h, "Authorization", "Bearer e2b_aa", "X-Api-Key", "e2b_aa", "Cookie", "x=of another host", "E2b-Sandbox-Id", "other", "Origin", "https://"+host, "X-Late", "1")...)
		if code != http.StatusOK || !strings.HasPrefix(text, "GET localhost:3000 /a%2Fb?c=d ") || !strings.Contains(text, "Origin:[http://localhost:3000]") {
			t.Errorf("%d %s", code, text)
		}
		for _, secret := range []string{made.Token, made.Traffic, "e2b_aa", "another host", "E2b-Sandbox-Id"} {
			if strings.Contains(text, secret) {
				t.Errorf("the VM gets %q: %s", secret, text)
			}
		}
		cookies := header["Set-Cookie"]
		if len(cookies) != 2 || cookies[0] != "of=mine" || header["Cache-Control"][0] != "max-age=1" || len(header["Cache-Control"]) != 1 || header.Get("Alt-Svc") != "" || header.Get("Trailer") != "" {
			t.Errorf("the client gets %v", header)
		}
		mark, _, _ := strings.Cut(cookies[1], ";")
		if _, _, text := l.visit(t, host, "/", append(h, "Cookie", "of=mine; "+mark)...); !strings.Contains(text, "Cookie:[of=mine]") {
			t.Errorf("its own cookie does not come back: %s", text)
		}
	}
	if code, header, _ := l.visit(t, host, "/away", "E2b-Traffic-Access-Token", made.Traffic); code != http.StatusFound || header.Get("Location") != "/evil.example/x" {
		t.Errorf("it leads to %d %q", code, header.Get("Location"))
	}
	if code, _, text := l.visit(t, "3000-"+made.ID+".boxes.example", "/", "Authorization", "Bearer its-own", "X-Access-Token", made.Token); code != http.StatusOK || !strings.Contains(text, "Bearer its-own") {
		t.Errorf("without the port, with a key of the page's: %d %s", code, text)
	}
	if code, _, text := l.visit(t, "49983-"+made.ID+".boxes.example", "/health", "X-Access-Token", made.Token); code != http.StatusOK || text != "GET /health" {
		t.Errorf("the program of the sandbox at its own port: %d %s", code, text)
	}
}

func TestPort_LetsNobodyElseIn(t *testing.T) {
	l := portLab(t, false, show)
	made, other := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`), l.create(t, "e2b_bb", `{"templateID":"base","timeout":300}`)
	host := "3000-" + made.ID + ".boxes.example"
	for _, c := range []struct {
		name, host string
		headers    []string
		code       int
		says       string
	}{
		{"no token", host, nil, 403, "trafficAccessToken"},
		{"an API key", host, []string{"X-Api-Key", "e2b_aa"}, 403, ""},
		{"another's token", host, []string{"X-Access-Token", other.Token}, 403, ""},
		{"another's traffic token", host, []string{"E2b-Traffic-Access-Token", other.Traffic}, 403, ""},
		{"the tokens swapped", host, []string{"X-Access-Token", made.Traffic, "E2b-Traffic-Access-Token", made.Token}, 403, ""},
		{"one's own sandbox in a header", host, []string{"E2b-Sandbox-Id", other.ID, "X-Access-Token", other.Token}, 403, ""},
		{"no sandbox", "3000-" + strings.Repeat("0", 32) + ".boxes.example", nil, 403, ""},
		{"no ID", "3000-.boxes.example", []string{"X-Access-Token", made.Token}, 403, ""},
		{"below it", "3000-" + made.ID + ".x.boxes.example", []string{"X-Access-Token", made.Token}, 403, ""},
		{"port 0", "0-" + made.ID + ".boxes.example", []string{"X-Access-Token", made.Token}, 404, "no such port"},
		{"port 22", "22-" + made.ID + ".boxes.example", []string{"X-Access-Token", made.Token}, 404, "no such port"},
		{"port 022", "022-" + made.ID + ".boxes.example", []string{"X-Access-Token", made.Token}, 404, "no such port"},
		{"port 65536", "65536-" + made.ID + ".boxes.example", []string{"X-Access-Token", made.Token}, 404, "no such port"},
		{"no port", "-" + made.ID + ".boxes.example", []string{"X-Access-Token", made.Token}, 404, "no such port"},
		{"a closed port", "3001-" + made.ID + ".boxes.example", []string{"X-Access-Token", made.Token}, 502, `"port":3001`},
		{"the program of the sandbox", "49983-" + made.ID + ".boxes.example", []string{"E2b-Sandbox-Id", other.ID, "X-Access-Token", other.Token}, 401, ""},
		{"another domain", "3000-" + made.ID + ".boxes.example.evil.example", []string{"X-Access-Token", made.Token}, 401, "not a key"},
		{"a forged cookie", host, []string{"Cookie", "__Host-linus-port=99999999999.00", "Sec-Fetch-Site", "none"}, 403, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, header, text := l.visit(t, c.host, "/", c.headers...)
			if code != c.code || !strings.Contains(text, c.says) || !strings.Contains(text, fmt.Sprintf(`"code":%d`, c.code)) || header.Get("Cache-Control") != "no-store" {
				t.Errorf("%d %s, want %d with %q", code, text, c.code, c.says)
			}
		})
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes", `{"templateID":"base","network":{"allowPublicTraffic":true}}`); code != http.StatusBadRequest || !strings.Contains(text, "E2B_PUBLIC_PORTS") {
		t.Errorf("public ports where none are: %d %s", code, text)
	}
	_, _, _ = l.ask(t, "e2b_aa", http.MethodDelete, "/sandboxes/"+made.ID, "")
	if code, _, text := l.visit(t, host, "/", "X-Access-Token", made.Token); code != http.StatusBadGateway || !strings.Contains(text, "The sandbox was not found") {
		t.Errorf("its end: %d %s", code, text)
	}
}

func TestPort_ABrowserGetsACookieOfThatHost(t *testing.T) {
	l := portLab(t, false, show)
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	host := "3000-" + made.ID + ".boxes.example"
	code, header, _ := l.visit(t, host, "//evil.example/?a=1&e2b-traffic-access-token="+made.Traffic)
	if code != http.StatusSeeOther || header.Get("Location") != "/evil.example/?a=1" {
		t.Fatalf("%d to %q", code, header.Get("Location"))
	}
	set := header.Get("Set-Cookie")
	cookie, attributes, _ := strings.Cut(set, ";")
	if !strings.HasPrefix(cookie, "__Host-") || strings.Contains(set, made.Traffic) || strings.Contains(attributes, "Domain") || !strings.Contains(attributes, "HttpOnly; Secure; SameSite=Lax") {
		t.Errorf("the cookie is %q", set)
	}
	for _, c := range []struct {
		name, host string
		headers    []string
		code       int
	}{
		{"a link", host, []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, 200},
		{"its own page", host, []string{"Sec-Fetch-Site", "same-origin"}, 200},
		{"its own page's origin", host, []string{"Origin", "https://" + host}, 200},
		{"a page of another sandbox", host, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors"}, 403},
		{"a frame there", host, []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, 403},
		{"its origin", host, []string{"Origin", "https://3000-" + strings.Repeat("0", 32) + ".boxes.example"}, 403},
		{"an origin that is none", host, []string{"Origin", "null", "Sec-Fetch-Site", "same-origin"}, 403},
		{"nothing said", host, nil, 403},
		{"another port", "3001-" + made.ID + ".boxes.example", []string{"Sec-Fetch-Site", "none"}, 403},
		{"a wrong token beside it", host, []string{"Sec-Fetch-Site", "none", "X-Access-Token", "x"}, 403},
	} {
		if code, _, text := l.visit(t, c.host, "/", append(c.headers, "Cookie", cookie)...); code != c.code || strings.Contains(text, cookie) {
			t.Errorf("%s: %d %s, want %d", c.name, code, text, c.code)
		}
	}
	if code, _, _ := l.visit(t, host, "/?e2b-traffic-access-token=x", "Sec-Fetch-Site", "none"); code != http.StatusForbidden {
		t.Error("a wrong token in the query:", code)
	}
}

func TestPort_IsPublicIfBothSaySo(t *testing.T) {
	l := portLab(t, true, show)
	made, closed := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"network":{"allowPublicTraffic":true}}`), l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	for id, want := range map[string]int{made.ID: 200, closed.ID: 403, strings.Repeat("0", 32): 502} {
		if code, _, text := l.visit(t, "3000-"+id+".boxes.example", "/"); code != want {
			t.Errorf("%d %s, want %d", code, text, want)
		}
	}
	if code, _, _ := l.visit(t, "3000-"+made.ID+".boxes.example", "/", "X-Access-Token", "wrong"); code != http.StatusForbidden {
		t.Error("a wrong token:", code)
	}
	l.PublicPorts = false // since the server began anew
	if code, _, _ := l.visit(t, "3000-"+made.ID+".boxes.example", "/"); code != http.StatusForbidden {
		t.Error("where none may be any more:", code)
	}
}

// As E2B's are.
func TestPort_IsPublicUnlessItSaysNotWhereAllAre(t *testing.T) {
	l := portLab(t, true, show)
	l.PublicFirst = true
	for body, want := range map[string]int{`{"templateID":"base"}`: 200, `{"templateID":"base","network":{}}`: 200, `{"templateID":"base","network":{"allowPublicTraffic":false}}`: 403} {
		if code, _, text := l.visit(t, "3000-"+l.create(t, "e2b_aa", body).ID+".boxes.example", "/"); code != want {
			t.Errorf("%s: %d %s, want %d", body, code, text, want)
		}
	}
	l.Domain = "" // and none has a name
	l.create(t, "e2b_aa", `{"templateID":"base"}`)
}

// The program at a port sees the host that its sandbox was created with.
func TestPort_SeesTheHostThatIsAsked(t *testing.T) {
	l := portLab(t, false, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://"+r.Host+"/there", http.StatusFound)
			return
		}
		show(w, r)
	})
	made := l.create(t, "e2b_aa", `{"templateID":"base","network":{"maskRequestHost":"app.example:${PORT}"}}`)
	host := "3000-" + made.ID + "." + made.Domain
	if code, _, text := l.visit(t, host, "/a", "X-Access-Token", made.Token, "Origin", "https://"+host); code != http.StatusOK || !strings.HasPrefix(text, "GET app.example:3000 /a ") || !strings.Contains(text, "Origin:[http://app.example:3000]") {
		t.Errorf("%d %s", code, text)
	}
	if code, header, _ := l.visit(t, host, "/away", "X-Access-Token", made.Token); code != http.StatusFound || header.Get("Location") != "/there" {
		t.Errorf("it leads to %d %q", code, header.Get("Location"))
	}
	for _, mask := range []string{"a b", "a/b", `a\r\nX: y`, strings.Repeat("a", 256)} {
		if code, _, text := l.ask(t, "e2b_aa", http.MethodPost, "/sandboxes", `{"templateID":"base","network":{"maskRequestHost":"`+mask+`"}}`); code != http.StatusBadRequest || !strings.Contains(text, "network.maskRequestHost") {
			t.Errorf("%.20q: %d %s", mask, code, text)
		}
	}
	if code, _, text := l.ask(t, "e2b_aa", http.MethodPut, "/sandboxes/"+made.ID+"/network", `{"maskRequestHost":"b.example"}`); code != http.StatusBadRequest || !strings.Contains(text, "network.maskRequestHost") {
		t.Errorf("afterwards: %d %s", code, text)
	}
}

func TestPort_OutlastsWhatItAnswersAndCarriesWebSockets(t *testing.T) {
	l := portLab(t, false, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/flood":
			for n := range 100 {
				w.Header().Set(fmt.Sprint("X-", n), strings.Repeat("x", 2000))
			}
		case "/early":
			conn, _, err := http.NewResponseController(w).Hijack()
			for err == nil {
				_, err = io.WriteString(conn, "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n")
			}
			_ = conn.Close()
		case "/abort":
			panic(http.ErrAbortHandler)
		default:
			conn, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\nSet-Cookie: linus-port=x\r\n\r\n")
			_, _ = io.Copy(conn, rw)
		}
	})
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300}`)
	host := "3000-" + made.ID + ".boxes.example"
	for _, path := range []string{"/flood", "/early", "/abort", "/unasked"} {
		if code, _, text := l.visit(t, host, path, "X-Access-Token", made.Token); code != http.StatusBadGateway || !strings.Contains(text, `"port":3000`) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(l.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: %s\r\nX-Access-Token: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", host, made.Token)
	in := bufio.NewReader(conn)
	resp, err := http.ReadResponse(in, nil)
	if err != nil || resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("Set-Cookie") != "" {
		t.Fatal(resp, err)
	}
	_, _ = io.WriteString(conn, "both ways\n")
	if line, err := in.ReadString('\n'); line != "both ways\n" {
		t.Error(line, err)
	}
	l.mu.Lock()
	l.holds["ann"] = false // her last token is gone
	l.mu.Unlock()
	if _, err := in.ReadByte(); !errors.Is(err, io.EOF) {
		t.Error("it goes on:", err)
	}
}

func TestPort_VisitorsWithoutATokenLeaveRoomForOthers(t *testing.T) {
	began := make(chan struct{}, 4)
	l := portLab(t, true, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stay" {
			_ = http.NewResponseController(w).Flush()
			began <- struct{}{}
			<-r.Context().Done()
		}
	})
	made := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"network":{"allowPublicTraffic":true}}`)
	host := "3000-" + made.ID + ".boxes.example"
	for range 2 { // half of what a sandbox may have
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, l.url+"/stay", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		<-began
	}
	if code, _, text := l.visit(t, host, "/"); code != http.StatusTooManyRequests {
		t.Errorf("one more: %d %s", code, text)
	}
	if code, _, text := l.visit(t, host, "/", "X-Access-Token", made.Token); code != http.StatusOK {
		t.Errorf("its owner: %d %s", code, text)
	}
}

// Clients that have one address for all sandboxes name a port by headers: the code interpreter's do.
func TestPort_IsNamedByHeaders(t *testing.T) {
	l := portLab(t, true, show)
	made, other := l.create(t, "e2b_aa", `{"templateID":"base","timeout":300,"network":{"allowPublicTraffic":true}}`), l.create(t, "e2b_bb", `{"templateID":"base","timeout":300}`)
	ask := func(path, port string, headers ...string) (int, http.Header, string) {
		return l.send(t, http.MethodGet, path, "", append(headers, "E2b-Sandbox-Id", made.ID, "E2b-Sandbox-Port", port)...)
	}
	for _, h := range [][]string{{"E2b-Traffic-Access-Token", made.Traffic}, {"X-Access-Token", made.Token}} {
		code, header, text := ask("/execute?a=b", "3000", append(h, "X-Api-Key", "e2b_aa")...)
		if code != http.StatusOK || !strings.HasPrefix(text, "GET localhost:3000 /execute?a=b ") || strings.Contains(text, h[1]) || strings.Contains(text, "e2b_aa") {
			t.Errorf("%d %s", code, text)
		}
		if header.Get("Set-Cookie") != "" || !strings.HasPrefix(header.Get("Content-Security-Policy"), "sandbox") || header.Get("Cache-Control") != "no-store" {
			t.Errorf("at this server's own host the VM says %v", header)
		}
	}
	for _, c := range []struct {
		name, path, port string
		headers          []string
		code             int
	}{
		{"no token, though its ports are public", "/", "3000", nil, 403},
		{"another's token", "/", "3000", []string{"X-Access-Token", other.Token}, 403},
		{"a token in the query makes no cookie here", "/?e2b-traffic-access-token=" + made.Traffic, "3000", nil, 200},
		{"SSH's port", "/", "22", []string{"X-Access-Token", made.Token}, 404},
		{"no number", "/", "3000x", []string{"X-Access-Token", made.Token}, 404},
		{"a closed port", "/", "3001", []string{"X-Access-Token", made.Token}, 502},
		{"a redirect", "/away", "3000", []string{"X-Access-Token", made.Token}, 502},
	} {
		t.Run(c.name, func(t *testing.T) {
			if code, header, text := ask(c.path, c.port, c.headers...); code != c.code || header.Get("Set-Cookie") != "" {
				t.Errorf("%d %s %v, want %d", code, text, header, c.code)
			}
		})
	}
}
