package credential_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/netip"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/credential"
	"linus/internal/egress"
	"linus/internal/job"
	"linus/internal/secret"
	"linus/internal/tlstest"
)

const value = "the-value-that-no-vm-has"

// memory is a store.
type memory struct {
	mu  sync.Mutex
	all map[string]job.Credential
}

func (m *memory) Credentials(context.Context) (all []job.Credential, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.all {
		all = append(all, c)
	}
	return all, nil
}

func (m *memory) Credential(_ context.Context, name string) (job.Credential, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if c, ok := m.all[name]; ok {
		return c, nil
	}
	return job.Credential{}, job.ErrNotFound
}

func (m *memory) InsertCredential(_ context.Context, c job.Credential) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.all[c.Name]; ok {
		return false, nil
	}
	m.all[c.Name] = c
	return true, nil
}

func (m *memory) DeleteCredential(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, name)
	return nil
}

// world is two hosts behind one server, a keeper, and a job's proxy in front of them.
type world struct {
	t      *testing.T
	keeper *credential.Keeper
	store  *memory
	proxy  *egress.Proxy
	leg    *credential.TLSProxy
	roots  *x509.CertPool // what the VM trusts: the hosts, and the job's CA
	log    bytes.Buffer
	secret string // of the name OF_SERVER
	hints  int    // that came before responses
	dial   func(ctx context.Context, network, address string) (net.Conn, error)

	mu   sync.Mutex
	seen []string // requests at the hosts
	used []string
}

