package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// What somebody asks for is written down before it can exist, and what becomes of it.
func TestCreate_MakesWhatIsAskedFor(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Lease = 30 * time.Minute
		r.host.before = func(spec job.VMSpec) {
			if v := r.vm(spec.Job); v.State != vm.Intended {
				t.Errorf("it is %s when its create begins", v.State)
			}
		}
		r.start()
		began := time.Now()
		stays := r.ask("stays")
		expires := r.ask("expires", func(v *vm.VM) { v.Own.TTL = 3600 })
		r.pass(time.Minute)
		for _, id := range []string{stays, expires} {
			v := r.vm(id)
			if v.State != vm.Created || v.Own.ReadyAt.IsZero() || v.Own.Failed != "" || v.IP == "" || v.HostKey == "" || v.User == "" || v.ID == 0 || !v.Kept || v.Unwanted {
				t.Errorf("%+v, %+v", v, v.Own)
			}
			if told := r.told(id, string(job.Success)); len(told) != 1 {
				t.Errorf("told: %v", told)
			}
		}
		if v := r.vm(stays); !v.ExpiresAt.IsZero() {
			t.Errorf("one that stays expires at %v", v.ExpiresAt)
		}
		if v := r.vm(expires); v.ExpiresAt.Sub(began) < time.Hour || v.ExpiresAt.Sub(began) > time.Hour+time.Minute {
			t.Errorf("it expires at %v, %v after it was asked for", v.ExpiresAt, v.ExpiresAt.Sub(began))
		}
		specs, _ := r.host.seen()
		leases := map[string]time.Duration{}
		for _, s := range specs {
			leases[s.Name] = s.Lease
			if s.PublicKey != "key of "+s.Job {
				t.Errorf("%s is made with %q", s.Name, s.PublicKey)
			}
		}
		if len(specs) != 2 || leases["stays"] != 0 || leases["expires"] != 90*time.Minute {
			t.Errorf("%d creates with leases %v", len(specs), leases)
		}
		if !r.Busy() || r.Working() {
			t.Error("all is done but for what expires")
		}
	})
}

// Without leases at the installation, none is given.
func TestCreate_WithoutLeases(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.ask("dev1", func(v *vm.VM) { v.Own.TTL = 3600 })
		r.pass(time.Minute)
		if specs, _ := r.host.seen(); len(specs) != 1 || specs[0].Lease != 0 {
			t.Errorf("%+v", specs)
		}
	})
}

// Where a create was refused before anything was changed, the VM is gone at once, even if the
// host does not answer any more. What may be there is gone when it was destroyed.
func TestCreate_Fails(t *testing.T) {
	away := slices.Repeat([]error{hostError(job.HostUnreachable, "no route to host")}, 2)
	refused := job.Uncreated(hostError(job.HostConfig, "no such storage"))
	for _, tt := range []struct {
		name  string
		fails []error
		step  string // at which the create fails
		gone  bool   // at once
		lists int    // a VM without an ID is searched for
	}{
		{name: "before anything", step: "validate_environment", gone: true},
		{name: "with a VM there", step: "start_vm"},
		{name: "refused", fails: []error{refused}, gone: true},
		{name: "refused after an interruption", fails: []error{hostError(job.HostInterrupted, "it was restarted"), refused}, lists: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.host.Set(providertest.Behaviour{FailStep: tt.step})
				r.host.fails = tt.fails
				if len(tt.fails) < 2 {
					r.host.Set(providertest.Behaviour{FailStep: tt.step, Destroys: away})
				}
				r.start()
				id := r.ask("dev1")
				r.pass(time.Second)
				v := r.vm(id)
				if v.Own.Failed == "" || v.Own.FailedAt.IsZero() || !v.Own.ReadyAt.IsZero() || !v.Unwanted || tt.gone && v.State != vm.Destroyed {
					t.Errorf("%+v, %+v", v, v.Own)
				}
				if told := r.told(id, string(job.Failed)); len(told) != 1 {
					t.Errorf("told: %v", told)
				}
				if !tt.gone && tt.lists == 0 && (v.State == vm.Destroyed || len(r.told(id, "will be tried again")) == 0) {
					t.Errorf("while the host is away it is %s", v.State)
				}
				r.pass(2 * time.Minute)
				if v := r.vm(id); v.State != vm.Destroyed || !slices.Contains(r.engine.gone, id) {
					t.Errorf("%+v, keys were dropped of %v", v, r.engine.gone)
				}
				// What is searched for may be searched for once more while it is being destroyed.
				if s := r.host.Stats(); s.Lists < tt.lists || s.Lists > tt.lists+min(tt.lists, 1) || s.Destroys == 0 {
					t.Errorf("%+v, want %d lists", s, tt.lists)
				}
				if leaks := r.host.Leaks(); len(leaks) > 0 || r.Busy() {
					t.Errorf("left: %v", leaks)
				}
			})
		})
	}
}

