package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sleep"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// slowBoot makes VMs of this lab take some seconds until they answer, so that
// there is time to do something to a create.
func (h *labHost) slowBoot(t *testing.T, seconds string) {
	t.Helper()
	if err := h.SetFault(state.FaultAgentDelay, seconds); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.SetFault(state.FaultAgentDelay, ""); err != nil {
			t.Error(err)
		}
	})
}

// impatient is a connection set to the lab of its own, that soon notices a host
// that has fallen silent.
func (h *labHost) impatient(t *testing.T, addr string) *remote.Pool {
	t.Helper()
	env := h.Env()
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	pool := remote.NewPool(remote.Options{
		Host: host, Port: port, User: env["PROXMOX_SSH_USER"], KeyPath: env["PROXMOX_SSH_KEY_PATH"], KnownHosts: h.knownAs(t, addr),
		ConnectTimeout: time.Second, Patience: 100 * time.Millisecond, KeepAlive: 500 * time.Millisecond,
	})
	t.Cleanup(pool.Close)
	return pool
}

func (h *labHost) addr() string {
	return net.JoinHostPort(h.Env()["PROXMOX_HOST"], h.Env()["PROXMOX_SSH_PORT"])
}

// knownAs returns a known_hosts file that has the lab's host key under addr.
func (h *labHost) knownAs(t *testing.T, addr string) string {
	t.Helper()
	raw, err := os.ReadFile(h.Env()["PROXMOX_KNOWN_HOSTS"])
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(addr)
	_, key, _ := strings.Cut(string(raw), " ")
	path := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(path, fmt.Appendf(nil, "[%s]:%s %s", host, port, key), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func (h *labHost) operation(spec job.VMSpec) string {
	return filepath.Join(h.scripts, "operations", "create-"+spec.Job)
}

// operationsLeft names the operations the host keeps that are not creates. Those of tests beside this
// one end.
func (h *labHost) operationsLeft(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(h.scripts, "operations", "*"))
	if err != nil {
		t.Error(err)
	}
	ending, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return slices.DeleteFunc(all, func(path string) bool {
		if strings.HasPrefix(filepath.Base(path), "create-") || filepath.Base(path) == ".cleared" {
			return true
		}
		for ending.Err() == nil {
			if _, err := os.Stat(path); err != nil {
				return true
			}
			_ = sleep.For(ending, 20*time.Millisecond)
		}
		return false
	})
}

// theVM fails the test unless the job has exactly the VM a create answered, and
// takes it away.
func (h *labHost) theVM(t *testing.T, spec job.VMSpec, v vm.VM, err error) {
	t.Helper()
	p := h.provider(t, nil)
	if err != nil || v.ID == 0 || v.IP == "" || v.User == "" || v.HostKey == "" {
		t.Errorf("create = %+v, %v", v, err)
	}
	if vms := h.vms(t, spec); len(vms) != 1 || vms[0].ID != v.ID {
		t.Errorf("the job's VMs: %+v, want one with ID %d", vms, v.ID)
	}
	for _, left := range h.vms(t, spec) {
		if err := p.Destroy(t.Context(), left); err != nil {
			t.Error(err)
		}
	}
	h.nothing(t, spec)
}

// nothing fails the test when the host has anything left of the job.
func (h *labHost) nothing(t *testing.T, spec job.VMSpec) {
	t.Helper()
	if vms := h.vms(t, spec); len(vms) != 0 {
		t.Errorf("VMs left: %+v", vms)
	}
	if _, err := os.Stat(h.operation(spec)); err == nil {
		t.Errorf("left: %s", h.operation(spec))
	}
}

func (h *labHost) vms(t *testing.T, spec job.VMSpec) []vm.VM {
	t.Helper()
	vms, err := h.provider(t, nil).List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(vms, func(v vm.VM) bool { return v.Job != spec.Job })
}

// steps collects the steps a create tells, and does something at one of them.
type steps struct {
	told []string
	at   string
	do   func()
}

func (s *steps) progress(p job.Progress) {
	if p.Step == "" {
		return
	}
	s.told = append(s.told, p.Step)
	if p.Step == s.at {
		s.do()
	}
}

var allSteps = []string{
	"validate_environment", "allocate_vm_id", "download_os_image", "create_vm", "configure_vm",
	"start_vm", "wait_for_network", "verify_ssh_ready", "output_result",
}

// A breaking is a way to the lab on which every connection ends after so many
// bytes from the host.
type breaking struct {
	net.Listener
	cuts func(connection int) int64

	mu      sync.Mutex
	count   int
	working sync.WaitGroup
}

func newBreaking(t *testing.T, to string, cuts func(connection int) int64) *breaking {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &breaking{Listener: l, cuts: cuts}
	b.working.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			b.mu.Lock()
			b.count++
			limit := cuts(b.count)
			b.mu.Unlock()
			b.working.Go(func() { pass(near, to, limit) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		b.working.Wait()
	})
	return b
}

func (b *breaking) connections() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.count
}

