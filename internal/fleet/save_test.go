package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// persistent asks for a VM and waits until it is there.
func (r *rig) persistent(name string, change ...func(*vm.VM)) vm.VM {
	r.t.Helper()
	id := r.ask(name, change...)
	r.pass(time.Minute)
	v := r.vm(id)
	if v.State != vm.Created {
		r.t.Fatalf("VM %+v", v)
	}
	return v
}

// names are those of what the host has.
func (r *rig) names() (names []string) {
	for _, v := range r.host.VMs() {
		names = append(names, v.Name)
	}
	return names
}

func TestSave_OfACopy(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		v := r.persistent("dev")
		ctx := job.WithClient(context.Background(), "cli")
		saved, err := r.SaveVM(ctx, "dev", "setup", false)
		if err != nil || saved.InPlace || saved.Name != "setup" || saved.VMID == v.ID || saved.Saved.VM != "dev" || saved.Saved.By != "cli" || saved.Saved.Template != v.Template {
			t.Fatalf("%+v, %v", saved, err)
		}
		if got := r.told(v.Job, "clean_vm"); len(got) != 0 {
			t.Errorf("told the steps: %q", got)
		}
		if got := r.told(v.Job, "saved as template setup"); len(got) != 1 || !strings.Contains(got[0], "/root/work") {
			t.Errorf("told %q", got)
		}
		if _, err := r.StopVM(ctx, "dev"); err != nil || r.vm(v.Job).State != vm.Created {
			t.Errorf("the VM does not go on: %v", err)
		}
		if got := r.names(); !slices.Equal(got, []string{"dev", "setup"}) {
			t.Errorf("the host has %q", got)
		}
	})
}

// A VM that has become a template is no VM any more, and nothing of the template is destroyed with it.
func TestSave_InPlace(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		v := r.persistent("dev")
		saved, err := r.SaveVM(context.Background(), "dev", "setup", true)
		if err != nil || !saved.InPlace || saved.VMID != v.ID {
			t.Fatalf("%+v, %v", saved, err)
		}
		r.pass(time.Hour)
		if vms, err := r.VMs(context.Background()); err != nil || len(vms) != 0 || r.vm(v.Job).State != vm.Destroyed {
			t.Errorf("it is still a VM: %+v, %v", vms, err)
		}
		if len(r.told(v.Job, "is now template setup")) != 1 {
			t.Errorf("told %q", r.told(v.Job, ""))
		}
		r.engine.set(func(e *engine) {
			if !slices.Contains(e.gone, v.Job) {
				t.Error("its key is kept")
			}
		})
		if _, destroyed := r.host.seen(); len(destroyed) != 0 || !slices.Equal(r.names(), []string{"setup"}) {
			t.Errorf("destroyed %v, and the host has %q", destroyed, r.names())
		}
	})
}

// What cannot be saved is refused before the host is asked to.
func TestSave_Refuses(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		busy := r.persistent("busy")
		r.persistent("theirs", func(v *vm.VM) { v.Principal = "bob" })
		r.host.Set(providertest.Behaviour{StepDelay: time.Hour})
		r.ask("young")
		r.row(func() vm.VM {
			v := asked("left")
			v.ID, v.State, v.Reason = 999, vm.LeftAlone, "its tag is missing"
			return v
		}())
		r.host.set(func(h *hypervisor) { h.templates = func() error { return errors.New("the host was asked") } })
		r.engine.set(func(e *engine) { e.begun = []job.Job{{ID: "a-job", Status: job.Running, VM: &busy}} })
		ann := job.WithPrincipal(context.Background(), job.Principal{Name: "ann", Role: job.RoleRun})
		for _, tt := range []struct {
			ctx           context.Context
			ref, name     string
			field, saying string
		}{
			{context.Background(), "busy", "", "name", "is not a template's name"},
			{context.Background(), "busy", "a b", "name", "is not a template's name"},
			{context.Background(), "busy", "1234", "name", "looks like an ID"},
			{context.Background(), "busy", "Setup", "name", "lower-case"},
			{context.Background(), "busy", "theirs", "name", "is called"},
			{context.Background(), "busy", "setup", "vm", "a-job"},
			{context.Background(), "none", "setup", "vm", "is not a VM of ours"},
			{context.Background(), "left", "setup", "vm", "is left alone: its tag is missing"},
			{context.Background(), "young", "setup", "vm", "is not ready yet"},
			{ann, "theirs", "setup", "vm", "is not a VM of ours"},
		} {
			_, err := r.SaveVM(tt.ctx, tt.ref, tt.name, false)
			var bad *job.FieldError
			if !errors.As(err, &bad) || bad.Field != tt.field || bad.Remedy == "" || !strings.Contains(fmt.Sprint(bad, bad.Remedy), tt.saying) {
				t.Errorf("%s as %q: %v, want %s: %s", tt.ref, tt.name, err, tt.field, tt.saying)
			}
		}
	})
}