// A host that restarts in the middle of a create is outlasted, but not for ever.
func TestCreate_IsBegunAgain(t *testing.T) {
	for times, made := range map[int]bool{4: true, 5: false} {
		t.Run(fmt.Sprint(times), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.host.fails = slices.Repeat([]error{hostError(job.HostInterrupted, "it was restarted")}, times)
				r.start()
				id := r.ask("dev1")
				r.pass(time.Minute)
				specs, _ := r.host.seen()
				if v := r.vm(id); len(specs) != 5 || made != (v.State == vm.Created) || made == (v.Own.Failed != "") {
					t.Errorf("%d creates: %+v, %+v", len(specs), v, v.Own)
				}
			})
		})
	}
	t.Run("not after another error", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.host.fails = []error{hostError(job.HostConfig, "no such storage")}
			r.start()
			id := r.ask("dev1")
			r.pass(time.Minute)
			if specs, _ := r.host.seen(); len(specs) != 1 || !strings.Contains(r.vm(id).Own.Failed, "no such storage") {
				t.Errorf("%d creates, %+v", len(specs), r.vm(id).Own)
			}
		})
	})
}

// A name that is somebody else's on the host is said to be taken, and nothing is touched.
func TestCreate_WhereTheNameIsTaken(t *testing.T) {
	for _, principal := range []string{"", "ada"} {
		t.Run("asked for by "+principal, func(t *testing.T) {
			bubble(t, func(r *rig) {
				theirs := r.host.Plant("dev1")
				r.start()
				id := r.ask("dev1", func(v *vm.VM) { v.Principal = principal })
				r.pass(time.Minute)
				specs, destroyed := r.host.seen()
				v := r.vm(id)
				// Who may not see the host's VMs is not told of them.
				if hidden := !strings.Contains(v.Own.Failed, "node 'pve'"); len(specs) != 1 || v.State != vm.Destroyed || hidden != (principal != "") {
					t.Errorf("%d creates: %+v, %+v", len(specs), v, v.Own)
				}
				if !r.host.Has(theirs) || len(destroyed) > 0 {
					t.Errorf("destroyed %v", destroyed)
				}
			})
		})
	}
}

// left has an engine end in the middle of a create, whose VM is there without an ID in its row.
// from is the checkpoint that it was to go on from, if any.
func (r *rig) left(name, from string) (v vm.VM, there int) {
	r.t.Helper()
	v = asked(name)
	v.State, v.From = vm.Intended, from
	r.row(v)
	made, err := r.host.Fake.Create(context.Background(), job.VMSpec{Name: name, Job: v.Job, Owner: r.opts.Owner, Template: providertest.FakeTemplate}, func(job.Progress) {})
	if err != nil {
		r.t.Fatal(err)
	}
	return v, made.ID
}

// What an earlier attempt has left is destroyed, and only then is the VM made again.
func TestCreate_RemovesWhatAnEarlierAttemptLeft(t *testing.T) {
	away := []error{hostError(job.HostOffline, "node 'pve' is offline"), hostError(job.HostUnreachable, "no route to host")}
	for _, tt := range []struct {
		name     string
		destroys []error
		failed   string
	}{
		{name: "at once"},
		{name: "when its node is back", destroys: away},
		{name: "cannot be destroyed", destroys: []error{hostError(job.HostConfig, "no such storage")}, failed: "remove what an earlier attempt left"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				v, there := r.left("dev1", "")
				r.host.Set(providertest.Behaviour{Destroys: tt.destroys})
				r.start()
				r.DestroySoon()
				r.pass(time.Minute)
				now := r.vm(v.Job)
				_, destroyed := r.host.seen()
				if tt.failed != "" {
					if !strings.Contains(now.Own.Failed, tt.failed) {
						t.Errorf("%+v, %+v", now, now.Own)
					}
					return
				}
				if now.State != vm.Created || now.ID == there || !slices.Equal(destroyed, []int{there}) || r.host.Has(there) || !r.host.Has(now.ID) {
					t.Errorf("it was %d, destroyed %v: %+v, %+v", there, destroyed, now, now.Own)
				}
			})
		})
	}
}

