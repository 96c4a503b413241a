package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/proxmox"
	"linus/internal/sshtest"
	"linus/internal/vm"
)

// proves is what every script is told that does something to theVM.
func proves(more map[string]string) map[string]string {
	env := map[string]string{"VM_ID": "105", "VM_NAME": "linus-job-1", "LINUS_JOB": jobID, "LINUS_OWNER": owner}
	maps.Copy(env, more)
	return env
}

// Each verb runs its script, told which VM and by what it is proven to be ours.
func TestVerbs_TellTheirScriptWhichVM(t *testing.T) {
	t.Parallel()
	machine := map[string]string{"VM_ROUTED": "false", "VM_TRUST_FIRST_USE": "false", "PROXMOX_NODE": "pve", "VM_SSH_USER": "debian"}
	with := func(more map[string]string) map[string]string {
		env := maps.Clone(machine)
		maps.Copy(env, more)
		return proves(env)
	}
	booted := theVM
	booted.IP, booted.HostKey = "10.0.0.5", hostKey
	tests := []struct {
		name   string
		script string
		do     func(context.Context, *proxmox.Provider) (any, error)
		want   any
		env    map[string]string
	}{
		{"start", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.StartVM(ctx, theVM, func(job.Progress) {})
		}, booted, with(map[string]string{"ACTION": "start"})},
		{"stop", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.StopVM(ctx, theVM)
		}, nil, with(map[string]string{"ACTION": "shutdown"})},
		{"snapshot", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.SnapshotVM(ctx, theVM, "clean", false)
		}, nil, with(map[string]string{"ACTION": "snapshot", "SNAPSHOT": "clean"})},
		{"suspend", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.SuspendVM(ctx, theVM)
		}, nil, with(map[string]string{"ACTION": "suspend"})},
		{"resume", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.ResumeVM(ctx, theVM, func(job.Progress) {})
		}, booted, with(map[string]string{"ACTION": "resume"})},
		{"snapshot with memory", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.SnapshotVM(ctx, theVM, "live", true)
		}, nil, with(map[string]string{"ACTION": "snapshot", "SNAPSHOT": "live", "SNAPSHOT_MEMORY": "true"})},
		{"revert", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.RevertVM(ctx, theVM, "clean", func(job.Progress) {})
		}, booted, with(map[string]string{"ACTION": "revert", "SNAPSHOT": "clean"})},
		{"delete snapshot", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.DeleteSnapshot(ctx, theVM, "clean")
		}, nil, with(map[string]string{"ACTION": "delete-snapshot", "SNAPSHOT": "clean"})},
		{"fork", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.ForkVM(ctx, theVM, func(job.Progress) {})
		}, job.ForkPoint{Live: true, Why: "it can", PauseMS: 120}, with(map[string]string{"ACTION": "fork"})},
		{"end of a fork", "power-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.EndFork(ctx, theVM)
		}, nil, with(map[string]string{"ACTION": "unfork"})},
		{"snapshots", "show-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.Snapshots(ctx, theVM)
		}, []job.Snapshot{}, proves(map[string]string{"SHOW_SNAPSHOTS": "true"})},
		{"destroy", "destroy-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.Destroy(ctx, theVM)
		}, nil, proves(map[string]string{"VM_KIND": "vm", "PROXMOX_NODE": "pve"})},
		{"forget", "destroy-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return nil, p.ForgetVM(ctx, theVM)
		}, nil, proves(map[string]string{"ACTION": "forget", "PROXMOX_NODE": "pve"})},
		{"status", "show-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.Status(ctx, theVM)
		}, vm.Running, proves(nil)},
		{"look", "show-vm", func(ctx context.Context, p *proxmox.Provider) (any, error) {
			return p.Look(ctx, theVM)
		}, job.Seen{Status: vm.Running, IP: "10.0.0.5", BootID: other}, proves(map[string]string{"LOOK_INSIDE": "true", "VM_ROUTED": "false"})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var env map[string]string
			script := func(r *run) int {
				env = maps.Clone(r.env)
				delete(env, "LINUS_NONCE")
				delete(env, "PROXMOX_TOOLS") // of every script alike
				return succeeds(append([]string{"LINUS_FORK:live", "LINUS_FORK_WHY:it can", "LINUS_FORK_PAUSE:120", "LINUS_VM_STATUS:running", "LINUS_VM_BOOT_ID:" + other}, reached...)...)(r)
			}
			h := newScripted(t, map[string]func(*run) int{tt.script: script})
			got, err := tt.do(t.Context(), h.provider(nil))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("returned (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.env, env); diff != "" {
				t.Errorf("inputs (-want +got):\n%s", diff)
			}
		})
	}
}