func pass(near net.Conn, to string, limit int64) {
	far, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
	if err != nil {
		_ = near.Close()
		return
	}
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(far, near); _ = far.Close(); _ = near.Close() })
	_, _ = io.CopyN(near, far, limit)
	_ = near.Close()
	_ = far.Close()
	both.Wait()
}

func TestCreate_OutlastsTheConnection(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)

	t.Run("cut after every few bytes", func(t *testing.T) {
		way := newBreaking(t, h.addr(), func(n int) int64 { return 2800 + int64(n*173%1900) })
		pool := h.impatient(t, way.Addr().String())
		p, spec, s := h.provider(t, func(o *proxmox.Options) { o.Host = pool }), h.spec(), &steps{}
		v, err := p.Create(t.Context(), spec, s.progress)
		if !slices.Equal(s.told, allSteps) {
			t.Errorf("steps told: %q", s.told)
		}
		h.theVM(t, spec, v, err)
		if n := way.connections(); n < 3 {
			t.Errorf("only %d connections", n)
		}
	})

	t.Run("the host's sshd loses its sessions", func(t *testing.T) {
		pool := h.impatient(t, h.addr())
		spec, s := h.spec(), &steps{at: "start_vm", do: func() { h.signalSSHD(t, syscall.SIGKILL, false) }}
		v, err := h.provider(t, func(o *proxmox.Options) { o.Host = pool }).Create(t.Context(), spec, s.progress)
		h.theVM(t, spec, v, err)
	})

	t.Run("the host falls silent for some seconds", func(t *testing.T) {
		h.slowBoot(t, "4") // so that the script is not done before its first steps are read here
		pool := h.impatient(t, h.addr())
		var waking sync.WaitGroup
		var awake atomic.Bool
		spec, s := h.spec(), &steps{at: "create_vm", do: func() {
			h.signalSSHD(t, syscall.SIGSTOP, true)
			waking.Go(func() {
				<-time.After(4 * time.Second)
				awake.Store(true)
				h.signalSSHD(t, syscall.SIGCONT, true)
			})
		}}
		v, err := h.provider(t, func(o *proxmox.Options) { o.Host = pool }).Create(t.Context(), spec, s.progress)
		if !awake.Load() {
			t.Error("done while the host was silent")
		}
		waking.Wait()
		h.theVM(t, spec, v, err)
	})

	t.Run("a host that stays away is told, and cleaned up when it is back", func(t *testing.T) {
		server, pool := h.faulty(t, sshtest.Faults{})
		away := func() { server.Set(sshtest.Faults{RefuseLogin: true}); server.Drop() }
		spec, s := h.spec(), &steps{at: "create_vm", do: away}
		p := h.provider(t, func(o *proxmox.Options) { o.Host, o.Patience = pool, 2*time.Second })
		_, err := p.Create(t.Context(), spec, s.progress)
		wantHost(t, err, job.HostUnreachable)
		if err := p.Destroy(t.Context(), vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}); err == nil {
			t.Error("destroyed on a host that does not answer")
		}
		server.Set(sshtest.Faults{})
		h.removeAll(t, p, spec)
	})

}

