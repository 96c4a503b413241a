package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// slowPower is a host on which work on VMs takes its time.
type slowPower struct {
	*providertest.Fake
	began func()
	until chan struct{}
}

// slow makes work on VMs take until the channel is closed. began is told of each.
func (r *rig) slow(began func()) (until chan struct{}) {
	r.stop()
	p := &slowPower{Fake: r.fake, began: began, until: make(chan struct{})}
	r.opts.Provider = p
	r.restart()
	return p.until
}

func (p *slowPower) wait(ctx context.Context) error {
	p.began()
	select {
	case <-p.until:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *slowPower) StartVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	if err := p.wait(ctx); err != nil {
		return v, err
	}
	return p.Fake.StartVM(ctx, v, progress)
}

func (p *slowPower) StopVM(ctx context.Context, v vm.VM) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	return p.Fake.StopVM(ctx, v)
}

func (p *slowPower) SuspendVM(ctx context.Context, v vm.VM) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	return p.Fake.SuspendVM(ctx, v)
}

func (p *slowPower) ResumeVM(ctx context.Context, v vm.VM, progress func(job.Progress)) (vm.VM, error) {
	if err := p.wait(ctx); err != nil {
		return v, err
	}
	return p.Fake.ResumeVM(ctx, v, progress)
}

func (p *slowPower) SnapshotVM(ctx context.Context, v vm.VM, name string, memory bool) error {
	if err := p.wait(ctx); err != nil {
		return err
	}
	return p.Fake.SnapshotVM(ctx, v, name, memory)
}

func (p *slowPower) RevertVM(ctx context.Context, v vm.VM, name string, progress func(job.Progress)) (vm.VM, error) {
	if err := p.wait(ctx); err != nil {
		return v, err
	}
	return p.Fake.RevertVM(ctx, v, name, progress)
}

// works are what can be done to the kept VM "dev", by how it is told of.
func (r *rig) works() map[string]func() error {
	ctx := context.Background()
	return map[string]func() error{
		"started":     func() error { _, err := r.StartVM(ctx, "dev"); return err },
		"stopped":     func() error { _, err := r.StopVM(ctx, "dev"); return err },
		"suspended":   func() error { _, err := r.SuspendVM(ctx, "dev"); return err },
		"resumed":     func() error { _, err := r.ResumeVM(ctx, "dev"); return err },
		"snapshotted": func() error { _, err := r.SnapshotVM(ctx, "dev", "other", false); return err },
		"reverted":    func() error { _, err := r.RevertVM(ctx, "dev", "clean"); return err },
	}
}

func inDev() job.Submission {
	return job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, VM: "dev"}}
}

func TestVM_ThatIsWorkedOnTakesNoJobAndNoOtherWork(t *testing.T) {
	t.Parallel()
	for _, done := range []string{"started", "stopped", "suspended", "resumed", "snapshotted", "reverted"} {
		t.Run(done, func(t *testing.T) {
			r := newRig(t, 1)
			vm := *r.makeVM("dev").VM
			if err := r.fake.SnapshotVM(context.Background(), vm, "clean", false); err != nil {
				t.Fatal(err)
			}
			began := make(chan struct{}, len(r.works()))
			until := r.slow(func() { began <- struct{}{} })
			ended := make(chan error, 1)
			go func() { ended <- r.works()[done]() }()
			<-began
			says := `"dev" is being ` + done + "; try again when it is done"
			_, err := r.Submit(context.Background(), inDev())
			refusal(t, err, says)
			for _, other := range r.works() {
				wait := make(chan error, 1)
				go func() { wait <- other() }()
				select {
				case err := <-wait:
					refusal(t, err, says)
				case <-began:
					t.Error("other work began as well")
				}
			}
			close(until)
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
			if done == "stopped" || done == "suspended" {
				if err := r.works()["started"](); err != nil {
					t.Fatal(err)
				}
			}
			if j := r.wait(r.submit(sharing("dev"))); j.Status != job.Success {
				t.Errorf("a job after it: %+v", j.Outcome)
			}
		})
	}
}

