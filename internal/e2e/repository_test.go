package e2e

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/lab"
	"linus/internal/tlstest"
)

// A job finds a repository in its VM and commits; its commits come back, are shown, and are on
// the server as a new branch, by a credential that was never in the VM. A second job goes on with
// it; a branch of somebody else's is refused before there is a VM.
func TestRepository_IsFetchedAndPushed(t *testing.T) {
	t.Parallel()
	const value = "git-the-value-that-no-vm-has"
	dir := t.TempDir()
	git := func(at string, args ...string) string {
		t.Helper()
		cmd := exec.Command("git", args...)
		cmd.Dir = at
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example.org", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example.org")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %s: %v: %s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	bare, work := filepath.Join(dir, "srv", "app.git"), filepath.Join(dir, "work")
	git(dir, "init", "-q", "--bare", "--initial-branch=main", bare)
	git(bare, "config", "http.receivepack", "true")
	git(dir, "init", "-q", "--initial-branch=main", work)
	if err := os.WriteFile(filepath.Join(work, "a.txt"), []byte("one\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	git(work, "add", ".")
	git(work, "commit", "-q", "-m", "one")
	git(work, "push", "-q", bare, "main", "main:theirs")

	pair := tlstest.New(t, "git.example", "127.0.0.1")
	ca := filepath.Join(dir, "ca.pem")
	pair.Write(t, ca, filepath.Join(dir, "key.pem"))
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	backend := &cgi.Handler{
		Path: filepath.Join(git(dir, "--exec-path"), "git-http-backend"), Stderr: io.Discard,
		Env: []string{"GIT_PROJECT_ROOT=" + filepath.Dir(bare), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=t", "GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*"},
	}
	site := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != value {
			w.Header().Set("WWW-Authenticate", "Basic")
			http.Error(w, "who are you?", http.StatusUnauthorized)
			return
		}
		backend.ServeHTTP(w, r)
	}))
	site.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	site.StartTLS()
	t.Cleanup(site.Close)
	_, port, _ := strings.Cut(strings.TrimPrefix(site.URL, "https://"), ":")
	url := "https://git.example:" + port + "/app.git"

	h := newHost(t, lab.DriverProcess, "LINUS_SECRET_GIT="+value, "SSL_CERT_FILE="+ca)
	h.knows(t, "git.example")
	h.cli(t, "credential", "add", "git", "--host", "git.example:"+port, "--header", "Authorization: Basic x-access-token", "--secret", "GIT")
	submit := []string{"job", "submit", "--wait", "--egress", "none", "--repo", url, "--repo-credential", "git", "--push"}
	for _, refused := range []struct{ branch, why string }{{"theirs", "theirs"}, {"main", "main"}} {
		if code, out := h.exits(t, append(submit, refused.branch, "--", "true")...); code == 0 || !strings.Contains(out, refused.why) {
			t.Errorf("push to %s: %d, %s", refused.branch, code, out)
		}
	}
	if out := h.cli(t, "vm", "list"); strings.Contains(out, "linus-job") {
		t.Errorf("VMs were made for what was refused: %s", out)
	}

	task := `set -e
git log --format=%s >log.txt
test -z "$(git status --porcelain --untracked-files=no)"
echo more >>a.txt
git -c user.name=j -c user.email=j@example.org commit -qam more
rm log.txt
env; cat .git/config`
	out := h.cli(t, append(submit, "agent/fix", "--", "bash", "-c", task)...)
	if strings.Contains(out, value) {
		t.Errorf("the value is in the VM: %s", out)
	}
	if got := git(bare, "log", "--format=%s", "agent/fix"); got != "more\none" {
		t.Errorf("pushed %q", got)
	}
	id := h.cli(t, "job", "list", "--status", "success", "-o", "json")
	_, id, _ = strings.Cut(id, `"id": "`)
	id, _, _ = strings.Cut(id, `"`)
	if diff := h.cli(t, "job", "diff", id); !strings.Contains(diff, "+more\n") || strings.Contains(diff, "log.txt") {
		t.Errorf("diff %s", diff)
	}
	if out := h.cli(t, "job", "result", id, "-o", "json"); !strings.Contains(out, `"commits": 1`) {
		t.Errorf("result %s", out)
	}

	h.cli(t, append(submit, "agent/fix", "--ref", "agent/fix", "--", "bash", "-c", strings.Replace(task, "qam more", "qam again", 1))...)
	if got := git(bare, "log", "--format=%s", "agent/fix"); got != "again\nmore\none" {
		t.Errorf("gone on with: %q", got)
	}
	if got := git(bare, "rev-parse", "main", "theirs"); got != git(work, "rev-parse", "main", "main") {
		t.Errorf("branches of others have moved: %s", got)
	}
}
