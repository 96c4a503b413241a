package egress_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/egress"
	"linus/internal/job"
)

// world is names with addresses, and one server behind all of them.
type world struct {
	server  *httptest.Server
	mu      sync.Mutex
	lookups map[string]int
	dialled []string
	records []job.Connection
	ended   chan job.Connection
}

func newWorld(t *testing.T, o egress.Options) (*world, *egress.Proxy) {
	t.Helper()
	w := &world{lookups: map[string]int{}, ended: make(chan job.Connection, 10)}
	w.server = httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(rw, "%s %s %s %q", r.Method, r.Host, body, r.Header.Get("Upgrade"))
	}))
	t.Cleanup(w.server.Close)
	names := map[string][]string{
		"ok.example": {"9.9.9.9"}, "six.example": {"2620:fe::9"}, "lan.example": {"10.0.0.5"}, "loop.example": {"127.0.0.1"},
		"meta.example": {"169.254.169.254"}, "ula.example": {"fd00::1"}, "mapped.example": {"::ffff:10.0.0.5"}, "own.example": {"5.5.5.5"},
		"cgnat.example": {"100.64.0.1"}, "nat64.example": {"64:ff9b::a00:5"}, "both.example": {"10.0.0.5", "9.9.9.9"}, "rebind.example": {"9.9.9.9"},
	}
	o.Names = append([]string{"*.below.example"}, slices.Collect(func(yield func(string) bool) {
		for name := range names {
			if !yield(name) {
				return
			}
		}
	})...)
	names["a.below.example"], names["below.example"], names["other.example"] = []string{"9.9.9.9"}, []string{"9.9.9.9"}, []string{"9.9.9.9"}
	o.Lookup = func(_ context.Context, name string) (all []netip.Addr, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lookups[name]++
		if name == "rebind.example" && w.lookups[name] > 1 {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		}
		for _, a := range names[name] {
			all = append(all, netip.MustParseAddr(a))
		}
		if len(all) == 0 {
			err = errors.New("no such host")
		}
		return all, err
	}
	o.Own = func(a netip.Addr) (bool, error) { return a == netip.MustParseAddr("5.5.5.5"), nil }
	o.Dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		w.mu.Lock()
		w.dialled = append(w.dialled, to.String())
		w.mu.Unlock()
		return (&net.Dialer{}).DialContext(ctx, "tcp", w.server.Listener.Addr().String())
	}
	o.Record = func(c job.Connection) {
		w.mu.Lock()
		w.records = append(w.records, c)
		w.mu.Unlock()
		if c.Ended {
			w.ended <- c
		}
	}
	p := egress.New(o)
	t.Cleanup(p.Close)
	return w, p
}

// ask writes to the proxy and returns the status line of its answer.
func ask(t *testing.T, p *egress.Proxy, text string) (string, net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := p.Dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = io.WriteString(conn, text) }()
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil && line == "" {
		return "closed", conn, r
	}
	return strings.TrimSpace(line), conn, r
}

func TestProxy_ReachesAllowedNamesOnPublicAddressesOnly(t *testing.T) {
	for target, want := range map[string]string{
		"ok.example:443": "200", "OK.Example.:443": "200", "six.example:443": "200", "a.below.example:443": "200", "both.example:443": "200",
		"below.example:443": "403", "other.example:443": "403", "evilok.example:443": "403", "*.below.example:443": "403",
		"lan.example:443": "403", "loop.example:443": "403", "meta.example:443": "403", "ula.example:443": "403", "mapped.example:443": "403",
		"own.example:443": "403", "cgnat.example:443": "403", "nat64.example:443": "403",
		"9.9.9.9:443": "403", "[2620:fe::9]:443": "403", "0x9090909:443": "403", "151587081:443": "403", "localhost:443": "403",
		"ok.example:80": "403", "ok.example:22": "403", "ok.example:00443": "403", "ok.example:": "403", "gone.below.example:443": "502",
	} {
		w, p := newWorld(t, egress.Options{})
		line, _, _ := ask(t, p, "CONNECT "+target+" HTTP/1.1\r\nHost: ok.example:443\r\n\r\n")
		if !strings.Contains(line, " "+want+" ") {
			t.Errorf("CONNECT %s: %q, want %s", target, line, want)
		}
		w.mu.Lock()
		for _, d := range w.dialled {
			if want != "200" || d != "9.9.9.9:443" && d != "[2620:fe::9]:443" {
				t.Errorf("CONNECT %s dialled %s", target, d)
			}
		}
		if len(w.records) == 0 || w.records[0].Allowed != (want == "200") || !w.records[0].Allowed && w.records[0].Why == "" {
			t.Errorf("CONNECT %s is recorded as %+v", target, w.records)
		}
		w.mu.Unlock()
	}
}

