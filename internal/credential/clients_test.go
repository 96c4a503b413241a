package credential_test

import (
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/wiretest"
)

// The CA in the variables, and the proxy, are all that programs need.
func TestTLSProxy_IsEnoughForClients(t *testing.T) {
	dir := t.TempDir()
	repo := filepath.Join(dir, "repo")
	w := newWorld(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") == "" {
			rw.WriteHeader(http.StatusUnauthorized)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/it.git/") {
			http.FileServer(http.Dir(repo)).ServeHTTP(rw, r)
			return
		}
		_, _ = io.WriteString(rw, "hello")
	})
	way, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer way.Close() //nolint:errcheck // it is to end
	wiretest.Start(t, way, w.proxy.Dial, 0)
	bundle := filepath.Join(dir, "ca-bundle.pem")
	if block, _ := pem.Decode(w.leg.CA()); block == nil || os.WriteFile(bundle, w.leg.CA(), 0o600) != nil {
		t.Fatal("no CA")
	}
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_TERMINAL_PROMPT=0", "HTTPS_PROXY=http://" + way.Addr().String(), "NODE_USE_ENV_PROXY=1"}
	for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"} {
		env = append(env, name+"="+bundle)
	}
	run := func(argv ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...) //nolint:gosec // the test's own
		cmd.Dir, cmd.Env = dir, env
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for _, argv := range [][]string{
		{"git", "init", "-q", "-b", "main", "from"}, {"git", "-C", "from", "-c", "user.name=t", "-c", "user.email=t@example", "commit", "-q", "--allow-empty", "-m", "one"},
		{"git", "clone", "-q", "--bare", "from", filepath.Join(repo, "it.git")}, {"git", "-C", filepath.Join(repo, "it.git"), "update-server-info"},
	} {
		if out, err := run(argv...); err != nil {
			t.Skipf("%q: %v, %s", argv, err, out)
		}
	}
	// node by itself knows no proxy before version 24: it speaks over a tunnel here.
	const node = `const http = require('http'), https = require('https'), at = new URL(process.env.HTTPS_PROXY)
http.request({host: at.hostname, port: at.port, method: 'CONNECT', path: 'any.example:443'}).on('connect', (r, socket) =>
  https.get({host: 'any.example', path: '/', socket, agent: false}, (r) => r.pipe(process.stdout).on('finish', () => process.exit())).on('error', (e) => { console.error(e); process.exit(1) })).end()`
	for tool, argv := range map[string][]string{
		"curl":    {"curl", "-sSf", "https://any.example/"},
		"python3": {"python3", "-c", "import urllib.request; print(urllib.request.urlopen('https://any.example/').read().decode())"},
		"node":    {"node", "-e", node},
		"git":     {"git", "clone", "-q", "https://any.example/it.git", "cloned"},
	} {
		t.Run(tool, func(t *testing.T) {
			if _, err := exec.LookPath(tool); err != nil {
				t.Skip(err)
			}
			out, err := run(argv...)
			if err == nil && tool == "git" {
				if _, err = os.Stat(filepath.Join(dir, "cloned", ".git", "HEAD")); err == nil {
					out = "hello"
				}
			}
			if err != nil || strings.TrimSpace(out) != "hello" {
				t.Errorf("%s: %v", fmt.Sprint(argv), err)
				t.Log(out)
			}
		})
	}
}