// A create of which nothing was heard any more is looked for by its marker, and ends.
func TestCreate_WhoseIDWasNeverTold(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{LateID: true})
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		v := r.vm(id)
		_, destroyed := r.host.seen()
		if v.State != vm.Destroyed || v.ID == 0 || !slices.Equal(destroyed, []int{v.ID}) || len(r.host.VMs()) > 0 {
			t.Errorf("destroyed %v: %+v", destroyed, v)
		}
	})
}

// A VM that shows the host key of another is not used: it is destroyed, and the other stays.
func TestCreate_WhatPassesForAnotherIsDestroyed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		first := r.ask("dev1")
		r.pass(time.Minute)
		key := r.vm(first).HostKey
		r.host.Set(providertest.Behaviour{Reach: func(v vm.VM) vm.VM { v.HostKey = key; return v }})
		second := r.ask("dev2")
		r.pass(time.Minute)
		if v := r.vm(second); !strings.Contains(v.Own.Failed, "it shows the SSH host key of VM") || v.State != vm.Destroyed || v.HostKey != "" || !v.Own.ReadyAt.IsZero() {
			t.Errorf("%+v, %+v", v, v.Own)
		}
		if v := r.vm(first); v.State != vm.Created || v.HostKey != key || !r.host.Has(v.ID) {
			t.Errorf("the first is %+v", v)
		}
	})
}

// An engine that ends while it makes a VM has not failed to: the next one goes on.
func TestCreate_OutlastsTheFleet(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{Hold: make(chan struct{})})
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		if !r.Working() || !r.Busy() {
			t.Error("it is being made")
		}
		r.stop()
		if v := r.vm(id); !v.BeingMade() || v.Own.Failed != "" {
			t.Errorf("%+v, %+v", v, v.Own)
		}
		r.host.Set(providertest.Behaviour{})
		r.start()
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Created || v.Own.ReadyAt.IsZero() {
			t.Errorf("%+v, %+v", v, v.Own)
		}
		if told := r.told(id, string(job.Provisioning)); len(told) != 1 {
			t.Errorf("it is begun once: %v", told)
		}
	})
}

// A fault of the engine's own says nothing of the VM, which is made when that is over.
func TestCreate_OutlastsAFaultOfTheEnginesOwn(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.fails = []error{&job.HostError{Op: "create", Class: job.HostUnreachable, Text: "too many open files", Own: true}}
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Created || v.Own.Failed != "" {
			t.Errorf("%+v, %+v", v, v.Own)
		}
	})
}