// newWorld has credentials api (of api.example, below /repos/acme/), any and keyed (of any.example, keyed below /keyed).
// site responds to what is not a probe of the headers.
func newWorld(t *testing.T, site http.HandlerFunc, change ...func(*credential.Options)) *world {
	t.Helper()
	w := &world{t: t, store: &memory{all: map[string]job.Credential{}}, roots: x509.NewCertPool(), secret: value}
	handler := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		scheme := "https"
		if r.TLS == nil {
			scheme = "http"
		}
		body := ""
		if site == nil {
			data, _ := io.ReadAll(r.Body)
			body = string(data)
		}
		if r.Header.Get("Upgrade") != "" {
			body += " to " + r.Header.Get("Upgrade")
		}
		w.mu.Lock()
		w.seen = append(w.seen, fmt.Sprintf("%s %s://%s%s %q %s", r.Method, scheme, r.Host, r.RequestURI, r.Header["Authorization"], body))
		w.mu.Unlock()
		if site != nil {
			site(rw, r)
		}
	})
	hosts, pair := tlstest.Serve(t, handler, "api.example", "any.example", "other.example", "api.anthropic.com", "api.openai.com")
	plain := httptest.NewServer(handler)
	t.Cleanup(plain.Close)
	o := credential.Options{
		Store: w.store, Dir: t.TempDir() + "/credentials", Roots: x509.NewCertPool(), Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Secrets: func(names []string) ([]secret.Value, error) {
			return []secret.Value{secret.NewValue(names[0], w.secret)}, nil
		},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", hosts.Listener.Addr().String())
		},
	}
	o.Roots.AppendCertsFromPEM(pair.Cert)
	w.dial = o.Dial
	for _, c := range change {
		c(&o)
	}
	w.keeper = credential.New(o)
	for _, n := range []job.NewCredential{
		{CredentialSpec: job.CredentialSpec{Name: "api", Host: "api.example", Path: "/repos/acme/", Header: "Authorization: Bearer"}, Value: value},
		{CredentialSpec: job.CredentialSpec{Name: "any", Host: "any.example", Header: "Authorization: Basic ada", Secret: "OF_SERVER"}},
		{CredentialSpec: job.CredentialSpec{Name: "keyed", Host: "any.example", Path: "/keyed", Header: "x-api-key", Secret: "OF_SERVER"}},
	} {
		if _, err := w.keeper.CreateCredential(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	var err error
	if w.leg, err = w.keeper.TLSProxy(t.Context(), credential.TLSProxyOptions{Names: []string{"api", "any", "keyed", "gone"}, Record: func(u job.CredentialUse) {
		w.mu.Lock()
		w.used = append(w.used, u.Text())
		w.mu.Unlock()
	}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.leg.Close)
	w.roots.AppendCertsFromPEM(w.leg.CA())
	w.roots.AppendCertsFromPEM(pair.Cert)
	w.proxy = egress.New(egress.Options{
		Names: []string{"other.example", "api.example"}, Record: func(job.Connection) {}, Ends: w.leg.Ends,
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("9.9.9.9")}, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			at := hosts
			if to.Port() == 80 {
				at = plain
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", at.Listener.Addr().String())
		},
	})
	t.Cleanup(w.proxy.Close)
	t.Cleanup(func() {
		for _, text := range append([]string{w.log.String(), fmt.Sprint(w.store.all)}, w.used...) {
			if strings.Contains(text, value) {
				t.Errorf("the value is in %q", text)
			}
		}
	})
	return w
}

// client is a program in the VM.
func (w *world) client(h2 bool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			Proxy:           func(*http.Request) (*url.URL, error) { return url.Parse("http://proxy:1") },
			DialContext:     func(ctx context.Context, _, _ string) (net.Conn, error) { return w.proxy.Dial(ctx) },
			TLSClientConfig: &tls.Config{RootCAs: w.roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: h2, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (w *world) get(url string, header ...string) (*http.Response, string, error) {
	w.t.Helper()
	ctx := httptrace.WithClientTrace(w.t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(_ int, header textproto.MIMEHeader) error {
		if w.hints++; strings.Contains(fmt.Sprint(header), value[:10]) || strings.Contains(fmt.Sprint(header), "YWRh") || header["Set-Cookie"] != nil {
			w.t.Errorf("an early hint has %v", header)
		}
		return nil
	}})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, line := range header {
		name, text, _ := strings.Cut(line, ": ")
		req.Header.Add(name, text)
	}
	resp, err := w.client(false).Do(req)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// open is a TLS connection through a tunnel to target, for a name.
func (w *world) open(target, name string) (*tls.Conn, error) {
	w.t.Helper()
	conn, err := w.tunnel(target)
	if err != nil {
		return nil, err
	}
	c := tls.Client(conn, &tls.Config{ServerName: name, RootCAs: w.roots, MinVersion: tls.VersionTLS12})
	return c, c.HandshakeContext(w.t.Context())
}

func (w *world) tunnel(target string) (net.Conn, error) {
	w.t.Helper()
	conn, err := w.proxy.Dial(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	go func() { _, _ = fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target) }()
	line, err := bufio.NewReaderSize(&oneByOne{conn}, 16).ReadString('\n')
	if err != nil || !strings.Contains(line, " 200 ") {
		return nil, fmt.Errorf("%s%w", line, cmpErr(err))
	}
	_, _ = io.ReadFull(conn, make([]byte, 2)) // the empty line
	return conn, nil
}

func cmpErr(err error) error {
	if err == nil {
		return errors.New("refused")
	}
	return err
}

// oneByOne never reads more than it is asked for.
type oneByOne struct{ io.Reader }

func (o *oneByOne) Read(to []byte) (int, error) { return o.Reader.Read(to[:1]) }

// raw sends text over a connection to api.example, and returns the statuses that come back.
func (w *world) raw(text string) (statuses []int) {
	w.t.Helper()
	c, err := w.open("api.example:443", "api.example")
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	go func() { _, _ = io.WriteString(c, text) }()
	for r := bufio.NewReader(c); ; {
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return statuses
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		statuses = append(statuses, resp.StatusCode)
	}
}

func (w *world) hostsSaw() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func TestTLSProxy_AddsTheHeader(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		w := newWorld(t, nil)
		req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example/repos/acme/x?a=b;c&d", strings.NewReader("hello"))
		req.Header = http.Header{"Authorization": {"Bearer linus-credential-api", "Bearer other"}, "Te": {"trailers"}}
		if !h2 {
			req.Header.Set("Connection", "Authorization") // has a proxy drop it that does so last
		}
		resp, err := w.client(h2).Do(req)
		if err != nil || resp.StatusCode != 200 || (resp.ProtoMajor == 2) != h2 {
			t.Fatal(resp, err)
		}
		_ = resp.Body.Close()
		if _, _, err := w.get("https://any.example/"); err != nil {
			t.Error(err)
		}
		want := []string{`POST https://api.example/repos/acme/x?a=b;c&d ["Bearer ` + value + `"] hello`, `GET https://any.example/ ["Basic YWRhOnRoZS12YWx1ZS10aGF0LW5vLXZtLWhhcw=="] `}
		if got := w.hostsSaw(); !slices.Equal(got, want) {
			t.Errorf("the hosts saw %q", got)
		}
		if want := []string{"credential api: POST api.example/repos/acme/x 200", "credential any: GET any.example/ 200"}; !slices.Equal(w.used, want) {
			t.Errorf("recorded %q", w.used)
		}
	}
}

// What a client says of the host in three places is the same, or nothing is sent.
func TestTLSProxy_OneHostAConnection(t *testing.T) {
	w := newWorld(t, nil)
	for _, name := range []string{"other.example", "any.example", "evil.example"} {
		conn, err := w.tunnel("api.example:443")
		if err != nil {
			t.Fatal(err)
		}
		if tls.Client(conn, &tls.Config{ServerName: name, InsecureSkipVerify: true}).HandshakeContext(t.Context()) == nil { //nolint:gosec // a client that does not look
			t.Errorf("a connection to api.example is taken for %s", name)
		}
	}
	for _, target := range []string{"9.9.9.9:443", "[2620:fe::9]:443", "127.0.0.1:443", "api.example:8443", "api.example.evil.example:443", "xapi.example:443"} {
		if _, err := w.open(target, "api.example"); err == nil {
			t.Errorf("%s is reached", target)
		}
	}
	for _, target := range []string{"API.Example.:443", "api.example.:443"} {
		if _, err := w.open(target, "api.example"); err != nil {
			t.Errorf("%s: %v", target, err)
		}
	}
	for host, want := range map[string]int{
		"api.example": 200, "API.example": 200, "api.example.": 200, "api.example:443": 200,
		"other.example": 421, "any.example": 421, "api.example:80": 421, "api.example.evil.example": 421, "api.example@other.example": 400, "": 421,
	} {
		if got := w.raw("GET /repos/acme/ HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"); !slices.Equal(got, []int{want}) {
			t.Errorf("Host %q: %v, want %d", host, got, want)
		}
	}
	for line, want := range map[string]int{
		"GET https://api.example/repos/acme/":            200,
		"GET https://other.example/repos/acme/":          421,
		"GET https://api.example@other.example/repos/":   421,
		"GET http://other.example/repos/acme/":           421,
		"CONNECT other.example:443":                      405,
		"GET //other.example/repos/acme/":                403,
		"GET /repos/acme/@other.example":                 200,
		"GET https://api.example/repos/acme/../../other": 403,
	} {
		if got := w.raw(line + " HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n"); !slices.Equal(got, []int{want}) {
			t.Errorf("%s: %v, want %d", line, got, want)
		}
	}
	for _, s := range w.hostsSaw() {
		if !strings.Contains(s, " https://api.example/repos/acme/") {
			t.Errorf("a host saw %s", s)
		}
	}
}

func TestTLSProxy_RequestsAreNotSmuggled(t *testing.T) {
	const to = "POST /repos/acme/ HTTP/1.1\r\nHost: api.example\r\n"
	const inner = "GET /evil HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n"
	for name, text := range map[string]string{
		"CL and TE":              to + fmt.Sprintf("Content-Length: %d\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n%s", 5+len(inner), inner),
		"two CL":                 to + "Content-Length: 0\r\nContent-Length: 44\r\n\r\n" + inner,
		"CL with a sign":         to + "Content-Length: +0\r\n\r\n" + inner,
		"another TE":             to + "Transfer-Encoding: xchunked\r\n\r\n" + inner,
		"two TE":                 to + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + inner,
		"TE after a tab":         to + "Transfer-Encoding:\tchunked\r\nContent-Length: 44\r\nConnection: close\r\n\r\n0\r\n\r\n",
		"a space before a colon": to + "Content-Length : 44\r\n\r\n" + inner,
		"two Hosts":              to + "Host: other.example\r\nContent-Length: 0\r\n\r\n",
		"a bare CR":              to + "X: a\rAuthorization: mine\r\n\r\n",
		"a header over lines":    to + "X: a\r\n Authorization: mine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
		"chunks with a name":     to + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n2;Authorization: x\r\nhi\r\n0\r\nAuthorization: mine\r\n\r\n",
		"h2c":                    to + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nContent-Length: 0\r\n\r\n" + inner, // which is refused
	} {
		w := newWorld(t, nil)
		statuses := w.raw(text)
		for _, s := range w.hostsSaw() {
			if !strings.HasPrefix(s, "POST https://api.example/repos/acme/ ") || !strings.Contains(s, `["Bearer `+value+`"]`) || strings.Contains(s, " to h2c") {
				t.Errorf("%s: a host saw %s", name, s)
			}
		}
		if name == "h2c" && !slices.Equal(statuses, []int{200, 403}) { // it is no upgrade any more, and the second is to another path
			t.Errorf("h2c: %v", statuses)
		}
		if n := len(w.hostsSaw()); n > 1 || len(statuses) == 0 {
			t.Errorf("%s: %d requests, statuses %v", name, n, statuses)
		}
	}
}

// What is no path of a host's is not asked of it.
func TestTLSProxy_NoTunnels(t *testing.T) {
	w := newWorld(t, nil)
	for _, line := range []string{"GET other:opaque", "CONNECT api.example:443", "CONNECT /repos/acme/x"} {
		if got := w.raw(line + " HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n"); !slices.Equal(got, []int{http.StatusMethodNotAllowed}) || len(w.hostsSaw()) != 0 {
			t.Errorf("%s: %v, and the host saw %v", line, got, w.hostsSaw())
		}
	}
}

// Elsewhere, and over plain HTTP, there is nothing but what the VM has.
func TestTLSProxy_OtherConnectionsPassUntouched(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		http.Redirect(rw, r, "https://other.example/there", http.StatusFound)
	})
	resp, _, err := w.get("https://api.example/repos/acme/", "Authorization: placeholder")
	if err != nil || resp.StatusCode != 302 || resp.Header.Get("Location") != "https://other.example/there" {
		t.Errorf("a redirect: %v, %v", resp, err)
	}
	for _, url := range []string{"https://other.example/there", "http://api.example/repos/acme/"} {
		if _, _, err := w.get(url, "Authorization: placeholder"); err != nil {
			t.Error(url, err)
		}
	}
	if got := w.hostsSaw(); len(got) != 3 || !strings.Contains(got[1], "there [\"placeholder\"]") || !strings.Contains(got[2], "http://api.example/repos/acme/ [\"placeholder\"]") {
		t.Errorf("the hosts saw %q", got)
	}
	// The job's CA vouches for nobody else, and not for another job's.
	block, _ := pem.Decode(w.leg.CA())
	if cert, err := x509.ParseCertificate(block.Bytes); err != nil || !cert.PermittedDNSDomainsCritical || !slices.Equal(cert.PermittedDNSDomains, []string{"any.example", "api.example"}) || len(cert.ExcludedIPRanges) != 2 {
		t.Errorf("the CA may vouch for others: %+v, %v", cert, err)
	}
	ca := x509.NewCertPool()
	ca.AppendCertsFromPEM(w.leg.CA())
	w.roots = ca
	if _, _, err := w.get("https://other.example/"); err == nil {
		t.Error("other.example is vouched for by the job's CA")
	}
	second, err := w.keeper.TLSProxy(t.Context(), credential.TLSProxyOptions{Names: []string{"any"}, Record: func(job.CredentialUse) {}})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if second.Ends("api.example", "443") != nil || bytes.Equal(second.CA(), w.leg.CA()) {
		t.Error("another job has this one's hosts, or its CA")
	}
}

