package proxmox_test

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/guest"
	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/loops"
	"linus/internal/patience"
	"linus/internal/providertest"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// labHost is a lab that is up, and an installation that uses it.
type labHost struct {
	*lab.Lab
	owner   string
	key     string // private key for the VMs
	public  string
	scripts string
	pool    *remote.Pool
}

// binaries is where pvelab is built, once for all tests.
var binaries string

var pvelab = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(binaries, "pvelab")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", binary, "linus/cmd/pvelab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pvelab: %w\n%s", err, out)
	}
	return binary, nil
})

// Tests here wait for scripts, not for a processor.
func TestMain(m *testing.M) {
	flag.Parse()
	err := flag.Set("test.parallel", "6")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if binaries, err = os.MkdirTemp("", "linus-proxmox"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(binaries)
	os.Exit(code)
}

// newLab brings a lab up until the test ends, or skips where it cannot run.
func newLab(t *testing.T, driver string) *labHost {
	t.Helper()
	return newLabOf(t, driver, lab.SystemdSimulated)
}

func newLabOf(t *testing.T, driver, systemd string) *labHost {
	t.Helper()
	return newLabAs(t, lab.Options{Driver: driver, Systemd: systemd})
}

// newLabAs is newLab with a lab's options; its directory and program are set here.
func newLabAs(t *testing.T, o lab.Options) *labHost {
	t.Helper()
	loops.NotInCheck(t)
	if missing := lab.Missing(o.Driver); len(missing) > 0 {
		t.Skipf("no %s lab here: %s", o.Driver, strings.Join(missing, "; "))
	}
	// Not t.TempDir: the name of a test makes socket paths too long.
	dir, err := os.MkdirTemp("", "linus-lab")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	binary, err := pvelab()
	if err != nil {
		t.Fatal(err)
	}
	o.Dir, o.Binary, o.Log = filepath.Join(dir, "lab"), binary, t.Output()
	l, err := lab.Up(t.Context(), o)
	if l != nil {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			if err := l.Down(ctx); err != nil {
				t.Errorf("lab down: %v", err)
			}
		})
	}
	if err != nil {
		t.Fatalf("lab up: %v", err)
	}
	h := &labHost{Lab: l, owner: uuid.NewString(), key: filepath.Join(dir, "id_ed25519"), scripts: filepath.Join(dir, "scripts")}
	h.public = sshtest.NewKey(t, h.key)
	h.dial(t)
	return h
}

// dial gives the installation its connections to the host.
func (h *labHost) dial(t *testing.T) {
	t.Helper()
	env := h.Env()
	port, err := strconv.Atoi(env["PROXMOX_SSH_PORT"])
	if err != nil {
		t.Fatal(err)
	}
	h.pool = remote.NewPool(remote.Options{
		Host: env["PROXMOX_HOST"], Port: port, User: env["PROXMOX_SSH_USER"],
		KeyPath: env["PROXMOX_SSH_KEY_PATH"], KnownHosts: env["PROXMOX_KNOWN_HOSTS"],
	})
	t.Cleanup(h.pool.Close)
}

