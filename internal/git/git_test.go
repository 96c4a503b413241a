package git_test

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"context"
	"crypto/rand"
	"crypto/sha1" //nolint:gosec // git's
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/crypto/ssh"

	"linus/internal/git"
	"linus/internal/gittest"
	"linus/internal/job"
	"linus/internal/tlstest"
)

// world is a git server, and a Git that reaches it.
type world struct {
	*gittest.Repository

	t       *testing.T
	git     *git.Git
	way     func(context.Context, job.Repository, func(job.CredentialUse)) (git.Transport, error)
	url     string
	refused string
	serve   func(rw http.ResponseWriter, r *http.Request, site http.Handler) // in place of the site; nil: it
}

// overHTTPS serves the repository behind a proxy as an engine's.
func overHTTPS(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{Repository: gittest.New(t), t: t, url: "https://git.example/app.git"}
	backend := w.HTTP()
	site, pair := tlstest.Serve(t, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if w.serve != nil {
			w.serve(rw, r, backend)
			return
		}
		backend.ServeHTTP(rw, r)
	}), "git.example", "cdn.example")
	w.way = func(context.Context, job.Repository, func(job.CredentialUse)) (git.Transport, error) {
		return git.Transport{CA: pair.Cert, Dial: proxyTo(site.Listener.Addr().String(), "git.example:443", "cdn.example:443"), Refused: func() string { return w.refused }, Close: func() {}}, nil
	}
	w.bounded(0)
	return w
}

// bounded has repositories of so many bytes only.
func (w *world) bounded(most int64) {
	w.git = git.New(git.Options{Dir: filepath.Join(w.Dir, "repositories"), Transport: w.way, MaxBytes: most})
}

// proxyTo is an HTTP proxy by which some hosts are at one address, and others nowhere.
func proxyTo(address string, hosts ...string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close() //nolint:errcheck // it is over
			r, err := http.ReadRequest(bufio.NewReader(far))
			if err != nil || r.Method != http.MethodConnect || r.Header.Get("Proxy-Authorization") != "" || !slices.Contains(hosts, r.Host) {
				return
			}
			up, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
			if err != nil {
				return
			}
			defer up.Close() //nolint:errcheck // it is over
			_, _ = io.WriteString(far, "HTTP/1.1 200 OK\r\n\r\n")
			go func() { _, _ = io.Copy(up, far) }()
			_, _ = io.Copy(far, up)
		}()
		return near, nil
	}
}

// overSSH serves the repository by a real sshd.
func overSSH(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	w := &world{Repository: gittest.New(t), t: t}
	user, userPEM := gittest.Key(t)
	port, hostKey := w.SSH(user.PublicKey())
	w.url = "ssh://root@localhost:" + port + w.Bare
	w.way = func(_ context.Context, r job.Repository, _ func(job.CredentialUse)) (git.Transport, error) {
		way := git.Transport{Key: userPEM, HostKey: hostKey, Close: func() {}}
		if r.Credential == "other" {
			_, way.Key = gittest.Key(t)
		}
		if r.Credential == "impostor" {
			way.HostKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(user.PublicKey())))
		}
		return way, nil
	}
	w.bounded(0)
	return w
}

func (w *world) call(change ...func(*job.RepositoryCall)) job.RepositoryCall {
	q := job.RepositoryCall{Job: "0197a1b2-0000-7000-8000-000000000001", Repository: job.Repository{URL: w.url, Credential: "git"}, Used: func(job.CredentialUse) {}}
	for _, c := range change {
		c(&q)
	}
	return q
}

// inVM unpacks what goes into a VM, as the runner there does.
func (w *world) inVM(q job.RepositoryCall, c job.Checkout) string {
	w.t.Helper()
	archive, size, err := w.git.Archive(q.Job)
	if err != nil {
		w.t.Fatal(err)
	}
	defer archive.Close() //nolint:errcheck // only read
	at := filepath.Join(w.t.TempDir(), "vm")
	if err := os.Mkdir(at, 0o700); err != nil {
		w.t.Fatal(err)
	}
	tar := exec.Command("tar", "-x", "-C", at)
	tar.Stdin = io.NewSectionReader(archive, 0, size)
	if out, err := tar.CombinedOutput(); err != nil {
		w.t.Fatalf("%v, %s", err, out)
	}
	w.Git(at, "reset", "-q", "--hard", c.Commit)
	return at
}

