package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/lab/nspawn"
	"linus/internal/remote"
)

// TestSystemd_OfTheHost takes creates to their ends on a host whose systemd is
// a real one: their units, the timer that ends leases, and a power cut.
func TestSystemd_OfTheHost(t *testing.T) {
	t.Parallel()
	if missing := nspawn.Missing(); len(missing) > 0 {
		t.Skipf("no real systemd here: %s", strings.Join(missing, " "))
	}
	h := newLabOf(t, lab.DriverProcess, lab.SystemdReal)
	h.scripts = h.Env()["PROXMOX_SCRIPT_DIR"] // the host sees of this machine the lab's directory only

	t.Run("a create to its end", func(t *testing.T) {
		spec, s := h.spec(), &steps{}
		s.at, s.do = "start_vm", func() {
			if got := h.on(t, "systemctl is-active "+unitOf(spec)+"; ps -p 1 -o comm="); got != "active\nsystemd" {
				t.Errorf("the create's unit, and the host's process 1: %q", got)
			}
		}
		vm, err := h.provider(t, nil).Create(t.Context(), spec, s.progress)
		h.theVM(t, spec, vm, err)
		h.noUnit(t, spec)
		if calls := readText(t, h.Path("log", "tools")); !strings.Contains(calls, "loaded qm clone") {
			t.Errorf("the tool server was passed by: %s", calls)
		}
	})

	t.Run("a cancel in the middle", func(t *testing.T) {
		h.slowBoot(t, "60")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		spec := h.spec()
		_, err := h.provider(t, nil).Create(ctx, spec, (&steps{at: "wait_for_network", do: cancel}).progress)
		wantHost(t, err, job.HostCancelled)
		if vms := h.vms(t, spec); len(vms) != 0 {
			t.Errorf("not rolled back: %+v", vms)
		}
		h.removeAll(t, h.provider(t, nil), spec)
		h.noUnit(t, spec)
	})

	t.Run("KILL of the unit", func(t *testing.T) {
		h.slowBoot(t, "60")
		spec := h.spec()
		s := &steps{at: "wait_for_network", do: func() { h.on(t, "systemctl kill --kill-whom=main --signal=KILL "+unitOf(spec)) }}
		_, err := h.provider(t, nil).Create(t.Context(), spec, s.progress)
		wantHost(t, err, job.HostInterrupted)
		if vms := h.vms(t, spec); len(vms) != 1 {
			t.Errorf("what the killed create left: %+v, want its VM", vms)
		}
		h.removeAll(t, h.provider(t, nil), spec)
		h.noUnit(t, spec)
	})

	t.Run("a reboot", func(t *testing.T) {
		h.slowBoot(t, "60")
		spec := h.spec()
		ctx, detach := context.WithCancelCause(t.Context())
		defer detach(nil)
		_, err := h.provider(t, nil).Create(ctx, spec, (&steps{at: "wait_for_network", do: func() { detach(job.ErrDetach) }}).progress)
		if !errors.Is(err, job.ErrDetach) {
			t.Fatal(err)
		}
		if err := h.Reboot(t.Context()); err != nil {
			t.Fatal(err)
		}
		if units := h.on(t, "systemctl list-units --all --plain --no-legend 'linus-create-*'; systemctl is-active linus-sweep.timer"); units != "active" {
			t.Errorf("units after the reboot: %s", units)
		}
		if _, err := os.Stat(filepath.Join(h.operation(spec), "log")); err != nil {
			t.Errorf("the operation's files are gone: %v", err)
		}
		_, err = h.provider(t, nil).Create(t.Context(), spec, func(job.Progress) {})
		wantHost(t, err, job.HostInterrupted)
		if err == nil || !strings.Contains(err.Error(), "restarted") {
			t.Errorf("a create that the reboot ended: %v", err)
		}
		h.removeAll(t, h.provider(t, nil), spec)
	})

	t.Run("the end of a lease", func(t *testing.T) {
		// That the timer runs is believed for a minute after it was seen. One that runs without
		// files of its units is started anew with them.
		h.on(t, `systemctl disable --quiet --now linus-sweep.timer linus-sweep.service || :
			rm -f ~/linus/armed /etc/systemd/system/linus-sweep.*; systemctl daemon-reload
			systemd-run --quiet --collect --unit=linus-sweep --on-active=10000 true
			echo 'export LINUS_SWEEP_SECONDS=1' >~/.bashrc`)
		spec, lease := h.spec(), 5*time.Second
		spec.Lease = lease
		vm, err := h.provider(t, nil).Create(t.Context(), spec, func(job.Progress) {})
		for err != nil && lease < time.Minute { // on a busy machine it ends in the middle of the create
			lease *= 4
			spec = h.spec()
			spec.Lease = lease
			vm, err = h.provider(t, nil).Create(t.Context(), spec, func(job.Progress) {})
		}
		if err != nil {
			t.Fatal(err)
		}
		// Nobody of ours comes by from here on: what ends the VM is the timer.
		h.on(t, fmt.Sprintf(`for ((i = 0; i < 600; i++)); do
				[[ -e $LINUS_PVE_DIR/qemu-server/%d.conf ]] || exit 0
				sleep 0.2
			done
			echo 'the VM is still there:' >&2; systemctl list-timers --all >&2; exit 1`, vm.ID))
		if vms := h.vms(t, spec); len(vms) != 0 {
			t.Errorf("VMs left: %+v", vms)
		}
		h.removeAll(t, h.provider(t, nil), spec)
	})
}

func unitOf(spec job.VMSpec) string { return "linus-create-" + spec.Job + ".service" }

// on runs a bash script on the lab's host and returns what it prints.
func (h *labHost) on(t *testing.T, script string) string {
	t.Helper()
	out, err := h.pool.Output(t.Context(), remote.Command{Name: "script", Line: remote.Quote("bash", "-c", script)}, 1<<20)
	if err != nil {
		t.Errorf("%s: %v", script, err)
	}
	return strings.TrimSpace(string(out))
}

// noUnit waits until systemd has let go of a create's unit.
func (h *labHost) noUnit(t *testing.T, spec job.VMSpec) {
	t.Helper()
	h.on(t, `for ((i = 0; i < 100; i++)); do
			[[ $(systemctl show --property=LoadState --value `+unitOf(spec)+`) == loaded ]] || exit 0
			sleep 0.1
		done
		systemctl status `+unitOf(spec)+` >&2; exit 1`)
}