// The key of an agent is used by its name, which is in no store, like any credential; and hosts
// that nobody has vouched for are reached as the VM reaches them.
func TestTLSProxy_AgentsKeys(t *testing.T) {
	var headers []http.Header
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { headers = append(headers, r.Header.Clone()) })
	for _, tt := range []struct {
		name, path, header, value string
		wide                      bool
		through                   bool // the VM's way
	}{
		{"claude@api.anthropic.com", "/v1/messages", "X-Api-Key", value, false, false},
		{"claude@api.anthropic.com", "/v1/messages", "X-Api-Key", value, true, true},
		{"claude@any.example:8443/claude", "/claude/v1/messages", "X-Api-Key", value, false, true},
		{"codex@api.openai.com", "/v1/responses", "Authorization", "Bearer " + value, true, true},
		{"gemini@other.example", "/v1beta/models/x:y", "X-Goog-Api-Key", value, true, true},
		{"any", "/", "Authorization", "Basic " + base64.StdEncoding.EncodeToString([]byte("ada:"+value)), true, false},
	} {
		c, err := w.keeper.Credential(t.Context(), tt.name)
		if err != nil {
			t.Fatal(err)
		}
		host, port := c.Target()
		var reached []string
		var used []string
		leg, err := w.keeper.TLSProxy(t.Context(), credential.TLSProxyOptions{
			Names: []string{tt.name}, Record: func(u job.CredentialUse) { used = append(used, u.Text()) }, Wide: tt.wide,
			Reach: func(ctx context.Context, address string) (net.Conn, error) {
				reached = append(reached, address)
				return w.dial(ctx, "tcp", address)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		w.roots.AppendCertsFromPEM(leg.CA())
		ask := func(path string) int {
			near, far := net.Pipe()
			go leg.Ends(host, port)(far)
			client := &http.Client{Transport: &http.Transport{
				TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: w.roots}, DisableKeepAlives: true,
				DialContext: func(context.Context, string, string) (net.Conn, error) { return near, nil },
			}}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+c.Host+path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set(tt.header, c.Placeholder())
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close() //nolint:errcheck // read
			return resp.StatusCode
		}
		headers = nil
		if status := ask(tt.path); status != http.StatusOK || len(headers) != 1 || !slices.Equal(headers[0][tt.header], []string{tt.value}) {
			t.Errorf("%s: %d, the host saw %v", tt.name, status, headers)
		}
		if want := "credential " + tt.name + ": POST " + c.Host + tt.path + " 200"; !slices.Equal(used, []string{want}) {
			t.Errorf("recorded %q, want %q", used, want)
		}
		if through := slices.Equal(reached, []string{net.JoinHostPort(host, port)}); through != tt.through || !through && len(reached) > 0 {
			t.Errorf("%s, wide %v: reached from the VM %q", tt.name, tt.wide, reached)
		}
		if c.Path != "" && ask("/other") != http.StatusForbidden {
			t.Errorf("%s is sent to another path", tt.name)
		}
		leg.Close()
	}
}

func TestTLSProxy_PathsOfOthersAreRefused(t *testing.T) {
	w := newWorld(t, nil)
	for _, path := range []string{"/", "/repos/acme", "/repos/acmeevil/x", "/repos/acme/../other", "/repos/acme/%2e%2e/other", "/repos/acme/..%2fother", "/repos//acme/x", "/user", "/repos/acme/x//y"} {
		statuses := w.raw("GET " + path + " HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n")
		if !slices.Equal(statuses, []int{403}) {
			t.Errorf("%s: %v", path, statuses)
		}
	}
	if got := w.hostsSaw(); len(got) != 0 {
		t.Errorf("the hosts saw %q", got)
	}
	if !slices.Contains(w.used, "no credential: GET api.example/user 403") {
		t.Errorf("recorded %q", w.used)
	}
}

// What some hosts take for the path, or for the credential's header, does not get there.
func TestTLSProxy_HeadersDoNotLeadElsewhere(t *testing.T) {
	var got http.Header
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { got = r.Header.Clone() })
	bad := []string{"X-Original-URL: /user", "X-Rewrite-URL: /user", "X_Rewrite_URL: /user", "X-Forwarded-Prefix: /..", "X-Forwarded-Uri: /user", "X-Envoy-Original-Path: /user", "Destination: https://api.example/user", "AUTHORIZATION: mine", "X-Original-Uri: /user",
		"X-Goog-Copy-Source: /b/user", "X-Ms-Copy-Source: https://api.example/user", "X-Ms-Rename-Source: /user", "X-Amz-Copy-Source: /b/user", "X-Copy-From: /b/user", "SCRIPT_NAME: /user", "PATH_INFO: /user",
		"X-Script-Name: /user", "X-Ms-Original-Url: /user", "X-Override-Url: /user", "X-HTTP-DestinationURL: /user", "X-HTTP-Method-Override: DELETE", "Referer: /user", "X-Nobody-Knows: /user"}
	if resp, _, err := w.get("https://api.example/repos/acme/x", append(bad, "X-Requested-With: x", "If-None-Match: x")...); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	for name := range got {
		if !slices.Contains([]string{"Accept-Encoding", "Authorization", "User-Agent", "X-Requested-With", "If-None-Match"}, name) {
			t.Errorf("the host gets %s", name)
		}
	}
	if len(got) != 5 || got.Get("Authorization") != "Bearer "+value {
		t.Errorf("the host gets %v", got)
	}
	if resp, _, err := w.get("https://any.example/x", "Destination: https://any.example/y", "Author-Ization: x"); err != nil || resp.StatusCode != 200 || got.Get("Destination") == "" {
		t.Errorf("where every path is allowed, it gets %v, %v", got, err)
	}
}