// Of two that save VMs by one name one is refused before the host is asked to: in place the name is
// nobody's there until the end.
func TestSave_TwoByOneName(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		t.Run(fmt.Sprintf("in another engine %v", elsewhere), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				r.persistent("dev1")
				r.persistent("dev2")
				asked, goOn := atomic.Int32{}, make(chan struct{})
				r.host.set(func(h *hypervisor) { h.saving = func(func(job.Progress)) { asked.Add(1); <-goOn } })
				save := func(ref, name string) chan error {
					done := make(chan error, 1)
					go func() {
						_, err := r.SaveVM(context.Background(), ref, name, true)
						done <- err
					}()
					r.pass(time.Second)
					return done
				}
				var first chan error
				if elsewhere {
					r.engine.set(func(e *engine) { e.held = map[string]string{"vm template setup": "saved"} })
				} else {
					first = save("dev1", "setup")
				}
				before, second := asked.Load(), save("dev2", "setup")
				select {
				case err := <-second:
					var bad *job.FieldError
					if !errors.As(err, &bad) || bad.Field != "name" || bad.Remedy == "" || asked.Load() != before {
						t.Errorf("asked %d times: %v", asked.Load(), err)
					}
				default:
					t.Error("the host was asked to")
				}
				third := save("dev2", "other")
				close(goOn)
				if err := <-third; err != nil {
					t.Errorf("by another name: %v", err)
				}
				if first != nil && <-first != nil {
					t.Error("the first was not saved")
				}
			})
		})
	}
}

// A name of which nobody knows whether it is claimed is not saved by.
func TestSave_WhereTheNameCannotBeClaimed(t *testing.T) {
	for _, fails := range []string{"take deciding", "look at vm template setup", "take vm template setup"} {
		t.Run(fails, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				v := r.persistent("dev")
				away := errors.New("the database is away")
				ours := false // the VM, for the save
				r.engine.set(func(e *engine) {
					e.locks = func(call string) error {
						if ours = ours || call == "take vm "+v.Job; ours && call == fails {
							return away
						}
						return nil
					}
				})
				if _, err := r.SaveVM(context.Background(), "dev", "setup", true); !errors.Is(err, away) || !slices.Equal(r.names(), []string{"dev"}) {
					t.Errorf("%v; the host has %q", err, r.names())
				}
			})
		})
	}
}

// What the host warns of is in the VM's events, also where the answer is another: that it was cleaned.
func TestSave_TellsWarnings(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		v := r.persistent("dev")
		r.host.set(func(h *hypervisor) {
			h.saving = func(tell func(job.Progress)) {
				tell(job.Progress{Warning: "VM 100 (dev) is no template; it was cleaned"})
			}
		})
		r.host.Set(providertest.Behaviour{Powers: []error{hostError(job.HostExists, "VM already exists: 'setup' is VM 9000")}})
		if _, err := r.SaveVM(context.Background(), "dev", "setup", true); err == nil || len(r.told(v.Job, "it was cleaned")) != 1 {
			t.Errorf("%v; told %q", err, r.told(v.Job, ""))
		}
	})
}

// After a fault of the host, or of a guest that stays silent, the VM is as free for other work as before.
func TestSave_Fails(t *testing.T) {
	for name, fault := range map[string]error{
		"the guest agent is silent": hostError(job.HostTimeout, "the guest agent of VM 101 did not answer within 600 s"),
		"the host fails":            hostError(job.HostVM, "did not become a template"),
		"the name is taken there":   hostError(job.HostExists, "VM already exists: 'setup' is VM 9000"),
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				v := r.persistent("dev")
				for _, inPlace := range []bool{false, true} {
					r.host.Set(providertest.Behaviour{Powers: []error{fault}})
					_, err := r.SaveVM(context.Background(), "dev", "setup", inPlace)
					var bad *job.FieldError
					if taken := errors.As(err, &bad); err == nil || taken != job.IsClass(fault, job.HostExists) || !taken && !errors.Is(err, fault) {
						t.Errorf("in place %v: %v", inPlace, err)
					}
					if r.vm(v.Job).State != vm.Created || len(r.told(v.Job, "template")) != 0 {
						t.Errorf("in place %v: %+v, told %q", inPlace, r.vm(v.Job), r.told(v.Job, ""))
					}
				}
				if _, err := r.SaveVM(context.Background(), "dev", "setup", true); err != nil {
					t.Errorf("once more: %v", err)
				}
			})
		})
	}
}

// The host goes on when the engine is gone in the middle: of a copy there is a template in the end, whose
// name is taken, and in place the same call ends it.
func TestSave_EngineKilledBeforeTheAnswer(t *testing.T) {
	for _, inPlace := range []bool{false, true} {
		t.Run(fmt.Sprintf("in place %v", inPlace), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				v := r.persistent("dev")
				r.host.set(func(h *hypervisor) { h.templates = func() error { return job.ErrDetach } })
				if _, err := r.SaveVM(context.Background(), "dev", "setup", inPlace); !errors.Is(err, job.ErrDetach) {
					t.Fatalf("%v, want ErrDetach", err)
				}
				r.stop()
				r.host.set(func(h *hypervisor) { h.templates = nil })
				r.start()
				r.pass(time.Hour)
				if r.vm(v.Job).State != vm.Created {
					t.Errorf("the row: %+v", r.vm(v.Job))
				}
				saved, err := r.SaveVM(context.Background(), "dev", "setup", inPlace)
				var bad *job.FieldError
				switch {
				case inPlace && (err != nil || saved.VMID != v.ID || r.vm(v.Job).State != vm.Destroyed):
					t.Errorf("again: %+v, %v", saved, err)
				case !inPlace && (!errors.As(err, &bad) || bad.Field != "name"):
					t.Errorf("again: %+v, %v", saved, err)
				}
				if want := map[bool][]string{true: {"setup"}, false: {"dev", "setup"}}[inPlace]; !slices.Equal(r.names(), want) {
					t.Errorf("the host has %q, want %q", r.names(), want)
				}
			})
		})
	}
}
