package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/remote"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// boots says what create-vm says, and waits at each step until the test lets it
// go on; it undoes its work when it is told to stop.
type boots struct {
	at    chan string   // the step begun
	going chan struct{} // one for each step
}

func newBoots() *boots { return &boots{at: make(chan string, 100), going: make(chan struct{}, 100)} }

func (b *boots) script(r *run) int {
	r.say("LINUS_VM_ID:105")
	for i, step := range allSteps {
		r.say(fmt.Sprintf("LINUS_STEP:%d/%d:%s:doing it", i+1, len(allSteps), step))
		b.at <- step
		select {
		case <-b.going:
		case <-r.stop:
			return r.fails(143, "stopped, and undone", "none")
		}
	}
	return succeeds(reached...)(r)
}

// go on for some steps, or to the end.
func (b *boots) pass(steps int) {
	for range steps {
		b.going <- struct{}{}
	}
}

func TestCreate_SaysWhatTheVMIsToBeAndReturnsIt(t *testing.T) {
	t.Parallel()
	var env map[string]string
	h := newScripted(t, map[string]func(*run) int{"create-vm": func(r *run) int {
		env = r.env
		r.say("LINUS_VM_ID:105", "LINUS_STEP:1/2:create_vm:cloning template 9000", "LINUS_WARNING:the storage is nearly full: VM_DISK", "LINUS_VM_ID:105", "LINUS_STEP:2/2:start_vm:starting")
		return succeeds(reached...)(r)
	}})
	p := h.provider(func(o *proxmox.Options) {
		o.Node, o.Storage, o.Bridge, o.VLANTag, o.VMIDRange = "pve", "local-lvm", "vmbr0", 7, "100-199"
		o.GuestPort, o.NetworkTimeout, o.ReadyTimeout = 2222, 90*time.Second, 5*time.Minute
		o.IPConfig, o.Gateway, o.ImageURL, o.Routed = "dhcp", "10.0.0.1", "https://images.example/x.qcow2", true
	})
	spec := job.VMSpec{
		Name: "linus-job-1", Job: jobID, Owner: owner, CPU: 2, MemoryMB: 1024, DiskGB: 20, Template: "agent-template",
		Lease: time.Hour, PublicKey: "ssh-ed25519 AAAA own",
	}
	spec.Network.IP = "10.0.0.5/24"
	var told []job.Progress
	v, err := p.Create(t.Context(), spec, func(p job.Progress) { told = append(told, p) })
	if err != nil {
		t.Fatal(err)
	}
	want := theVM
	want.IP, want.HostKey, want.State = "10.0.0.5", hostKey, vm.Created
	if diff := cmp.Diff(want, v); diff != "" {
		t.Errorf("VM (-want +got):\n%s", diff)
	}
	wantTold := []job.Progress{
		{VMID: 105}, {Step: "create_vm", N: 1, Of: 2, Text: "cloning template 9000"},
		{Warning: "the storage is nearly full: resources.disk"}, {Step: "start_vm", N: 2, Of: 2, Text: "starting"},
	}
	if diff := cmp.Diff(wantTold, told); diff != "" {
		t.Errorf("progress (-want +got):\n%s", diff)
	}
	wantEnv := map[string]string{
		"VM_NAME": "linus-job-1", "LINUS_JOB": jobID, "LINUS_OWNER": owner, "VM_CPU": "2", "VM_RAM": "1024", "VM_DISK": "20",
		"VM_TEMPLATE": "agent-template", "LINUS_LEASE_SECONDS": "3600", "SSH_PUBLIC_KEY": "ssh-ed25519 AAAA own",
		"PROXMOX_NODE": "pve", "PROXMOX_STORAGE": "local-lvm", "PROXMOX_BRIDGE": "vmbr0", "VM_VLAN_TAG": "7", "VM_ID_RANGE": "100-199",
		"VM_SSH_PORT": "2222", "VM_NETWORK_TIMEOUT": "90", "VM_READY_TIMEOUT": "300", "VM_IP_CONFIG": "10.0.0.5/24", "VM_GATEWAY": "10.0.0.1",
		"VM_ROUTED": "true", "VM_TRUST_FIRST_USE": "false", "PROXMOX_TOOLS": "plain",
	}
	if diff := cmp.Diff(wantEnv, env); diff != "" {
		t.Errorf("inputs (-want +got):\n%s", diff)
	}
}

