package executor_test

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

func (r *rig) newVolume(name string) job.VolumeInfo {
	r.t.Helper()
	v, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: name, Size: "20G"})
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

// volumeIs returns a volume as it is shown.
func (r *rig) volumeIs(name string) job.VolumeInfo {
	r.t.Helper()
	v, err := r.Volume(context.Background(), name)
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func mounts(name string, mode vm.MountMode) func(*job.Manifest) {
	return func(m *job.Manifest) { m.Volumes = []vm.Mount{{Name: name, Path: "/srv/" + name, Mode: mode}} }
}

func TestVolume_OneJobAfterAnotherHasIt(t *testing.T) {
	r := newRig(t, 2)
	made := r.newVolume("cache")
	if made.Status != job.VolumeReady || made.SizeGB != 20 || made.VMID == 0 {
		t.Errorf("made: %+v", made)
	}
	for range 2 {
		hold := make(chan struct{})
		r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: hold})}, false)
		id := r.submit(mounts("cache", ""))
		j := r.until(id, func(j job.Job) bool { return j.Status == job.Running || j.Status.Terminal() })
		if has := r.fake.Volumes()[0].Uses; len(has) != 1 || has[0] != (vm.VolumeUse{VM: j.VM.Job, VMID: j.VM.ID, Path: "/srv/cache"}) {
			t.Errorf("while it runs %+v have it", has)
		}
		close(hold)
		j = r.until(id, func(j job.Job) bool { return j.Status.Terminal() })
		if got := r.volumeIs("cache"); j.Status != job.Success || len(got.Uses) != 0 || len(r.fake.Volumes()[0].Uses) != 0 {
			t.Errorf("when its result is there, %+v: %+v, on the host %+v", j.Outcome, got, r.fake.Volumes())
		}
	}
	if v, err := r.RemoveVolume(context.Background(), "cache"); err != nil || v.ID != made.ID || len(r.fake.Volumes()) != 0 {
		t.Errorf("removed: %+v, %v, %+v", v, err, r.fake.Volumes())
	}
	r.gone()
}

func TestVolume_OneWriterOrManyReaders(t *testing.T) {
	r := newRig(t, 4)
	r.newVolume("cache")
	hold := make(chan struct{})
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: hold})}, false)
	running := func(mode vm.MountMode) string {
		id := r.submit(mounts("cache", mode))
		r.until(id, func(j job.Job) bool { return j.Status == job.Running || j.Status.Terminal() })
		return id
	}
	readers := []string{running(vm.MountRO), running(vm.MountRO)}
	if uses := r.volumeIs("cache").Uses; len(uses) != 2 {
		t.Errorf("read by %+v", uses)
	}
	j := r.wait(r.submit(mounts("cache", vm.MountRW)))
	if j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, `volume "cache" is in use: VM`) || !strings.Contains(j.Outcome.Error, "reads it") {
		t.Errorf("a writer beside readers: %+v", j.Outcome)
	}
	_, err := r.RemoveVolume(context.Background(), "cache")
	refusal(t, err, "is in use")
	close(hold)
	for _, id := range readers {
		if j := r.wait(id); j.Status != job.Success {
			t.Errorf("a reader: %+v", j.Outcome)
		}
	}
	if j := r.wait(r.submit(mounts("cache", vm.MountRW))); j.Status != job.Success {
		t.Errorf("a writer when they have ended: %+v", j.Outcome)
	}
	r.noLeaks()
}

// haltingVolumes is a host that attaches volumes and then does not answer.
type haltingVolumes struct {
	job.Provider
	attached chan struct{}
}

func (h *haltingVolumes) AttachVolume(ctx context.Context, v vm.Volume, to vm.VM, use vm.VolumeUse) error {
	if err := h.Provider.AttachVolume(ctx, v, to, use); err != nil {
		return err
	}
	close(h.attached)
	<-ctx.Done()
	return context.Cause(ctx)
}

// An engine that ends while it attaches a volume leaves it to the next one, which goes on, or
// to the end of a job that was cancelled.
func TestVolume_TheEngineEndsWhileItIsAttached(t *testing.T) {
	for name, cancels := range map[string]bool{"it is gone on with": false, "it is cancelled": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			r.newVolume("cache")
			r.stop()
			h := &haltingVolumes{r.fake, make(chan struct{})}
			r.opts.Provider = h
			r.restart()
			id := r.submit(mounts("cache", ""))
			<-h.attached
			if cancels {
				if err := r.Cancel(context.Background(), id); err != nil {
					t.Fatal(err)
				}
			}
			r.stop()
			r.opts.Provider = r.fake
			r.restart()
			if j := r.wait(id); (j.Status == job.Success) == cancels {
				t.Errorf("%s: %+v", j.Status, j.Outcome)
			}
			if got := r.volumeIs("cache"); len(got.Uses) != 0 || len(r.fake.Volumes()[0].Uses) != 0 {
				t.Errorf("after the job: %+v, on the host %+v", got, r.fake.Volumes())
			}
			r.noLeaks()
		})
	}
}

