package fleet_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// volume makes one, and returns its row.
func (r *rig) volume(name string) vm.Volume {
	r.t.Helper()
	if _, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: name, Size: "5G"}); err != nil {
		r.t.Fatal(err)
	}
	return r.volumeRow(name)
}

// volumeRow returns a volume as it is stored; zero: there is none.
func (r *rig) volumeRow(name string) (v vm.Volume) {
	r.t.Helper()
	rows, err := r.store.Volumes(context.Background())
	if at := slices.IndexFunc(rows, func(v vm.Volume) bool { return v.Name == name }); err == nil && at >= 0 {
		v = rows[at]
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// give attaches a volume to a VM.
func (r *rig) give(volume, to string, mode vm.MountMode) error {
	_, err := r.AttachVolume(context.Background(), job.VolumeAttach{Volume: volume, VM: to, Path: "/srv/" + volume, Mode: mode})
	return err
}

// has checks which VMs have a volume by its row, and on the host.
func (r *rig) has(volume string, row, host []string) {
	r.t.Helper()
	of := func(uses []vm.VolumeUse) (ids []string) {
		for _, u := range uses {
			ids = append(ids, u.VM)
		}
		return ids
	}
	at := slices.IndexFunc(r.host.Volumes(), func(v vm.Volume) bool { return v.Name == volume })
	if at < 0 {
		r.t.Fatalf("the host has no volume %s", volume)
	}
	if got, there := of(r.volumeRow(volume).Uses), of(r.host.Volumes()[at].Uses); !slices.Equal(got, row) || !slices.Equal(there, host) {
		r.t.Errorf("%v have %s by its row, and %v on the host; want %v and %v", got, volume, there, row, host)
	}
}

// The row is written before the VM can have the volume, and says of the first time that it has a
// filesystem from then on: the next one must find it.
func TestVolume_IsFormattedOnce(t *testing.T) {
	faulty(t, func(r *rig, s *steps) {
		r.start()
		id := r.persistent("dev").Job
		r.volume("data")
		var formatted []bool
		s.before("AttachVolume", 0, func() error {
			v := r.volumeRow("data")
			if v.UsedBy(id) == nil {
				t.Error("the VM gets it before the row says so")
			}
			formatted = append(formatted, v.Formatted)
			return nil
		})
		for range 2 {
			if err := r.give("data", "dev", ""); err != nil {
				t.Error(err)
			}
			r.has("data", []string{id}, []string{id})
			if _, err := r.DetachVolume(context.Background(), "data", "dev"); err != nil {
				t.Error(err)
			}
			r.has("data", nil, nil)
		}
		if !slices.Equal(formatted, []bool{false, true}) {
			t.Errorf("it was formatted before: %v", formatted)
		}
	})
}

// At whatever step an engine dies or is refused, the row tells of every VM that has the volume.
func TestVolume_ARowForWhatAVMHas(t *testing.T) {
	for _, tt := range []struct {
		name   string
		fail   func(s *steps)
		dies   bool
		row    bool // a use is left
		detach bool // it is taken off, rather than given
	}{
		{name: "refused", fail: func(s *steps) { s.before("AttachVolume", 1, func() error { return errors.New("no") }) }},
		{name: "refused, and so is its end", fail: func(s *steps) {
			s.before("AttachVolume", 1, func() error { return errors.New("no") })
			s.before("DetachVolume", 1, func() error { return errors.New("no") })
		}, row: true},
		{name: "killed before", fail: func(s *steps) { s.before("AttachVolume", 1, s.crash) }, dies: true, row: true},
		{name: "killed after", fail: func(s *steps) { s.after("AttachVolume", 1, s.crash) }, dies: true, row: true},
		{name: "not taken off", fail: func(s *steps) { s.before("DetachVolume", 1, func() error { return errors.New("no") }) }, row: true, detach: true},
		{name: "killed before it is off", fail: func(s *steps) { s.before("DetachVolume", 1, s.crash) }, dies: true, row: true, detach: true},
		{name: "killed when it is off", fail: func(s *steps) { s.after("DetachVolume", 1, s.crash) }, dies: true, row: true, detach: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			faulty(t, func(r *rig, s *steps) {
				r.start()
				id := r.persistent("dev").Job
				r.persistent("other")
				r.volume("data")
				work := func() error { return r.give("data", "dev", "") }
				if tt.detach {
					if err := work(); err != nil {
						r.t.Fatal(err)
					}
					work = func() error { return errOfVolume(r.DetachVolume(context.Background(), "data", "dev")) }
				}
				tt.fail(s)
				if err := work(); err == nil {
					t.Error("it is said to have gone well")
				}
				if tt.dies {
					r.restart(s)
				}
				if used := r.volumeRow("data").UsedBy(id) != nil; used != tt.row {
					t.Errorf("the row says that the VM has it: %v", used)
				}
				if err := r.give("data", "other", ""); (err != nil) != tt.row {
					t.Errorf("given to another: %v", err)
				}
				if !tt.row {
					return
				}
				if err := errOfVolume(r.RemoveVolume(context.Background(), "data")); err == nil || !strings.Contains(err.Error(), "writes to it") {
					t.Errorf("removed: %v", err)
				}
				if err := work(); err != nil { // it is gone on with
					t.Errorf("again: %v", err)
				}
				want := []string{id}
				if tt.detach {
					want = nil
				}
				r.has("data", want, want)
				if v := r.volumeRow("data"); !tt.detach && !v.Formatted {
					t.Error("the row does not say that it has a filesystem")
				}
			})
		})
	}
}

func errOfVolume(_ job.VolumeInfo, err error) error { return err }

// A VM that the host leaves alone runs on, and may write: its volume is its own until it is seen
// to be gone, or is the operator's.
func TestVolume_OfAVMThatIsLeftAlone(t *testing.T) {
	for _, end := range []vm.State{vm.Destroyed, vm.Forgotten} {
		t.Run(string(end), func(t *testing.T) {
			faulty(t, func(r *rig, s *steps) {
				r.start()
				id := r.persistent("dev").Job
				r.persistent("other")
				r.volume("data")
				if err := r.give("data", "dev", ""); err != nil {
					r.t.Fatal(err)
				}
				s.before("Destroy", 0, func() error { return hostError(job.HostLeftAlone, "its name is another") })
				if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
					t.Error(err)
				}
				r.pass(time.Minute)
				if v := r.vm(id); v.State != vm.LeftAlone {
					t.Errorf("the VM is %s", v.State)
				}
				r.has("data", []string{id}, []string{id})
				if err := r.give("data", "other", ""); err == nil || !strings.Contains(err.Error(), "writes to it") {
					t.Errorf("given to another: %v", err)
				}
				if err := errOfVolume(r.RemoveVolume(context.Background(), "data")); err == nil || !strings.Contains(err.Error(), "writes to it") {
					t.Errorf("removed: %v", err)
				}
				r.has("data", []string{id}, []string{id})
				r.change(id, func(v *vm.VM) { v.State = end })
				if v, err := r.Volume(context.Background(), "data"); err != nil || len(v.Uses) != 0 {
					t.Errorf("%+v, %v", v, err)
				}
			})
		})
	}
}