func TestCreate_WhoseVMCannotBeReachedAsSaidIsAnError(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"create-vm": succeeds(append(slices.Clone(reached), "LINUS_VM_IP:127.0.0.1")...)})
	vm, err := h.provider(nil).Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, func(job.Progress) {})
	hostError(t, err, job.HostVM)
	if vm.ID != 105 {
		t.Errorf("its ID is not known any more: %+v", vm)
	}
}

// An engine that stops leaves the script alone; the next one finds it, hears all
// it has said, and has its result.
func TestCreate_IsLeftToItselfByAnEngineThatStops(t *testing.T) {
	t.Parallel()
	b := newBoots()
	h := newScripted(t, map[string]func(*run) int{"create-vm": b.script})
	spec := job.VMSpec{Name: "linus-job-1", Job: jobID, Owner: owner}
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	s := &steps{at: "wait_for_network", do: func() { stop(job.ErrDetach) }}
	b.pass(6)
	if _, err := h.provider(nil).Create(ctx, spec, s.progress); !errors.Is(err, job.ErrDetach) {
		t.Fatalf("err = %v", err)
	}
	if got := append(h.asked("stop"), h.asked("settle")...); len(got) != 0 {
		t.Errorf("asked of the host: %v", got)
	}
	b.pass(len(allSteps) - 6)
	next := &steps{}
	vm, err := h.provider(nil).Create(t.Context(), spec, next.progress)
	if err != nil || vm.ID != 105 || vm.IP != "10.0.0.5" {
		t.Errorf("joined: %+v, %v", vm, err)
	}
	if !slices.Equal(next.told, allSteps) {
		t.Errorf("steps told: %q", next.told)
	}
	if n := len(b.at); n != len(allSteps) {
		t.Errorf("the script began %d steps in all, want %d: it ran once", n, len(allSteps))
	}
}

// Breaks of the connection cost nothing: every step is told, once.
func TestCreate_OutlastsBreaksOfTheConnection(t *testing.T) {
	t.Parallel()
	for n := range 6 {
		t.Run(fmt.Sprintf("at command %d", n+1), func(t *testing.T) {
			t.Parallel()
			b := newBoots()
			h := newScripted(t, map[string]func(*run) int{"create-vm": b.script})
			h.Set(sshtest.Faults{DropAtExec: n + 1})
			b.pass(len(allSteps))
			s := &steps{}
			vm, err := h.provider(nil).Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, s.progress)
			if err != nil || vm.ID != 105 || !slices.Equal(s.told, allSteps) {
				t.Errorf("%+v, %v, told %q", vm, err, s.told)
			}
			if n := len(b.at); n != len(allSteps) {
				t.Errorf("the script began %d steps in all: it ran more than once", n)
			}
		})
	}
	for _, step := range []string{"validate_environment", "create_vm", "verify_ssh_ready", "output_result"} {
		t.Run("at "+step, func(t *testing.T) {
			t.Parallel()
			b := newBoots()
			h := newScripted(t, map[string]func(*run) int{"create-vm": b.script})
			s := &steps{at: step, do: h.Drop}
			b.pass(len(allSteps))
			vm, err := h.provider(nil).Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, s.progress)
			if err != nil || vm.ID != 105 || !slices.Equal(s.told, allSteps) {
				t.Errorf("%+v, %v, told %q", vm, err, s.told)
			}
		})
	}
}

