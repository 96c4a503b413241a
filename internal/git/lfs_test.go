package git_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"linus/internal/git"
	"linus/internal/gittest"
	"linus/internal/job"
	"linus/internal/tlstest"
)

// withLarge has large files in the repository, and a call that asks for them.
func withLarge(t *testing.T, files map[string][]byte) (*world, job.RepositoryCall) {
	t.Helper()
	if _, err := exec.LookPath("git-lfs"); err != nil {
		t.Skip("there is no git-lfs here")
	}
	w := overHTTPS(t)
	w.Commit(w.Work, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	for name, data := range files {
		w.Commit(w.Work, name, w.Pointer(data))
	}
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	return w, w.call(func(q *job.RepositoryCall) { q.Repository.LFS = true })
}

// checkout has large files in the work tree, as the runner in a VM does.
func (w *world) checkout(at string) {
	w.t.Helper()
	w.Git(at, "lfs", "install", "--local", "--skip-repo")
	w.Git(at, "lfs", "checkout")
}

// Large files come along, from wherever the server has them, whatever the repository itself says; a
// push that would lead to some that are in a VM alone is not made.
func TestLFS_InAndOut(t *testing.T) {
	one, two := bytes.Repeat([]byte("one"), 5000), bytes.Repeat([]byte("two"), 5000)
	w, q := withLarge(t, map[string][]byte{"one.bin": one, "two.bin": two})
	w.Elsewhere = "https://cdn.example"
	w.Commit(w.Work, ".lfsconfig", "[lfs]\n\turl = https://evil.example/lfs\n\tskipdownloaderrors = true\n[remote \"origin\"]\n\tlfsurl = file:///etc\n")
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	q.Push = "fix"
	c, err := w.git.Fetch(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	at := w.inVM(q, c)
	if left, _ := os.ReadDir(filepath.Join(at, ".git", "lfs")); len(left) != 1 {
		t.Errorf("beside the files: %v", left)
	}
	w.checkout(at)
	for name, want := range map[string][]byte{"one.bin": one, "two.bin": two} {
		if got, err := os.ReadFile(filepath.Join(at, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is %.100q, %v", name, got, err)
		}
	}
	if got := w.Git(at, "status", "--porcelain"); got != "" {
		t.Errorf("the task finds changes: %s", got)
	}
	q.Commit = c.Commit
	w.Git(at, "mv", "one.bin", "moved.bin")
	head := w.Commit(at, "b.txt", "two\n")
	if _, err := w.take(q, &c, w.bundle(at, c)); err != nil {
		t.Fatal(err)
	}
	if err := w.git.Push(t.Context(), q, head); err != nil {
		t.Fatal(err)
	}
	head = w.Commit(at, "new.bin", "it is new")
	if _, err := w.take(q, &c, w.bundle(at, c)); err != nil {
		t.Fatal(err)
	}
	q.Own = []string{w.Git(w.Bare, "rev-parse", "fix")}
	mustFail(t, w.git.Push(t.Context(), q, head), `the task has made "new.bin", a large file, and these are not taken from its VM`)
	if got := w.Git(w.Bare, "rev-parse", "fix"); got != q.Own[0] {
		t.Errorf("the branch is at %s", got)
	}
}

// Without the setting nothing of them is fetched; what is not there, or is not what it should be,
// is told.
func TestLFS_Refuses(t *testing.T) {
	w, q := withLarge(t, map[string][]byte{"one.bin": []byte("one")})
	plain := q
	plain.Repository.LFS = false
	c, err := w.git.Fetch(t.Context(), plain)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(w.inVM(plain, c), ".git", "lfs")); err == nil {
		t.Error("they were fetched")
	}
	w.Large = func(rw http.ResponseWriter, _ *http.Request, _ []byte) { _, _ = rw.Write([]byte("two")) }
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "git.example has something else in its place")
	w.Large = nil
	w.serve = func(rw http.ResponseWriter, r *http.Request, site http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/objects/batch") {
			_, _ = rw.Write([]byte("<html>"))
			return
		}
		site.ServeHTTP(rw, r)
	}
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "git.example does not answer like a Git LFS server")
	w.serve = nil
	w.Elsewhere = "https://%zz"
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "is not a URL")
	w.Elsewhere = ""
	w.Commit(w.Work, "one.bin", strings.Replace(w.Pointer([]byte("one")), "size 3", "size 4", 1))
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "git.example has something else in its place")
	w.Commit(w.Work, "one.bin", w.Pointer([]byte("one")))
	w.Commit(w.Work, "gone.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:"+strings.Repeat("0", 64)+"\nsize 4\n")
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "the server does not have it: it is not here")
}

