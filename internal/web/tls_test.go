package web_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"linus/internal/tlstest"
	"linus/internal/web"
)

// keyPair is two files in a directory, which look changed whenever they are written.
type keyPair struct {
	t         *testing.T
	cert, key string
	age       time.Duration
}

func newKeyPair(t *testing.T, p tlstest.Pair) *keyPair {
	dir := t.TempDir()
	k := &keyPair{t: t, cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	k.write(k.cert, p.Cert)
	k.write(k.key, p.Key)
	return k
}

func (k *keyPair) write(path string, data []byte) {
	k.t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		k.t.Fatal(err)
	}
	k.age += time.Second
	at := time.Now().Add(k.age - time.Hour)
	if err := os.Chtimes(path, at, at); err != nil {
		k.t.Fatal(err)
	}
}

// syncBuffer may be written while it is read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// secure runs a server with TLS until the test ends.
func secure(t *testing.T, k *keyPair, log *slog.Logger) (addr string) {
	t.Helper()
	c, err := web.OpenCertificate(k.cert, k.key, log)
	if err != nil {
		t.Fatal(err)
	}
	s, err := web.Listen(t.Context(), "127.0.0.1:0", web.Options{Engine: sample(), MCP: echo, Token: token, TLS: c.Config(), Log: log})
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve() }()
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return s.Addr()
}

// shown returns the name in the certificate that a server shows.
func shown(t *testing.T, addr string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it looks at what is shown
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close() //nolint:errcheck // only read
	return conn.ConnectionState().PeerCertificates[0].Subject.CommonName
}

func TestTLS_TakesAChangedCertificate(t *testing.T) {
	one, two := tlstest.New(t, "one.example", "127.0.0.1"), tlstest.New(t, "two.example", "127.0.0.1")
	k := newKeyPair(t, one)
	said := &syncBuffer{}
	addr := secure(t, k, slog.New(slog.NewTextHandler(said, nil)))
	is := func(want string) {
		t.Helper()
		for range 2 {
			if got := shown(t, addr); got != want {
				t.Errorf("the certificate is %s, want %s", got, want)
			}
		}
	}
	warned := func(want int, about string) {
		t.Helper()
		if got := strings.Count(said.String(), "level=WARN"); got != want || !strings.Contains(said.String(), about) {
			t.Errorf("%d warnings, want %d and %s:\n%s", got, want, about, said)
		}
	}
	is("one.example")
	k.write(k.cert, two.Cert) // and not yet its key
	is("one.example")
	warned(1, "do not match")
	k.write(k.key, two.Key)
	is("two.example")
	k.write(k.cert, []byte("nonsense"))
	is("two.example")
	warned(2, "do not match")
	if err := os.Remove(k.key); err != nil {
		t.Fatal(err)
	}
	is("two.example")
	warned(3, "no such file")
	k.write(k.cert, one.Cert)
	k.write(k.key, one.Key)
	if err := os.Chmod(k.key, 0o644); err != nil {
		t.Fatal(err)
	}
	is("two.example")
	warned(4, "can be read by others")
	if err := os.Chmod(k.key, 0o640); err != nil {
		t.Fatal(err)
	}
	k.write(k.cert, one.Cert)
	is("one.example")
	warned(4, "TLS certificate replaced")
}

func TestTLS_RefusesWhatIsNoPair(t *testing.T) {
	one, two := tlstest.New(t, "one.example", "127.0.0.1"), tlstest.New(t, "two.example", "127.0.0.1")
	for name, k := range map[string]*keyPair{
		"another's key": newKeyPair(t, tlstest.Pair{Cert: one.Cert, Key: two.Key}),
		"nothing":       newKeyPair(t, tlstest.Pair{}),
		"no files":      {cert: "/none/cert.pem", key: "/none/key.pem"},
	} {
		if _, err := web.OpenCertificate(k.cert, k.key, log); err == nil {
			t.Errorf("%s is a certificate", name)
		}
	}
	pipe := newKeyPair(t, one)
	if err := errors.Join(os.Remove(pipe.cert), syscall.Mkfifo(pipe.cert, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := web.OpenCertificate(pipe.cert, pipe.key, log); err == nil || !strings.Contains(err.Error(), pipe.cert+" is not a regular file") {
		t.Errorf("a pipe: %v", err)
	}
	k := newKeyPair(t, one)
	if err := os.Chmod(k.key, 0o604); err != nil {
		t.Fatal(err)
	}
	if _, err := web.OpenCertificate(k.cert, k.key, log); err == nil || !strings.Contains(err.Error(), "can be read by others") {
		t.Errorf("a key that others can read: %v", err)
	}
}

func TestTLS_IsModernAndOnlyThat(t *testing.T) {
	addr := secure(t, newKeyPair(t, tlstest.New(t, "one.example", "127.0.0.1")), log)
	for version, ok := range map[uint16]bool{tls.VersionTLS10: false, tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MinVersion: version, MaxVersion: version}) //nolint:gosec // to be refused
		if (err == nil) != ok {
			t.Errorf("TLS %x: %v", version, err)
		}
		if err == nil {
			_ = conn.Close()
		}
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/health", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // only read
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("plain HTTP: %s", resp.Status)
	}
}

func TestTLS_MakesCookiesSecureAndKnowsItsOrigin(t *testing.T) {
	addr := secure(t, newKeyPair(t, tlstest.New(t, "one.example", "127.0.0.1")), log)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, //nolint:gosec // it is this test's
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	get := func(path, origin string) *http.Response {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	if cookies := get(web.LoginPath(token), "").Cookies(); len(cookies) != 1 || !cookies[0].Secure || !cookies[0].HttpOnly {
		t.Errorf("cookies %v", cookies)
	}
	if resp := get("/health", "https://"+addr); resp.StatusCode != http.StatusOK {
		t.Errorf("its own origin: %s", resp.Status)
	}
	if resp := get("/health", "http://"+addr); resp.StatusCode != http.StatusForbidden {
		t.Errorf("the same address without TLS: %s", resp.Status)
	}
}