func TestCreate_GivesUpOnAHostThatStaysAway(t *testing.T) {
	t.Parallel()
	b := newBoots()
	h := newScripted(t, map[string]func(*run) int{"create-vm": b.script})
	b.pass(3)
	s := &steps{at: "create_vm", do: func() { h.Set(sshtest.Faults{RefuseLogin: true}); h.Drop() }}
	p := h.provider(func(o *proxmox.Options) { o.Patience = time.Second })
	_, err := p.Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, s.progress)
	hostError(t, err, job.HostUnreachable)
	h.Set(sshtest.Faults{})
	if err := p.Destroy(t.Context(), vm.VM{Name: "linus-job-1", Job: jobID}); err != nil {
		t.Errorf("what is left on a host that is back: %v", err)
	}
	if got := h.asked("settle"); len(got) != 1 {
		t.Errorf("settled: %v", got)
	}
}

func TestCreate_ThatIsCancelledWaitsForItsRollBack(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		cause error
		cut   bool
	}{{"", nil, false}, {"with a cause of its own", errors.New("Cancelled by user"), false}, {"while the connection breaks", nil, true}} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newBoots()
			h := newScripted(t, map[string]func(*run) int{"create-vm": b.script})
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			s := &steps{at: "wait_for_network", do: func() {
				if tt.cut {
					h.Drop()
				}
				cancel(tt.cause)
			}}
			b.pass(6)
			_, err := h.provider(nil).Create(ctx, job.VMSpec{Name: "linus-job-1", Job: jobID}, s.progress)
			if host := hostError(t, err, job.HostCancelled); !strings.Contains(host.Text, "stopped, and undone") {
				t.Errorf("%+v does not say how the script ended", host)
			}
		})
	}
}

// A script that does not end is not waited for beyond RollbackWait, and it is
// said that nobody knows.
func TestCreate_WhoseRollBackDoesNotEnd(t *testing.T) {
	t.Parallel()
	var h *scripted
	h = newScripted(t, map[string]func(*run) int{"create-vm": func(r *run) int {
		r.say("LINUS_STEP:1/9:validate_environment:looking")
		<-h.over
		return 0
	}})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := h.provider(func(o *proxmox.Options) { o.RollbackWait = 300 * time.Millisecond })
	s := &steps{at: "validate_environment", do: cancel}
	_, err := p.Create(ctx, job.VMSpec{Name: "linus-job-1", Job: jobID}, s.progress)
	if host := hostError(t, err, job.HostCancelled); !strings.Contains(host.Text, "is not known") {
		t.Errorf("%+v", host)
	}
}

func TestCreate_WhoseScriptIsGoneWithoutResult(t *testing.T) {
	t.Parallel()
	b := newBoots()
	h := newScripted(t, map[string]func(*run) int{"create-vm": b.script})
	s := &steps{at: "validate_environment", do: h.loses}
	_, err := h.provider(nil).Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, s.progress)
	if host := hostError(t, err, job.HostInterrupted); !strings.Contains(host.Text, "restarted") {
		t.Errorf("%+v", host)
	}
}

