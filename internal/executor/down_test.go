package executor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// deafVM is a guest that does not answer, and is waited for.
type deafVM struct{ executor.Runner }

func (deafVM) Push(ctx context.Context, _ job.Job, _ job.Payload) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// fallingVM is a guest that goes down in a phase, under the work there.
type fallingVM struct {
	executor.Runner
	phase string
	down  func(vm.VM)
	deaf  bool // it is waited for; else the connection breaks
}

func (g fallingVM) fall(ctx context.Context, j job.Job, phase string, work func() error) error {
	if g.phase != phase {
		return work()
	}
	g.down(*j.VM)
	if g.deaf {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return errUnreachable
}

func (g fallingVM) Push(ctx context.Context, j job.Job, p job.Payload) error {
	return g.fall(ctx, j, "push", func() error { return g.Runner.Push(ctx, j, p) })
}

func (g fallingVM) Start(ctx context.Context, j job.Job) (bootID string, err error) {
	err = g.fall(ctx, j, "start", func() (err error) {
		bootID, err = g.Runner.Start(ctx, j)
		return err
	})
	return bootID, err
}

// A job's own VM that goes down before its task runs is lost as one that does
// later: at once, by what the host says. The heartbeat threshold is an hour.
func TestJob_VMThatGoesDownBeforeItsTaskRunsIsLostAtOnce(t *testing.T) {
	t.Parallel()
	for _, phase := range []string{"push", "start"} {
		for _, status := range []vm.Status{vm.Gone, vm.Stopped, vm.Suspended} {
			for _, deaf := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, %s, deaf %v", phase, status, deaf), func(t *testing.T) {
					r := newRig(t, 1, hasty)
					r.stop()
					down := func(v vm.VM) { r.fake.Vanish(v.ID) }
					switch status {
					case vm.Stopped:
						down = func(v vm.VM) { _ = r.fake.StopVM(context.Background(), v) }
					case vm.Suspended:
						down = func(v vm.VM) { _ = r.fake.SuspendVM(context.Background(), v) }
					}
					r.opts.Runner = fallingVM{r.fake, phase, down, deaf}
					r.opts.HeartbeatThreshold = time.Hour
					r.restart()
					j := r.wait(r.submit())
					if o := j.Outcome; o.Reason != job.ReasonLost || !strings.Contains(o.Error, "its VM is "+string(status)+" on the host, and linus did not do it; check the host's log") {
						t.Errorf("outcome %+v", o)
					}
					if j.Phase != "" {
						t.Errorf("ended in phase %s", j.Phase)
					}
					r.noLeaks()
				})
			}
		}
	}
}

// fallingHost is one where a VM goes down before it gets a volume.
type fallingHost struct {
	job.Provider
	fake *providertest.Fake
}

func (h fallingHost) AttachVolume(ctx context.Context, _ vm.Volume, to vm.VM, _ vm.VolumeUse) error {
	return errors.Join(h.fake.StopVM(ctx, to), &job.HostError{Op: "attach a volume", Class: job.HostVM, Text: "the VM does not run"})
}

// So is one that goes down before it has its volumes, as with its node.
func TestJob_VMThatGoesDownBeforeItHasItsVolumesIsLost(t *testing.T) {
	r := newRig(t, 1)
	r.newVolume("cache")
	r.stop()
	r.opts.Provider = fallingHost{r.fake, r.fake}
	r.restart()
	if o := r.wait(r.submit(mounts("cache", ""))).Outcome; o.Reason != job.ReasonLost || !strings.Contains(o.Error, "its VM is stopped on the host, and linus did not do it") {
		t.Errorf("outcome %+v", o)
	}
	r.noLeaks()
}

// Where it is the host that does not answer, what is said is about the host.
func TestStart_HostThatDoesNotAnswerIsNotTheVMsFault(t *testing.T) {
	t.Parallel()
	notOnPostgres(t)
	synctest.Test(t, func(t *testing.T) {
		r := newRigHere(t, 1)
		r.stop()
		r.opts.HeartbeatThreshold = time.Second
		r.opts.Runner = fallingVM{r.fake, "start", func(vm.VM) {}, false}
		r.restart()
		down := &job.HostError{Op: "look at VM 100", Class: job.HostUnreachable, Text: "no route to host", Remedy: "check PROXMOX_HOST"}
		r.fake.Set(providertest.Behaviour{Statuses: []error{down, down, down, down, down, down}})
		if o := r.wait(r.submit()).Outcome; o.Reason != job.ReasonStartFailed || !strings.Contains(o.Error, "check PROXMOX_HOST") {
			t.Errorf("outcome %+v", o)
		}
	})
}

func TestJoin_VMThatDoesNotRunIsToldByTheHostAtOnce(t *testing.T) {
	t.Parallel()
	for name, undo := range map[string]func(*rig, vm.VM){
		"gone":      func(r *rig, v vm.VM) { r.fake.Vanish(v.ID) },
		"stopped":   func(r *rig, v vm.VM) { _ = r.fake.StopVM(context.Background(), v) },
		"suspended": func(r *rig, v vm.VM) { _ = r.fake.SuspendVM(context.Background(), v) },
	} {
		for _, answer := range []string{"refused", "none"} {
			t.Run(name+", answer "+answer, func(t *testing.T) {
				r := newRig(t, 1)
				v := *r.makeVM("dev").VM
				if answer == "none" {
					r.stop()
					r.opts.Runner = deafVM{r.fake}
					r.restart()
				}
				undo(r, v)
				began := time.Now()
				j := r.wait(r.submit(sharing("dev")))
				if j.Outcome.Reason != job.ReasonStartFailed || !strings.Contains(j.Outcome.Error, `vm: "dev" (VM `) || !strings.Contains(j.Outcome.Error, name) {
					t.Errorf("outcome %+v", j.Outcome)
				}
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("told after %s", took)
				}
			})
		}
	}
}