// Where any name will do, its address still has to be public.
func TestProxy_AnyNameIsReachedOnPublicAddressesOnly(t *testing.T) {
	for target, want := range map[string]string{
		"ok.example:443": "200", "other.example:443": "200", "lan.example:443": "403", "loop.example:443": "403", "meta.example:443": "403", "own.example:443": "403",
		"9.9.9.9:443": "403", "ok.example:22": "403", "localhost:443": "403",
	} {
		_, p := newWorld(t, egress.Options{Any: true})
		if line, _, _ := ask(t, p, "CONNECT "+target+" HTTP/1.1\r\nHost: ok.example:443\r\n\r\n"); !strings.Contains(line, " "+want+" ") {
			t.Errorf("CONNECT %s: %q, want %s", target, line, want)
		}
	}
}

// A VM that may reach more than names reaches all from there, and nothing is decided about it
// but where TLS is ended.
func TestProxy_AnywhereIsFromTheVM(t *testing.T) {
	var dialled []string
	w, p := newWorld(t, egress.Options{
		Anywhere: func(_ context.Context, address string) (net.Conn, error) {
			dialled = append(dialled, address)
			near, far := net.Pipe()
			go func() { _, _ = io.Copy(far, far) }()
			return near, nil
		},
		Ends: func(host, port string) func(net.Conn) {
			if host != "ended.example" || port != "8443" {
				return nil
			}
			return func(c net.Conn) { _, _ = io.Copy(c, c) }
		},
	})
	for _, target := range []string{"10.0.0.5:22", "lan.example:8443", "Ended.Example.:8443", "ended.example:443"} {
		line, conn, r := ask(t, p, "CONNECT "+target+" HTTP/1.1\r\nHost: x\r\n\r\nhello\n") // at once
		if !strings.Contains(line, " 200 ") {
			t.Errorf("CONNECT %s: %q", target, line)
			continue
		}
		_, _ = r.ReadString('\n')
		if back, err := r.ReadString('\n'); back != "hello\n" {
			t.Errorf("CONNECT %s: %q came back, %v", target, back, err)
		}
		_ = conn.Close()
	}
	if want := []string{"10.0.0.5:22", "lan.example:8443", "ended.example:443"}; !slices.Equal(dialled, want) || len(w.dialled)+len(w.records) != 0 {
		t.Errorf("dialled %q from the VM, %q from here, recorded %v", dialled, w.dialled, w.records)
	}
}

func TestProxy_PlainHTTP(t *testing.T) {
	w, p := newWorld(t, egress.Options{})
	client := &http.Client{Transport: &http.Transport{
		Proxy:       func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy:1") },
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return p.Dial(ctx) },
	}}
	for target, want := range map[string]int{
		"http://ok.example/x": 200, "http://ok.example:80/": 200, "http://ok.example:8080/": 403, "http://ok.example:443/": 403, "http://lan.example/": 403,
		"http://other.example/": 403, "http://9.9.9.9/": 403, "http://user:pw@ok.example/": 400,
	} {
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, target, strings.NewReader("body"))
		req.Header.Set("Upgrade", "websocket")
		if strings.Contains(target, "@") {
			line, _, _ := ask(t, p, "GET "+target+" HTTP/1.1\r\nHost: ok.example\r\n\r\n")
			if !strings.Contains(line, " 400 ") {
				t.Errorf("%s: %s", target, line)
			}
			continue
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		if res.StatusCode != want || want == 200 && !strings.HasPrefix(string(body), `POST `+req.URL.Host+` body ""`) {
			t.Errorf("%s: %d %s", target, res.StatusCode, body)
		}
	}
	// The name that was checked is the one that the server gets.
	_, _, r := ask(t, p, "GET http://ok.example/ HTTP/1.1\r\nHost: other.example\r\nConnection: close\r\n\r\n")
	if rest, _ := io.ReadAll(r); !strings.Contains(string(rest), "GET ok.example ") {
		t.Errorf("the server got another name: %s", rest)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.dialled {
		if d != "9.9.9.9:80" {
			t.Errorf("dialled %s", d)
		}
	}
}

