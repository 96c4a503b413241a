package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// makeVM submits a job that makes a VM and waits until it has.
func (r *rig) makeVM(name string, change ...func(*job.Manifest)) job.Job {
	r.t.Helper()
	m := job.Manifest{VMName: name}
	for _, c := range change {
		c(&m)
	}
	j, err := r.createVM(context.Background(), job.Submission{Manifest: m})
	if err != nil {
		r.t.Fatal(err)
	}
	if j = r.wait(j.ID); j.Status != job.Success {
		r.t.Fatalf("the VM's job is %s: %+v", j.Status, j.Outcome)
	}
	return j
}

// sharing makes a manifest's task run in a VM that exists.
func sharing(vm string) func(*job.Manifest) { return func(m *job.Manifest) { m.VM = vm } }

func (r *rig) vm(ref string) job.VMInfo {
	r.t.Helper()
	info, err := r.VM(context.Background(), ref)
	if err != nil {
		r.t.Fatal(err)
	}
	return info
}

// gone waits until there is no VM.
func (r *rig) gone() {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); len(r.fake.VMs()) > 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("VMs stay: %+v", r.fake.VMs())
		}
	}
}

// refusal checks that err is about field and says says.
func refusal(t *testing.T, err error, says string) {
	t.Helper()
	var field *job.FieldError
	if !errors.As(err, &field) || field.Remedy == "" || !strings.Contains(err.Error(), says) {
		t.Errorf("refused with %v, want a field error that says %q", err, says)
	}
}

func TestVM_IsMadeUsedAndDestroyed(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("hi\n")})}, true)
	maker := r.makeVM("dev")
	info := r.vm("dev")
	if info.ID != maker.VM.ID || info.Status != vm.Running || info.Lifecycle != vm.Persistent || info.Source != providertest.FakeTemplate {
		t.Errorf("VM %+v", info)
	}
	for range 2 { // one after the other in the same VM
		id := r.submit(sharing("DEV"))
		j := r.wait(id)
		result, err := r.Result(context.Background(), id)
		if err != nil || j.Status != job.Success || string(result.Stdout) != "hi\n" || j.VM.ID != info.ID || j.VM.State != vm.Released {
			t.Errorf("job %+v, result %+v, %v", j, result, err)
		}
	}
	if stats := r.fake.Stats(); stats.Creates != 1 {
		t.Errorf("%d VMs were made, want 1", stats.Creates)
	}
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	r.gone()
	r.wait(maker.ID)
	r.noLeaks()
	_, err := r.VM(context.Background(), "dev")
	refusal(t, err, "is not a VM of ours")
}

func TestVM_JobsSideBySideNeedNoSlot(t *testing.T) {
	r := newRig(t, 1)
	hold := make(chan struct{})
	r.makeVM("dev")
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	first, second := r.submit(sharing("dev")), r.submit(sharing("dev"))
	running := func(j job.Job) bool { return j.Status == job.Running }
	r.until(first, running)
	r.until(second, running)
	if jobs := r.vm("dev").Jobs; !slices.Equal(jobs, []string{first, second}) {
		t.Errorf("jobs in the VM: %v, want %v", jobs, []string{first, second})
	}
	for done, f := range map[string]func() error{
		"stopped":   func() error { _, err := r.StopVM(context.Background(), "dev"); return err },
		"destroyed": func() error { _, err := r.DestroyVM(context.Background(), "dev"); return err },
		"reverted":  func() error { _, err := r.RevertVM(context.Background(), "dev", "clean"); return err },
	} {
		refusal(t, f(), "VM 100 cannot be "+done+": jobs run in it: "+first)
	}
	if err := r.Cancel(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	if j := r.wait(first); j.Outcome.Reason != job.ReasonCancelled {
		t.Errorf("cancelled job: %+v", j.Outcome)
	}
	if j := r.until(second, running); j.Outcome != nil {
		t.Errorf("the other job was ended too: %+v", j.Outcome)
	}
	close(hold)
	if j := r.wait(second); j.Status != job.Success {
		t.Errorf("second job: %+v", j.Outcome)
	}
}

func TestVM_AdoptedAfterARestart(t *testing.T) {
	r := newRig(t, 2)
	hold := make(chan struct{})
	r.makeVM("dev")
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold, Stdout: []byte("x")})})
	id := r.submit(sharing("dev"))
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.stop()
	close(hold)
	r.restart()
	if j := r.wait(id); j.Status != job.Success {
		t.Errorf("job after the restart: %+v", j.Outcome)
	}
	if stats := r.fake.Stats(); stats.Starts != 1 {
		t.Errorf("the task was started %d times", stats.Starts)
	}
	if len(r.fake.VMs()) != 1 {
		t.Error("the VM did not stay")
	}
}