// begun is a job whose task finds its repository at a path.
func begun(t *testing.T) (w *world, q job.RepositoryCall, c job.Checkout, at string) {
	t.Helper()
	w = overHTTPS(t)
	q = w.call()
	c, err := w.git.Fetch(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return w, q, c, w.inVM(q, c)
}

// bundle is what a VM makes of its commits.
func (w *world) bundle(at string, c job.Checkout, refs ...string) []byte {
	w.t.Helper()
	if refs == nil {
		refs = []string{"HEAD"}
	}
	name := filepath.Join(w.t.TempDir(), "bundle")
	w.Git(at, slices.Concat([]string{"bundle", "create", "-q", name}, refs, []string{"--not", c.Commit})...)
	data, err := os.ReadFile(name)
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

func (w *world) take(q job.RepositoryCall, c *job.Checkout, bundle []byte) (string, error) {
	w.t.Helper()
	patch, err := w.git.Take(w.t.Context(), q, c, bytes.NewReader(bundle), 1<<20)
	if err != nil {
		return "", err
	}
	if patch == nil {
		w.t.Error("no patch")
		return "", nil
	}
	defer patch.Close() //nolint:errcheck // only read
	text, err := io.ReadAll(patch)
	return string(text), err
}

// within reports whether something becomes so in some time.
func within(patience time.Duration, is func() bool) bool {
	for deadline := time.Now().Add(patience); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func mustFail(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

// In by HTTPS and by SSH; a job's commits out to a new branch, and another job's on it.
func TestGit_InAndOut(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *world{"https": overHTTPS, "ssh": overSSH} {
		t.Run(name, func(t *testing.T) {
			w := open(t)
			q := w.call(func(q *job.RepositoryCall) { q.Push = "fix/one" })
			c, err := w.git.Fetch(t.Context(), q)
			if err != nil {
				t.Fatal(err)
			}
			at := w.inVM(q, c)
			if got := w.Git(at, "status", "-b", "--porcelain"); got != "## fix/one" || c.Ref != "refs/heads/main" {
				t.Errorf("the task finds %q, of %s", got, c.Ref)
			}
			if got := w.Git(at, "config", "remote.origin.url"); got != w.url {
				t.Errorf("origin %s", got)
			}
			head := w.Commit(at, "b.txt", "two\n")
			patch, err := w.take(q, &c, w.bundle(at, c))
			if err != nil || c.Head != head || c.Commits != 1 || c.Files != 1 || c.Insertions != 1 || !strings.Contains(patch, " b.txt | 1 +\n") || !strings.Contains(patch, "\n+two\n") {
				t.Fatalf("%+v, %v, patch %s", c, err, patch)
			}
			for range 2 { // it may have been interrupted after it
				if err := w.git.Push(t.Context(), q, head); err != nil {
					t.Fatal(err)
				}
			}
			if got := w.Git(w.Bare, "rev-parse", "fix/one"); got != head {
				t.Errorf("the branch is at %s, not %s", got, head)
			}

			_, err = w.git.Fetch(t.Context(), q)
			mustFail(t, err, "branch fix/one exists, and its current commit was not pushed")
			q.Own = []string{head}
			_, err = w.git.Fetch(t.Context(), q)
			mustFail(t, err, "this job is not based on it")
			q.Repository.Ref = "fix/one"
			if c, err = w.git.Fetch(t.Context(), q); err != nil || c.Commit != head {
				t.Fatal(c, err)
			}
			at = w.inVM(q, c)
			next := w.Commit(at, "c.txt", "three\n")
			if _, err := w.take(q, &c, w.bundle(at, c)); err != nil {
				t.Fatal(err)
			}
			// Somebody else was there in the meantime.
			other := w.Commit(w.Work, "z.txt", "z\n")
			w.Git(w.Work, "push", "-q", "--force", w.Bare, other+":refs/heads/fix/one")
			mustFail(t, w.git.Push(t.Context(), q, next), "was not pushed by a job of yours")
			if got := w.Git(w.Bare, "rev-parse", "fix/one"); got != other {
				t.Errorf("the branch is at %s, not %s", got, other)
			}
			w.git.Forget(q.Job)
			if w.git.Has(q.Job) {
				t.Error("it is there still")
			}
		})
	}
}

// A push whose answer is lost was made, and one that was cut before was not.
func TestPush_AnswerIsLost(t *testing.T) {
	w := overHTTPS(t)
	for _, made := range []bool{true, false} {
		q := w.call(func(q *job.RepositoryCall) { q.Push = fmt.Sprintf("fix-%v", made) })
		c, err := w.git.Fetch(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		at := w.inVM(q, c)
		head := w.Commit(at, "b.txt", "two\n")
		if _, err := w.take(q, &c, w.bundle(at, c)); err != nil {
			t.Fatal(err)
		}
		w.serve = func(rw http.ResponseWriter, r *http.Request, site http.Handler) {
			if r.Method != http.MethodPost || !strings.HasSuffix(r.URL.Path, "/git-receive-pack") {
				site.ServeHTTP(rw, r)
				return
			}
			if made {
				site.ServeHTTP(httptest.NewRecorder(), r)
			}
			panic(http.ErrAbortHandler)
		}
		if err := w.git.Push(t.Context(), q, head); (err == nil) != made {
			t.Errorf("made: %v, it says %v", made, err)
		}
		w.serve = nil
	}
}

// While git uses the way, nobody else on this machine can: its proxy wants the password that git alone has.
func TestWay_IsGitsAlone(t *testing.T) {
	w := overHTTPS(t)
	open := w.way
	var dialled, asked atomic.Int64
	w.way = func(ctx context.Context, r job.Repository, used func(job.CredentialUse)) (git.Transport, error) {
		way, err := open(ctx, r, used)
		dial := way.Dial
		way.Dial = func(ctx context.Context) (net.Conn, error) { dialled.Add(1); return dial(ctx) }
		return way, err
	}
	w.bounded(0)
	ask := func(method string, proxy *url.URL, user *url.Userinfo) string {
		c, err := net.Dial("tcp", proxy.Host)
		if err != nil {
			return err.Error()
		}
		defer c.Close() //nolint:errcheck // only asked
		head := method + " git.example:443 HTTP/1.1\r\nHost: git.example:443\r\n"
		if user != nil {
			head += "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(user.String())) + "\r\n"
		}
		_, _ = io.WriteString(c, head+"\r\n")
		answer, _ := bufio.NewReader(c).ReadString('\n')
		return strings.TrimSpace(answer)
	}
	w.serve = func(rw http.ResponseWriter, r *http.Request, site http.Handler) {
		if proxy := w.proxy(); proxy != nil && asked.CompareAndSwap(0, 1) {
			before := dialled.Load()
			for _, user := range []*url.Userinfo{nil, url.User("linus"), url.UserPassword("linus", "x"), url.UserPassword("other", proxy.User.String()), url.UserPassword("", "")} {
				if got := ask(http.MethodConnect, proxy, user); got != "HTTP/1.1 407 Proxy Authentication Required" {
					t.Errorf("%v: it answers %q", user, got)
				}
			}
			if got := ask(http.MethodOptions, proxy, proxy.User); got != "HTTP/1.1 407 Proxy Authentication Required" {
				t.Errorf("what git does not ask: %q", got)
			}
			if dialled.Load() != before {
				t.Error("the way was opened for somebody else")
			}
			if got := ask(http.MethodConnect, proxy, proxy.User); got != "HTTP/1.1 200 OK" {
				t.Errorf("with git's password: %q", got)
			}
		}
		site.ServeHTTP(rw, r)
	}
	if _, err := w.git.Fetch(t.Context(), w.call()); err != nil || asked.Load() != 1 {
		t.Errorf("%v; git was asked for its proxy %d times", err, asked.Load())
	}
}

// proxy is the one that a git of this world has in its environment.
func (w *world) proxy() *url.URL {
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, name := range all {
		if env, _ := os.ReadFile(name); bytes.Contains(env, []byte("HOME="+filepath.Join(w.Dir, "repositories")+"\x00")) {
			for variable := range strings.SplitSeq(string(env), "\x00") {
				if text, ok := strings.CutPrefix(variable, "https_proxy="); ok {
					proxy, _ := url.Parse(text)
					return proxy
				}
			}
		}
	}
	return nil
}

// What a job may not push to is refused before there is a VM, and so is what is not there.
func TestFetch_Refuses(t *testing.T) {
	w := overHTTPS(t)
	push := func(branch string) func(*job.RepositoryCall) {
		return func(q *job.RepositoryCall) { q.Push = branch }
	}
	ref := func(ref string) func(*job.RepositoryCall) {
		return func(q *job.RepositoryCall) { q.Repository.Ref = ref }
	}
	fetch := func(change func(*job.RepositoryCall), want string) {
		t.Helper()
		q := w.call(change)
		_, err := w.git.Fetch(t.Context(), q)
		mustFail(t, err, want)
		if left, _ := os.ReadDir(filepath.Join(w.Dir, "repositories")); len(left) != 0 {
			t.Errorf("left %v", left)
		}
	}
	fetch(push("main"), "branch main exists")
	w.Git(w.Bare, "branch", "fix/a/one", "main")
	fetch(push("main/next"), "branch main exists, and git has no main/next beside it: choose another push.branch")
	fetch(push("fix"), "branch fix/a/one exists, and git has no fix beside it")
	fetch(push("fix/a"), "branch fix/a/one exists, and git has no fix/a beside it")
	fetch(ref("nothing"), `no branch and no tag "nothing"`)
	fetch(ref(w.Git(w.Bare, "rev-parse", "--short", "main")), "a commit is named by all 40 digits of its hash")
	fetch(ref(strings.Repeat("a", 40)), "git fetch")
	w.Git(w.Bare, "config", "http.receivepack", "false")
	fetch(push("new"), "could not be pushed with credential git: git push: fatal: unable to access")
	w.refused = "git.example:443 is not reached: its address is not public"
	fetch(func(q *job.RepositoryCall) { q.Repository.URL = "https://git.example/other.git" }, w.refused)
	w.refused = ""
	fetch(func(q *job.RepositoryCall) { q.Commit = strings.Repeat("a", 40) }, "it no longer has commit "+strings.Repeat("a", 40))
	w.serve = func(rw http.ResponseWriter, r *http.Request, site http.Handler) {
		gittest.Behind("x", site).ServeHTTP(rw, r)
	}
	fetch(func(*job.RepositoryCall) {}, "the server requires a login, or does not accept the credential")
	w.serve = nil
	empty := filepath.Join(filepath.Dir(w.Bare), "empty.git")
	w.Git(w.Dir, "init", "-q", "--bare", empty)
	fetch(func(q *job.RepositoryCall) { q.Repository.URL = "https://git.example/empty.git" }, "it has no commit yet")
}

// Branches, tags and commits; the commit that a job began with stays its own.
func TestFetch_Refs(t *testing.T) {
	w := overHTTPS(t)
	first := w.Git(w.Work, "rev-parse", "HEAD")
	w.Git(w.Work, "tag", "-a", "-m", "one", "v1")
	second := w.Commit(w.Work, "b.txt", "two\n")
	w.Git(w.Work, "tag", "both", first)
	w.Git(w.Work, "push", "-q", w.Bare, "main", "v1", "refs/tags/both", "main:refs/heads/both")
	for ref, want := range map[string]job.Checkout{
		"": {Ref: "refs/heads/main", Commit: second}, "main": {Ref: "refs/heads/main", Commit: second}, "v1": {Ref: "refs/tags/v1", Commit: first},
		"refs/tags/v1": {Ref: "refs/tags/v1", Commit: first}, first: {Commit: first},
		"both": {Ref: "refs/heads/both", Commit: second}, "refs/tags/both": {Ref: "refs/tags/both", Commit: first},
	} {
		q := w.call(func(q *job.RepositoryCall) { q.Repository.Ref = ref })
		c, err := w.git.Fetch(t.Context(), q)
		if err != nil || c != want {
			t.Errorf("%q: %+v, %v, want %+v", ref, c, err, want)
			continue
		}
		at := w.inVM(q, c)
		if got := w.Git(at, "rev-parse", "HEAD"); got != want.Commit {
			t.Errorf("%q: the task finds %s", ref, got)
		}
		if name := strings.Replace(want.Ref, "refs/heads/", "refs/remotes/origin/", 1); name != "" && w.Git(at, "rev-parse", name+"^{commit}") != want.Commit {
			t.Errorf("%q: the task does not find %s", ref, name)
		}
		if _, err := os.Stat(filepath.Join(at, ".git", "FETCH_HEAD")); err == nil {
			t.Errorf("%q: the task finds where it was fetched from", ref)
		}
	}
	q := w.call(func(q *job.RepositoryCall) { q.Commit = first })
	if c, err := w.git.Fetch(t.Context(), q); err != nil || c.Commit != first {
		t.Errorf("%+v, %v", c, err)
	}
	// A server may lead to what is no branch.
	w.Git(w.Bare, "update-ref", "refs/other/main", first)
	w.Git(w.Bare, "symbolic-ref", "HEAD", "refs/other/main")
	if c, err := w.git.Fetch(t.Context(), w.call()); err != nil || c != (job.Checkout{Ref: "HEAD", Commit: first}) {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestFetch_Submodules(t *testing.T) {
	w := overHTTPS(t)
	lib := filepath.Join(filepath.Dir(w.Bare), "lib.git")
	w.Git(w.Dir, "clone", "-q", "--bare", w.Work, lib)
	w.Git(w.Work, "submodule", "--quiet", "add", "--", lib, "vendor/lib")
	w.Git(w.Work, "config", "-f", ".gitmodules", "submodule.vendor/lib.url", "../lib.git")
	w.Commit(w.Work, "b.txt", "two\n")
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	q := w.call()
	c, err := w.git.Fetch(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(w.inVM(q, c), ".git", "modules")); err == nil {
		t.Error("they were fetched, and nobody has asked for them")
	}
	q.Repository.Submodules = true
	if c, err = w.git.Fetch(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	at := w.inVM(q, c)
	w.Git(at, "submodule", "--quiet", "update", "--init", "--recursive", "--no-fetch")
	if text, err := os.ReadFile(filepath.Join(at, "vendor/lib/a.txt")); err != nil || string(text) != "one\n" {
		t.Errorf("%q, %v", text, err)
	}
	for url, want := range map[string]string{"https://evil.example/x.git": "not on the host", "file:///etc": "is neither", "ext::sh -c id": "is not a URL", "-x": "is neither"} {
		w.Git(w.Work, "config", "-f", ".gitmodules", "submodule.vendor/lib.url", url)
		w.Commit(w.Work, "b.txt", url)
		w.Git(w.Work, "push", "-q", w.Bare, "main")
		_, err := w.git.Fetch(t.Context(), q)
		mustFail(t, err, want)
	}
}

// All that belongs to a repository is bounded together, and a .gitmodules that describes nothing is none.
func TestFetch_SubmodulesAreBounded(t *testing.T) {
	w := overHTTPS(t)
	q := w.call(func(q *job.RepositoryCall) { q.Repository.Submodules = true })
	for _, text := range []string{"", "[submodule \"x\"]\n\turl = ../x.git\n", "[other]\n\tpath\n",
		"[submodule \"x\"]\n\turl = ../x.git\n\tpath = a.txt\n", "[submodule \"x\"]\n\turl = ../x.git\n\tpath = nothing\n", "[submodule]\n\turl = ../x.git\n\tpath = a.txt\n",
		described(50), described(1, strings.Repeat("x", 200))} {
		w.Commit(w.Work, ".gitmodules", text)
		w.Git(w.Work, "push", "-q", w.Bare, "main")
		if _, err := w.git.Fetch(t.Context(), q); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for text, want := range map[string]string{
		described(51): "it has more than 50 submodules", described(1, "../../x"): "has a name that is not accepted", described(1, "x/../../x"): "has a name that is not accepted",
		described(1, ".git"): "has a name that is not accepted", described(1, "x//y"): "has a name that is not accepted", described(1, strings.Repeat("x", 201)): "has a name that is not accepted",
	} {
		w.Commit(w.Work, ".gitmodules", text)
		w.Git(w.Work, "push", "-q", w.Bare, "main")
		_, err := w.git.Fetch(t.Context(), q)
		mustFail(t, err, want)
	}
	lib := filepath.Join(w.Dir, "lib")
	w.Git(w.Dir, "init", "-q", "--initial-branch=main", lib)
	noise := make([]byte, 300<<10)
	_, _ = rand.Read(noise)
	w.Commit(lib, "noise", string(noise))
	w.Git(w.Dir, "clone", "-q", "--bare", lib, filepath.Join(filepath.Dir(w.Bare), "lib.git"))
	w.Git(w.Work, "rm", "-q", ".gitmodules")
	w.Git(w.Work, "commit", "-q", "-m", "none")
	for _, name := range []string{"one", "two"} {
		w.Git(w.Work, "submodule", "--quiet", "add", "--", filepath.Join(filepath.Dir(w.Bare), "lib.git"), name)
		w.Git(w.Work, "config", "-f", ".gitmodules", "submodule."+name+".url", "../lib.git")
	}
	w.Commit(w.Work, "b.txt", "two\n")
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	w.bounded(500 << 10)
	_, err := w.git.Fetch(t.Context(), q)
	mustFail(t, err, "the limit is 512000")
}

// described is a .gitmodules of so many submodules that are not there, of which some have these names.
func described(n int, names ...string) string {
	var text strings.Builder
	for i := range n {
		name := fmt.Sprint("x", i)
		if i < len(names) {
			name = names[i]
		}
		fmt.Fprintf(&text, "[submodule %q]\n\tpath = nothing\n\turl = ../x.git\n", name)
	}
	return text.String()
}

// A submodule is no way to what the credential is not for.
func TestSSH_SubmodulesAreWhereTheCredentialIsFor(t *testing.T) {
	w := overSSH(t)
	open := w.way
	w.way = func(ctx context.Context, r job.Repository, used func(job.CredentialUse)) (git.Transport, error) {
		way, err := open(ctx, r, used)
		at, _ := r.Where()
		way.Reads = job.CredentialSpec{Name: "deploy", Host: net.JoinHostPort(at.Host, at.Port), Path: at.Path, HostKey: way.HostKey}.Reads
		return way, err
	}
	w.bounded(0)
	lib := filepath.Join(filepath.Dir(w.Bare), "lib.git")
	w.Git(w.Dir, "clone", "-q", "--bare", w.Work, lib)
	w.Git(w.Work, "submodule", "--quiet", "add", "--", lib, "lib")
	for url, want := range map[string]string{"../lib.git": "is for paths that begin with " + w.Bare, strings.Replace(w.url, "root@", "other@", 1): "it is not on the host of its repository"} {
		w.Git(w.Work, "config", "-f", ".gitmodules", "submodule.lib.url", url)
		w.Commit(w.Work, "b.txt", url)
		w.Git(w.Work, "push", "-q", w.Bare, "main")
		_, err := w.git.Fetch(t.Context(), w.call(func(q *job.RepositoryCall) { q.Repository.Submodules = true }))
		mustFail(t, err, want)
	}
}

// What comes from a VM is not what it should be.
func TestTake_Hostile(t *testing.T) {
	w, q, c, at := begun(t)
	w.Commit(at, "b.txt", "two\n")
	good := w.bundle(at, c)
	head, pack, _ := bytes.Cut(good, []byte("\n\n"))
	line := func(text string) []byte {
		return append([]byte(string(head)+"\n"+text+"\n\n"), pack...)
	}
	damaged := bytes.Clone(good)
	damaged[len(damaged)-40] ^= 1
	evil := exec.Command("git", "-C", at, "mktree", "--missing")
	evil.Stdin = strings.NewReader("040000 tree " + w.Git(at, "rev-parse", "HEAD^{tree}") + "\t.git\n")
	tree, err := evil.Output()
	if err != nil {
		t.Fatal(err)
	}
	w.Git(at, "reset", "-q", "--soft", w.Git(at, "commit-tree", "-p", "HEAD", "-m", "evil", strings.TrimSpace(string(tree))))
	dotgit := w.bundle(at, c)
	w.Git(at, "tag", "-a", "-m", "one", "v1", "HEAD~")
	tagged := bytes.Replace(w.bundle(at, c, "v1"), []byte(" refs/tags/v1\n"), []byte(" HEAD\n"), 1)
	for name, data := range map[string][]byte{
		"nothing": nil, "no bundle": []byte("hello\n\n"), "no end": head, "another ref": line(strings.Repeat("a", 40) + " refs/heads/main"), "HEAD twice": line(strings.Repeat("a", 40) + " HEAD"),
		"cut": good[:len(good)-30], "damaged": damaged, "no pack": append(bytes.Clone(head), "\n\n"...), "v3": bytes.Replace(good, []byte("# v2"), []byte("# v3"), 1),
		"a commit that is not there": append([]byte("# v2 git bundle\n"+strings.Repeat("a", 40)+" HEAD\n\n"), pack...), "a .git in its tree": dotgit,
		"no refs": append([]byte("# v2 git bundle\n\n"), pack...), "a tag": tagged,
		"a long line": append([]byte("# v2 git bundle\n-"+strings.Repeat("a", 1<<20)+"\n\n"), pack...),
	} {
		got := c
		_, err := w.take(q, &got, data)
		if malformed := new(job.MalformedBundle); !errors.As(err, &malformed) {
			t.Errorf("%s: %v, %+v", name, err, got)
		}
	}
	for _, text := range []string{c.Commit + " refs/heads/main", "main HEAD", " HEAD", c.Commit + " HEAD", c.Commit} { // these are read no further
		before := ""
		if text == c.Commit+" HEAD" {
			before = text + "\n" // twice
		}
		_, err := w.take(q, new(job.Checkout), []byte("# v2 git bundle\n"+before+text+"\n\n"))
		mustFail(t, err, fmt.Sprintf("it has the ref %q", text))
	}
	if _, err := w.take(q, &c, good); err != nil || c.Commits != 1 {
		t.Errorf("after all that: %+v, %v", c, err)
	}
	if entries, err := os.ReadDir(filepath.Join(w.Dir, "repositories", q.Job)); err != nil || len(entries) != 2 {
		t.Errorf("beside the repository and its archive: %v, %v", entries, err)
	}
}

// An object that says it is larger than any memory is not made room for, and what an engine cannot do
// says nothing of the bundle: it is not as one that is malformed.
func TestTake_WhatTheEngineCannotDo(t *testing.T) {
	w, q, c, at := begun(t)
	w.Commit(at, "b.txt", "two\n")
	good := w.bundle(at, c)
	fails := func(ctx context.Context, bundle io.Reader, want string) {
		t.Helper()
		got := c
		_, err := w.git.Take(ctx, q, &got, bundle, 1<<20)
		mustFail(t, err, want)
		if malformed := new(job.MalformedBundle); errors.As(err, &malformed) {
			t.Errorf("the bundle is said to be malformed: %v", err)
		}
	}
	pack := bytes.NewBufferString("PACK\x00\x00\x00\x02\x00\x00\x00\x01")
	size := uint64(300 << 20)
	pack.WriteByte(2<<4 | byte(size&15) | 0x80) // a tree
	pack.Write(binary.AppendUvarint(nil, size>>4))
	z := zlib.NewWriter(pack)
	_, _ = z.Write(make([]byte, 100))
	_ = z.Close()
	sum := sha1.Sum(pack.Bytes()) //nolint:gosec // git's
	pack.Write(sum[:])
	fails(t.Context(), bytes.NewReader(append([]byte("# v2 git bundle\n"+c.Commit+" HEAD\n\n"), pack.Bytes()...)), "Out of memory, malloc failed")

	ended, end := context.WithCancelCause(t.Context())
	end(errors.New("the time is up"))
	fails(ended, bytes.NewReader(good), "the time is up")
	for _, n := range []int{3, len(good) - 1} { // of what the store has
		fails(t.Context(), io.MultiReader(bytes.NewReader(good[:n]), iotest.ErrReader(errors.New("the database is away"))), "the database is away")
	}
	w.bounded(10)
	fails(t.Context(), bytes.NewReader(good), "git index-pack")
	w.bounded(0)
	objects := filepath.Join(w.Dir, "repositories", q.Job, ".git", "objects", "pack")
	if err := errors.Join(os.Rename(objects, objects+"-away"), os.WriteFile(objects, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	fails(t.Context(), bytes.NewReader(good), "git index-pack")
	if err := errors.Join(os.Remove(objects), os.Rename(objects+"-away", objects)); err != nil {
		t.Fatal(err)
	}
	if _, err := w.take(q, &c, good); err != nil || c.Commits != 1 {
		t.Errorf("after all that: %+v, %v", c, err)
	}
}

// What a VM has committed is not read before its size is known: a file of zeros, which is nothing in a
// bundle, is in the patch by its name.
func TestTake_LargeFilesAreNotRead(t *testing.T) {
	w, q, c, at := begun(t)
	for name, size := range map[string]int64{"zeros": 264 << 20, "small": 1000} {
		f, err := os.Create(filepath.Join(at, name))
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Git(at, "config", "core.bigFileThreshold", "1m")
	w.Git(at, "config", "core.compression", "1")
	w.Commit(at, "b.txt", "two\n")
	patch, err := w.take(q, &c, w.bundle(at, c))
	if err != nil || c.Files != 3 || c.Insertions != 1 || !strings.Contains(patch, " zeros | Bin 0 -> 276824064 bytes\n") || strings.Contains(patch, "b/zeros") || !strings.Contains(patch, "\n+two\n") || !strings.Contains(patch, "GIT binary patch") {
		t.Errorf("%+v, %v, patch of %d bytes: %.2000s", c, err, len(patch), patch)
	}
	c.Commit = c.Head
	w.Git(at, "mv", "zeros", "elsewhere")
	w.Git(at, "mv", "a.txt", "there")
	w.Commit(at, "small", "\x00")
	if patch, err = w.take(q, &c, w.bundle(at, c)); err != nil || c.Files != 3 || !strings.Contains(patch, " zeros => elsewhere | Bin\n") || strings.Contains(patch, "b/elsewhere") || !strings.Contains(patch, "rename to there") || !strings.Contains(patch, "GIT binary patch") {
		t.Errorf("%+v, %v, patch of %d bytes: %.2000s", c, err, len(patch), patch)
	}
}

// What is in no commit is in the patch, and is not what is pushed.
func TestTake_Uncommitted(t *testing.T) {
	w, q, c, at := begun(t)
	w.Git(at, "update-ref", "refs/linus/uncommitted", w.Commit(at, "b.txt", "two\n"))
	got := c
	patch, err := w.take(q, &got, w.bundle(at, c, "refs/linus/uncommitted"))
	if err != nil || !got.Uncommitted || got.Head != "" || got.Commits != 0 || got.Files != 1 || !strings.Contains(patch, "\n+two\n") {
		t.Errorf("%+v, %v, patch %s", got, err, patch)
	}
	// A patch beyond the bound, or beyond what its summary leaves of that, is none, and all else is.
	w.Git(at, "mv", "b.txt", strings.Repeat("n", 200))
	for i := range 40 {
		if err := os.WriteFile(filepath.Join(at, fmt.Sprint(i, strings.Repeat("x", 100))), bytes.Repeat([]byte("line\n"), 100), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	w.Commit(at, "c.txt", "three\n")
	bundle := w.bundle(at, c)
	for most, want := range map[int64]bool{1: false, 1000: false, 10_000: false, 1 << 20: true} {
		got = c
		patch, err := w.git.Take(t.Context(), q, &got, bytes.NewReader(bundle), most)
		if err != nil || got.Files != 42 || got.Commits != 2 || (patch != nil) != want {
			t.Errorf("%d bytes: %+v, %v, patch %v", most, got, err, patch != nil)
		}
		if patch != nil {
			_ = patch.Close()
		}
	}
}

// Of files that are no text so many are in a patch, together, and no more.
func TestTake_BinaryFilesAreBounded(t *testing.T) {
	w, q, c, at := begun(t)
	zeros := strings.Repeat("\x00", 4<<20)
	for n := range 5 {
		w.Commit(at, fmt.Sprint("zeros", n), zeros[:len(zeros)-1]+fmt.Sprint(n))
		if n < 3 {
			continue
		}
		got := c
		if patch, err := w.take(q, &got, w.bundle(at, c)); err != nil || got.Files != n+1 || strings.Count(patch, "GIT binary patch") != map[int]int{3: 4, 4: 0}[n] || strings.Count(patch, "b/zeros0") == 0 {
			t.Errorf("%d: %+v, %v, patch of %d bytes: %.2000s", n, got, err, len(patch), patch)
		}
	}
}

// A server that lists refs without end is not listened to for as long as it likes.
func TestFetch_RefsWithoutEnd(t *testing.T) {
	w := overHTTPS(t)
	var sent atomic.Int64
	w.serve = func(rw http.ResponseWriter, r *http.Request, site http.Handler) {
		if r.Method != http.MethodPost {
			site.ServeHTTP(rw, r)
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "application/x-git-upload-pack-result")
		var refs bytes.Buffer
		for i := range 5000 {
			text := fmt.Sprintf("%040d refs/heads/%0200d\n", i+1, sent.Load()+int64(i))
			fmt.Fprintf(&refs, "%04x%s", len(text)+4, text)
		}
		for sent.Load() < 2<<30 {
			n, err := rw.Write(refs.Bytes())
			if sent.Add(int64(n)); err != nil {
				return
			}
		}
	}
	_, err := w.git.Fetch(t.Context(), w.call())
	mustFail(t, err, "it may have 256 MiB here")
	if sent.Load() > 1<<30 {
		t.Errorf("%d bytes were read", sent.Load())
	}
}

// What has ended with its engine twice is not begun again, and what ends by itself counts for nothing.
func TestGit_GivesUp(t *testing.T) {
	w := overHTTPS(t)
	q := w.call()
	var c job.Checkout
	for range 3 {
		var err error
		if c, err = w.git.Fetch(t.Context(), q); err != nil {
			t.Fatal(err)
		}
	}
	at := w.inVM(q, c)
	w.Commit(at, "b.txt", "two\n")
	bundle := w.bundle(at, c)
	left := make(chan error, 2)
	var ends []*io.PipeWriter
	for range 2 { // each is an engine that never comes to its end
		held, from := io.Pipe()
		ends = append(ends, from)
		t.Cleanup(func() { _ = from.Close() })
		w.bounded(0)
		of := w.git
		go func() {
			got := c
			_, err := of.Take(context.WithoutCancel(t.Context()), q, &got, held, 1<<20)
			left <- err
		}()
		if _, err := from.Write([]byte("#")); err != nil {
			t.Fatal(err)
		}
	}
	w.bounded(0)
	got := c
	_, err := w.take(q, &got, bundle)
	mustFail(t, err, "it was tried 2 times, and the engine ended in the middle of it")
	if _, err = w.git.Fetch(t.Context(), q); err == nil {
		t.Error("it was fetched anew")
	}
	for _, from := range ends {
		_ = from.CloseWithError(errors.New("over"))
		<-left
	}
	if _, err := w.take(q, &c, bundle); err != nil {
		t.Error(err)
	}
}

// Not all jobs' repositories are fetched or pushed at once, nor checked, and neither waits for the other.
func TestGit_SomeAtOnce(t *testing.T) {
	w := overHTTPS(t)
	c, err := w.git.Fetch(t.Context(), w.call())
	if err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(t.Context())
	entered := make(chan string, 100)
	w.way = func(ctx context.Context, _ job.Repository, _ func(job.CredentialUse)) (git.Transport, error) {
		entered <- "at a server"
		<-ctx.Done()
		return git.Transport{}, ctx.Err()
	}
	w.bounded(0)
	var all sync.WaitGroup
	for i := range 12 {
		q := w.call(func(q *job.RepositoryCall) { q.Job = fmt.Sprint("job-", i) })
		all.Go(func() {
			if i%2 == 0 {
				_, _ = w.git.Fetch(ctx, q)
			} else {
				_ = w.git.Push(ctx, q, c.Commit)
			}
		})
		all.Go(func() {
			got := c
			_, _ = w.git.Take(ctx, q, &got, readerFunc(func([]byte) (int, error) {
				entered <- "take"
				<-ctx.Done()
				return 0, ctx.Err()
			}), 1<<20)
		})
	}
	in := map[string]int{}
	for range 10 {
		in[<-entered]++
	}
	if within(200*time.Millisecond, func() bool { return len(entered) > 0 }) || in["at a server"] != 8 || in["take"] != 2 {
		t.Errorf("at once: %v, and %d more", in, len(entered))
	}
	end()
	all.Wait()
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// When a credential goes, what was begun with it does, and not git alone.
func TestSSH_NothingGoesOnAfterItsEnd(t *testing.T) {
	w := overSSH(t)
	at, _ := job.Repository{URL: w.url}.Where()
	hook := filepath.Join(w.Bare, "hooks", "pre-receive")
	began := filepath.Join(w.Dir, "began")                                                                                                                                                     // and goes with the directory, at the test's end
	if err := errors.Join(os.MkdirAll(filepath.Dir(hook), 0o700), os.WriteFile(hook, []byte("#!/bin/sh\ntouch "+began+"\nwhile [ -e "+began+" ]; do sleep 0.1; done\n"), 0o700)); err != nil { //nolint:gosec // it is run
		t.Fatal(err)
	}
	live, remove := context.WithCancelCause(t.Context())
	open := w.way
	w.way = func(ctx context.Context, r job.Repository, used func(job.CredentialUse)) (git.Transport, error) {
		way, err := open(ctx, r, used)
		way.Live = live
		return way, err
	}
	w.bounded(0)
	q := w.call(func(q *job.RepositoryCall) { q.Push = "fix" })
	c, err := w.git.Fetch(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	vm := w.inVM(q, c)
	head := w.Commit(vm, "b.txt", "two\n")
	if _, err := w.take(q, &c, w.bundle(vm, c)); err != nil {
		t.Fatal(err)
	}
	sshs := func() (n int) {
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range all {
			if line, _ := os.ReadFile(name); bytes.Contains(line, []byte("ssh\x00-F\x00")) && bytes.Contains(line, []byte("\x00"+at.Port+"\x00")) {
				n++
			}
		}
		return n
	}
	go func() {
		if within(time.Minute, func() bool { _, err := os.Stat(began); return err == nil }) && sshs() == 0 {
			t.Error("there is no ssh, and its end is not seen")
		}
		remove(errors.New("the credential was removed"))
	}()
	mustFail(t, w.git.Push(t.Context(), q, head), "the credential was removed")
	if !within(10*time.Second, func() bool { return sshs() == 0 }) {
		t.Error("ssh goes on")
	}
}

// Another's key, and another host's, lead nowhere.
func TestSSH_Refuses(t *testing.T) {
	w := overSSH(t)
	for credential, want := range map[string]string{"other": "Permission denied", "impostor": "Host key verification failed"} {
		_, err := w.git.Fetch(t.Context(), w.call(func(q *job.RepositoryCall) { q.Repository.Credential = credential }))
		mustFail(t, err, want)
	}
}

// What a server has may be no more than there is room for: files that each fit, refs without end.
func TestFetch_IsBounded(t *testing.T) {
	w := overHTTPS(t)
	data := make([]byte, 60_000)
	_, _ = rand.Read(data)
	head := w.Commit(w.Work, "random", string(data))
	w.Git(w.Work, "push", "-q", w.Bare, "main")
	w.bounded(61_440)
	_, err := w.git.Fetch(t.Context(), w.call())
	mustFail(t, err, "bytes, the limit is 61440")
	w.bounded(0)
	if _, err := w.git.Fetch(t.Context(), w.call()); err != nil {
		t.Fatal(err)
	}
	var refs strings.Builder
	refs.WriteString("# pack-refs with: peeled fully-peeled sorted \n")
	for n := range 65_000 {
		fmt.Fprintf(&refs, "%s refs/a%06d/refs/heads/v1\n", head, n)
	}
	if err := os.WriteFile(filepath.Join(w.Bare, "packed-refs"), []byte(refs.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = w.git.Fetch(t.Context(), w.call(func(q *job.RepositoryCall) { q.Repository.Ref = "v1" }))
	mustFail(t, err, "its answer is longer than 4194304 bytes")
}