// Of volumes that it was making or removing an engine leaves no more than the next one removes, and
// what the host refuses to remove stays a volume.
func TestVolume_EngineKilledWhileItIsMadeOrRemoved(t *testing.T) {
	for name, fail := range map[string]func(s *steps){
		"before it is made":     func(s *steps) { s.before("CreateVolume", 1, s.crash) },
		"when it is made":       func(s *steps) { s.after("CreateVolume", 1, s.crash) },
		"before it is removed":  func(s *steps) { s.before("RemoveVolume", 1, s.crash) },
		"when it is removed":    func(s *steps) { s.after("RemoveVolume", 1, s.crash) },
		"before its row is off": func(s *steps) { s.before("DeleteVolume", 1, s.crash) },
	} {
		t.Run(name, func(t *testing.T) {
			faulty(t, func(r *rig, s *steps) {
				r.start()
				fail(s)
				_, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: "data", Size: "5G"})
				if err == nil {
					_, err = r.RemoveVolume(context.Background(), "data")
				}
				if !errors.Is(err, errCrashed) {
					t.Errorf("%v, want it killed", err)
				}
				r.restart(s)
				r.pass(time.Second)
				if rows, err := r.store.Volumes(context.Background()); err != nil || len(rows) != 0 || len(r.host.Volumes()) != 0 {
					t.Errorf("left: %+v, %v, on the host %+v", rows, err, r.host.Volumes())
				}
			})
		})
	}
	t.Run("that a VM has all the same", func(t *testing.T) {
		faulty(t, func(r *rig, s *steps) {
			r.start()
			made := r.volume("data")
			s.before("RemoveVolume", 1, func() error { return hostError(job.HostLeftAlone, "VM 100 has it") })
			if err := errOfVolume(r.RemoveVolume(context.Background(), "data")); !job.IsClass(err, job.HostLeftAlone) {
				t.Error(err)
			}
			r.restart(s)
			r.pass(time.Second)
			if v := r.volumeRow("data"); v.State != vm.VolumeCreated || v.ID != made.ID {
				t.Errorf("%+v", v)
			}
			r.has("data", nil, nil)
		})
	})
}

// Of what a policy forbids nothing is made, and it is told who asks, by what client, and for which storage.
func TestCreateVolume_AsksWhetherItsStorageIsAllowed(t *testing.T) {
	bubble(t, func(r *rig) {
		refused := &job.FieldError{Field: "storage", Problem: "is not allowed"}
		r.opts.AllowStorage = func(client string, p job.Principal, storage string) error {
			if client == "mcp:claude" && p.Name == "alice" && storage == "other" {
				return refused
			}
			return nil
		}
		r.start()
		for asks, alice := range map[string]bool{"alice": true, "bob": false} {
			ctx := job.WithClient(job.WithPrincipal(context.Background(), job.Principal{Name: asks, Role: job.RoleRun}), "mcp:claude")
			_, err := r.CreateVolume(ctx, job.VolumeSpec{Name: "of-" + asks, Size: "5G", Storage: "other"})
			if errors.Is(err, refused) != alice || !alice && err != nil {
				t.Errorf("%s: %v", asks, err)
			}
		}
		if rows, err := r.store.Volumes(context.Background()); err != nil || len(rows) != 1 || len(r.host.Volumes()) != 1 {
			t.Errorf("%+v, %v, on the host %+v; want bob's alone", rows, err, r.host.Volumes())
		}
	})
}