func TestVM_DestroyedAcrossARestart(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	r.fake.Set(providertest.Behaviour{Destroys: []error{errUnreachable}})
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.restart()
	r.gone()
}

func TestVM_GoesWhenItsTimeIsOverAndNoJobRuns(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		hold := make(chan struct{})
		maker := r.makeVM("dev", func(m *job.Manifest) { m.TTL = 60 })
		if at := maker.VM.ExpiresAt; time.Until(at) < 50*time.Second || time.Until(at) > time.Minute {
			t.Errorf("expires at %v", at)
		}
		r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
		id := r.submit(sharing("dev"))
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
		time.Sleep(2 * time.Minute)
		if len(r.fake.VMs()) != 1 {
			t.Fatal("the VM went while a job ran in it")
		}
		close(hold)
		r.wait(id)
		r.gone()
	})
}

func TestVM_NamesAndStatesThatCannotBe(t *testing.T) {
	r := newRig(t, 2)
	ctx := context.Background()
	r.makeVM("dev")
	_, err := r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, VM: "nobody"}})
	refusal(t, err, `"nobody" is not a VM of ours`)

	_, err = r.createVM(ctx, job.Submission{Manifest: job.Manifest{VMName: "Dev"}})
	refusal(t, err, `manifest.vmName: VM already exists: "dev" is VM`)

	hold := make(chan struct{})
	defer close(hold)
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	own := r.until(r.submit(), func(j job.Job) bool { return j.Status == job.Running })
	_, err = r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, VM: own.VM.Name}})
	refusal(t, err, "goes with its job")
	_, err = r.DestroyVM(ctx, own.VM.Name)
	refusal(t, err, "cancel that")
	for _, name := range []string{"", "current", "1st", "a", "a b", "x'; true"} {
		_, err = r.SnapshotVM(ctx, "dev", name, false)
		refusal(t, err, "not a snapshot's name")
	}
}

// A VM's name and ID may be another's tomorrow; the job that has created it is its own.
func TestVM_IsFoundByTheJobThatHasCreatedIt(t *testing.T) {
	r := newRig(t, 2)
	first, second := r.makeVM("dev"), r.makeVM("other")
	for _, made := range []job.Job{first, second} {
		if v, err := r.VM(t.Context(), made.ID); err != nil || v.Job != made.ID || v.Name != made.VM.Name {
			t.Errorf("by %s: %+v, %v", made.ID, v, err)
		}
	}
	if v, err := r.StopVM(t.Context(), first.ID); err != nil || v.Name != "dev" || v.Status != vm.Stopped {
		t.Errorf("stop: %+v, %v", v, err)
	}
	if v, err := r.VM(t.Context(), "other"); err != nil || v.Status != vm.Running {
		t.Errorf("the other VM: %+v, %v", v, err)
	}
}