// A power action goes on when the engine stops, as a create does; its operation
// is somebody's to find, so nothing of it is ended.
func TestPower_GoesOnWhenTheEngineStops(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(context.Context, *proxmox.Provider, func(job.Progress)) error{
		"start": func(ctx context.Context, p *proxmox.Provider, progress func(job.Progress)) error {
			_, err := p.StartVM(ctx, theVM, progress)
			return err
		},
		"resume": func(ctx context.Context, p *proxmox.Provider, progress func(job.Progress)) error {
			_, err := p.ResumeVM(ctx, theVM, progress)
			return err
		},
		"revert": func(ctx context.Context, p *proxmox.Provider, progress func(job.Progress)) error {
			_, err := p.RevertVM(ctx, theVM, "clean", progress)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			going, ended := make(chan struct{}), make(chan string, 1)
			h := newScripted(t, map[string]func(*run) int{"power-vm": func(r *run) int {
				r.say("LINUS_STEP:1/2:start_vm:starting")
				select {
				case <-going:
					ended <- "done"
				case <-r.stop:
					ended <- "told to stop"
				}
				return succeeds(reached...)(r)
			}, "list-vms": succeeds()})
			p := h.provider(nil)
			ctx, stop := context.WithCancelCause(t.Context())
			defer stop(nil)
			if err := do(ctx, p, func(job.Progress) { stop(job.ErrDetach) }); !errors.Is(err, job.ErrDetach) {
				t.Errorf("err = %v, want ErrDetach", err)
			}
			if _, err := p.List(t.Context()); err != nil { // what else was asked for would have come before
				t.Error(err)
			}
			if got := append(h.asked("stop"), h.asked("settle")...); len(got) != 0 {
				t.Errorf("asked of the host: %v", got)
			}
			close(going)
			if how := <-ended; how != "done" {
				t.Errorf("the action was %s", how)
			}
		})
	}
}

// One that has ended leaves nothing on the host, and that this fails is no fault
// of the action.
func TestPower_SettlesWhatHasEnded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		settled int
		script  func(*run) int
		class   job.HostClass // of the error; "": none
	}{
		{"well", 0, succeeds(), ""},
		{"badly", 0, func(r *run) int { return r.fails(5, "no such snapshot", "take one") }, job.HostVM},
		{"well, and cannot be settled", 75, succeeds(), ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			log := &logBook{}
			h := newScripted(t, map[string]func(*run) int{"power-vm": tt.script})
			h.settled = tt.settled
			err := h.provider(logged(log)).StopVM(t.Context(), theVM)
			if tt.class != "" {
				hostError(t, err, tt.class)
			} else if err != nil {
				t.Error(err)
			}
			started, settled := h.asked("start power-"), h.asked("settle power-")
			if len(started) != 1 || len(settled) != 1 || strings.TrimPrefix(started[0], "start ") != strings.TrimPrefix(settled[0], "settle ") {
				t.Errorf("started %v, settled %v", started, settled)
			}
			if n := len(log.lines("operation left on the host")); (n == 1) != (tt.settled != 0) {
				t.Errorf("%d warnings of an operation left", n)
			}
		})
	}
}

// Two actions on one VM are two operations.
func TestPower_EachActionIsItsOwn(t *testing.T) {
	t.Parallel()
	h := newScripted(t, map[string]func(*run) int{"power-vm": succeeds()})
	p := h.provider(nil)
	for range 2 {
		if err := p.StopVM(t.Context(), theVM); err != nil {
			t.Fatal(err)
		}
	}
	if got := h.asked("start"); len(got) != 2 || got[0] == got[1] {
		t.Errorf("started: %v", got)
	}
}

func TestStatus_IsReadFromTheHostsWord(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]vm.Status{
		"running": vm.Running, "stopped": vm.Stopped, "suspended": vm.Suspended, "gone": vm.Gone, "foreign": vm.Gone,
		"left_alone": vm.Unproven, "moved": vm.Unproven, "paused": vm.Unknown, "": vm.Unknown,
	} {
		h := newScripted(t, map[string]func(*run) int{"show-vm": succeeds("LINUS_VM_STATUS:" + word)})
		if got, err := h.provider(nil).Status(t.Context(), theVM); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", word, got, err, want)
		}
	}
}

