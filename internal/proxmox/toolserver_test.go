package proxmox_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/proxmox"
)

// calls are the calls of Proxmox's tools, and the loads of their modules, since the last
// time.
func (h *labHost) calls(t *testing.T, seen *int) []string {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(readText(t, h.Path("log", "tools"))), "\n")
	fresh := lines[*seen:]
	*seen = len(lines)
	return fresh
}

func count(lines []string, prefix string) (n int) {
	for _, line := range lines {
		if strings.HasPrefix(line, prefix) {
			n++
		}
	}
	return n
}

// server is the process ID of the tool server, which there must be.
func (h *labHost) server(t *testing.T) int {
	t.Helper()
	states, err := filepath.Glob(h.Path("locks", "tool-server-*", "state"))
	if err != nil || len(states) != 1 {
		t.Fatalf("there is no tool server: %v, %v", states, err)
	}
	pid, err := strconv.Atoi(strings.Fields(readText(t, states[0]))[0])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// A job's calls are of modules loaded once, whatever happens to what has them loaded: it
// costs the job nothing but time.
func TestToolServer(t *testing.T) {
	t.Parallel()
	h := newLabAs(t, lab.Options{Driver: lab.DriverProcess, CallMS: 300})
	p := h.provider(t, nil)
	seen := 0
	h.calls(t, &seen) // the lab's own, for its template

	for _, tt := range []struct {
		name      string
		meanwhile func(t *testing.T) // while the clone is at work
		loads     int
		plain     int // calls by tools that are started at most
	}{
		// Three are the canary.
		{"from the first call on", func(*testing.T) {}, 1, 3},
		{"and it is there for the next", func(*testing.T) {}, 0, 0},
		{"packages are upgraded", func(t *testing.T) {
			if err := os.WriteFile(h.Path("dpkg-status"), []byte("upgraded\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, 1, 3},
		{"it hangs", func(t *testing.T) { kill(t, h.server(t), syscall.SIGSTOP) }, 1, 100},
		{"it is killed", func(t *testing.T) { kill(t, h.server(t), syscall.SIGKILL) }, 1, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				for {
					text, _ := os.ReadFile(h.Path("log", "tools"))
					if lines := strings.Split(string(text), "\n"); count(lines[min(seen, len(lines)):], "loaded qm clone") > 0 {
						tt.meanwhile(t)
						return
					}
					select {
					case <-t.Context().Done():
						return
					case <-time.After(5 * time.Millisecond):
					}
				}
			}()
			v, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
			if err != nil {
				t.Fatal(err)
			}
			<-done
			if err := p.Destroy(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			calls := h.calls(t, &seen)
			for _, change := range []string{"qm clone", "qm set", "qm resize", "qm start", "qm destroy"} {
				if n := count(calls, "loaded "+change) + count(calls, "started "+change); n != 1 {
					t.Errorf("%s was called %d times", change, n)
				}
			}
			if loads, plain := loadsOf(calls), count(calls, "started"); loads != tt.loads || plain > tt.plain {
				t.Errorf("%d loads, %d calls by a tool that was started, want %d and at most %d: %q", loads, plain, tt.loads, tt.plain, calls)
			}
		})
	}

	t.Run("twenty at once", func(t *testing.T) {
		var all sync.WaitGroup
		errs, most := make([]error, 20), 0
		server := h.server(t)
		for i := range errs {
			all.Go(func() {
				v, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
				if err == nil {
					err = p.Destroy(t.Context(), v)
				}
				errs[i] = err
			})
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			all.Wait()
		}()
		for running := true; running; {
			children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", server, server))
			most = max(most, len(strings.Fields(string(children))))
			select {
			case <-ended:
				running = false
			case <-time.After(5 * time.Millisecond):
			}
		}
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		calls := h.calls(t, &seen)
		for _, change := range []string{"qm clone", "qm start", "qm destroy"} {
			if n := count(calls, "loaded "+change) + count(calls, "started "+change); n != len(errs) {
				t.Errorf("%s was called %d times", change, n)
			}
		}
		t.Logf("%d calls by a tool that was started, at most %d children", count(calls, "started"), most)
		if loads := loadsOf(calls); loads > 1 || most == 0 || most > 32 { // 1: a server that hangs on a busy machine is replaced
			t.Errorf("%d loads, at most %d children: %q", loads, most, calls)
		}
	})

	t.Run("plain", func(t *testing.T) {
		p := h.provider(t, func(o *proxmox.Options) { o.PlainTools = true })
		v, err := p.Create(t.Context(), h.spec(), func(job.Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Destroy(t.Context(), v); err != nil {
			t.Fatal(err)
		}
		if calls := h.calls(t, &seen); count(calls, "load") != 0 {
			t.Errorf("not all were started: %q", calls)
		}
	})

	t.Run("Check", func(t *testing.T) {
		plain := h.provider(t, func(o *proxmox.Options) { o.PlainTools = true })
		for want, p := range map[string]*proxmox.Provider{"have their modules loaded once": p, "PROXMOX_TOOLS is plain": plain} {
			report, err := p.Check(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(report.Checks, func(c job.Check) bool {
				return c.Name == "loaded" && c.Level == "ok" && strings.Contains(c.Text, want)
			}) {
				t.Errorf("no check says %q: %+v", want, report.Checks)
			}
		}
	})
}

func loadsOf(lines []string) (n int) {
	for _, line := range lines {
		if line == "load" {
			n++
		}
	}
	return n
}

func kill(t *testing.T, pid int, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(pid, signal); err != nil {
		t.Error(err)
	}
}
