package guest_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/loops"
	"linus/internal/remote"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

const nowhere = "http://127.0.0.1:1"

// rig is a VM reached through a host, where the real job runner works under a
// prefix, and the server its callbacks are for.
type rig struct {
	*guest.Guest
	t      testing.TB
	vm     vm.VM
	inside *sshtest.Server
	server *httptest.Server
	root   string
	port   int // where the VM's SSH server is reached; 0: at its own

	mu    sync.Mutex
	calls map[string]int // by the last part of the route
}

func newRig(t *testing.T) *rig {
	t.Helper()
	t.Parallel()
	r := &rig{t: t, inside: sshtest.Start(t, sshtest.Options{}), root: t.TempDir(), calls: map[string]int{}}
	r.vm = vm.VM{ID: 100, Job: uuid.NewString(), IP: r.inside.Host, User: "debian", HostKey: r.inside.HostKey}
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/health" {
			_, _ = io.WriteString(w, `{"status":"ok"}`+"\n")
			return
		}
		if req.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		r.mu.Lock()
		r.calls[filepath.Base(req.URL.Path)]++
		r.mu.Unlock()
		_, _ = io.WriteString(w, `{"received":true}`)
	}))
	t.Cleanup(r.server.Close)
	r.connect()
	t.Cleanup(func() {
		stop := exec.CommandContext(context.Background(), "bash", filepath.Join(r.root, "opt/job-runner/job-runner.sh"), "stop", "KILL")
		if out, err := stop.CombinedOutput(); err != nil {
			t.Errorf("stop the task: %v\n%s", err, out)
		}
		endRunner(t, r.root)
	})
	return r
}

// endRunner ends a VM's job runners, which would go on telling of its task's end,
// and returns when it writes no more.
func endRunner(t testing.TB, root string) {
	t.Helper()
	homes := []byte(filepath.Join(root, "opt/job-runner") + "/")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left := 0
		all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, path := range all {
			line, _ := os.ReadFile(path)
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil || !bytes.Contains(line, homes) || !bytes.Contains(line, []byte("/job-runner.sh\x00")) {
				continue
			}
			left++
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("%d processes of the job runner do not end", left)
			return
		}
	}
}

// job is the one the VM is for.
func (r *rig) job() job.Job { return job.Job{ID: r.vm.Job, VM: &r.vm} }

// connect creates the Guest, as a starting engine does.
func (r *rig) connect() {
	r.t.Helper()
	host := sshtest.Start(r.t, sshtest.Options{})
	pool := remote.NewPool(remote.Options{
		Host: host.Host, Port: host.Port, User: "root", KeyPath: host.ClientKeyPath, KnownHosts: host.KnownHosts,
	})
	r.t.Cleanup(pool.Close)
	r.Guest = guest.New(guest.Options{
		Host: guest.Through(pool), Keys: oneKey(r.inside.ClientKeyPath), Port: cmp.Or(r.port, r.inside.Port), Root: r.root,
		Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	})
	r.t.Cleanup(r.Close)
}

// start starts a task whose callbacks lead nowhere, and that ends with release.
func (r *rig) start() (release func()) {
	r.t.Helper()
	end := filepath.Join(r.root, "end")
	err := r.Push(r.t.Context(), r.job(), job.Payload{
		CallbackURL: nowhere, Token: "secret", HeartbeatInterval: 1, MaxOutput: 1 << 20,
		Manifest: job.Manifest{
			Task:      "until [ -e " + end + " ]; do sleep 0.1; done; echo over",
			AgentType: job.AgentScript, Timeout: 120, StatusMode: job.StatusSimple,
		},
	})
	if err == nil {
		_, err = r.Start(r.t.Context(), r.job())
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return func() {
		if err := os.WriteFile(end, nil, 0o600); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *rig) way(url string, want job.CallbackWay) {
	r.t.Helper()
	way, err := r.Callbacks(r.t.Context(), r.job(), url, r.server.Listener.Addr().String())
	if err != nil || way != want {
		r.t.Fatalf("way = %q, %v, want %q", way, err, want)
	}
}

func (r *rig) count(route string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls[route]
}

// arrives waits for the next callback of a kind.
func (r *rig) arrives(route string) {
	r.t.Helper()
	before := r.count(route)
	r.within("another "+route, func() bool { return r.count(route) > before })
}

// within waits until something is so. The runner tries a completion again after up to half
// a minute.
func (r *rig) within(what string, so func() bool) {
	r.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s does not come", what)
		}
	}
}

