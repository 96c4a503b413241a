package fleet_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/fleet"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// wants asks for a VM as its users do.
func (r *rig) wants(name string, change ...func(*job.Submission)) string {
	r.t.Helper()
	s := job.Submission{Client: "cli", Manifest: job.Manifest{VMName: name}}
	for _, c := range change {
		c(&s)
	}
	v, err := r.CreateVM(job.WithPrincipal(context.Background(), job.Principal{Name: "ada", Role: job.RoleRun}), s)
	if err != nil {
		r.t.Fatal(err)
	}
	return v.Job
}

// A pool's VM is that of whoever asks for one like it at once: it answers by its new name, is its
// owner's, and no member any more.
func TestGive_APoolsVMIsWhoeverAsks(t *testing.T) {
	for _, tt := range []struct {
		size  job.PoolSize
		start vm.Source
	}{{job.PoolSize{Warm: 1}, vm.FromPool}, {job.PoolSize{Hibernated: 1}, vm.FromHibernated}} {
		t.Run(string(tt.start), func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.opts.Lease = time.Hour
				r.start()
				r.pool(tt.size)
				m := r.filled(tt.size.Warm, tt.size.Hibernated)[0]
				r.pass(30 * time.Minute)
				asked := time.Now()
				id := r.wants("dev1", func(s *job.Submission) {
					s.Manifest.TTL, s.Manifest.Labels = 7200, map[string]string{"team": "web"}
				})
				if id != m.Job {
					t.Errorf("it is %s, and not the pool's %s", id, m.Job)
				}
				r.pass(10 * time.Second)
				v := r.vm(id)
				if v.Name != "dev1" || v.HostName != m.Name || v.Principal != "ada" || v.Labels["team"] != "web" || v.Lifecycle != vm.Persistent || v.Member != nil || v.Own.Client != "cli" || v.Own.Pool != "p" {
					t.Errorf("%+v, %+v", v, v.Own)
				}
				if v.State != vm.Created || v.Source != tt.start || v.Own.ReadyAt.Sub(asked) > 5*time.Second || v.ExpiresAt.Sub(asked).Round(time.Minute) != 2*time.Hour || v.ID != m.ID {
					t.Errorf("%+v, %+v", v, v.Own)
				}
				if name := r.host.HostName(v.ID); name != "dev1" {
					t.Errorf("its system is named %q", name)
				}
				if told := r.told(id, ""); slices.ContainsFunc(told, func(text string) bool { return text == "create_vm" }) {
					t.Errorf("its owner is told what its pool has done: %q", told)
				} else if len(r.told(id, "its host name stays")) > 0 {
					t.Errorf("told of one that has its name: %q", told)
				}
				r.filled(tt.size.Warm, tt.size.Hibernated) // another one
				if got := r.host.Lease(v.ID).Round(time.Minute); got < 2*time.Hour+55*time.Minute || got > 3*time.Hour {
					t.Errorf("its lease is %s", got)
				}
				r.pass(2 * time.Hour)
				if v := r.vm(id); v.State != vm.Destroyed {
					t.Errorf("after its time it is %s", v.State)
				}
			})
		})
	}
}

// What no pool's VM is, is made as ever.
func TestGive_NotToWhoAsksForAnother(t *testing.T) {
	for name, change := range map[string]func(*job.Submission){
		"size":     func(s *job.Submission) { s.Manifest.Resources.CPU = 7 },
		"system":   func(s *job.Submission) { s.Manifest.OS = "debian-13" },
		"egress":   func(s *job.Submission) { s.Manifest.Network.Egress = vm.EgressNone },
		"address":  func(s *job.Submission) { s.Manifest.Network.IP = "10.0.0.50/24" },
		"boot":     func(s *job.Submission) { s.Manifest.Start = job.StartCold },
		"node":     func(s *job.Submission) { s.Node = "pve2" },
		"its test": func(s *job.Submission) { s.Manifest.Labels = map[string]string{job.HostTestLabel: "x"} },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				if name == "node" {
					r.onNodes(func(job.Placement) (string, error) { return "pve2", nil })
				}
				r.start()
				r.pool(job.PoolSize{Warm: 1})
				m := r.filled(1, 0)[0]
				id := r.wants("dev1", change)
				r.pass(time.Minute)
				if v := r.vm(id); id == m.Job || v.Source != vm.Cold || v.HostName != "" {
					t.Errorf("%+v", v)
				}
				r.kept(m.Job, vm.MemberWarm)
			})
		})
	}
}

// Of two who ask one has the pool's VM, and the other another one; a key has the same one again.
func TestGive_OneVMIsOnesOnly(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		keyed := func(s *job.Submission) { s.IdempotencyKey = "k" }
		first, second := r.wants("dev1", keyed), r.wants("dev2")
		if again := r.wants("dev1", keyed); again != first {
			t.Errorf("the same key: %s and %s", first, again)
		}
		r.pass(time.Minute)
		if first != m.Job || second == first || r.vm(second).ID == r.vm(first).ID {
			t.Errorf("%s and %s of %s", first, second, m.Job)
		}
		// The pool may have had its next VM by then.
		p, own := r.info(), int64(0)
		if r.vm(second).Source == vm.Cold {
			own = 1
		}
		if p.Hits != 2-own || p.Misses != own {
			t.Errorf("%d hits, %d misses, %d of its own", p.Hits, p.Misses, own)
		}
	})
}

