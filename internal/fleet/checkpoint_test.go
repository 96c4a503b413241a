package fleet_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// checkpoint has a checkpoint made of the default shape, and returns it when it is ready.
func (r *rig) checkpoint() job.CheckpointInfo {
	r.t.Helper()
	c, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.pass(time.Minute)
	c = r.found(c.ID)
	if c.Status != job.CheckpointReady || c.Bytes == 0 || c.VMID == 0 {
		r.t.Fatalf("checkpoint %+v", c)
	}
	return c
}

func (r *rig) found(ref string) job.CheckpointInfo {
	r.t.Helper()
	c, err := r.Checkpoint(context.Background(), ref)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) all() []job.CheckpointInfo {
	r.t.Helper()
	all, err := r.Checkpoints(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return all
}

// booted returns the checkpoint that each create was to go on from; 0: it was to boot.
func (r *rig) froms() (ids []int) {
	specs, _ := r.host.seen()
	for _, s := range specs {
		ids = append(ids, s.Checkpoint)
	}
	return ids
}

func TestCheckpoint_VMsGoOnFromIt(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		c := r.checkpoint()
		id := r.ask("dev")
		other := r.ask("other", func(v *vm.VM) { v.Resources.Memory = "4G" })
		same := r.ask("same", func(v *vm.VM) { v.Resources.Memory = "2048M" })
		r.pass(time.Minute)
		for of, want := range map[string]vm.Source{id: vm.Restored, same: vm.Restored, other: vm.Cold} {
			v := r.vm(of)
			from := ""
			if want == vm.Restored {
				from = c.ID
			}
			if v.State != vm.Created || v.From != from {
				t.Errorf("%s is %s and from %q, want %q", v.Name, v.State, v.From, from)
			}
		}
		r.engine.set(func(e *engine) {
			if !slices.Contains(e.gone, c.ID) {
				t.Error("the key to the VM that was saved is kept")
			}
		})
		if c = r.found(c.Name); c.Uses != 2 || c.UsedAt.IsZero() {
			t.Errorf("it was used %d times", c.Uses)
		}
		if infos, err := r.VMs(context.Background()); err != nil || len(infos) != 3 {
			t.Errorf("VMs %+v, %v: a checkpoint is none", infos, err)
		}
		if _, err := r.VM(context.Background(), c.Name); err == nil {
			t.Error("a checkpoint is found as a VM")
		}
		if _, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{}); err == nil || !strings.Contains(err.Error(), c.Name) {
			t.Errorf("a second one like it: %v", err)
		}

		if gone, err := r.RemoveCheckpoint(context.Background(), c.Name); err != nil || gone.Status != job.CheckpointLeaving {
			t.Errorf("%+v, %v", gone, err)
		}
		r.pass(time.Minute)
		if len(r.all()) != 0 || r.found(c.ID).Status != job.CheckpointGone || r.host.Has(c.VMID) {
			t.Errorf("it is there: %+v", r.all())
		}
		late := r.ask("late")
		r.pass(time.Minute)
		if v := r.vm(late); v.State != vm.Created || v.From != "" {
			t.Errorf("after it was removed one is from %q", v.From)
		}
	})
}

// What cannot go on from a checkpoint boots, and nothing of the attempt is left.
func TestCheckpoint_WhatFailsBoots(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		c := r.checkpoint()
		r.host.set(func(h *hypervisor) { h.fails = []error{hostError(job.HostTimeout, "no address within 300 s")} })
		id := r.ask("dev")
		r.pass(time.Minute)
		v := r.vm(id)
		if v.State != vm.Created || v.From != "" || len(r.told(id, "the VM boots: it could not be restored from checkpoint "+c.Name)) != 1 {
			t.Errorf("%+v, told %v", v, r.told(id, ""))
		}
		if c = r.found(c.ID); c.Status != job.CheckpointReady || c.Uses != 0 {
			t.Errorf("the checkpoint: %+v", c)
		}
		if n := len(r.host.VMs()); n != 2 { // with the checkpoint
			t.Errorf("%d VMs", n)
		}
	})
}

