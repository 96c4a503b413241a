package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/gittest"
	"linus/internal/lab"
	"linus/internal/lab/netns"
	"linus/internal/tlstest"
)

// A job finds a repository in its VM and commits; its commits come back, are shown, and are on
// the server as a new branch, by a credential that was never in the VM. A second job goes on with
// it; a branch of somebody else's is refused before there is a VM.
func TestRepository_IsFetchedAndPushed(t *testing.T) {
	t.Parallel()
	const value = "git-the-value-that-no-vm-has"
	r := gittest.New(t)
	large := strings.Repeat("a large file\n", 1000)
	r.Commit(r.Work, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
	r.Commit(r.Work, "large.bin", r.Pointer([]byte(large)))
	r.Git(r.Work, "push", "-q", r.Bare, "main", "main:theirs")
	site, pair := tlstest.Serve(t, gittest.Behind(value, r.HTTP()), "git.example", "127.0.0.1")
	ca := filepath.Join(r.Dir, "ca.pem")
	pair.Write(t, ca, filepath.Join(r.Dir, "key.pem"))
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
	if got := r.Git(r.Bare, "log", "--format=%s", "agent/fix"); got != "more\nchange large.bin\nchange .gitattributes\nchange a.txt" {
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

	h.cli(t, append([]string{"run", "--egress", "none", "--repo", url + "#agent/fix", "--repo-credential", "git", "--push", "agent/fix", "--"}, "bash", "-c", strings.Replace(task, "qam more", "qam again", 1))...)
	if got := r.Git(r.Bare, "log", "--format=%s", "agent/fix"); got != "again\nmore\nchange large.bin\nchange .gitattributes\nchange a.txt" {
		t.Errorf("gone on with: %q", got)
	}
	// By linus run, an agent's commits go the same way.
	place(t, h.templateDisk(t), map[string]string{"usr/local/bin/claude": `#!/bin/sh
git -c user.name=j -c user.email=j@example.org commit --allow-empty -qm "$(cat)"
`})
	run := exec.Command(h.linus(), "run", "--agent-type", "claude", "--egress", "none", "--repo", url, "--repo-credential", "git", "--push", "agent/more", "--", "make", "it")
	run.Env = h.env
	if out, err := run.CombinedOutput(); err != nil || r.Git(r.Bare, "log", "--format=%s", "agent/more") != "make it\nchange large.bin\nchange .gitattributes\nchange a.txt" {
		t.Errorf("linus run: %s, %v", out, err)
	}
	// Large files come along if they are asked for, and only then; new ones are not pushed.
	out = h.cli(t, append([]string{"run", "--egress", "none", "--repo", url, "--repo-credential", "git", "--lfs", "--"}, "bash", "-c", `git status --porcelain; cat large.bin`)...)
	if out != large {
		t.Errorf("the large file is %.200q", out)
	}
	if out := h.cli(t, append(submit, "agent/other", "--", "bash", "-c", "git status --porcelain; cat large.bin")...); !strings.Contains(out, "oid sha256:") {
		t.Errorf("without --lfs it is %.200q", out)
	}
	code, said := h.exits(t, append(submit, "agent/large", "--lfs", "--", "bash", "-c", "echo new >new.bin; git add new.bin; git commit -qm new")...)
	if code != 1 || !strings.Contains(said, `nothing was pushed to agent/large: the task has made "new.bin", a large file`) {
		t.Errorf("a new one: %d, %s", code, said)
	}

	if got := r.Git(r.Bare, "rev-parse", "main", "theirs"); got != r.Git(r.Work, "rev-parse", "main", "main") {
		t.Errorf("branches of others have moved: %s", got)
	}
}

// An engine that is killed while it fetches, or pushes, leaves the job to the next one: the task
// runs once, and its branch is pushed once, whether the server had made the push or not.
func TestRepository_OutlastsItsEngine(t *testing.T) {
	t.Parallel()
	const value = "git-the-value-that-no-vm-has"
	r := gittest.New(t)
	r.Git(r.Bare, "config", "core.logAllRefUpdates", "true")
	type moment struct {
		call    string // that is held
		passed  bool   // it is held when the server has done it
		reached chan struct{}
	}
	var mu sync.Mutex
	var at *moment
	git := r.HTTP()
	site, pair := tlstest.Serve(t, gittest.Behind(value, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		held := at
		if held != nil && req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, held.call) {
			at = nil
		} else {
			held = nil
		}
		mu.Unlock()
		if held == nil {
			git.ServeHTTP(w, req)
			return
		}
		if held.passed {
			git.ServeHTTP(httptest.NewRecorder(), req)
		}
		close(held.reached)
		<-req.Context().Done()
	})), "git.example")
	ca := filepath.Join(r.Dir, "ca.pem")
	pair.Write(t, ca, filepath.Join(r.Dir, "key.pem"))
	_, port, _ := strings.Cut(site.Listener.Addr().String(), ":")
	h := newHost(t, lab.DriverProcess, "LINUS_SECRET_GIT="+value, "SSL_CERT_FILE="+ca)
	h.knows(t, "git.example")
	h.cli(t, "credential", "add", "git", "--host", "git.example:"+port, "--header", "Authorization: Basic x-access-token", "--secret", "GIT")
	l, c := newLedger(t), h.connect(t)
	for i, m := range []*moment{{call: "/git-upload-pack"}, {call: "/git-receive-pack"}, {call: "/git-receive-pack", passed: true}} {
		branch := fmt.Sprintf("agent/%d", i)
		m.reached = make(chan struct{})
		mu.Lock()
		at = m
		mu.Unlock()
		manifest := script(l.task(work{n: i, lines: 1, sleep: "0"}) + "\n")
		manifest["task"] = "echo more >>a.txt && git commit -qam more || exit 9\n" + manifest["task"].(string)
		manifest["network"] = map[string]any{"egress": "none"}
		manifest["repository"] = map[string]any{"url": "https://git.example:" + port + "/app.git", "credential": "git"}
		manifest["push"] = map[string]any{"branch": branch}
		id := c.submit(manifest)
		select {
		case <-m.reached:
		case <-time.After(time.Minute):
			t.Fatalf("%s is not called", m.call)
		}
		if !h.killEngine() {
			t.Fatal("no engine to kill")
		}
		c = h.connect(t)
		c.endsAs(id, "success", "exit_status")
		got, _ := c.call("get_job_result", map[string]any{"job_id": id})["repository"].(map[string]any)
		if n := l.begun(i); n != 1 || got["pushed_branch"] != branch || got["problem"] != nil {
			t.Errorf("killed in %s (done: %v): the task began %d times, and it has left %v", m.call, m.passed, n, got)
		}
		if log := r.Git(r.Bare, "reflog", "show", "--format=%H", "refs/heads/"+branch); log != got["head"] {
			t.Errorf("killed in %s (done: %v): the branch was at %q, and is to be at %v", m.call, m.passed, log, got["head"])
		}
	}
	h.waitGone(t)
}