func TestVM_StopsStartsAndReverts(t *testing.T) {
	r := newRig(t, 1)
	ctx := context.Background()
	before := r.makeVM("dev").VM.IP
	if info, err := r.SnapshotVM(ctx, "dev", "clean", false); err != nil || info.Status != vm.Running {
		t.Fatalf("snapshot: %+v, %v", info, err)
	}
	if _, err := r.StopVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	info, err := r.StartVM(ctx, "dev")
	if err != nil || info.IP == before || info.Status != vm.Running {
		t.Errorf("start: %+v, %v", info, err)
	}
	if kept := r.vm("dev"); kept.IP != info.IP {
		t.Errorf("the new address was not kept: %s, want %s", kept.IP, info.IP)
	}
	if info, err = r.RevertVM(ctx, "dev", "clean"); err != nil || info.Status != vm.Running {
		t.Errorf("revert: %+v, %v", info, err)
	}
	var host *job.HostError
	if _, err = r.RevertVM(ctx, "dev", "never"); !errors.As(err, &host) {
		t.Errorf("revert to a snapshot that is not there: %v", err)
	}
	all, err := r.ListSnapshots(ctx, "dev")
	if err != nil || len(all) != 1 || all[0].Name != "clean" || !all[0].Current {
		t.Errorf("snapshots: %+v, %v", all, err)
	}
	_, err = r.DeleteSnapshot(ctx, "dev", "current")
	refusal(t, err, "not a snapshot's name")
	if _, err = r.DeleteSnapshot(ctx, "dev", "never"); !errors.As(err, &host) {
		t.Errorf("removal of a snapshot that is not there: %v", err)
	}
	if info, err = r.DeleteSnapshot(ctx, "dev", "clean"); err != nil || info.Status != vm.Running {
		t.Errorf("removal: %+v, %v", info, err)
	}
	if all, err = r.ListSnapshots(ctx, "dev"); err != nil || len(all) != 0 {
		t.Errorf("snapshots after that: %+v, %v", all, err)
	}
	if j := r.wait(r.submit(sharing("dev"))); j.Status != job.Success {
		t.Errorf("a job after it: %+v", j.Outcome)
	}
}

func TestVM_SuspendsAndResumes(t *testing.T) {
	r := newRig(t, 1)
	ctx := context.Background()
	made := *r.makeVM("dev").VM
	var host *job.HostError
	if _, err := r.ResumeVM(ctx, "dev"); err != nil {
		t.Errorf("resume of a VM that runs: %v", err)
	}
	for range 2 {
		if info, err := r.SuspendVM(ctx, "dev"); err != nil || info.Status != vm.Suspended {
			t.Fatalf("suspend: %+v, %v", info, err)
		}
	}
	if info := r.vm("dev"); info.Status != vm.Suspended {
		t.Errorf("shown as %s", info.Status)
	}
	for what, err := range map[string]error{
		"stop":     func() error { _, err := r.StopVM(ctx, "dev"); return err }(),
		"snapshot": func() error { _, err := r.SnapshotVM(ctx, "dev", "clean", true); return err }(),
	} {
		if !errors.As(err, &host) {
			t.Errorf("%s of a suspended VM: %v", what, err)
		}
	}
	before, err := r.fake.Look(ctx, made)
	if err != nil || before.BootID != "" {
		t.Errorf("looked into a suspended VM: %+v, %v", before, err)
	}
	info, err := r.ResumeVM(ctx, "dev")
	if err != nil || info.IP == made.IP || info.Status != vm.Running {
		t.Errorf("resume: %+v, %v", info, err)
	}
	if kept := r.vm("dev"); kept.IP != info.IP {
		t.Errorf("the new address was not kept: %s, want %s", kept.IP, info.IP)
	}
	if j := r.wait(r.submit(sharing("dev"))); j.Status != job.Success {
		t.Errorf("a job after it: %+v", j.Outcome)
	}
	if _, err := r.SuspendVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	if info, err := r.StartVM(ctx, "dev"); err != nil || info.Status != vm.Running {
		t.Errorf("start of a suspended VM: %+v, %v", info, err)
	}
	if _, err := r.StopVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]func(context.Context, string) (job.VMInfo, error){"suspend": r.SuspendVM, "resume": r.ResumeVM} {
		if _, err := f(ctx, "dev"); !errors.As(err, &host) {
			t.Errorf("%s of a VM that is stopped: %v", what, err)
		}
	}
	if _, err := r.StartVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.SuspendVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	if _, err := r.DestroyVM(ctx, "dev"); err != nil {
		t.Fatal(err)
	}
	r.gone()
}

// A snapshot's memory would bring a job's processes back to life.
func TestVM_MemoryIsNotSavedWhileAJobRuns(t *testing.T) {
	r := newRig(t, 1)
	ctx := context.Background()
	hold := make(chan struct{})
	r.makeVM("dev")
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	id := r.submit(sharing("dev"))
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	_, err := r.SuspendVM(ctx, "dev")
	refusal(t, err, "VM 100 cannot be suspended: jobs run in it: "+id)
	_, err = r.SnapshotVM(ctx, "dev", "clean", true)
	refusal(t, err, "VM 100 cannot be snapshotted: jobs run in it: "+id)
	if _, err := r.SnapshotVM(ctx, "dev", "disk", false); err != nil {
		t.Errorf("snapshot of the disk: %v", err)
	}
	close(hold)
	r.wait(id)
	if _, err := r.SnapshotVM(ctx, "dev", "clean", true); err != nil {
		t.Error(err)
	}
	if info, err := r.RevertVM(ctx, "dev", "clean"); err != nil || info.Status != vm.Running {
		t.Errorf("revert: %+v, %v", info, err)
	}
}