// A submission is held up between its look at the VM and its row.
func TestVM_IsNotTakenFromAJobThatIsEnteringIt(t *testing.T) {
	t.Parallel()
	for _, done := range []string{"stopped", "suspended", "reverted", "destroyed", "expired"} {
		t.Run(done, func(t *testing.T) {
			r := newRig(t, 1)
			maker := r.makeVM("dev", func(m *job.Manifest) { m.TTL = 600 })
			r.stop()
			entering, enter := make(chan struct{}), make(chan struct{})
			r.vms.Admit = func([]job.Job, job.Manifest) error {
				close(entering)
				<-enter
				return nil
			}
			r.restart()
			hold := make(chan struct{})
			r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
			submitted := make(chan job.Job, 1)
			go func() {
				j, err := r.Submit(context.Background(), inDev())
				if err != nil {
					t.Error(err)
				}
				submitted <- j
			}()
			<-entering
			works := r.works()
			works["destroyed"] = func() error { _, err := r.DestroyVM(context.Background(), "dev"); return err }
			works["expired"] = func() error { // what the dispatcher does about it, at every 20 ms, is not told
				_, err := r.store.UpdateVM(context.Background(), maker.ID, func(v *vm.VM) ([]job.Event, error) {
					v.ExpiresAt = time.Now().Add(-time.Second)
					return nil, nil
				})
				return err
			}
			ended := make(chan error, 1)
			go func() { ended <- works[done]() }()
			time.Sleep(100 * time.Millisecond)
			close(enter)
			j := <-submitted
			err := <-ended
			if done == "expired" && err != nil {
				t.Error(err)
			}
			if done != "expired" {
				refusal(t, err, "VM 100 cannot be "+done+": jobs run in it: "+j.ID)
			}
			r.until(j.ID, func(j job.Job) bool { return j.Status == job.Running || j.Outcome != nil })
			close(hold)
			if j = r.wait(j.ID); j.Status != job.Success {
				t.Errorf("the job: %+v", j.Outcome)
			}
		})
	}
}

func TestDestroyVM_DoesNotWaitForAStartThatHangs(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	began := make(chan struct{})
	until := r.slow(func() { close(began) })
	started := make(chan error, 1)
	go func() { started <- r.works()["started"]() }()
	<-began
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	r.gone()
	close(until)
	var host *job.HostError
	if err := <-started; !errors.As(err, &host) {
		t.Errorf("the start of a VM that is destroyed: %v", err)
	}
}

// One more than may run in a VM is refused when it is asked for: nobody is told
// that it was accepted, and then that it failed.
func TestSubmit_OneMoreThanAVMTakesIsRefused(t *testing.T) {
	r := newRig(t, 1)
	r.makeVM("dev")
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	var calls sync.WaitGroup
	ids := make(chan string, 40)
	for range cap(ids) { // all at once
		calls.Go(func() {
			j, err := r.Submit(context.Background(), inDev())
			if err != nil {
				refusal(t, err, `vm: "dev" has 16 jobs, which is the limit`)
				return
			}
			ids <- j.ID
		})
	}
	calls.Wait()
	close(ids)
	if len(ids) != 16 {
		t.Errorf("%d jobs were accepted, want 16", len(ids))
	}
	close(hold)
	for id := range ids {
		if j := r.wait(id); j.Status != job.Success {
			t.Errorf("an accepted job: %+v", j.Outcome)
		}
	}
	if j := r.wait(r.submit(sharing("dev"))); j.Status != job.Success {
		t.Errorf("after they have ended: %+v", j.Outcome)
	}
}

// A row that came past the check at the submission, as another engine's might.
func TestJoin_OneMoreThanAVMTakesFails(t *testing.T) {
	r := newRig(t, 1)
	dev := r.makeVM("dev")
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	ids := make([]string, 16)
	for i := range ids {
		ids[i] = r.submit(sharing("dev"))
	}
	for _, id := range ids {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	row, err := r.store.Manifest(t.Context(), ids[0])
	if err != nil {
		t.Fatal(err)
	}
	more, _, err := r.store.Insert(t.Context(), job.Job{
		ID: "019aa000-0000-7000-8000-000000000000", Kind: job.KindTask, Status: job.Pending, CreatedAt: time.Now(), Manifest: row, SharedVM: dev.ID,
	}, "", job.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if j := r.wait(more.ID); j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "runs 16 jobs already, which is the limit") {
		t.Errorf("the 17th job: %+v", j.Outcome)
	}
	close(hold)
	for _, id := range ids {
		if j := r.wait(id); j.Status != job.Success {
			t.Errorf("one of the 16: %+v", j.Outcome)
		}
	}
}