// A git server that the engine's machine reaches and VMs do not: the engine is in a network of its
// own with it, by HTTPS and by a real sshd, and what a job needs of it goes by the engine.
func TestRepository_ServerIsReachedByTheEngineAlone(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("a network of its own needs root")
	}
	const value = "git-the-value-that-no-vm-has"
	r := gittest.New(t)
	name := "linus-git-" + strconv.Itoa(os.Getpid())
	space := netns.Network{Namespace: name}.Path()
	for _, args := range [][]string{{"netns", "add", name}, {"-n", name, "link", "set", "lo", "up"}} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("no network of its own here: %v: %s", err, out)
		}
	}
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "delete", name).Run() })
	user, userPEM := gittest.Key(t)
	h := newHost(t, lab.DriverProcess, "LINUS_SECRET_GIT="+value, "LINUS_SECRET_DEPLOY="+string(userPEM)) // its engine ends before the network does
	var port, sshPort, hostKey string
	var pair tlstest.Pair
	var lobby net.Listener // in which the engine finds the lab's host
	host := net.JoinHostPort(h.lab.Config.SSHHost, strconv.Itoa(h.lab.Config.SSHPort))
	if err := netns.Do(space, func() (err error) {
		var site *httptest.Server
		site, pair = tlstest.Serve(t, gittest.Behind(value, r.HTTP()), "git.example")
		_, port, _ = strings.Cut(site.Listener.Addr().String(), ":")
		sshPort, hostKey = r.SSH(user.PublicKey())
		lobby, err = net.Listen("tcp", host)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lobby.Close() })
	go func() {
		for {
			near, err := lobby.Accept()
			if err != nil {
				return
			}
			go func() {
				defer near.Close() //nolint:errcheck // it is over
				far, err := net.Dial("tcp", host)
				if err != nil {
					return
				}
				defer far.Close() //nolint:errcheck // it is over
				go func() { _, _ = io.Copy(far, near); _ = far.Close() }()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	ca, program := filepath.Join(r.Dir, "ca.pem"), filepath.Join(r.Dir, "linus-in-a-network")
	pair.Write(t, ca, filepath.Join(r.Dir, "key.pem"))
	h.env = append(h.env, "SSL_CERT_FILE="+ca)
	h.knows(t, "git.example")
	if err := os.WriteFile(program, []byte("#!/bin/sh\nexec nsenter --net="+space+" "+h.linus()+" \"$@\"\n"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	h.next = program
	h.cli(t, "credential", "add", "git", "--host", "git.example:"+port, "--header", "Authorization: Basic x-access-token", "--secret", "GIT")
	h.cli(t, "credential", "add", "deploy", "--host", "localhost:"+sshPort, "--host-key", hostKey, "--secret", "DEPLOY")
	for _, of := range []struct{ credential, url string }{{"git", "https://git.example:" + port + "/app.git"}, {"deploy", "ssh://root@localhost:" + sshPort + r.Bare}} {
		task := fmt.Sprintf(`curl -sk -o /dev/null --max-time 5 https://127.0.0.1:%s && echo reached
(exec 3<>/dev/tcp/127.0.0.1/%s) 2>/dev/null && echo reached
echo %s >>a.txt && git commit -qam more`, port, sshPort, of.credential)
		out := h.cli(t, "run", "--egress", "none", "--repo", of.url, "--repo-credential", of.credential, "--push", "by/"+of.credential, "--", "bash", "-c", task)
		if strings.Contains(out, "reached") {
			t.Errorf("%s: the VM reaches the server: %s", of.url, out)
		}
		if got := r.Git(r.Bare, "log", "--format=%s", "by/"+of.credential); got != "more\nchange a.txt" {
			t.Errorf("%s: pushed %q", of.url, got)
		}
	}
}