// A VM of another node cannot have it, and a job's goes where its volume is.
func TestVolume_IsItsNodes(t *testing.T) {
	bubble(t, func(r *rig) {
		r.opts.Placer = &placer{place: func(want job.Placement) (string, error) {
			if want.Only != "" {
				return want.Only, nil
			}
			return "pve1", nil
		}}
		r.start()
		r.persistent("dev")
		if _, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: "data", Size: "5G", Node: "pve2"}); err != nil {
			r.t.Fatal(err)
		}
		if err := r.give("data", "dev", ""); err == nil || !strings.Contains(err.Error(), `is on node pve2, and VM 100 on node pve1`) {
			t.Errorf("%v", err)
		}
		r.has("data", nil, nil)
	})
}

// acquire gets a job that is submitted now a VM, and returns it.
func (r *rig) acquire(ctx context.Context, m job.Manifest) (job.Job, error) {
	r.t.Helper()
	m.Task, m.AgentType = "true", job.AgentScript
	m, err := m.Complete(r.opts.Defaults)
	if err != nil {
		r.t.Fatal(err)
	}
	j, _, err := r.store.Insert(context.Background(), job.Job{ID: asked("x").Job, Status: job.Pending, Manifest: m, CreatedAt: time.Now().UTC()}, "", job.Limits{})
	if err != nil {
		r.t.Fatal(err)
	}
	return r.Acquire(ctx, j)
}

// A VM goes on from a checkpoint on a node that takes VMs, and on that of its job's volume.
func TestCheckpoint_OnANodeThatMayHaveTheVM(t *testing.T) {
	for name, tt := range map[string]struct {
		cordoned bool
		volume   string // the node of the job's
		restored bool
		node     string
	}{
		"any":                       {restored: true, node: "pve2"},
		"a cordoned node":           {cordoned: true, node: "pve1"},
		"the volume's":              {volume: "pve2", restored: true, node: "pve2"},
		"another than the volume's": {volume: "pve1", node: "pve1"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(r *rig) {
				r.opts.Placer = &placer{place: func(want job.Placement) (string, error) {
					if want.Only != "" {
						return want.Only, nil
					}
					return "pve1", nil
				}}
				r.row(vm.VM{
					Job: "01900000-0000-7000-8000-00000000000a", Name: "c", ID: 900, Node: "pve2", State: vm.Created, Own: &vm.Own{ReadyAt: time.Now()},
					Made: vm.Made{Lifecycle: vm.Checkpointed, Template: providertest.FakeTemplate, Resources: vm.Resources{CPU: 2, Memory: "2G", Disk: "10G"}}, Checkpoint: &vm.Checkpoint{SavedAt: time.Now(), Bytes: 1},
				})
				r.host.PlantCheckpoint(900)
				if err := r.store.SetCordon(context.Background(), "pve2", tt.cordoned); err != nil {
					r.t.Fatal(err)
				}
				r.start()
				var m job.Manifest
				if tt.volume != "" {
					if _, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: "data", Size: "5G", Node: tt.volume}); err != nil {
						r.t.Fatal(err)
					}
					m.Volumes = []vm.Mount{{Name: "data", Path: "/srv/data"}}
				}
				j, err := r.acquire(context.Background(), m)
				if err != nil {
					r.t.Fatal(err)
				}
				if got := j.VM.Source == vm.Restored; got != tt.restored || j.VM.Node != tt.node {
					t.Errorf("on %s, restored: %v", j.VM.Node, got)
				}
				if tt.volume != "" {
					r.has("data", []string{j.ID}, []string{j.ID})
				}
			})
		})
	}
}

// A volume's ID is that volume, whatever another is called.
func TestVolume_IsNotCalledByAnothersID(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		mine := r.volume("zz")
		for _, name := range []string{mine.ID, "01900000-0000-7000-8000-00000000000a"} {
			_, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: name, Size: "5G"})
			if bad, ok := errors.AsType[*job.FieldError](err); !ok || bad.Field != "name" || !strings.Contains(bad.Problem, "reads as a volume's ID") {
				t.Errorf("%s: %v", name, err)
			}
		}
		other := vm.Volume{ID: "01900000-0000-7000-8000-00000000000b", Name: mine.ID, Owner: r.opts.Owner, State: vm.VolumeCreated}
		if added, err := r.store.InsertVolume(context.Background(), other, job.Limits{}); err != nil || !added {
			r.t.Fatal(err)
		}
		if v, err := r.Volume(context.Background(), mine.ID); err != nil || v.Name != "zz" {
			t.Errorf("its ID is %q: %v", v.Name, err)
		}
		if v, err := r.RemoveVolume(context.Background(), mine.ID); err != nil || v.ID != mine.ID {
			t.Errorf("removed %s: %v", v.Name, err)
		}
	})
}