func TestVM_DestroyedWhileItIsMade(t *testing.T) {
	r := newRig(t, 1)
	r.fake.Set(providertest.Behaviour{Hold: make(chan struct{})})
	j, err := r.createVM(context.Background(), job.Submission{Manifest: job.Manifest{VMName: "dev"}})
	if err != nil {
		t.Fatal(err)
	}
	r.hasID(j.ID)
	if info := r.vm("dev"); info.Status != vm.Provisioning {
		t.Errorf("status %s while it is made", info.Status)
	}
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	if j = r.wait(j.ID); j.Outcome.Reason != job.ReasonCancelled {
		t.Errorf("its job: %+v", j.Outcome)
	}
	r.gone()
}

func TestVM_HostThatDoesNotAnswerAndVMThatIsGone(t *testing.T) {
	r := newRig(t, 1)
	v := r.makeVM("dev").VM
	r.fake.Set(providertest.Behaviour{Lists: []error{errUnreachable}, Statuses: []error{errUnreachable}})
	if info := r.vm("dev"); info.Status != vm.Unknown {
		t.Errorf("status %s when the host does not answer", info.Status)
	}
	r.fake.Vanish(v.ID)
	if info := r.vm("dev"); info.Status != vm.Gone {
		t.Errorf("status %s when the VM is gone", info.Status)
	}
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Error(err)
	}
}

// partial is a host of which a node does not answer: its VMs are not in the list.
type partial struct {
	job.Provider
	down map[int]bool // by VM ID
}

func (p *partial) List(ctx context.Context) ([]vm.VM, error) {
	vms, err := p.Provider.List(ctx)
	vms = slices.DeleteFunc(vms, func(v vm.VM) bool { return p.down[v.ID] })
	if err == nil && len(p.down) > 0 {
		err = &job.HostError{Op: "list VMs", Host: "pve", Class: job.HostOffline, Text: "node pve2 does not answer"}
	}
	return vms, err
}

func (p *partial) Status(ctx context.Context, v vm.VM) (vm.Status, error) {
	if p.down[v.ID] {
		return vm.Unknown, &job.HostError{Op: "check VM", Host: "pve", Class: job.HostOffline, Text: "node pve2 does not answer"}
	}
	return p.Provider.Status(ctx, v)
}

func TestVMs_OfAnIncompleteListAreNotGone(t *testing.T) {
	r := newRig(t, 2)
	there, away := r.makeVM("there").VM, r.makeVM("away").VM
	r.stop()
	r.opts.Provider = &partial{Provider: r.fake, down: map[int]bool{away.ID: true}}
	r.restart()
	infos, err := r.VMs(t.Context())
	if err != nil || len(infos) != 2 {
		t.Fatalf("VMs %+v, %v", infos, err)
	}
	for _, info := range append(infos, r.vm("there"), r.vm("away")) {
		want := map[int]vm.Status{there.ID: vm.Running, away.ID: vm.Unknown}[info.ID]
		if info.Status != want {
			t.Errorf("VM %s is %s, want %s", info.Name, info.Status, want)
		}
	}
}

// The ID of the VM was never told, and the node it is on does not answer.
func TestDestroy_VMThatAnIncompleteListLacksIsNotGone(t *testing.T) {
	r := newRig(t, 1)
	host := &partial{Provider: r.fake, down: map[int]bool{100: true}}
	r.stop()
	r.opts.Provider = host
	r.restart()
	r.behave(providertest.Behaviour{LateID: true}, false)
	id := r.submit()
	j := r.until(id, func(j job.Job) bool {
		events, err := r.store.Events(t.Context(), id, 0)
		return j.Done() || err == nil && slices.ContainsFunc(events, func(e job.Event) bool { return strings.Contains(e.Text, "VM not destroyed, will be tried again") })
	})
	if j.Done() || j.VM.State == vm.Destroyed || !r.fake.Has(100) {
		t.Errorf("the job is done, its VM %s, while the VM is on the host", j.VM.State)
	}
	r.stop()
	host.down = nil
	r.restart()
	r.wait(id)
	r.noLeaks()
}