// One that no VM can go on from any more is destroyed, and made anew if it was of use.
func TestCheckpoint_OneThatIsUnfitIsReplaced(t *testing.T) {
	for name, used := range map[string]bool{"one of use": true, "one that never was": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				c := r.checkpoint()
				if used {
					r.ask("before")
					r.pass(time.Minute)
				}
				r.host.Set(providertest.Behaviour{Unfit: true})
				id := r.ask("dev")
				r.pass(time.Minute)
				if v := r.vm(id); v.State != vm.Created || v.From != "" {
					t.Errorf("%+v", v)
				}
				if old := r.found(c.ID); old.Status != job.CheckpointGone || r.host.Has(c.VMID) {
					t.Errorf("the old one: %+v", old)
				}
				all := r.all()
				if used && (len(all) != 1 || all[0].Status != job.CheckpointReady || all[0].ID == c.ID) || !used && len(all) != 0 {
					t.Errorf("checkpoints %+v", all)
				}
			})
		})
	}
}

// Where nothing was made, nothing is looked for before the VM boots, which no other node hinders.
func TestCheckpoint_OneThatIsUnfitWhileANodeIsAway(t *testing.T) {
	for name, state := range map[string]vm.State{"": vm.Reserved, "gone on with": vm.Intended} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				c := r.checkpoint()
				r.host.Set(providertest.Behaviour{Unfit: true})
				r.host.set(func(h *hypervisor) { h.away = true })
				id := r.ask("dev", func(v *vm.VM) { v.State, v.From = state, map[vm.State]string{vm.Intended: c.ID}[state] })
				r.pass(5 * time.Minute)
				if v := r.vm(id); v.State != vm.Created || v.From != "" {
					t.Errorf("%+v, %+v", v, v.Own)
				}
			})
		})
	}
}

// What an attempt left before a refused one is not left beside the VM that boots.
func TestCheckpoint_OneThatIsUnfitAfterAnAttemptThatLeftAVM(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		c := r.checkpoint()
		r.host.Set(providertest.Behaviour{Unfit: true})
		v, there := r.left("dev1", c.ID)
		r.DestroySoon()
		r.pass(time.Minute)
		now := r.vm(v.Job)
		if now.State != vm.Created || now.From != "" || now.ID == there || r.host.Has(there) || !r.host.Has(now.ID) {
			t.Errorf("it was %d: %+v, %+v", there, now, now.Own)
		}
	})
}

func TestCheckpoint_IsMadeOfWhatIsAskedForOftenEnough(t *testing.T) {
	for mode, want := range map[job.CheckpointMode][]int{job.CheckpointsOff: {0, 0, 0}, job.CheckpointsAuto: {0, 1, 1}, job.CheckpointsAlways: {1, 1, 1}} {
		t.Run(string(mode), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.opts.Checkpoints = mode
				r.start()
				for i, n := range want {
					r.ask("dev" + string(rune('a'+i)))
					r.pass(5 * time.Minute)
					if all := r.all(); len(all) != n || n > 0 && all[0].Status != job.CheckpointReady {
						t.Fatalf("after %d VMs: %+v", i+1, all)
					}
				}
			})
		})
	}
}

// tests are those of a host on which VMs of one template were restored.
type tests struct {
	fleet.Tests
	template string
}

func (s tests) Restores(_ context.Context, _, template string) bool { return s.template == template }

// Unless somebody has decided, they are made where a test of the host has shown that they work.
func TestCheckpoint_IsMadeWhereATestHasShownIt(t *testing.T) {
	for of, want := range map[string]int{providertest.FakeTemplate: 1, "another": 0} {
		t.Run(of, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.opts.Checkpoints, r.opts.Tests = job.CheckpointsTested, tests{template: of}
				r.start()
				for _, name := range []string{"deva", "devb"} {
					r.ask(name)
					r.pass(5 * time.Minute)
				}
				if n := len(r.all()); n != want {
					t.Errorf("%d checkpoints", n)
				}
			})
		})
	}
}