// A host that sends back what it was sent gives nothing away, as long as it does not encode it.
func TestTLSProxy_WhatAHostSendsBackHasNoValue(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		got := r.Header.Get("Authorization")
		rw.Header().Set("Link", got)
		rw.Header().Set("Set-Cookie", "session=1")
		rw.WriteHeader(http.StatusEarlyHints)
		rw.Header().Set("X-Got", "<"+got+">")
		rw.Header().Set("X-"+value, "name")
		rw.Header().Set("X-Encoding", r.Header.Get("Accept-Encoding"))
		rw.Header().Set("Set-Cookie", "session=1")
		rw.Header().Set("Alt-Svc", `h3=":443"`)
		rw.Header().Set("Trailer", "X-After, Set-Cookie")
		for _, b := range []byte("before " + got + got + " after" + got[:9]) {
			_, _ = rw.Write([]byte{b})
			_ = http.NewResponseController(rw).Flush()
		}
		rw.Header().Set("X-After", got)
		rw.Header().Set("Set-Cookie", "session=1")
	})
	if statuses := w.raw("TRACE /repos/acme/ HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\n\r\n"); !slices.Equal(statuses, []int{405}) {
		t.Errorf("TRACE: %v", statuses)
	}
	for _, url := range []string{"https://api.example/repos/acme/", "https://any.example/"} {
		resp, body, err := w.get(url, "Accept-Encoding: gzip, br")
		if err != nil {
			t.Fatal(err)
		}
		stars := strings.Repeat("*", len(value))
		front := "Bearer "
		if strings.Contains(url, "any") {
			stars, front = strings.Repeat("*", len("YWRhOnRoZS12YWx1ZS10aGF0LW5vLXZtLWhhcw==")), "Basic "
		}
		if want := "before " + front + stars + front + stars + " after"; !strings.HasPrefix(body, want) || len(body) != len(want)+9 {
			t.Errorf("the body is %q", body)
		}
		if resp.Header.Get("X-Got") != "<"+front+stars+">" || resp.Trailer.Get("X-After") != front+stars || resp.Header.Get("X-Encoding") != "identity" {
			t.Errorf("headers %v, trailers %v", resp.Header, resp.Trailer)
		}
		if resp.Header.Get("X-"+stars) != "name" && strings.Contains(url, "api.example") {
			t.Errorf("headers %v", resp.Header)
		}
		if resp.Header.Get("Set-Cookie")+resp.Trailer.Get("Set-Cookie")+resp.Header.Get("Alt-Svc") != "" {
			t.Errorf("headers %v, trailers %v", resp.Header, resp.Trailer)
		}
		if all := fmt.Sprint(resp.Header, resp.Trailer, body); strings.Contains(strings.ToLower(all), value) || strings.Contains(all, "YWRhOnRo") && strings.Contains(all, "LWhhcw") {
			t.Errorf("the value comes back: %s", all)
		}
	}
	if w.hints != 2 {
		t.Errorf("%d early hints", w.hints)
	}
}