// Who asks twice to have a VM destroyed has asked once; one that is made has not failed.
func TestDiscard(t *testing.T) {
	by := job.WithCaller(context.Background(), job.Caller{Client: "cli", Principal: "ada", Token: "t"})
	for _, tt := range []struct {
		name   string
		begin  func(r *rig) // before it is asked for
		failed bool
		never  bool // nothing of it was ever there
	}{
		{name: "made", begin: func(*rig) {}},
		{name: "being made", begin: func(r *rig) { r.host.Set(providertest.Behaviour{Hold: make(chan struct{})}) }, failed: true},
		{name: "reserved", begin: func(r *rig) { r.engine.follows = true }, failed: true, never: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				tt.begin(r)
				r.start()
				id := r.ask("dev1")
				r.pass(time.Minute)
				for range 2 {
					if err := r.Discard(by, id, "not wanted any more"); err != nil {
						t.Fatal(err)
					}
				}
				if v := r.vm(id); tt.never && v.State != vm.Destroyed || !v.Unwanted {
					t.Errorf("at once: %+v", v)
				}
				r.pass(2 * time.Minute)
				v := r.vm(id)
				specs, destroyed := r.host.seen()
				if v.State != vm.Destroyed || v.Own.EndedBy != "cli" || v.Own.EndedFor != "ada" || v.Own.EndedToken != "t" || tt.failed == v.Own.FailedAt.IsZero() || len(r.host.VMs()) > 0 {
					t.Errorf("%+v, %+v", v, v.Own)
				}
				if told := r.told(id, " is not wanted any more"); len(told) != 1 || tt.never != strings.HasPrefix(told[0], "VM dev1 ") {
					t.Errorf("told: %v", told)
				}
				if told := r.told(id, string(job.Failed)); len(told) != map[bool]int{true: 1}[tt.failed] {
					t.Errorf("told of its end: %v", told)
				}
				if tt.never != (len(specs) == 0) || tt.name == "made" && !slices.Equal(destroyed, []int{v.ID}) {
					t.Errorf("%d creates, destroyed %v", len(specs), destroyed)
				}
				if tt.name == "made" && !slices.Contains(r.host.callers, job.Caller{Client: "cli", Principal: "ada", Token: "t"}) {
					t.Errorf("it was destroyed for %+v", r.host.callers)
				}
				if r.engine.told != 2 {
					t.Errorf("the others were told %d times", r.engine.told)
				}
				if err := r.Discard(by, id, "not wanted again"); err != nil || len(r.told(id, "not wanted again")) > 0 {
					t.Errorf("one that is gone: %v", err)
				}
			})
		})
	}
}

// What the host has left alone is not discarded: it is destroyed once it is proven, or forgotten.
func TestDiscard_OfWhatIsLeftAlone(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		r.change(id, func(v *vm.VM) { v.State = vm.LeftAlone })
		if err := r.Discard(context.Background(), id, "discarded"); err != nil || r.vm(id).Unwanted || len(r.told(id, "discarded")) > 0 {
			t.Errorf("%+v, %v", r.vm(id), err)
		}
	})
}

// What another engine has decided of a VM that is made here ends that.
func TestTend_EndsWhatIsMadeHereAndUnwanted(t *testing.T) {
	bubble(t, func(r *rig) {
		r.host.Set(providertest.Behaviour{Hold: make(chan struct{})})
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		r.change(id, func(v *vm.VM) { v.Unwanted = true })
		r.DestroySoon()
		r.pass(2 * time.Minute)
		if v := r.vm(id); v.State != vm.Destroyed || v.Own.Failed != "" || !v.Own.ReadyAt.IsZero() || r.Busy() {
			t.Errorf("%+v, %+v", v, v.Own)
		}
	})
}

// Only so many are made at a time. The others say why they wait, once, and those that are made
// for pools do not count.
func TestTend_MakesAFewAtATime(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.MaxMaking = 2
		on := make(chan struct{})
		r.host.Set(providertest.Behaviour{Hold: on})
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		r.pass(time.Minute)
		ids := []string{r.ask("dev1"), r.ask("dev2"), r.ask("dev3")}
		for range 3 {
			r.pass(time.Minute)
			r.DestroySoon()
		}
		if n := len(r.host.VMs()); n != 3 {
			t.Errorf("%d VMs are being made, with the pool's", n)
		}
		const waiting = "waiting: 2 VMs are being made"
		if v := r.vm(ids[2]); v.State != vm.Reserved || !strings.HasPrefix(v.Own.Waits, waiting) || len(r.told(ids[2], waiting)) != 1 || r.vm(ids[1]).Own.Waits != "" {
			t.Errorf("the third: %+v, %+v, told %v", v, v.Own, r.told(ids[2], waiting))
		}
		close(on)
		r.pass(time.Minute)
		for _, id := range ids {
			if v := r.vm(id); v.Own.ReadyAt.IsZero() || v.Own.Waits != "" {
				t.Errorf("%+v, %+v", v, v.Own)
			}
		}
	})
}

