package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/loops"
)

// binaryDir is where TestMain lets pvelabBinary build.
var binaryDir string

// pvelabBinary builds the binary once for all tests: process guests run it.
var pvelabBinary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(binaryDir, "pvelab")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", path, "linus/cmd/pvelab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pvelab: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pvelab")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binaryDir = dir
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// newLab is a process lab that is up, and down again at the end of the test,
// when nothing of it may be left.
func newLab(t *testing.T, change ...func(*Options)) *Lab {
	t.Helper()
	loops.NotInCheck(t)
	if missing := Missing(state.DriverProcess); len(missing) > 0 {
		t.Skipf("no lab on this machine: %s", strings.Join(missing, " "))
	}
	binary, err := pvelabBinary()
	if err != nil {
		t.Fatal(err)
	}
	opts := Options{Dir: filepath.Join(t.TempDir(), "lab"), Binary: binary, Log: testLog{t}}
	for _, f := range change {
		f(&opts)
	}
	l, err := Up(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := Open(l.Dir); errors.Is(err, state.ErrNoLab) {
			return // the test took it down
		}
		if err := l.Down(context.Background()); err != nil {
			t.Errorf("down: %v", err)
		}
		if _, err := os.Stat(l.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("down left %s", l.Dir)
		}
		assertNothingLeft(t, l.State)
	})
	return l
}

// result is what a command printed and how it ended.
type result struct {
	out, err string
	code     int
}

// run runs one of the lab's commands, `qm list` say; stdin is the rest.
func (l *Lab) run(t *testing.T, line string, stdin ...string) result {
	t.Helper()
	return l.runArgs(t, strings.Fields(line), strings.Join(stdin, ""))
}

func (l *Lab) runArgs(t *testing.T, words []string, stdin string) result {
	t.Helper()
	var out, errs strings.Builder
	code := l.Run(t.Context(), words[0], words[1:], sys.Streams{In: strings.NewReader(stdin), Out: &out, Err: &errs})
	return result{out.String(), errs.String(), code}
}

// must is run for commands that have to work.
func (l *Lab) must(t *testing.T, line string, stdin ...string) string {
	t.Helper()
	r := l.run(t, line, stdin...)
	if r.code != 0 {
		t.Fatalf("%s: exit code %d: %s", line, r.code, r.err)
	}
	return r.out
}

func (l *Lab) setFault(t *testing.T, fault state.Fault, value string) {
	t.Helper()
	if err := l.SetFault(fault, value); err != nil {
		t.Fatal(err)
	}
}

func (l *Lab) conf(t *testing.T, id int) *state.Conf {
	t.Helper()
	conf, err := l.LoadConf(id)
	if err != nil {
		t.Fatal(err)
	}
	return conf
}

func TestUp_IsIdempotent(t *testing.T) {
	l := newLab(t)
	before := l.must(t, "qm config 9000")
	again, err := Up(t.Context(), Options{Dir: l.Dir, Binary: l.Config.Binary})
	if err != nil {
		t.Fatal(err)
	}
	if again.Config != l.Config {
		t.Errorf("settings changed: %+v, were %+v", again.Config, l.Config)
	}
	if after := l.must(t, "qm config 9000"); after != before {
		t.Errorf("the template changed:\n%s\nwas:\n%s", after, before)
	}
}

func TestUp_RefusesAForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "thesis.tex"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Up(t.Context(), Options{Dir: dir, Binary: "pvelab"})
	if err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("got %v, want an error naming what is there", err)
	}
}

func TestUp_RefusesAnotherDriver(t *testing.T) {
	l := newLab(t)
	_, err := Up(t.Context(), Options{Dir: l.Dir, Binary: l.Config.Binary, Driver: state.DriverQemu})
	if err == nil || !strings.Contains(err.Error(), "down first") {
		t.Errorf("got %v, want the advice to take it down first", err)
	}
}

func TestDown_KeepsForeignFiles(t *testing.T) {
	l := newLab(t)
	foreign := filepath.Join(l.Dir, "notes")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(foreign); err != nil {
		t.Errorf("down removed a file that was not the lab's: %v", err)
	}
	if err := os.Remove(l.Dir); err != nil {
		t.Errorf("down left more than the foreign file: %v", err)
	}
}

func TestUp_KilledAnywhereLeavesNothingAfterDown(t *testing.T) {
	binary, err := pvelabBinary()
	if err != nil {
		t.Fatal(err)
	}
	for delay := time.Millisecond; delay < 150*time.Millisecond; delay = delay * 3 / 2 {
		dir := filepath.Join(t.TempDir(), "lab")
		up := exec.CommandContext(t.Context(), binary, "up", "--dir", dir)
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay)
		_ = up.Process.Kill()
		_ = up.Wait()
		if out, err := exec.CommandContext(t.Context(), binary, "down", "--dir", dir).CombinedOutput(); err != nil {
			t.Fatalf("down after a kill at %s: %v: %s", delay, err, out)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("killed at %s, down left %s", delay, dir)
		}
		assertNothingLeft(t, &state.State{Dir: dir})
	}
}

func TestEnv_NamesTheLab(t *testing.T) {
	l := newLab(t)
	env := l.Env()
	for _, name := range []string{
		"PROXMOX_HOST", "PROXMOX_SSH_PORT", "PROXMOX_SSH_USER", "PROXMOX_SSH_KEY_PATH",
		"PROXMOX_KNOWN_HOSTS", "PROXMOX_NODE", "PROXMOX_STORAGE", "PROXMOX_BRIDGE", "PROXMOX_SCRIPT_DIR", "PVELAB_DIR",
	} {
		if env[name] == "" {
			t.Errorf("%s is missing", name)
		}
	}
}

func TestTwoLabs_DoNotMeet(t *testing.T) {
	a, b := newLab(t), newLab(t)
	for _, l := range []*Lab{a, b} {
		l.must(t, "qm clone 9000 100 --name twin")
		l.must(t, "qm start 100")
	}
	first, second := a.address(t, 100), b.address(t, 100)
	if first == second {
		t.Errorf("both guests are at %s", first)
	}
	if a.Config.SSHPort == b.Config.SSHPort {
		t.Errorf("both labs listen on port %d", a.Config.SSHPort)
	}
}