func TestProxy_CountsWhatPasses(t *testing.T) {
	w, p := newWorld(t, egress.Options{})
	line, conn, r := ask(t, p, "CONNECT ok.example:443 HTTP/1.1\r\nHost: ok.example:443\r\n\r\n")
	if !strings.Contains(line, "200") {
		t.Fatal(line)
	}
	_, _ = r.ReadString('\n')
	const request = "GET / HTTP/1.0\r\nHost: h\r\n\r\n"
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(r)
	_ = conn.Close()
	select {
	case c := <-w.ended:
		if c.Name != "ok.example" || c.Port != "443" || !c.Allowed || c.Out != int64(len(request)) || c.In != int64(len(answer)) {
			t.Errorf("%+v, answer %q", c, answer)
		}
	case <-time.After(time.Minute):
		t.Error("the connection's end is not recorded")
	}
}

func TestProxy_NamesAreResolvedOncePerConnection(t *testing.T) {
	w, p := newWorld(t, egress.Options{})
	const request = "CONNECT rebind.example:443 HTTP/1.1\r\nHost: x\r\n\r\n"
	if line, _, _ := ask(t, p, request); !strings.Contains(line, "200") {
		t.Fatal(line)
	}
	if line, _, _ := ask(t, p, request); !strings.Contains(line, "403") {
		t.Fatalf("a name that has become private: %s", line)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lookups["rebind.example"] != 2 || !slices.Equal(w.dialled, []string{"9.9.9.9:443"}) {
		t.Errorf("looked up %v, dialled %v", w.lookups, w.dialled)
	}
}

func TestProxy_BoundsWhatIsHostile(t *testing.T) {
	_, patient := newWorld(t, egress.Options{})
	_, p := newWorld(t, egress.Options{Header: 200 * time.Millisecond, Idle: 300 * time.Millisecond})
	for name, tt := range map[string]struct{ text, want string }{
		"garbage":                  {"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", "400"},
		"garbage of HTTP/1.0":      {"GET\r\nHTTP/1.0\r\n\r\n", "400"},
		"an origin request":        {"GET / HTTP/1.0\r\n\r\n", "400"},
		"another scheme":           {"GET ftp://ok.example/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"},
		"a long header":            {"GET http://ok.example/ HTTP/1.1\r\nHost: x\r\nA: " + strings.Repeat("a", 100<<10) + "\r\n\r\n", "431"},
		"a header that never ends": {"GET http://ok.example/ HTTP/1.1\r\nHost: x\r\n", "closed"},
		"nothing":                  {"", "closed"},
		"two lengths":              {"POST http://ok.example/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "400"},
	} {
		asked := patient
		if tt.want == "closed" {
			asked = p
		}
		if line, _, _ := ask(t, asked, tt.text); !strings.Contains(line, tt.want) {
			t.Errorf("%s: %q, want %s", name, line, tt.want)
		}
	}
	_, p = newWorld(t, egress.Options{Idle: 300 * time.Millisecond})
	line, _, r := ask(t, p, "CONNECT ok.example:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	if !strings.Contains(line, "200") {
		t.Fatal(line)
	}
	if _, err := io.ReadAll(r); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a tunnel without a byte ends with %v", err)
	}
	p.Close()
	if _, err := p.Dial(t.Context()); err == nil {
		t.Error("a closed proxy is reached")
	}
}