// What does not lead makes nothing, and destroys nothing, until it does.
func TestTend_OnlyWhoLeads(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		gone := r.ask("dev1")
		r.pass(time.Minute)
		r.engine.set(func(e *engine) { e.follows = true })
		id := r.ask("dev2")
		r.change(gone, func(v *vm.VM) { v.Unwanted = true })
		r.DestroySoon()
		r.pass(5 * time.Minute)
		if specs, destroyed := r.host.seen(); len(specs) != 1 || len(destroyed) > 0 || r.vm(id).State != vm.Reserved || r.Busy() {
			t.Errorf("%d creates, destroyed %v", len(specs), destroyed)
		}
		r.engine.set(func(e *engine) { e.follows = false })
		r.pass(time.Minute)
		if r.vm(id).State != vm.Created || r.vm(gone).State != vm.Destroyed {
			t.Errorf("%+v, %+v", r.vm(id), r.vm(gone))
		}
	})
}

// engines is the locks of engines that share the store, of which others hold some. Each
// answer takes a moment.
type engines struct {
	*engine
	mu   sync.Mutex
	held map[string]bool
}

func (e *engines) Lock(_ context.Context, name, _ string, _ bool) (bool, string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return !e.held[name], "making", nil
}

func (e *engines) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.held)
}

// What another engine still makes or destroys is left to it.
func TestTend_LeavesWhatAnotherEngineHas(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		gone := r.ask("dev1")
		r.pass(time.Minute)
		r.stop()
		next := asked("dev2")
		next.State = vm.Reserved
		r.row(next)
		r.change(gone, func(v *vm.VM) { v.Unwanted = true })
		others := &engines{engine: r.engine, held: map[string]bool{"life of " + gone: true, "life of " + next.Job: true}}
		r.opts.Engines = others
		r.start()
		r.pass(2 * time.Minute)
		if specs, destroyed := r.host.seen(); len(specs) != 1 || len(destroyed) > 0 {
			t.Errorf("%d creates, destroyed %v", len(specs), destroyed)
		}
		others.release()
		r.pass(2 * time.Minute)
		if r.vm(next.Job).State != vm.Created || r.vm(gone).State != vm.Destroyed {
			t.Errorf("%+v, %+v", r.vm(next.Job), r.vm(gone))
		}
	})
}

// The template of a name is built by one engine at a time.
func TestBuildAlone(t *testing.T) {
	bubble(t, func(r *rig) {
		others := &engines{engine: r.engine, held: map[string]bool{"build of theirs": true}}
		r.opts.Engines = others
		r.start()
		if _, err := r.BuildAlone(t.Context(), "theirs"); err == nil || !strings.Contains(err.Error(), "another engine has the lock build of theirs") {
			t.Error(err)
		}
		release, err := r.BuildAlone(t.Context(), "ours")
		if err != nil {
			t.Fatal(err)
		}
		release()
		if release, err = fleet.New(fleet.Options{Store: r.store}).BuildAlone(t.Context(), "theirs"); err != nil { // one that shares with none
			t.Fatal(err)
		}
		release()
	})
}

// onNodes spreads the rig's VMs over nodes.
func (r *rig) onNodes(place func(job.Placement) (string, error)) *placer {
	p := &placer{place: place}
	r.opts.Placer = p
	return p
}

// A VM that fits nowhere waits, says so once, and goes on when there is room.
func TestPlace_WaitsForRoom(t *testing.T) {
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprint(told), func(t *testing.T) {
			bubble(t, func(r *rig) {
				full := true
				p := r.onNodes(func(job.Placement) (string, error) {
					if full {
						return "", noRoom(false)
					}
					return "pve2", nil
				})
				r.start()
				id := r.ask("dev1")
				r.pass(10*time.Minute + 500*time.Millisecond)
				const waits = "waiting: no node can take it: pve1: 3 GiB free of 16, needs 4"
				if v := r.vm(id); v.State != vm.Reserved || v.Own.Waits != waits || v.Own.Failed != "" {
					t.Errorf("%+v, %+v", v, v.Own)
				}
				if n := len(p.wanted); n < 50 || n > 70 {
					t.Errorf("it was tried %d times in ten minutes", n)
				}
				full = false
				if told {
					r.MadeRoom()
					r.pass(time.Second)
				} else {
					r.pass(10 * time.Second)
				}
				if v := r.vm(id); v.State != vm.Created || v.Node != "pve2" || v.Own.Waits != "" || !v.LeaseUntil.IsZero() {
					t.Errorf("%+v, %+v", v, v.Own)
				}
				if told := r.told(id, "on node pve2: it is told so"); len(told) != 1 {
					t.Errorf("told: %v", told)
				}
			})
		})
	}
}