// A host that answers with what is no HTTP does not get the value into the log by it.
func TestTLSProxy_NoLogHasWhatAHostSendsBack(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if conn, _, err := http.NewResponseController(rw).Hijack(); err == nil {
			_, _ = fmt.Fprintf(conn, "%s%s\r\n\r\n", r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"))
			_ = conn.Close()
		}
	})
	w.secret = `quoted "in" it\it`
	for _, url := range []string{"https://api.example/repos/acme/", "https://any.example/", "https://any.example/keyed"} {
		if resp, _, err := w.get(url, "Connection: Upgrade", "Upgrade: websocket"); err != nil || resp.StatusCode != 502 { // as that is HTTP/1 at the host
			t.Errorf("%v, %v", resp, err)
		}
	}
	if text := w.log.String(); strings.Count(text, "malformed HTTP") != 3 || strings.Contains(text, "YWRh") || strings.Contains(text, "quoted") {
		t.Errorf("the log says %s", text)
	}
}

// Who adds a credential anew for another host does not give that one's value to this.
func TestTLSProxy_AnotherOfTheNameIsAnother(t *testing.T) {
	w := newWorld(t, nil)
	if _, err := w.keeper.RemoveCredential(t.Context(), "any"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.keeper.CreateCredential(t.Context(), job.NewCredential{CredentialSpec: job.CredentialSpec{Name: "any", Host: "other.example", Header: "Authorization: Bearer"}, Value: value}); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{"https://any.example/", "https://other.example/"} {
		if _, _, err := w.get(url); err != nil {
			t.Error(err)
		}
	}
	if got := w.hostsSaw(); len(got) != 1 || strings.Contains(got[0], value) {
		t.Errorf("the hosts saw %q", got)
	}
}

// A stream arrives as it is sent. Removal cuts it off, and a WebSocket, and refuses what comes next.
func TestTLSProxy_StreamsAndRemoval(t *testing.T) {
	for name, remove := range map[string]func(*world){
		"here": func(w *world) { _, _ = w.keeper.RemoveCredential(w.t.Context(), "api") },
		"by another engine": func(w *world) {
			go w.keeper.Watch(w.t.Context())
			_ = w.store.DeleteCredential(w.t.Context(), "api")
		},
		"with its VM": func(w *world) { w.leg.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ended := make(chan struct{}, 2)
			w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
				if r.Header.Get("Upgrade") != "" {
					conn, b, err := http.NewResponseController(rw).Hijack()
					if err != nil {
						return
					}
					_, _ = fmt.Fprintf(conn, "HTTP/1.1 101 %[1]s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nX-Got: %[1]s\r\n\r\n", r.Header.Get("Authorization"))
					line, _ := b.ReadString('\n')
					_, _ = io.WriteString(conn, "echo "+line)
					_, _ = b.ReadString('\n')
					_ = conn.Close()
				} else {
					rw.Header().Set("Content-Type", "text/event-stream")
					_, _ = io.WriteString(rw, "data: 1\n\n")
					_ = http.NewResponseController(rw).Flush()
					<-r.Context().Done()
				}
				ended <- struct{}{}
			})
			patience, cancel := context.WithTimeout(t.Context(), 30*time.Second) // what is not cut off fails here
			defer cancel()
			req, _ := http.NewRequestWithContext(patience, http.MethodGet, "https://api.example/repos/acme/events", nil)
			events, err := w.client(true).Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = events.Body.Close() }()
			first := make([]byte, 9)
			if _, err := io.ReadFull(events.Body, first); err != nil || string(first) != "data: 1\n\n" {
				t.Fatalf("%q, %v", first, err)
			}
			socket, err := w.open("api.example:443", "api.example")
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				_, _ = io.WriteString(socket, "GET /repos/acme/ws HTTP/1.1\r\nHost: api.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
			}()
			r := bufio.NewReader(socket)
			resp, err := http.ReadResponse(r, nil)
			if err != nil || resp.StatusCode != 101 || strings.Contains(fmt.Sprint(resp.Status, resp.Header), value) {
				t.Fatal(resp, err)
			}
			_ = resp.Body.Close()
			_, _ = io.WriteString(socket, "hello\n")
			if line, err := r.ReadString('\n'); err != nil || line != "echo hello\n" {
				t.Fatalf("%q, %v", line, err)
			}
			remove(w)
			if _, err := io.ReadAll(events.Body); err == nil || patience.Err() != nil {
				t.Errorf("the stream ends with %v", err)
			}
			_ = socket.SetReadDeadline(time.Now().Add(30 * time.Second))
			if _, err := r.ReadString('\n'); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the WebSocket goes on: %v", err)
			}
			_ = events.Body.Close()
			_ = socket.NetConn().Close()
			for range 2 {
				select {
				case <-ended:
				case <-time.After(30 * time.Second):
					t.Fatal("it goes on at the host")
				}
			}
			if name == "with its VM" {
				return
			}
			if resp, body, err := w.get("https://api.example/repos/acme/"); err != nil || resp.StatusCode != 403 {
				t.Errorf("after it: %v, %s, %v", resp, body, err)
			}
		})
	}
}