// Who looks for a VM whose ID was never told, finds those of other jobs as well.
func TestDestroy_OfAVMWithoutIDTouchesNoOther(t *testing.T) {
	r := newRig(t, 1)
	kept := r.makeVM("dev").VM
	r.behave(providertest.Behaviour{LateID: true}, false)
	if j := r.wait(r.submit()); j.Status != job.Failed || j.VM.State != vm.Destroyed {
		t.Errorf("job %+v, VM %+v", j.Outcome, j.VM)
	}
	if vms := r.fake.VMs(); len(vms) != 1 || vms[0].ID != kept.ID {
		t.Errorf("left on the host: %+v, want VM %d", vms, kept.ID)
	}
}

func TestPlan_ChangesNothing(t *testing.T) {
	r := newRig(t, 1)
	plan, err := r.Plan(context.Background(), job.Submission{Manifest: job.Manifest{VMName: "dev"}})
	if err != nil || len(plan) == 0 || !strings.Contains(plan[0], "dev") {
		t.Errorf("plan %v, %v", plan, err)
	}
	_, err = r.Plan(context.Background(), job.Submission{Manifest: job.Manifest{VMName: "a b"}})
	var invalid *job.InvalidError
	if !errors.As(err, &invalid) {
		t.Errorf("plan of nonsense: %v", err)
	}
	if stats := r.fake.Stats(); stats.Creates != 0 {
		t.Error("something was made")
	}
}

func TestDestroyVM_DoesNotWaitForAJobThatCleansUp(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	cleaning, over := make(chan struct{}), make(chan struct{})
	r.stop()
	r.opts.Runner = &slowCleaner{Fake: r.fake, began: cleaning, until: over}
	r.restart()
	id := r.submit(sharing("dev"))
	<-cleaning
	if j := r.until(id, func(j job.Job) bool { return j.Status.Terminal() }); j.Done() {
		t.Fatal("the job is done before it has cleaned up")
	}
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Error(err)
	}
	close(over)
	r.wait(id)
	r.gone()
}

// slowCleaner is a guest in which cleaning up takes its time.
type slowCleaner struct {
	*providertest.Fake
	began, until chan struct{}
}

func (g *slowCleaner) Clean(ctx context.Context, j job.Job) error {
	close(g.began)
	<-g.until
	return g.Fake.Clean(ctx, j)
}

// The rig's HeartbeatThreshold is two minutes, far beyond what these wait.
func TestFollow_VMThatIsGoneOrStoppedIsToldByTheHostAtOnce(t *testing.T) {
	t.Parallel()
	for name, undo := range map[string]func(*rig, vm.VM){
		"gone":    func(r *rig, v vm.VM) { r.fake.Vanish(v.ID) },
		"stopped": func(r *rig, v vm.VM) { _ = r.fake.StopVM(context.Background(), v) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, hasty)
			r.fake.Set(providertest.Behaviour{
				Task:     task(providertest.Task{Until: make(chan struct{})}),
				Statuses: []error{errUnreachable}, // the host cannot be asked at first: that proves nothing
			})
			id := r.submit()
			j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
			undo(r, *j.VM)
			if j = r.wait(id); j.Outcome.Reason != job.ReasonLost || !strings.Contains(j.Outcome.Error, name) {
				t.Errorf("outcome %+v", j.Outcome)
			}
		})
	}
}

func TestStartVM_GoesOnWhenItsCallerLeaves(t *testing.T) {
	r := newRig(t, 1)
	before := r.makeVM("dev").VM.IP
	if _, err := r.StopVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	gone, leave := context.WithCancel(context.Background())
	slow := r.slow(leave)
	if _, err := r.StartVM(gone, "dev"); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has left got %v", err)
	}
	if r.Idle() {
		t.Error("the engine is idle while it starts a VM")
	}
	close(slow)
	for deadline := time.Now().Add(time.Minute); r.vm("dev").IP == before; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the VM was not started, or its new address not kept")
		}
	}
}