// asks asks for a VM.
var asks = job.Manifest{VMTemplate: providertest.FakeTemplate, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}}

// One that fits nowhere ever fails, and nothing of it was there.
func TestPlace_FailsWhereItNeverFits(t *testing.T) {
	bubble(t, func(r *rig) {
		p := r.onNodes(func(job.Placement) (string, error) { return "", noRoom(true) })
		r.start()
		id := r.ask("dev1")
		r.pass(time.Second)
		if v := r.vm(id); v.State != vm.Destroyed || !strings.Contains(v.Own.Failed, "needs 4") || len(p.wanted) != 1 {
			t.Errorf("%+v, %+v", v, v.Own)
		}
		if specs, _ := r.host.seen(); len(specs) > 0 {
			t.Errorf("%d creates", len(specs))
		}
		p.never = noRoom(true)
		var field *job.FieldError
		if err := r.Fits(context.Background(), asks); !errors.As(err, &field) || field.Problem != p.never.Error() {
			t.Error(err)
		}
	})
}

// Hosts that cannot be reached are given up after a while, which begins anew when they were.
func TestPlace_GivesUpHosts(t *testing.T) {
	for _, reached := range []bool{true, false} {
		t.Run(fmt.Sprint(reached), func(t *testing.T) {
			bubble(t, func(r *rig) {
				err := hostError(job.HostUnreachable, "no route to host")
				p := r.onNodes(func(job.Placement) (string, error) { return "", err })
				r.start()
				id := r.ask("dev1")
				r.pass(100 * time.Second)
				if v := r.vm(id); v.Own.Failed != "" || len(p.wanted) < 90 {
					t.Errorf("after %d attempts: %+v", len(p.wanted), v.Own)
				}
				if reached {
					err = noRoom(false)
					r.pass(20 * time.Second)
					err = hostError(job.HostUnreachable, "no route to host")
				}
				r.pass(40 * time.Second)
				if v := r.vm(id); reached == (v.Own.Failed != "") {
					t.Errorf("reached meanwhile: %v; %+v", reached, v.Own)
				}
				r.pass(3 * time.Minute)
				if v := r.vm(id); !strings.Contains(v.Own.Failed, "no route to host") || v.State != vm.Destroyed {
					t.Errorf("%+v, %+v", v, v.Own)
				}
			})
		})
	}
}

// One that waits for room can be discarded.
func TestPlace_EndsWithWhatIsUnwanted(t *testing.T) {
	bubble(t, func(r *rig) {
		p := r.onNodes(func(job.Placement) (string, error) { return "", noRoom(false) })
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		if err := r.Discard(context.Background(), id, "discarded"); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Second)
		n := len(p.wanted)
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Destroyed || len(p.wanted) != n || r.Busy() {
			t.Errorf("%+v; %d attempts since", v, len(p.wanted)-n)
		}
	})
}

// A VM that is given up while its node is chosen is not made.
func TestPlace_OfWhatIsGoneMeanwhile(t *testing.T) {
	bubble(t, func(r *rig) {
		id := ""
		r.onNodes(func(job.Placement) (string, error) {
			r.change(id, func(v *vm.VM) { v.State, v.Unwanted = vm.Destroyed, true })
			return "pve1", nil
		})
		v := asked("dev1")
		v.State, id = vm.Reserved, v.Job
		r.row(v)
		r.start()
		r.pass(time.Minute)
		if specs, _ := r.host.seen(); len(specs) > 0 || r.vm(id).State != vm.Destroyed || r.Busy() {
			t.Errorf("%d creates: %+v", len(specs), r.vm(id))
		}
	})
}