func TestVolume_ThatCannotBeTakenOffIsFreeWhenTheVMIsGone(t *testing.T) {
	r := newRig(t, 2)
	r.newVolume("cache")
	r.behave(providertest.Behaviour{Volumes: []error{nil, errors.New("it is busy")}}, true)
	j := r.wait(r.submit(mounts("cache", "")))
	if warned := r.warnings(j.ID, "was not unmounted"); j.Status != job.Success || len(warned) != 1 || !strings.Contains(warned[0], "it is busy") {
		t.Errorf("%s, %+v: %q", j.Status, j.Outcome, warned)
	}
	if got := r.volumeIs("cache"); len(got.Uses) != 0 {
		t.Errorf("after the VM: %+v", got)
	}
	if j = r.wait(r.submit(mounts("cache", ""))); j.Status != job.Success {
		t.Errorf("the next job: %+v", j.Outcome)
	}
}

// A VM that is about to be gone has it for a moment only: the next job waits for that.
func TestVolume_OfAVMThatIsBeingDestroyedIsWaitedFor(t *testing.T) {
	for name, pooled := range map[string]bool{"of a job that has ended": false, "given back to its pool": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2)
			r.newVolume("cache")
			b := providertest.Behaviour{Volumes: []error{nil, errors.New("it is busy")}, Destroys: slices.Repeat([]error{&job.HostError{Class: job.HostUnreachable, Text: "not now"}}, 1000)}
			if pooled {
				r.newPool(1)
				b.Volumes, b.Pushes = nil, []error{errors.New("no answer")}
			}
			r.behave(b, true)
			id := r.submit(mounts("cache", ""))
			if !pooled {
				r.until(id, func(j job.Job) bool { return j.Status.Terminal() })
				id = r.submit(mounts("cache", ""))
			}
			r.until(id, func(job.Job) bool { return len(r.texts(id, job.EventProgress, "waiting for volume cache: VM ")) > 0 })
			r.behave(providertest.Behaviour{}, true)
			j := r.wait(id)
			if told := r.texts(id, job.EventProgress, "waiting for volume cache: VM "); j.Status != job.Success || len(told) != 1 {
				t.Errorf("%s, %+v: %q", j.Status, j.Outcome, told)
			}
		})
	}
}

func TestVolume_ThatIsGoneFromTheHost(t *testing.T) {
	r := newRig(t, 2)
	r.newVolume("cache")
	r.fake.LoseVolumes()
	if got := r.volumeIs("cache"); got.Status != job.VolumeMissing {
		t.Errorf("shown as %+v", got)
	}
	j := r.wait(r.submit(mounts("cache", "")))
	if j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "it has lost its disk") {
		t.Errorf("%+v", j.Outcome)
	}
	_, err := r.Submit(context.Background(), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, Volumes: []vm.Mount{{Name: "none", Path: "/x"}}}})
	refusal(t, err, "manifest.volumes[0].name")
	if _, err := r.RemoveVolume(context.Background(), "cache"); err != nil {
		t.Error(err)
	}
	r.noLeaks()
}

// Of what an engine has left in the middle, the next one removes what was never there; what the
// host has and nobody knows of stays, and is shown.
func TestVolume_WhatAKilledEngineLeaves(t *testing.T) {
	r := newRig(t, 2)
	r.stop()
	r.opts.SweepInterval = 20 * time.Millisecond
	ctx := context.Background()
	left := vm.Volume{ID: "019aa000-0000-7000-8000-000000000001", Name: "left", Owner: r.vms.Owner, State: vm.VolumeIntended, SizeGB: 1}
	if _, err := r.store.InsertVolume(ctx, left, job.Limits{}); err != nil {
		t.Fatal(err)
	}
	orphan := vm.Volume{ID: "019aa000-0000-7000-8000-000000000002", Name: "orphan", Owner: r.vms.Owner}
	for _, v := range []vm.Volume{left, orphan} {
		if _, err := r.fake.CreateVolume(ctx, v); err != nil {
			t.Fatal(err)
		}
	}
	r.restart()
	var all []job.VolumeInfo
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		var err error
		if all, err = r.Volumes(ctx); err != nil || time.Now().After(deadline) {
			t.Fatalf("%+v, %v", all, err)
		}
		if len(all) == 1 {
			break
		}
	}
	if there := r.fake.Volumes(); all[0].Status != job.VolumeOrphaned || all[0].ID != orphan.ID || len(there) != 1 || there[0].ID != orphan.ID {
		t.Errorf("shown %+v, on the host %+v", all, there)
	}
	if seen, err := r.Volumes(as(t, "alice", job.RoleRun)); err != nil || len(seen) != 0 {
		t.Errorf("alice sees %+v, %v", seen, err)
	}
	_, err := r.RemoveVolume(ctx, orphan.ID)
	refusal(t, err, "is orphaned: node pve has it")
	_, err = r.RemoveVolume(as(t, "alice", job.RoleRun), orphan.ID)
	refusal(t, err, "is not a volume of ours")
}