// Where a server says that they are is reached by the way alone: not what is on this machine, or in
// its network.
func TestLFS_LeadsNowhereElse(t *testing.T) {
	w, q := withLarge(t, map[string][]byte{"one.bin": []byte("one")})
	var mu sync.Mutex
	var came []string
	here := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		came = append(came, r.Host)
		_, _ = rw.Write([]byte("one"))
	}))
	t.Cleanup(here.Close)
	secure, _ := tlstest.Serve(t, here.Config.Handler, "localhost", "127.0.0.1")
	_, port, _ := strings.Cut(here.Listener.Addr().String(), ":")
	_, tls, _ := strings.Cut(secure.Listener.Addr().String(), ":")
	for _, site := range []string{"http://127.0.0.1:" + port, "http://localhost:" + port, "http://[::ffff:127.0.0.1]:" + port, "http://0.0.0.0:" + port, "https://127.0.0.1:" + tls, "https://localhost:" + tls, "https://localhost.:" + tls} {
		w.Elsewhere, w.Large = site, nil
		said, led := "is not an address to fetch them from", "it redirects elsewhere without HTTPS"
		if strings.HasPrefix(site, "https:") { // it is asked for at the way, which does not lead there
			said, led = "unexpected EOF", "unexpected EOF"
		}
		_, err := w.git.Fetch(t.Context(), q)
		mustFail(t, err, said)
		w.Elsewhere, w.Large = "", func(rw http.ResponseWriter, r *http.Request, _ []byte) {
			http.Redirect(rw, r, site+"/x", http.StatusFound)
		}
		_, err = w.git.Fetch(t.Context(), q)
		mustFail(t, err, led)
	}
	for _, site := range []string{"file://" + w.Bare, "https://user:word@cdn.example"} {
		w.Elsewhere, w.Large = site, nil
		_, err := w.git.Fetch(t.Context(), q)
		mustFail(t, err, "is not an address to fetch them from")
		if strings.Contains(err.Error(), "word") {
			t.Errorf("it is told: %v", err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(came) > 0 {
		t.Errorf("reached past the way: %q", came)
	}
}

// A server leads elsewhere by HTTPS alone, not too often, and not what it was sent.
func TestLFS_Redirects(t *testing.T) {
	w, q := withLarge(t, map[string][]byte{"one.bin": []byte("one")})
	hops := 0
	w.Large = func(rw http.ResponseWriter, r *http.Request, data []byte) {
		if hops--; hops < 0 {
			_, _ = rw.Write(data)
			return
		}
		http.Redirect(rw, r, "https://cdn.example"+r.URL.Path, http.StatusFound)
	}
	hops = 5
	if _, err := w.git.Fetch(t.Context(), q); err != nil {
		t.Errorf("five times: %v", err)
	}
	hops = 6
	_, err := w.git.Fetch(t.Context(), q)
	mustFail(t, err, "it redirects elsewhere without HTTPS, or too often")
	w.Large = func(rw http.ResponseWriter, r *http.Request, _ []byte) {
		http.Redirect(rw, r, "http://cdn.example"+r.URL.Path, http.StatusFound)
	}
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "it redirects elsewhere without HTTPS, or too often")
	w.Large = nil
	w.serve = func(rw http.ResponseWriter, r *http.Request, site http.Handler) {
		if strings.HasSuffix(r.URL.Path, "/objects/batch") && r.Host == "git.example" {
			http.Redirect(rw, r, "https://cdn.example"+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		site.ServeHTTP(rw, r)
	}
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "it redirects elsewhere without HTTPS, or too often")
}

// They count for the limit, before one is fetched.
func TestLFS_Bound(t *testing.T) {
	data := bytes.Repeat([]byte("x"), 300_000)
	w, q := withLarge(t, map[string][]byte{"one.bin": data, "two.bin": append([]byte("2"), data...), "three.bin": append([]byte("3"), data...), "four.bin": append([]byte("4"), data...)})
	w.bounded(800_000)
	served := false
	w.Large = func(http.ResponseWriter, *http.Request, []byte) { served = true }
	_, err := w.git.Fetch(t.Context(), q)
	mustFail(t, err, "the limit is 800000")
	if served {
		t.Error("some were fetched")
	}
	// A server that sends more than it should is not listened to.
	w.bounded(2_000_000)
	var sent atomic.Int64
	w.Large = func(rw http.ResponseWriter, _ *http.Request, _ []byte) {
		for n := 1; n > 0 && sent.Add(int64(n)) < 1<<30; {
			n, _ = rw.Write(data)
		}
	}
	_, err = w.git.Fetch(t.Context(), q)
	mustFail(t, err, "git.example has something else in its place")
	if sent.Load() >= 1<<30 {
		t.Error("all of it was read")
	}
}

// What an engine's machine lacks is said before there is a job; git-lfs it does not need.
func TestReady_NamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	path, err := exec.LookPath("git")
	if err == nil {
		err = os.Symlink(path, filepath.Join(dir, "git"))
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	g := git.New(git.Options{Dir: dir})
	if err := g.Ready(job.Repository{URL: "https://git.example/app", LFS: true}); err != nil {
		t.Error(err)
	}
	mustFail(t, g.Ready(job.Repository{URL: "git@git.example:app"}), "needs ssh on the engine's machine")
}

// The programs that are looked for are those that run; they know nothing of the engine's own repository,
// have only so much memory, and end before the engine where its cgroup has none left.
func TestGit_RunsWhatItHasLookedFor(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	t.Setenv("GIT_DIR", dir)
	_, key := gittest.Key(t)
	way := git.Transport{Key: key, HostKey: "ssh-ed25519 AAAA", Close: func() {}}
	g := git.New(git.Options{Dir: t.TempDir(), Transport: func(context.Context, job.Repository, func(job.CredentialUse)) (git.Transport, error) { return way, nil }})
	q := job.RepositoryCall{Job: "one", Repository: job.Repository{URL: "git@git.example:app"}}
	_, err := g.Fetch(t.Context(), q)
	mustFail(t, err, `exec: "ssh": executable file not found`)
	for _, tool := range []string{"git", "ssh"} {
		if err := os.WriteFile(filepath.Join(dir, tool), []byte("#!/bin/sh\necho it is this one, "+
			"with ${GIT_DIR:-no other repository}, $(ulimit -d) KiB, $(read -r n </proc/self/oom_score_adj; echo $n), and ${GIT_SSH_COMMAND%% *} ${https_proxy:+by a proxy with ${GIT_SSL_CAINFO:-the roots of the machine}}>&2\n[ \"$GIT_SSH_COMMAND$https_proxy\" = \"\" ]\n"), 0o700); err != nil { //nolint:gosec // it is run
			t.Fatal(err)
		}
	}
	_, err = g.Fetch(t.Context(), q)
	mustFail(t, err, "git ls-remote: it is this one, with no other repository, 262144 KiB, 1000, and "+filepath.Join(dir, "ssh"))
	way.Key = []byte("no key")
	_, err = g.Fetch(t.Context(), q)
	mustFail(t, err, "read the credential's private key")
	way.Key = nil
	_, err = g.Fetch(t.Context(), q)
	mustFail(t, err, "by a proxy with the roots of the machine")
	way.CA = []byte("one")
	_, err = g.Fetch(t.Context(), q)
	mustFail(t, err, "/ca.pem")
}