// One that does not answer is destroyed, and whoever has asked gets another under the same ID.
func TestGive_OneThatDoesNotAnswer(t *testing.T) {
	for name, size := range map[string]job.PoolSize{"warm": {Warm: 1}, "hibernated": {Hibernated: 1}} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.start()
				r.pool(size)
				m := r.filled(size.Warm, size.Hibernated)[0]
				r.pass(time.Second) // the pool does not ask it at the same moment
				r.host.Set(providertest.Behaviour{Pings: silent(1)})
				id := r.wants("dev1")
				r.pass(time.Minute)
				v := r.vm(id)
				_, destroyed := r.host.seen()
				if id != m.Job || v.State != vm.Created || v.ID == m.ID || v.Source != vm.Cold || v.HostName != "" || v.Own.ReadyAt.IsZero() || !slices.Contains(destroyed, m.ID) {
					t.Errorf("%+v, %+v; destroyed: %v", v, v.Own, destroyed)
				}
				if len(r.told(id, "did not answer and is not used")) != 1 {
					t.Errorf("told: %q", r.told(id, ""))
				}
			})
		})
	}
}

// One that this engine cannot ask, for want of descriptors, is not given up for that.
func TestGive_OneThatTheEngineCannotAsk(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.pass(time.Second) // the pool does not ask it at the same moment
		r.host.Set(providertest.Behaviour{Pings: []error{&job.HostError{Op: "ask a VM", Class: job.HostUnreachable, Text: "socket: too many open files", Own: true}}})
		id := r.wants("dev1")
		r.pass(10 * time.Minute)
		if v := r.vm(id); v.ID != m.ID || v.State != vm.Created || v.Source != vm.FromPool {
			t.Errorf("%+v, %+v", v, v.Own)
		}
	})
}

// One whose host key is not known is nobody's but its pool's: another may answer at its address.
func TestGive_NoneWithoutHostKey(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.change(m.Job, func(v *vm.VM) { v.HostKey = "" })
		id := r.wants("dev1")
		r.pass(time.Minute)
		if v := r.vm(id); id == m.Job || v.Source != vm.Cold {
			t.Errorf("%+v", v)
		}
		r.kept(m.Job, vm.MemberWarm)
	})
}

// One whose system cannot be renamed is used all the same, and that is said.
func TestGive_OneThatCannotBeRenamed(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Warm: 1})
		m := r.filled(1, 0)[0]
		r.host.Set(providertest.Behaviour{Renames: []error{errors.New("sudo: a password is required")}})
		id := r.wants("dev1")
		r.pass(time.Minute)
		if v := r.vm(id); v.ID != m.ID || v.State != vm.Created || len(r.told(id, "its host name stays "+m.Name)) != 1 {
			t.Errorf("%+v: %q", v, r.told(id, ""))
		}
	})
}

// One that is destroyed before it has answered is gone.
func TestGive_CancelledAtOnce(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.pool(job.PoolSize{Hibernated: 1})
		m := r.filled(0, 1)[0]
		r.stop()
		id := r.wants("dev1")
		if err := r.CancelVM(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		r.start()
		r.pass(time.Minute)
		if v := r.vm(id); v.State != vm.Destroyed || !slices.Contains(second(r.host.seen()), m.ID) {
			t.Errorf("%+v", v)
		}
	})
}

// looks is a store that counts the looks at the pools' VMs.
type looks struct {
	fleet.Store
	n *atomic.Int32
}

func (s looks) Members(ctx context.Context) ([]vm.VM, error) {
	s.n.Add(1)
	return s.Store.Members(ctx)
}

// The pools are looked after when somebody asks for a VM that is like theirs, and not for others.
func TestGive_LooksAfterThePoolsThatServe(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*job.Submission)
		looked bool
	}{
		"like the pool's": {func(*job.Submission) {}, true},
		"another":         {func(s *job.Submission) { s.Manifest.Resources.CPU = 7 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				n := &atomic.Int32{}
				r.opts.Store, r.opts.PoolInterval = looks{r.opts.Store, n}, 10*time.Hour
				r.start()
				r.pool(job.PoolSize{Warm: 1})
				r.filled(1, 0)
				r.pass(10 * time.Hour) // the next look on its own is far away
				before := n.Load()
				r.wants("dev1", tt.change)
				r.pass(time.Minute)
				if looked := n.Load() > before; looked != tt.looked {
					t.Errorf("looked %d times", n.Load()-before)
				}
			})
		})
	}
}

func second[A, B any](_ A, b B) B { return b }
