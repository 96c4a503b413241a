package executor

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/egress"
	"linus/internal/job"
	"linus/internal/tlstest"
	"linus/internal/vm"
	"linus/internal/wiretest"
)

// behind is a server of everything below example., on ports 443 and 80, and a job's proxy
// in front of it, with the environment that its task has.
type behind struct {
	t   *testing.T
	dir string
	ca  string // a file
	env []string

	mu   sync.Mutex
	seen []string // what the proxy has let through, or refused
}

func newBehind(t *testing.T, site http.Handler) *behind {
	t.Helper()
	b := &behind{t: t, dir: t.TempDir()}
	b.ca = filepath.Join(b.dir, "ca.pem")
	plain, secure := httptest.NewServer(site), httptest.NewUnstartedServer(site)
	secure.TLS = &tls.Config{Certificates: []tls.Certificate{b.certificate()}, MinVersion: tls.VersionTLS12}
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	proxy := egress.New(egress.Options{
		Names: []string{"*.example"},
		Record: func(c job.Connection) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if !c.Ended {
				b.seen = append(b.seen, fmt.Sprint(c.Target(), " ", c.Allowed))
			}
		},
		Lookup: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("9.9.9.9")}, nil
		},
		Dial: func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			at := plain
			if to.Port() == 443 {
				at = secure
			}
			return (&net.Dialer{}).DialContext(ctx, "tcp", at.Listener.Addr().String())
		},
	})
	t.Cleanup(proxy.Close)
	id, way := "", net.Listener(nil)
	for n := 0; way == nil; n++ { // a job's port may be in use here
		var err error
		id = fmt.Sprint("job ", n)
		if way, err = net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", job.ProxyPort(id))); err != nil && n > 100 {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = way.Close() })
	wiretest.Start(t, way, proxy.Dial, 0)
	b.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.dir, "LC_ALL=C", "GIT_CONFIG_NOSYSTEM=1", "APT_CONFIG=" + filepath.Join(b.dir, "apt.conf")}
	for name, value := range proxied(job.Manifest{}, id, vm.Network{}, true).Env {
		b.env = append(b.env, name+"="+value)
	}
	return b
}

// certificate returns one for every name, and writes the file that vouches for it.
func (b *behind) certificate() tls.Certificate {
	b.t.Helper()
	pair := tlstest.New(b.t, "git.example", "npm.example", "pypi.example", "deb.example", "curl.example")
	b.write("ca.pem", string(pair.Cert))
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		b.t.Fatal(err)
	}
	return cert
}

func (b *behind) write(name, text string) string {
	b.t.Helper()
	path := filepath.Join(b.dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		b.t.Fatal(err)
	}
	return path
}

// run runs a client as a task does.
func (b *behind) run(argv ...string) (string, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the test's own
	cmd.Dir, cmd.Env = b.dir, b.env
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// works runs a client that has to reach a name, and what it has made.
func (b *behind) works(target, made string, argv ...string) {
	b.t.Helper()
	out, err := b.run(argv...)
	if err != nil {
		b.t.Errorf("%s: %v\n%s", strings.Join(argv, " "), err, out)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.seen, target+" true") {
		b.t.Errorf("%s has not come by the proxy: %q", argv[0], b.seen)
	}
	if found, _ := filepath.Glob(filepath.Join(b.dir, made)); len(found) == 0 {
		b.t.Errorf("%s has made no %s:\n%s", argv[0], made, out)
	}
}

func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not on this machine", tool)
		}
	}
}