// A snapshot's line is read in whole or not at all, and only of a VM that is ours.
func TestSnapshots_AreReadFromTheHostsLines(t *testing.T) {
	t.Parallel()
	lines := []string{
		"LINUS_SNAPSHOT:name=clean time=1790000000 memory=no disk_bytes=4096 current=no whole=yes",
		"LINUS_SNAPSHOT:name=live time=1790000060 parent=clean memory=yes memory_bytes=4819255296 current=yes whole=no",
	}
	h := newScripted(t, map[string]func(*run) int{"show-vm": succeeds(append([]string{"LINUS_VM_STATUS:running"}, lines...)...)})
	want := []job.Snapshot{
		{Name: "clean", CreatedAt: time.Unix(1790000000, 0).UTC(), DiskBytes: 4096},
		{Name: "live", CreatedAt: time.Unix(1790000060, 0).UTC(), Parent: "clean", Memory: true, MemoryBytes: 4819255296, Current: true, Incomplete: true},
	}
	got, err := h.provider(nil).Snapshots(t.Context(), theVM)
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, said := range [][]string{
		{"LINUS_VM_STATUS:running", "LINUS_SNAPSHOT:name=a;b time=1"}, {"LINUS_VM_STATUS:running", "LINUS_SNAPSHOT:name=clean time=x"},
		{"LINUS_VM_STATUS:running", "LINUS_SNAPSHOT:name=clean time=1 disk_bytes=-1"}, {"LINUS_VM_STATUS:running", "LINUS_SNAPSHOT:name=clean time=1 parent=../x"},
		{"LINUS_VM_STATUS:gone"}, {"LINUS_VM_STATUS:left_alone", "LINUS_WARNING:VM 105 is not proven"},
	} {
		h := newScripted(t, map[string]func(*run) int{"show-vm": succeeds(said...)})
		_, err := h.provider(nil).Snapshots(t.Context(), theVM)
		hostError(t, err, job.HostVM)
	}
}

// What a guest says of itself is taken only in its form.
func TestLook_TakesNothingThatCannotBe(t *testing.T) {
	t.Parallel()
	log := &logBook{}
	h := newScripted(t, map[string]func(*run) int{"show-vm": succeeds("LINUS_VM_STATUS:running", "LINUS_VM_BOOT_ID:'; reboot", "LINUS_VM_IP:127.0.0.1")})
	seen, err := h.provider(logged(log)).Look(t.Context(), theVM)
	if err != nil || seen != (job.Seen{Status: vm.Running}) {
		t.Errorf("seen %+v, %v", seen, err)
	}
	if n := len(log.lines("address reported by the guest refused")); n != 1 {
		t.Errorf("%d warnings", n)
	}
}

// A destroy first ends what is under way for the VM's job; while that does not
// end, nothing is destroyed.
func TestDestroy_SettlesTheCreateFirst(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		vm      vm.VM
		settled int
		want    []string
		class   job.HostClass
	}{
		{"a VM", theVM, 0, []string{"settle create-" + jobID, "destroy-vm"}, ""},
		{"no VM is known", vm.VM{Job: jobID}, 0, []string{"settle create-" + jobID}, ""},
		{"a create that does not end", theVM, 75, []string{"settle create-" + jobID}, job.HostTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			h := newScripted(t, map[string]func(*run) int{"destroy-vm": succeeds()})
			h.settled = tt.settled
			err := h.provider(nil).Destroy(t.Context(), tt.vm)
			if tt.class == "" && err != nil {
				t.Error(err)
			} else if tt.class != "" {
				if host := hostError(t, err, tt.class); !strings.Contains(host.Remedy, "operations/create-"+jobID) {
					t.Errorf("%+v does not say where to look", host)
				}
			}
			got := slices.DeleteFunc(h.asked(""), func(c string) bool { return c == "prepare" })
			if !slices.Equal(got, tt.want) {
				t.Errorf("asked of the host: %v, want %v", got, tt.want)
			}
		})
	}
}

// A destroy whose connection breaks comes again, and is as good as one.
func TestDestroy_OutlastsBreaksOfTheConnection(t *testing.T) {
	t.Parallel()
	for n := range 4 {
		t.Run(fmt.Sprintf("at command %d", n+1), func(t *testing.T) {
			t.Parallel()
			h := newScripted(t, map[string]func(*run) int{"destroy-vm": succeeds()})
			h.Set(sshtest.Faults{DropAtExec: n + 1})
			if err := h.provider(nil).Destroy(t.Context(), theVM); err != nil {
				t.Error(err)
			}
			if h.Stats().Connections != 2 {
				t.Errorf("%d connections, want 2", h.Stats().Connections)
			}
		})
	}
}