// ended waits for the end of the task, which the runner then reports.
func (r *rig) ended() {
	r.t.Helper()
	r.within("the task's end", func() bool {
		_, err := os.Stat(filepath.Join(r.root, "var/lib/linus/job/exit_status"))
		return err == nil
	})
}

// callbackURL is where the runner sends callbacks now.
func (r *rig) callbackURL() string {
	data, err := os.ReadFile(filepath.Join(r.root, "var/lib/linus/job/callback_url"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

func TestCallbacks_DirectWhereTheServerAnswers(t *testing.T) {
	r := newRig(t)
	release := r.start()
	r.way(r.server.URL, job.CallbacksDirect)
	if r.callbackURL() != r.server.URL {
		t.Errorf("callbacks go to %s", r.callbackURL())
	}
	r.arrives("heartbeat")
	release()
	r.arrives("complete")
}

func TestCallbacks_ThroughATunnelWhereDirectIsBlocked(t *testing.T) {
	r := newRig(t)
	release := r.start()
	r.way(nowhere, job.CallbacksTunnel)
	if !strings.HasPrefix(r.callbackURL(), "http://127.0.0.1:") {
		t.Errorf("callbacks go to %s", r.callbackURL())
	}
	r.arrives("heartbeat")
	release()
	r.arrives("complete")
}

func TestCallbacks_TunnelCutWhileTheTaskRuns(t *testing.T) {
	r := newRig(t)
	release := r.start()
	r.way(nowhere, job.CallbacksTunnel)
	r.arrives("heartbeat")
	for range 2 {
		r.inside.Drop()
		r.arrives("heartbeat")
	}
	r.inside.Set(sshtest.Faults{RefuseLogin: true})
	r.inside.Drop()
	release() // it ends while the VM cannot be reached
	r.ended()
	r.inside.Set(sshtest.Faults{})
	r.arrives("complete")
}

func TestCallbacks_TunnelReopensAfterARestart(t *testing.T) {
	r := newRig(t)
	release := r.start()
	r.way(nowhere, job.CallbacksTunnel)
	r.arrives("heartbeat")
	r.Close()
	release()
	r.ended()
	if r.count("complete") != 0 {
		t.Fatal("a closed tunnel carried the completion")
	}
	r.connect()
	r.way(nowhere, job.CallbacksTunnel)
	r.within("the completion", func() bool { return r.count("complete") > 0 })
}

func TestCallbacks_NoneWhereForwardingIsRefused(t *testing.T) {
	r := newRig(t)
	release := r.start()
	r.inside.Set(sshtest.Faults{NoForwarding: true})
	r.way(nowhere, job.CallbacksNone)
	if r.callbackURL() != "" {
		t.Errorf("callbacks go to %s", r.callbackURL())
	}
	release()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		state, err := r.Probe(t.Context(), r.job())
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("state = %+v, %v", state, err)
		}
		if state.Exited {
			break
		}
	}
	// And back, when it is allowed again.
	r.inside.Set(sshtest.Faults{})
	r.way(nowhere, job.CallbacksTunnel)
	r.within("the completion", func() bool { return r.count("complete") > 0 }) // it may have come as soon as there was a way
}

func TestCallbacks_NoneWithoutAServer(t *testing.T) {
	r := newRig(t)
	defer r.start()()
	way, err := r.Callbacks(t.Context(), r.job(), nowhere, "127.0.0.1:1")
	if err != nil || way != job.CallbacksNone {
		t.Errorf("way = %q, %v", way, err)
	}
	if way, err = r.Callbacks(t.Context(), r.job(), nowhere, ""); err != nil || way != job.CallbacksNone {
		t.Errorf("without a local address: %q, %v", way, err)
	}
}

func TestForget_EndsTheTunnel(t *testing.T) {
	r := newRig(t)
	defer r.start()()
	r.way(nowhere, job.CallbacksTunnel)
	addr := strings.TrimPrefix(r.callbackURL(), "http://")
	r.Forget(r.job())
	listening := func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err == nil
	}
	for deadline := time.Now().Add(time.Minute); listening() || r.inside.Stats().Open > 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the VM still listens, or has %d connections of ours", r.inside.Stats().Open)
		}
	}
	before := r.inside.Stats().Connections
	if _, err := r.Probe(t.Context(), r.job()); err != nil { // as long as a tunnel takes
		t.Error(err)
	}
	if made := r.inside.Stats().Connections - before; made != 1 || r.callbackURL() != "http://"+addr {
		t.Errorf("the tunnel was opened anew: %d connections for one look", made)
	}
}