// What a task finds in its environment is all that these clients need to come through
// the proxy of a VM that reaches names only.
func TestProxied_IsEnoughForClients(t *testing.T) {
	t.Parallel()
	t.Run("curl", func(t *testing.T) {
		t.Parallel()
		need(t, "curl")
		b := newBehind(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
		b.works("curl.example:443", "secure", "curl", "-sSf", "--cacert", b.ca, "-o", "secure", "https://curl.example/")
		b.works("curl.example:80", "plain", "curl", "-sSf", "-o", "plain", "http://curl.example/")
		if out, err := b.run("curl", "-sSf", "https://other.invalid/"); err == nil || !strings.Contains(out, "403") {
			t.Errorf("another name: %v, %s", err, out)
		}
	})
	t.Run("git", func(t *testing.T) {
		t.Parallel()
		need(t, "git")
		repo := t.TempDir()
		b := newBehind(t, http.FileServer(http.Dir(repo)))
		b.write("hello", "hello\n")
		for _, argv := range [][]string{
			{"init", "-q", "-b", "main", "from"}, {"-C", "from", "-c", "user.name=t", "-c", "user.email=t@example", "commit", "-q", "--allow-empty", "-m", "one"},
			{"clone", "-q", "--bare", "from", filepath.Join(repo, "it.git")}, {"-C", filepath.Join(repo, "it.git"), "update-server-info"},
		} {
			if out, err := b.run(append([]string{"git"}, argv...)...); err != nil {
				t.Fatalf("git %q: %v\n%s", argv, err, out)
			}
		}
		b.works("git.example:443", "it/.git/HEAD", "git", "-c", "http.sslCAInfo="+b.ca, "clone", "-q", "https://git.example/it.git")
	})
	t.Run("npm", func(t *testing.T) {
		t.Parallel()
		need(t, "npm")
		archive := tarball(t, "package/package.json", `{"name":"probe","version":"1.0.0"}`)
		b := newBehind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/probe":
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"name":"probe","dist-tags":{"latest":"1.0.0"},"versions":{"1.0.0":{"name":"probe","version":"1.0.0","dist":{"tarball":"https://npm.example/probe-1.0.0.tgz"}}}}`)
			case "/probe-1.0.0.tgz":
				_, _ = w.Write(archive)
			default:
				http.NotFound(w, r)
			}
		}))
		b.write("package.json", "{}")
		b.works("npm.example:443", "node_modules/probe/package.json", "npm", "install", "probe", "--registry", "https://npm.example/", "--cafile", b.ca,
			"--cache", filepath.Join(b.dir, "cache"), "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries", "0")
	})
	t.Run("pip", func(t *testing.T) {
		t.Parallel()
		need(t, "python3")
		file := wheel(t)
		b := newBehind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, ".whl") {
				_, _ = w.Write(file)
				return
			}
			w.Header().Set("Content-Type", "text/html")
			_, _ = io.WriteString(w, `<a href="/files/probe-1.0-py3-none-any.whl">probe-1.0-py3-none-any.whl</a>`)
		}))
		if out, err := b.run("python3", "-m", "pip", "--version"); err != nil {
			t.Skipf("pip is not on this machine: %s", out)
		}
		b.works("pypi.example:443", "got/probe-1.0-py3-none-any.whl", "python3", "-m", "pip", "--isolated", "--disable-pip-version-check", "--cert", b.ca,
			"download", "--no-deps", "--no-cache-dir", "--retries", "0", "--index-url", "https://pypi.example/simple", "-d", "got", "probe")
	})
	t.Run("apt", func(t *testing.T) {
		t.Parallel()
		need(t, "apt-get")
		const deb = "not really a package"
		b := newBehind(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch path.Base(r.URL.Path) { // of /./NAME
			case "Packages":
				_, _ = fmt.Fprintf(w, "Package: probe\nVersion: 1.0\nArchitecture: all\nMaintainer: t <t@example>\nFilename: ./probe_1.0_all.deb\nSize: %d\nSHA256: %x\nDescription: probe\n", len(deb), sha256.Sum256([]byte(deb)))
			case "probe_1.0_all.deb":
				_, _ = io.WriteString(w, deb)
			default:
				http.NotFound(w, r)
			}
		}))
		for _, scheme := range []string{"http", "https"} {
			target := "deb.example:" + map[string]string{"http": "80", "https": "443"}[scheme]
			root := filepath.Join(b.dir, scheme)
			for _, dir := range []string{"state/lists/partial", "cache/archives/partial", "etc", "log"} {
				if err := os.MkdirAll(filepath.Join(root, dir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			b.write(scheme+"/state/status", "")
			b.write(scheme+"/etc/sources.list", "deb [trusted=yes] "+scheme+"://deb.example/ ./\n")
			b.write("apt.conf", fmt.Sprintf(`Dir::Etc %q; Dir::Etc::Parts "/dev/null"; Dir::Etc::SourceParts "/dev/null"; Dir::Etc::PreferencesParts "/dev/null"; Dir::State %q; Dir::State::status %q; Dir::Cache %q; Dir::Log %q;
APT::Sandbox::User ""; Acquire::https::CaInfo %q; Acquire::AllowInsecureRepositories "true"; Acquire::Retries "0"; Acquire::Languages "none";
`, root+"/etc", root+"/state", root+"/state/status", root+"/cache", root+"/log", b.ca))
			b.works(target, scheme+"/state/lists/*Packages", "apt-get", "update")
			b.works(target, "probe_1.0_all.deb", "apt-get", "download", "probe")
			_ = os.Remove(filepath.Join(b.dir, "probe_1.0_all.deb"))
		}
	})
}

func tarball(t *testing.T, name, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(text))})
	if err == nil {
		_, err = io.WriteString(w, text)
	}
	for _, end := range []func() error{w.Close, z.Close} {
		if err == nil {
			err = end()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// wheel returns the smallest package that pip takes.
func wheel(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for name, text := range map[string]string{
		"probe.py":                     "",
		"probe-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n",
		"probe-1.0.dist-info/WHEEL":    "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
		"probe-1.0.dist-info/RECORD":   "probe.py,,\nprobe-1.0.dist-info/METADATA,,\nprobe-1.0.dist-info/WHEEL,,\nprobe-1.0.dist-info/RECORD,,\n",
	} {
		f, err := w.Create(name)
		if err == nil {
			_, err = io.WriteString(f, text)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