func (h *labHost) provider(t *testing.T, change func(*proxmox.Options)) *proxmox.Provider {
	o := proxmox.Options{
		Host: h.pool, Node: h.Config.Node, Storage: h.Config.Storage, Bridge: h.Config.Bridge, GuestPort: h.Config.GuestPort,
		Template: lab.TemplateName, Owner: h.owner, ScriptDir: h.scripts,
		Loopback: h.Config.Driver == lab.DriverProcess,
		Log:      slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	if h.Config.Driver == lab.DriverQemu { // emulated, on a machine that may be busy
		o.NetworkTimeout, o.ReadyTimeout = 20*time.Minute, 20*time.Minute
	}
	if change != nil {
		change(&o)
	}
	return proxmox.New(o)
}

func (h *labHost) spec() job.VMSpec { return h.specOf(lab.TemplateName) }

// specOf is a VM of a template that lets the lab's key in.
func (h *labHost) specOf(template string) job.VMSpec {
	spec := providertest.NewSpec(h.owner, template)
	spec.PublicKey = h.public
	return spec
}

// foreign plants a VM that carries no marker, and checks its config byte for
// byte.
func (h *labHost) foreign(t *testing.T) (int, string, func(*testing.T)) {
	const id = 4711
	number := strconv.Itoa(id)
	if _, err := h.QM(t.Context(), "create", number, "--name", "database", "--memory", "512"); err != nil {
		t.Fatal(err)
	}
	before, err := h.QM(t.Context(), "config", number)
	if err != nil {
		t.Fatal(err)
	}
	return id, "database", func(t *testing.T) {
		after, err := h.QM(t.Context(), "config", number)
		if err != nil || after != before {
			t.Errorf("the foreign VM is changed: %v\n%s\nwas\n%s", err, after, before)
		}
	}
}

func (h *labHost) suite(slow bool) providertest.Config {
	return providertest.Config{
		New:     func(t *testing.T) job.Provider { return h.provider(t, nil) },
		Spec:    h.spec,
		Foreign: h.foreign,
		NoStorage: func(t *testing.T) job.Provider {
			return h.provider(t, func(o *proxmox.Options) { o.Storage = "no-such-storage" })
		},
		Slow: slow, Memoryless: h.Config.Driver == lab.DriverProcess,
	}
}

func TestProcessLab(t *testing.T) {
	t.Parallel()
	testLab(t, lab.DriverProcess, false)
}

// The tools by themselves, as where Proxmox's modules cannot be loaded.
func TestProcessLab_PlainTools(t *testing.T) {
	t.Parallel()
	loops.AtNightOnly(t, "TestToolServer takes a VM through its life by the plain tools, too")
	h := newLab(t, lab.DriverProcess)
	suite := h.suite(false)
	suite.New = func(t *testing.T) job.Provider {
		return h.provider(t, func(o *proxmox.Options) { o.PlainTools = true })
	}
	providertest.Run(t, suite)
}

func TestQemuLab(t *testing.T) {
	t.Parallel()
	loops.AtNightOnly(t, "TestProcessLab holds processes to the same suite, TestJob_RunsInARealVM takes jobs to a real machine")
	testLab(t, lab.DriverQemu, true)
}

func testLab(t *testing.T, driver string, slow bool) {
	h := newLab(t, driver)
	// The login's own start-up files may print anything on a host of anybody's.
	if err := os.WriteFile(filepath.Join(h.HomeDir(), ".bashrc"), []byte("printf 'welcome\n%0100000d\nhost> ' 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Side by side, and so two machines boot at once: more would be slower.
	t.Run("Provider", func(t *testing.T) {
		t.Parallel()
		providertest.Run(t, h.suite(slow))
	})
	t.Run("VM", func(t *testing.T) { // one for all that need no fresh one: boots are slow
		t.Parallel()
		var v vm.VM
		if driver == lab.DriverQemu { // the suite's has IPv4
			v = ipv6Only(t, h, netip.MustParsePrefix("fd77::/16"))
		} else {
			v = newVM(t, h, nil)
		}
		t.Run("Guest", func(t *testing.T) { guestRoundTrip(t, h, v) })
		t.Run("Revert", func(t *testing.T) { v = revert(t, h, v) })
		t.Run("Suspend", func(t *testing.T) { v = suspend(t, h, v) })
		if driver == lab.DriverQemu && !t.Failed() {
			m := newMachine(t, h, v, "operation", "job-runner")
			t.Run("OperationsInUnits", func(t *testing.T) { operationsInUnits(t, m) })
			t.Run("ClockJumps", func(t *testing.T) { clockJumps(t, m) })
		}
	})
}

// guestRoundTrip takes the job of a VM through it by hand, as the executor does.
func guestRoundTrip(t *testing.T, h *labHost, v vm.VM) {
	g := guest.New(guest.Options{Host: guest.Through(h.pool), Keys: oneKey(h.key), Port: h.Config.GuestPort})
	defer g.Close()
	ctx, j := t.Context(), job.Job{ID: v.Job, VM: &v}
	timed, end := context.WithTimeout(ctx, 3*time.Minute)
	defer end()
	err := patience.Retry(timed, func() error { // a busy machine's SSH may take longer than one try
		s, err := g.Probe(timed, j)
		if err == nil && s.Started {
			t.Errorf("probe of an empty VM: %+v", s)
		}
		return err
	})
	if err != nil {
		t.Fatalf("probe of an empty VM: %v", err)
	}
	payload := job.Payload{
		Token: "secret", HeartbeatInterval: 30, MaxOutput: 10 << 20,
		Manifest: job.Manifest{
			Task:      "cat /srv/in/data; printf 'it'\\''s %s\\n' \"$VALUE\"; echo oops >&2; id -un; sleep 1; exit 7",
			AgentType: job.AgentScript, Timeout: 60, StatusMode: job.StatusSimple,
			Env:   map[string]string{"VALUE": "a 'quoted'\n$(value)"},
			Files: []job.File{{Path: "/srv/in/data", Content: "aGVsbG8K", Mode: "0640"}},
		},
	}
	for range 2 { // each call may come twice
		if err := g.Push(ctx, j, payload); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if boot, err := g.Start(ctx, j); err != nil || boot == "" {
			t.Fatal(err)
		}
	}
	state := waitExit(t, g, j)
	if state.ExitCode != 7 || state.Reason != "exit" {
		t.Errorf("state = %+v", state)
	}
	want := fmt.Sprintf("hello\nit's a 'quoted'\n$(value)\n%s\n", v.User)
	out, err := g.ReadOutput(ctx, j, job.Stdout, 0, 1<<20)
	if err != nil || string(out) != want || state.StdoutBytes != int64(len(want)) {
		t.Errorf("stdout = %q, want %q (%+v), %v", out, want, state, err)
	}
	if out, err = g.ReadOutput(ctx, j, job.Stderr, 1, 2); err != nil || string(out) != "op" {
		t.Errorf("part of stderr = %q, %v", out, err)
	}
	if err := g.Stop(ctx, j, "TERM"); err != nil {
		t.Errorf("stop after the end: %v", err)
	}
}

func waitExit(t *testing.T, g *guest.Guest, j job.Job) job.RunState {
	t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		state, err := g.Probe(t.Context(), j) // an emulated VM may miss one probe's deadline, as a busy one may
		switch {
		case err == nil && !state.Started:
			t.Fatalf("probe: %+v", state)
		case err == nil && state.Exited:
			return state
		case time.Now().After(deadline):
			t.Fatalf("the task did not end: %+v, %v", state, err)
		}
		time.Sleep(200 * time.Millisecond)
	}
}

// oneKey is the file of the key that logs in to all VMs.
type oneKey string

func (k oneKey) Path(vm.VM) string { return string(k) }