// One that a VM has on the host, of which no row tells, is not removed, and not later either, when
// that VM is gone.
func TestVolume_ThatAVMHasAllTheSameStays(t *testing.T) {
	r := newRig(t, 2, func(o *executor.Options) { o.SweepInterval = 20 * time.Millisecond })
	made := r.newVolume("cache")
	ctx := context.Background()
	dev := r.makeVM("dev")
	v := vm.Volume{ID: made.ID, Name: "cache", Owner: r.vms.Owner}
	other := vm.VM{ID: dev.VM.ID, Job: dev.ID, Name: dev.VM.Name, Owner: r.vms.Owner}
	if err := r.fake.AttachVolume(ctx, v, other, vm.VolumeUse{VM: dev.ID}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.RemoveVolume(ctx, "cache"); !job.IsClass(err, job.HostLeftAlone) {
		t.Errorf("removed: %v", err)
	}
	if got := r.volumeIs("cache"); got.Status != job.VolumeReady {
		t.Errorf("it is %s", got.Status)
	}
	if err := r.fake.DetachVolume(ctx, v, other); err != nil {
		t.Fatal(err)
	}
	r.wait(r.submit(mounts("cache", "")))
	if got := r.volumeIs("cache"); got.Status != job.VolumeReady || len(r.fake.Volumes()) != 1 {
		t.Errorf("later it is %s", got.Status)
	}
}

func TestVolume_OfAPersistentVM(t *testing.T) {
	r := newRig(t, 2)
	r.newVolume("cache")
	dev := r.makeVM("dev")
	ctx := context.Background()
	a := job.VolumeAttach{Volume: "cache", VM: "dev", Path: "/srv/cache"}
	if v, err := r.AttachVolume(ctx, a); err != nil || len(v.Uses) != 1 || v.Uses[0].VM != dev.ID {
		t.Fatalf("%+v, %v", v, err)
	}
	_, err := r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, Volumes: []vm.Mount{{Name: "cache", Path: "/x"}}}})
	refusal(t, err, `volume "cache" is in use`)
	r.behave(providertest.Behaviour{Volumes: []error{errors.New("it does not run")}}, true)
	if _, err := r.AttachVolume(ctx, a); err == nil || len(r.volumeIs("cache").Uses) != 1 || len(r.fake.Volumes()[0].Uses) != 1 {
		t.Errorf("asked for once more while it is off: %v, %+v", err, r.volumeIs("cache"))
	}
	a.Path = "/elsewhere"
	_, err = r.AttachVolume(ctx, a)
	refusal(t, err, "is in use")
	a.Path = "/srv/../etc"
	_, err = r.AttachVolume(ctx, a)
	refusal(t, err, "path")
	if _, err := r.StopVM(ctx, "dev"); err != nil || r.fake.Mounted(r.volumeIs("cache").ID, dev.ID) {
		t.Fatal(err)
	}
	if _, err := r.StartVM(ctx, "dev"); err != nil || !r.fake.Mounted(r.volumeIs("cache").ID, dev.ID) {
		t.Errorf("not mounted after a start, %v", err)
	}
	r.behave(providertest.Behaviour{Volumes: []error{errors.New("no such disk")}}, true)
	if _, err = r.StartVM(ctx, "dev"); err == nil || !strings.Contains(err.Error(), "volume cache is not mounted in it: no such disk") {
		t.Errorf("one that cannot be mounted: %v", err)
	}
	if v, err := r.DetachVolume(ctx, "cache", "dev"); err != nil || len(v.Uses) != 0 || len(r.fake.Volumes()[0].Uses) != 0 {
		t.Errorf("%+v, %v", v, err)
	}
	a.Path = "/srv/cache"
	if _, err := r.AttachVolume(ctx, a); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DestroyVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	r.untilVM(dev.ID, vm.Destroyed)
	if got := r.volumeIs("cache"); len(got.Uses) != 0 || got.Status != job.VolumeReady {
		t.Errorf("after its VM: %+v", got)
	}
}