func TestProbe_AnEmptyVMHasNoTaskAFailingOneIsAnError(t *testing.T) {
	r := newRig(t)
	if state, err := r.Probe(t.Context(), r.job()); err != nil || state.Started {
		t.Errorf("empty: %+v, %v", state, err)
	}
	defer r.start()()
	script := filepath.Join(r.root, "opt/job-runner/job-runner.sh")
	if err := os.Rename(script, script+".aside"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte("no-such-command\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if state, err := r.Probe(t.Context(), r.job()); err == nil {
		t.Errorf("exit code 127 is taken for %+v", state)
	}
	if err := os.Rename(script+".aside", script); err != nil {
		t.Fatal(err)
	}
}

func TestProbe_DoesNotWaitForAFrozenVM(t *testing.T) {
	loops.NotInCheck(t)
	r := newRig(t)
	release := r.start()
	defer release()
	script := filepath.Join(r.root, "opt/job-runner/job-runner.sh")
	runner, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script+".frozen", []byte("sleep 120\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(script+".frozen", script); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	_, err = r.Probe(t.Context(), r.job())
	var fault *job.HostError
	if !errors.As(err, &fault) || fault.Class != job.HostTimeout || time.Since(began) > 100*time.Second {
		t.Errorf("after %s: %v", time.Since(began), err)
	}
	if err := os.WriteFile(script, runner, 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestProbe_ReportsARunnerThatIsGone(t *testing.T) {
	r := newRig(t)
	release := r.start()
	state, err := r.Probe(t.Context(), r.job())
	if err != nil || !state.Started || state.Unattended {
		t.Errorf("running: %+v, %v", state, err)
	}
	line, err := os.ReadFile(filepath.Join(r.root, "var/lib/linus/job/runner"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.Fields(string(line))[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if state, err = r.Probe(t.Context(), r.job()); err != nil || !state.Unattended {
		t.Errorf("with its runner gone: %+v, %v", state, err)
	}
	if _, err := r.Start(t.Context(), r.job()); err != nil {
		t.Fatal(err)
	}
	if state, err = r.Probe(t.Context(), r.job()); err != nil || state.Unattended || state.Exited {
		t.Errorf("with its runner back: %+v, %v", state, err)
	}
	release()
}

func TestSums_AreOfTheBeginning(t *testing.T) {
	r := newRig(t)
	r.start()()
	deadline := time.Now().Add(time.Minute)
	for {
		state, err := r.Probe(t.Context(), r.job())
		if err == nil && state.Exited {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v, %v", state, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	sums, err := r.Sums(t.Context(), r.job(), 2, 0)
	if want := [2]string{sha("ov"), sha("")}; err != nil || sums != want {
		t.Errorf("%v, %v", sums, err)
	}
}

func sha(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text))) }

// oneKey is the file of the key that logs in to all VMs.
type oneKey string

func (k oneKey) Path(vm.VM) string { return string(k) }