// One is made behind waiting jobs.
func TestCheckpoint_IsNotMadeWhileJobsWait(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.Expect(job.Demand{Waits: true})
		c, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{})
		if err != nil {
			t.Fatal(err)
		}
		r.pass(10 * time.Minute)
		if n := len(r.froms()); n != 0 {
			t.Errorf("%d creates while jobs wait", n)
		}
		r.Expect(job.Demand{})
		r.pass(time.Minute)
		if c = r.found(c.ID); c.Status != job.CheckpointReady {
			t.Errorf("%+v", c)
		}
	})
}

func TestCheckpoint_TheLeastUsedGoesWhenThereAreTooMany(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.CheckpointBytes = 150 << 20 // two of the Fake's
		r.start()
		first := r.checkpoint()
		for _, memory := range []string{"4G", "8G"} {
			if _, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{Resources: vm.Resources{Memory: memory}}); err != nil {
				t.Fatal(err)
			}
			r.pass(time.Minute)
			r.ask("of" + memory[:1]) // the first one's shape
			r.pass(time.Minute)
		}
		all := r.all()
		if len(all) != 2 || all[0].ID != first.ID || all[1].Resources.Memory != "8G" {
			t.Errorf("checkpoints %+v", all)
		}
	})
}

// One that cannot be made tells why, and nothing of it stays.
func TestCheckpoint_OneThatCannotBeMade(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.host.set(func(h *hypervisor) { h.saves = hostError(job.HostVM, "no space left on device") })
		c, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{})
		if err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		if c = r.found(c.ID); c.Status != job.CheckpointFailed || !strings.Contains(c.Text, "no space left on device") || len(r.host.VMs()) != 0 || len(r.all()) != 0 {
			t.Errorf("%+v, %d VMs", c, len(r.host.VMs()))
		}
	})
}

// An engine that goes on with one that another has begun to make, finishes it.
func TestCheckpoint_IsGoneOnWith(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		hold := make(chan struct{})
		r.host.Set(providertest.Behaviour{Hold: hold})
		c, err := r.CreateCheckpoint(context.Background(), job.CheckpointSpec{})
		if err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		r.stop()
		close(hold)
		r.host.Set(providertest.Behaviour{})
		r.start()
		r.pass(5 * time.Minute)
		if c = r.found(c.ID); c.Status != job.CheckpointReady || len(r.host.VMs()) != 1 {
			t.Errorf("%+v, %d VMs", c, len(r.host.VMs()))
		}
	})
}

func TestCheckpoint_OnItsNode(t *testing.T) {
	bubble(t, func(r *rig) {
		full := false
		p := &placer{place: func(want job.Placement) (string, error) {
			if want.Only == "pve2" && full {
				return "", noRoom(false)
			}
			if want.Only != "" {
				return want.Only, nil
			}
			return "pve1", nil
		}}
		r.opts.Placer = p
		r.row(vm.VM{
			Job: "01900000-0000-7000-8000-00000000000a", Name: "c", ID: 900, Node: "pve2", State: vm.Created, Own: &vm.Own{ReadyAt: time.Now()},
			Made: vm.Made{Lifecycle: vm.Checkpointed, Template: providertest.FakeTemplate, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}}, Checkpoint: &vm.Checkpoint{SavedAt: time.Now(), Bytes: 1},
		})
		r.host.PlantCheckpoint(900)
		r.start()
		id := r.ask("dev")
		r.pass(time.Minute)
		if v := r.vm(id); v.Node != "pve2" || v.From == "" {
			t.Errorf("on %s from %q", v.Node, v.From)
		}
		p.mu.Lock()
		full = true
		p.mu.Unlock()
		id = r.ask("dev2")
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Created || v.Node != "pve1" || v.From != "" || len(r.told(id, "it could not go on")) != 0 {
			t.Errorf("on %s from %q: %v", v.Node, v.From, r.told(id, ""))
		}
	})
}