func TestCreate_ThatIsCancelledBeforeItBeginsAsksForNothing(t *testing.T) {
	t.Parallel()
	h := newScripted(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := h.provider(nil).Create(ctx, job.VMSpec{Name: "linus-job-1", Job: jobID}, func(job.Progress) {})
	hostError(t, err, job.HostCancelled)
	if got := h.asked("start"); len(got) != 0 {
		t.Errorf("asked: %v", got)
	}
}

// So many clone at once; a VM that boots holds no other back.
func TestCreate_CloneSlotsAreHeldUntilTheVMIsStarted(t *testing.T) {
	t.Parallel()
	const slots = 3
	cloning, booting := make(chan string, 10), make(chan string, 10)
	cloned, booted := make(chan struct{}), make(chan struct{})
	h := newScripted(t, map[string]func(*run) int{"create-vm": func(r *run) int {
		r.say("LINUS_VM_ID:105", "LINUS_STEP:4/9:create_vm:cloning")
		cloning <- r.env["VM_NAME"]
		wait(r, cloned)
		r.say("LINUS_STEP:6/9:start_vm:starting")
		booting <- r.env["VM_NAME"]
		wait(r, booted)
		return succeeds(reached...)(r)
	}, "list-vms": succeeds()})
	p := h.provider(nil)
	var creates sync.WaitGroup
	for i := range slots + 2 {
		creates.Go(func() {
			spec := job.VMSpec{Name: fmt.Sprintf("vm-%d", i), Job: fmt.Sprintf("%s%d", jobID[:35], i)}
			if _, err := p.Create(t.Context(), spec, func(job.Progress) {}); err != nil {
				t.Errorf("create %d: %v", i, err)
			}
		})
	}
	for range slots {
		<-cloning
	}
	// A command through the same provider and host, begun later, is done: what the
	// others waited for would be there too.
	if _, err := p.List(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(h.asked("start")); n != slots {
		t.Errorf("%d creates at once, want %d", n, slots)
	}
	cloned <- struct{}{} // one is cloned, and boots as long as nobody lets it go on
	<-booting
	select {
	case <-cloning:
	case <-time.After(20 * time.Second):
		t.Error("no other is cloned while a VM boots")
	}
	close(cloned)
	close(booted)
	creates.Wait()
	if n := len(h.asked("start")); n != slots+2 {
		t.Errorf("%d creates in all", n)
	}
}

func wait(r *run, until <-chan struct{}) {
	select {
	case <-until:
	case <-r.stop:
	}
}

// A create that fails gives its slot back.
func TestCreate_ThatFailsFreesItsSlot(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"create-vm": func(r *run) int { return r.fails(5, "no room", "make some") }})
	p := h.provider(nil)
	for i := range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		_, err := p.Create(ctx, job.VMSpec{Name: "vm", Job: fmt.Sprintf("%s%d", jobID[:35], i)}, func(job.Progress) {})
		cancel()
		hostError(t, err, job.HostVM)
	}
}

// A create that was refused before its first change says so: there is no VM to destroy.
func TestCreate_RefusedBeforeTheFirstChangeSaysSo(t *testing.T) {
	t.Parallel()
	fails := func(lines ...string) func(*run) int {
		return func(r *run) int {
			r.say(lines...)
			return r.fails(3, "no quorum", "wait")
		}
	}
	tests := []struct {
		name   string
		script func(*run) int
		login  bool // refused
		noVM   bool
	}{
		{"an input", fails(), false, true},
		{"the environment", fails("LINUS_STEP:1/9:validate_environment:checking"), false, true},
		{"with a VM", fails("LINUS_STEP:1/9:validate_environment:checking", "LINUS_STEP:4/9:create_vm:creating", "LINUS_VM_ID:105"), false, false},
		{"perhaps with a VM", fails("LINUS_STEP:1/9:validate_environment:checking", "LINUS_STEP:4/9:create_vm:creating"), false, false},
		{"killed", func(r *run) int { r.say("LINUS_STEP:1/9:validate_environment:checking"); return 143 }, false, false},
		{"login", nil, true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newScripted(t, map[string]func(*run) int{"create-vm": tt.script})
			pool := h.pool
			if tt.login {
				key := filepath.Join(t.TempDir(), "key")
				if _, err := remote.EnsureKeyPair(key, "another", nil); err != nil {
					t.Fatal(err)
				}
				pool = remote.NewPool(remote.Options{Host: h.Host, Port: h.Port, User: "root", KeyPath: key, KnownHosts: h.KnownHosts})
				t.Cleanup(pool.Close)
			}
			p := h.provider(func(o *proxmox.Options) { o.Host = pool })
			_, err := p.Create(t.Context(), job.VMSpec{Name: "linus-job-1", Job: jobID}, func(job.Progress) {})
			var host *job.HostError
			if !errors.As(err, &host) || host.NoVM != tt.noVM {
				t.Errorf("no VM: %v, %v", host != nil && host.NoVM, err)
			}
		})
	}
}
