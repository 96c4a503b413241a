package proxmox_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/lab/state"
	"linus/internal/proxmox"
	"linus/internal/vm"
)

func TestSave_TellsItsScriptAndReadsIt(t *testing.T) {
	t.Parallel()
	for how, inPlace := range map[string]bool{"copy": false, "in-place": true} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			var env map[string]string
			h := newScripted(t, map[string]func(*run) int{"save-vm": func(r *run) int {
				env = r.env
				return succeeds("LINUS_TEMPLATE_NAME:setup", "LINUS_VM_ID:120", "LINUS_VM_NODE:pve", "LINUS_SAVED:"+how, "LINUS_SAVED_AT:1700000000", "LINUS_LEFT:/root/\x1b[31mwork", "LINUS_LEFT:/root/x")(r)
			}})
			of := theVM
			of.Template = "agent-template"
			got, err := h.provider(nil).SaveVM(t.Context(), of, job.SaveSpec{Name: "setup", InPlace: inPlace, By: "mcp: ann\n$(id)"}, func(job.Progress) {})
			want := job.SavedTemplate{
				Name: "setup", VMID: 120, Node: "pve", InPlace: inPlace, Left: []string{"/root/work", "/root/x"},
				Saved: vm.Provenance{VM: of.Name, Template: "agent-template", By: "mcp:_ann___id_", At: time.Unix(1700000000, 0).UTC()},
			}
			if diff := cmp.Diff(want, got); err != nil || diff != "" {
				t.Errorf("%v, returned (-want +got):\n%s", err, diff)
			}
			for key, want := range proves(map[string]string{"TEMPLATE_NAME": "setup", "SAVE_MODE": how, "SAVED_BY": "mcp:_ann___id_", "VM_TEMPLATE": "agent-template", "PROXMOX_NODE": "pve"}) {
				if env[key] != want {
					t.Errorf("%s=%q, want %q", key, env[key], want)
				}
			}
			settled := strings.Join(h.asked("settle"), "\n")
			if !strings.Contains(settled, "settle save-"+env["LINUS_BUILD"]) || strings.Contains(settled, "settle create-"+jobID) != inPlace {
				t.Errorf("settled %s", settled)
			}
		})
	}
}

func TestSave_OnTheHost(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	p := h.provider(t, nil)
	spec := h.spec()
	v, err := p.Create(t.Context(), spec, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	defer h.removeAll(t, p, spec)
	alone := func(t *testing.T) {
		t.Helper()
		all, err := p.List(t.Context())
		if status, statusErr := p.Status(t.Context(), v); err != nil || statusErr != nil || len(all) != 1 || status != vm.Running {
			t.Errorf("beside the VM (%s): %+v, %v, %v", status, all, err, statusErr)
		}
	}

	t.Run("a guest agent that is silent ends it, and the copy", func(t *testing.T) {
		if err := h.SetFault(state.FaultAgentSilent, "1"); err != nil {
			t.Fatal(err)
		}
		impatient := h.provider(t, func(o *proxmox.Options) { o.ReadyTimeout = 2 * time.Second })
		_, err := impatient.SaveVM(t.Context(), v, job.SaveSpec{Name: "silent"}, func(job.Progress) {})
		hostError(t, err, job.HostTimeout)
		if err := h.SetFault(state.FaultAgentSilent, ""); err != nil {
			t.Fatal(err)
		}
		alone(t)
	})
	t.Run("the host goes on without its engine", func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		s := &steps{at: "boot_vm", do: func() { stop(job.ErrDetach) }}
		if _, err := p.SaveVM(ctx, v, job.SaveSpec{Name: "setup", By: "ann"}, s.progress); !errors.Is(err, job.ErrDetach) {
			t.Fatalf("after %q: %v", s.told, err)
		}
		var found []vm.VM
		for deadline := time.Now().Add(time.Minute); len(found) == 0; <-time.After(100 * time.Millisecond) {
			if found, err = p.Templates(t.Context()); err != nil || time.Now().After(deadline) {
				t.Fatalf("templates %+v, %v", found, err)
			}
		}
		if saved := found[0].Provenance; found[0].Name != "setup" || saved == nil || saved.VM != v.Name || saved.By != "ann" || time.Since(saved.At) > time.Hour {
			t.Errorf("%+v, %+v", found[0], saved)
		}
		_, err := p.SaveVM(t.Context(), v, job.SaveSpec{Name: "setup"}, func(job.Progress) {})
		hostError(t, err, job.HostExists)
		_, err = p.RenameTemplate(t.Context(), "setup", v.Name)
		hostError(t, err, job.HostExists)
		for range 2 {
			if renamed, err := p.RenameTemplate(t.Context(), strconv.Itoa(found[0].ID), "other"); err != nil || renamed.Name != "other" {
				t.Errorf("%+v, %v", renamed, err)
			}
		}
		alone(t)
		if _, err := p.RemoveTemplate(t.Context(), "other"); err != nil {
			t.Error(err)
		}
	})
	t.Run("in place it can be done again after its end", func(t *testing.T) {
		for range 2 {
			got, err := p.SaveVM(t.Context(), v, job.SaveSpec{Name: "place", InPlace: true}, func(job.Progress) {})
			if err != nil || got.VMID != v.ID || !got.InPlace || got.Saved.At.IsZero() {
				t.Fatalf("%+v, %v", got, err)
			}
		}
		if status, err := p.Status(t.Context(), v); err != nil || status != vm.Gone {
			t.Errorf("the VM is %s, %v", status, err)
		}
		if err := p.Destroy(t.Context(), v); err != nil && !job.IsClass(err, job.HostForeign) {
			t.Errorf("destroyed as the VM that it was: %v", err)
		}
		if _, err := p.RemoveTemplate(t.Context(), "place"); err != nil {
			t.Error(err)
		}
	})
}