// A body of which some comes now and then may take as long as it likes.
func TestTLSProxy_LongBodiesPass(t *testing.T) {
	const idle = 300 * time.Millisecond
	arrived := make(chan struct{})
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) {
		for b := make([]byte, 1); ; {
			if _, err := io.ReadFull(r.Body, b); err != nil {
				return
			}
			select {
			case arrived <- struct{}{}:
			case <-t.Context().Done():
				return
			}
		}
	}, func(o *credential.Options) { o.Idle = idle })
	body, to := io.Pipe()
	go func() {
		for began := time.Now(); time.Since(began) < 3*idle; {
			if _, err := to.Write([]byte("x")); err != nil {
				return
			}
			select {
			case <-arrived:
			case <-t.Context().Done():
				return
			}
		}
		_ = to.Close()
	}()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://any.example/", body)
	resp, err := w.client(false).Do(req)
	if err != nil || resp.StatusCode != 200 {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
}

// A host that answers before it has the body, and a client that goes on, end nothing else.
func TestTLSProxy_AnswersBeforeTheBodyHasCome(t *testing.T) {
	w := newWorld(t, func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusRequestEntityTooLarge) })
	for _, h2 := range []bool{true, false} {
		client := w.client(h2)
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				body, to := io.Pipe()
				go func() {
					for {
						if _, err := to.Write(make([]byte, 100)); err != nil {
							return
						}
					}
				}()
				req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://any.example/", body)
				if resp, err := client.Do(req); err == nil {
					_ = resp.Body.Close()
				}
				_ = body.Close()
			})
		}
		all.Wait()
	}
	if _, _, err := w.get("https://any.example/"); err != nil {
		t.Error(err)
	}
}