func TestCreate_IsJoined(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)

	// detach begins a create and leaves it at a step, as an engine that stops.
	detach := func(t *testing.T, spec job.VMSpec, step string) {
		t.Helper()
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		s := &steps{at: step, do: func() { cancel(job.ErrDetach) }}
		_, err := h.provider(t, nil).Create(ctx, spec, s.progress)
		if !errors.Is(err, job.ErrDetach) {
			t.Fatalf("at %s: err = %v", step, err)
		}
		if _, err := os.Stat(filepath.Join(h.operation(spec), "exit")); err == nil {
			t.Errorf("the script has ended at %s", step)
		}
	}

	t.Run("by an engine that comes after", func(t *testing.T) {
		h.slowBoot(t, "1")
		for _, step := range []string{"create_vm", "verify_ssh_ready"} {
			spec := h.spec()
			detach(t, spec, step)
			s := &steps{}
			v, err := h.provider(t, func(o *proxmox.Options) { o.Host = h.impatient(t, h.addr()) }).Create(t.Context(), spec, s.progress)
			if !slices.Equal(s.told, allSteps) {
				t.Errorf("steps told: %q", s.told)
			}
			h.theVM(t, spec, v, err)
		}
	})

	t.Run("by an engine that comes after its end", func(t *testing.T) {
		spec := h.spec()
		first, err := h.provider(t, nil).Create(t.Context(), spec, func(job.Progress) {})
		if err != nil {
			t.Fatal(err)
		}
		again, err := h.provider(t, nil).Create(t.Context(), spec, func(job.Progress) {})
		if !reflect.DeepEqual(again, first) {
			t.Errorf("create = %+v, then %+v", first, again)
		}
		time.Sleep(200 * time.Millisecond) // a second run would have begun
		if out, err := os.ReadFile(filepath.Join(h.operation(spec), "out")); err != nil || strings.Count(string(out), "LINUS_BEGIN:") != 1 {
			t.Errorf("the script ran more than once: %s, %v", out, err)
		}
		h.theVM(t, spec, again, err)
	})

	t.Run("by many at once", func(t *testing.T) {
		spec := h.spec()
		vms, errs := make([]vm.VM, 3), make([]error, 3)
		var running sync.WaitGroup
		for i := range vms {
			p := h.provider(t, nil)
			running.Go(func() { vms[i], errs[i] = p.Create(t.Context(), spec, func(job.Progress) {}) })
		}
		running.Wait()
		for i := range vms {
			if errs[i] != nil || !reflect.DeepEqual(vms[i], vms[0]) {
				t.Errorf("create = %+v, %v, want %+v", vms[i], errs[i], vms[0])
			}
		}
		h.theVM(t, spec, vms[0], errs[0])
	})

	t.Run("and cancelled", func(t *testing.T) {
		h.slowBoot(t, "60")
		spec := h.spec()
		detach(t, spec, "create_vm")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := &steps{at: "wait_for_network", do: cancel}
		_, err := h.provider(t, nil).Create(ctx, spec, s.progress)
		wantHost(t, err, job.HostCancelled)
		if vms := h.vms(t, spec); len(vms) != 0 {
			t.Errorf("left: %+v", vms)
		}
		h.removeAll(t, h.provider(t, nil), spec)
	})

	t.Run("and ended by destroy, whose ID nobody learned", func(t *testing.T) {
		h.slowBoot(t, "60")
		for _, during := range []string{"validate_environment", "create_vm", "wait_for_network"} {
			spec := h.spec()
			detach(t, spec, during)
			if err := h.provider(t, nil).Destroy(t.Context(), vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}); err != nil {
				t.Fatal(err)
			}
			h.nothing(t, spec)
		}
	})

	t.Run("and found dead", func(t *testing.T) {
		h.slowBoot(t, "60")
		spec := h.spec()
		detach(t, spec, "wait_for_network")
		unit := "linus-create-" + spec.Job
		if err := h.pool.Run(t.Context(), remote.Command{Name: "kill", Line: remote.Quote("systemctl", "kill", "--signal=KILL", unit)}); err != nil {
			t.Error(err)
		}
		began := time.Now()
		_, err := h.provider(t, nil).Create(t.Context(), spec, func(job.Progress) {})
		wantHost(t, err, job.HostInterrupted)
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "restarted") || took > 10*time.Second {
			t.Errorf("after %s: %v", took, err)
		}
		h.removeAll(t, h.provider(t, nil), spec)
	})
}

// removeAll does what the executor does for a job that failed to get its VM.
func (h *labHost) removeAll(t *testing.T, p *proxmox.Provider, spec job.VMSpec) {
	t.Helper()
	if err := p.Destroy(t.Context(), vm.VM{Name: spec.Name, Job: spec.Job, Owner: spec.Owner}); err != nil {
		t.Error(err)
	}
	for _, v := range h.vms(t, spec) {
		if err := p.Destroy(t.Context(), v); err != nil {
			t.Error(err)
		}
	}
	h.nothing(t, spec)
}

func wantHost(t *testing.T, err error, class job.HostClass) {
	t.Helper()
	var host *job.HostError
	if !errors.As(err, &host) || host.Class != class || host.Text == "" {
		t.Errorf("err = %v, want class %s", err, class)
	}
}

// signalSSHD sends a signal to the sshd's sessions and, when all is set, to the
// sshd itself.
func (h *labHost) signalSSHD(t *testing.T, signal syscall.Signal, all bool) {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.Dir, "ssh", "sshd.pid"))
	if err != nil {
		t.Error(err)
		return
	}
	daemon := strings.TrimSpace(string(raw))
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Error(err)
	}
	sent := 0
	for _, path := range stats {
		raw, err := os.ReadFile(path)
		if err != nil {
			continue // gone meanwhile
		}
		pid, rest, _ := strings.Cut(string(raw), " (sshd")
		_, rest, ours := strings.Cut(rest, ") ")
		fields := strings.Fields(rest)
		if !ours || len(fields) < 2 || fields[1] != daemon && (!all || pid != daemon) {
			continue
		}
		number, err := strconv.Atoi(pid)
		if err == nil && syscall.Kill(number, signal) == nil {
			sent++
		}
	}
	if sent == 0 {
		t.Error("found no sshd to signal")
	}
}