func TestVolume_BelongsToItsPrincipal(t *testing.T) {
	r := newRig(t, 2)
	alice, bob := as(t, "alice", job.RoleRun), as(t, "bob", job.RoleRun)
	if _, err := r.CreateVolume(alice, job.VolumeSpec{Name: "cache", Size: "20G"}); err != nil {
		t.Fatal(err)
	}
	_, err := r.CreateVolume(bob, job.VolumeSpec{Name: "cache", Size: "20G"})
	refusal(t, err, "is taken")
	for _, size := range []string{"", "20", "512M", "10001G"} {
		_, err := r.CreateVolume(bob, job.VolumeSpec{Name: "mine", Size: size})
		refusal(t, err, "size")
	}
	_, err = r.RemoveVolume(bob, "cache")
	refusal(t, err, "is not a volume of ours")
	if all, err := r.Volumes(bob); err != nil || len(all) != 0 {
		t.Errorf("bob sees %+v, %v", all, err)
	}
	m := job.Manifest{Task: "x", AgentType: job.AgentScript, Volumes: []vm.Mount{{Name: "cache", Path: "/srv/cache"}}}
	_, err = r.Submit(bob, job.Submission{Manifest: m})
	refusal(t, err, "is not a volume of ours")
	id := r.submitAs(alice, mounts("cache", ""))
	if j := r.wait(id); j.Status != job.Success {
		t.Errorf("its owner's job: %+v", j.Outcome)
	}
}

// The limits of clients are told of volumes as of disks, and of one that is asked for as of no job.
func TestVolume_CountsAsDiskOfItsClient(t *testing.T) {
	var has []job.Job
	var next job.Manifest
	r := newRig(t, 2)
	r.stop()
	r.vms.Admit = func(h []job.Job, n job.Manifest) error { has, next = h, n; return nil }
	r.restart()
	r.newVolume("cache")
	r.newVolume("more")
	if len(has) != 1 || !has[0].Status.Terminal() || has[0].Keeps() || has[0].Kind != job.KindVolume || has[0].Manifest.Resources != (vm.Resources{Disk: "20480M"}) || next.AgentType != "" || next.Resources.Disk != "20480M" {
		t.Errorf("beside %+v was asked for %+v", has, next)
	}
	id := r.submitAs(as(t, "alice", job.RoleRun))
	if len(has) != 0 || next.AgentType == "" {
		t.Errorf("another client's: %+v, %+v", has, next)
	}
	r.wait(id)
}

// A job's VM is placed on the node of its volume, and waits while that cannot take it.
func TestVolume_BindsAJobToItsNode(t *testing.T) {
	var room atomic.Bool
	r, n := onNodes(t, 2, func(want job.Placement) (string, error) {
		switch {
		case want.Only == "pve2" && want.Spec.MemoryMB > 0 && !room.Load():
			return "", full(false)
		case want.Only != "":
			return want.Only, nil
		}
		return "pve1", nil
	})
	v, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: "cache", Size: "20G", Node: "pve2"})
	if err != nil || v.Node != "pve2" {
		t.Fatalf("%+v, %v", v, err)
	}
	id := r.submit(mounts("cache", ""))
	r.until(id, func(j job.Job) bool { return strings.Contains(j.Progress, "waiting") || j.Status.Terminal() })
	room.Store(true)
	r.wait(r.submit()) // which makes room when it ends
	if j := r.wait(id); j.Status != job.Success || n.created[id] != "pve2" {
		t.Errorf("%s, %+v: on node %s", j.Status, j.Outcome, n.created[id])
	}
}