// A choice counts the VMs that exist or will, and knows the nodes that take none. A node that
// was chosen stays so.
func TestPlace_KnowsTheOthers(t *testing.T) {
	bubble(t, func(r *rig) {
		p := r.onNodes(func(job.Placement) (string, error) { return "pve1", nil })
		if err := r.store.SetCordon(context.Background(), "pve3", true); err != nil {
			t.Fatal(err)
		}
		for n, state := range []vm.State{vm.Created, vm.Intended, vm.LeftAlone, vm.Reserved} {
			v := asked(fmt.Sprint("other", n))
			v.State, v.ID, v.Node, v.Own.ReadyAt = state, 200+n, "pve2", time.Now()
			r.row(v)
		}
		begun := asked("begun")
		begun.State, begun.Node = vm.Intended, "pve2"
		r.row(begun)
		r.start()
		r.pass(time.Minute)
		specs, _ := r.host.seen()
		if v := r.vm(begun.Job); len(p.wanted) > 0 || v.State != vm.Created || v.Node != "pve2" || len(specs) != 1 || specs[0].Node != "pve2" {
			t.Errorf("%d choices: %+v", len(p.wanted), v)
		}
		r.change(begun.Job, func(v *vm.VM) { v.State = vm.Destroyed })
		id := r.ask("dev1")
		r.pass(time.Minute)
		if len(p.wanted) != 1 || r.vm(id).Node != "pve1" {
			t.Fatalf("%d choices: %+v", len(p.wanted), r.vm(id))
		}
		want := p.wanted[0]
		if !slices.Equal(want.VMs, []job.PlacedVM{{ID: 200, Node: "pve2", MemoryMB: 2048}, {ID: 201, Node: "pve2", MemoryMB: 2048, Making: true}}) {
			t.Errorf("it counts %+v", want.VMs)
		}
		if !slices.Equal(want.Cordoned, []string{"pve3"}) || want.Spec.MemoryMB != 2048 || want.Planned {
			t.Errorf("%+v", want)
		}
		if _, err := r.Plan(context.Background(), asks, ""); err != nil || !p.wanted[1].Planned {
			t.Errorf("a plan: %+v, %v", p.wanted[1], err)
		}
	})
}

// Where there is one host, no node is chosen.
func TestPlace_OneHost(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id := r.ask("dev1")
		r.pass(time.Minute)
		if told := r.told(id, "on node"); len(told) > 0 || r.Spread() {
			t.Errorf("told: %v", told)
		}
		if err := r.Fits(context.Background(), asks); err != nil {
			t.Error(err)
		}
	})
}

// The address and host key of a VM that was started are recorded unless they are another's.
func TestStart_RecordsWhatTheVMShows(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		id, other := r.ask("dev1"), r.ask("dev2")
		r.pass(time.Minute)
		before, key := r.vm(id), r.vm(other).HostKey
		ctx := context.Background()
		if err := r.host.StopVM(ctx, before); err != nil {
			t.Fatal(err)
		}
		r.host.Set(providertest.Behaviour{Reach: func(v vm.VM) vm.VM { v.HostKey = key; return v }})
		if err := r.Start(ctx, before); err == nil || r.vm(id).HostKey != before.HostKey || r.vm(id).IP != before.IP {
			t.Errorf("%v: %+v", err, r.vm(id))
		}
		r.host.Set(providertest.Behaviour{Powers: []error{hostError(job.HostVM, "it does not start")}})
		if err := r.Start(ctx, before); err == nil || r.vm(id).IP != before.IP {
			t.Errorf("%v: %+v", err, r.vm(id))
		}
		if err := r.Start(ctx, before); err != nil || r.vm(id).IP == before.IP || r.vm(id).HostKey != before.HostKey {
			t.Errorf("%v: %+v", err, r.vm(id))
		}
	})
}

// The same key is the same VM, and limits are kept to.
func TestCreate_OfAKeyAndWithinLimits(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		of := func(name, key string) (vm.VM, bool, error) {
			v := asked(name)
			v.Principal = "ada"
			return r.Create(context.Background(), v, key, job.Limits{VMs: 1})
		}
		first, created, err := of("dev1", "k")
		if err != nil || !created {
			t.Fatal(err)
		}
		if again, created, err := of("dev2", "k"); err != nil || created || again.Job != first.Job {
			t.Errorf("the same key: %v, %v, %+v", created, err, again)
		}
		var over *job.FieldError
		if _, _, err := of("dev3", uuid.NewString()); !errors.As(err, &over) {
			t.Errorf("a second one: %v", err)
		}
	})
}