func TestTLSProxy_SlowAndLargeRequestsEnd(t *testing.T) {
	w := newWorld(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) }, func(o *credential.Options) {
		o.Idle, o.Header = 200*time.Millisecond, 200*time.Millisecond
	})
	for name, text := range map[string]string{
		"a header that does not end": "GET /repos/acme/ HTTP/1.1\r\nHost: api.example\r\nX: ",
		"a body that does not come":  "POST /repos/acme/ HTTP/1.1\r\nHost: api.example\r\nContent-Length: 10\r\n\r\nab",
		"nothing":                    "",
	} {
		began := time.Now()
		w.raw(text) // returns when the connection has ended
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("%s took %s", name, took)
		}
	}
	// Answers that nobody reads, of requests that are refused.
	c, err := w.open("api.example:443", "api.example")
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); err == nil; {
		if _, err = io.WriteString(c, "GET /evil HTTP/1.1\r\nHost: api.example\r\n\r\n"); time.Since(began) > 30*time.Second {
			t.Error("what is not read is waited with for ever")
			break
		}
	}
	if got := w.raw("GET /repos/acme/ HTTP/1.1\r\nHost: api.example\r\nX: " + strings.Repeat("x", 200<<10) + "\r\n\r\n"); !slices.Equal(got, []int{431}) {
		t.Errorf("a large header: %v", got)
	}
}

func TestTLSProxy_SendsNothingToWhoIsNotTheHost(t *testing.T) {
	w := newWorld(t, nil, func(o *credential.Options) { o.Roots = x509.NewCertPool() })
	if resp, _, err := w.get("https://api.example/repos/acme/"); err != nil || resp.StatusCode != 502 {
		t.Errorf("a host without a certificate: %v, %v", resp, err)
	}
	w = newWorld(t, nil)
	w.secret = "two\r\nlines: of it"
	if resp, body, err := w.get("https://any.example/"); err != nil || resp.StatusCode != 502 || strings.Contains(body, "lines") || strings.Contains(w.log.String(), "lines: of") {
		t.Errorf("a value of two lines: %v, %s, %v", resp, body, err)
	}
	if got := w.hostsSaw(); len(got) != 0 {
		t.Errorf("the hosts saw %q", got)
	}
}