// A volume whose holder somebody has migrated is looked for where that is by now.
func TestVolume_ThatWasMovedIsFollowed(t *testing.T) {
	for name, look := range map[string]bool{"by a list": true, "by a sweep": false} {
		t.Run(name, func(t *testing.T) {
			r, n := onNodes(t, 2, func(want job.Placement) (string, error) { return cmp.Or(want.Only, "pve1"), nil })
			ctx := context.Background()
			if _, err := r.CreateVolume(ctx, job.VolumeSpec{Name: "cache", Size: "1G", Node: "pve2"}); err != nil {
				t.Fatal(err)
			}
			r.fake.MoveVolumes("pve3")
			if look {
				if all, err := r.Volumes(ctx); err != nil || all[0].Node != "pve3" {
					t.Errorf("%+v, %v", all, err)
				}
			} else {
				r.stop()
				r.restart() // a sweep is what an engine begins with
				for deadline := time.Now().Add(time.Minute); r.volumeIs("cache").Node != "pve3"; time.Sleep(5 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("%+v", r.volumeIs("cache"))
					}
				}
			}
			id := r.submit(mounts("cache", ""))
			if j := r.wait(id); j.Status != job.Success || n.created[id] != "pve3" {
				t.Errorf("%s, %+v: on node %s", j.Status, j.Outcome, n.created[id])
			}
		})
	}
}

// One on a storage that the nodes share binds a job to none, also beside one that does.
func TestVolume_OnASharedStorageIsForAllNodes(t *testing.T) {
	r, n := onNodes(t, 2, func(want job.Placement) (string, error) { return cmp.Or(want.Only, "pve1"), nil })
	ctx := context.Background()
	for _, spec := range []job.VolumeSpec{{Name: "all", Size: "1G", Node: "pve3", Storage: "shared"}, {Name: "one", Size: "1G", Node: "pve2"}} {
		if v, err := r.CreateVolume(ctx, spec); err != nil || v.Node != spec.Node || v.Shared != (spec.Storage == "shared") {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	for want, names := range map[string][]string{"pve1": {"all"}, "pve2": {"all", "one"}} {
		id := r.submit(func(m *job.Manifest) {
			for _, name := range names {
				m.Volumes = append(m.Volumes, vm.Mount{Name: name, Path: "/srv/" + name})
			}
		})
		if j := r.wait(id); j.Status != job.Success || n.created[id] != want {
			t.Errorf("%v: %s, %+v, on node %s", names, j.Status, j.Outcome, n.created[id])
		}
	}
}

// The node for a job, and a pool's VM for it, are chosen by its volumes; one that none can have is
// refused when it is submitted.
func TestVolume_JobsGoWhereItsStorageIs(t *testing.T) {
	without := func(node string) error {
		return &job.NoRoomError{Refusals: []job.Refusal{{Node: node, Reason: job.RefusedVolume, Never: true, Text: "storage shared of volume all not there"}}}
	}
	r, n := onNodes(t, 2, func(want job.Placement) (string, error) {
		if len(want.Spec.Volumes) > 0 && want.Spec.Volumes[0].Storage == "shared" {
			return "pve2", nil
		}
		return cmp.Or(want.Only, "pve1"), nil
	})
	var nowhere atomic.Bool
	n.fits = func(spec job.VMSpec) error {
		if spec.Node != "" && len(spec.Volumes) > 0 && !spec.Volumes[0].Shared && spec.Node != spec.Volumes[0].Node {
			t.Errorf("asked whether node %s has what is on node %s alone", spec.Node, spec.Volumes[0].Node)
		}
		if len(spec.Volumes) > 0 && (spec.Node == "pve1" || nowhere.Load()) {
			return without("pve1")
		}
		return nil
	}
	if v, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: "all", Size: "1G", Storage: "shared"}); err != nil || v.Node != "pve2" {
		t.Fatalf("%+v, %v", v, err)
	}
	r.newPool(1)
	id := r.submit(mounts("all", ""))
	if j := r.wait(id); j.Status != job.Success || n.created[id] != "pve2" {
		t.Errorf("%s, %+v, on node %q, %s", j.Status, j.Outcome, n.created[id], j.VM.Source)
	}
	if _, err := r.CreateVolume(context.Background(), job.VolumeSpec{Name: "one", Size: "1G", Node: "pve3"}); err != nil {
		t.Fatal(err)
	}
	if j := r.wait(r.submit(mounts("one", ""))); j.Status != job.Success || j.VM.Source == vm.FromPool {
		t.Errorf("%s, %+v, %s", j.Status, j.Outcome, j.VM.Source)
	}
	if j := r.wait(r.submit()); j.VM.Source != vm.FromPool {
		t.Errorf("without a volume: %s", j.VM.Source)
	}
	nowhere.Store(true)
	m := job.Manifest{Task: "true", AgentType: job.AgentScript}
	mounts("all", "")(&m)
	_, err := r.Submit(context.Background(), job.Submission{Manifest: m})
	var wrong *job.FieldError
	if !errors.As(err, &wrong) || wrong.Field != "manifest.volumes" || wrong.Problem != without("pve1").Error() {
		t.Errorf("%v", err)
	}
}
