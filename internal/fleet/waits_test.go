package fleet_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// A refusing host waits for connections that are refused, and says so.
type refusing struct {
	*hypervisor
}

func (h refusing) refuse(ctx context.Context) error {
	cause := &job.HostError{Op: "list VMs", Host: "root@pve:22", Class: job.HostUnreachable, Text: "connection refused", Remedy: "check that sshd runs"}
	job.Waits(ctx, "the host", cause, time.Now().Add(time.Minute))
	select {
	case <-time.After(time.Minute):
	case <-ctx.Done():
	}
	return cause
}

func (h refusing) List(ctx context.Context) ([]vm.VM, error)        { return nil, h.refuse(ctx) }
func (h refusing) ListVolumes(ctx context.Context) ([]vm.VM, error) { return nil, h.refuse(ctx) }
func (h refusing) StopVM(ctx context.Context, _ vm.VM) error        { return h.refuse(ctx) }
func (h refusing) Status(context.Context, vm.VM) (vm.Status, error) { return "", errors.New("no") }

// A host that refuses connections is not waited for by who wants to know what there is, and the
// status that is not known has a reason. Who has something done is told what that waits for.
func TestVMs_OfAHostThatRefusesConnections(t *testing.T) {
	bubble(t, func(r *rig) {
		r.start()
		r.ask("dev")
		r.pass(time.Minute)
		r.stop()
		r.opts.Provider = refusing{r.host}
		r.start()
		began := time.Now()
		infos, err := r.VMs(context.Background())
		if err != nil || len(infos) != 1 || infos[0].Status != vm.Unknown || infos[0].Reason != "the host could not be asked: connection refused" || infos[0].Remedy != "check that sshd runs" {
			t.Errorf("%+v, %v", infos, err)
		}
		info, err := r.VM(context.Background(), "dev")
		if took := time.Since(began); err != nil || info.Status != vm.Unknown || info.Reason == "" || took > time.Second {
			t.Errorf("after %s: %+v, %v", took, info, err)
		}
		var told []string
		_, err = r.Volumes(job.WithListener(context.Background(), func(p job.Progress) { told = append(told, p.Line()) }))
		if took := time.Since(began); err != nil || took > time.Second || len(told) != 1 || !strings.Contains(told[0], "the host could not be asked: list VMs on root@pve:22: connection refused") {
			t.Errorf("volumes after %s: told %q, %v", took, told, err)
		}
		told = nil
		_, err = r.StopVM(job.WithListener(context.Background(), func(p job.Progress) { told = append(told, p.Line()) }), "dev")
		if !job.IsClass(err, job.HostUnreachable) || len(told) != 1 || !strings.HasPrefix(told[0], "waiting for the host until ") || !strings.Contains(told[0], "connection refused; check that sshd runs") {
			t.Errorf("told %q, %v", told, err)
		}
	})
}

// A VM that somebody has had suspended or stopped is not entered, which is known at once; one that
// was resumed on the host is.
func TestRuns_KnowsWhatWasTurnedOff(t *testing.T) {
	bubble(t, func(r *rig) {
		ctx := context.Background()
		r.start()
		id := r.ask("dev")
		r.pass(time.Minute)
		steps := []struct {
			does   string
			do     func(context.Context, string) (job.VMInfo, error)
			refuse string
		}{
			{"start", r.StartVM, ""},
			{"suspend", r.SuspendVM, `vm: "dev" (VM 100) is suspended; resume it first: {vm resume} dev`},
			{"resume", r.ResumeVM, ""},
			{"stop", r.StopVM, `vm: "dev" (VM 100) is stopped; start it first: {vm start} dev`},
			{"start", r.StartVM, ""},
			{"suspend", r.SuspendVM, `vm: "dev" (VM 100) is suspended; resume it first: {vm resume} dev`},
			{"resume on the host", func(ctx context.Context, _ string) (job.VMInfo, error) {
				_, err := r.host.Fake.ResumeVM(ctx, r.vm(id), func(job.Progress) {})
				return job.VMInfo{}, err
			}, ""},
		}
		for _, s := range steps {
			if _, err := s.do(ctx, "dev"); err != nil {
				t.Fatalf("%s: %v", s.does, err)
			}
			for by, err := range map[string]error{"a job": r.Runs(ctx, "dev"), "a look at files": r.look("dev")} {
				if s.does == "resume on the host" && by == "a look at files" {
					continue // it has another address now, which linus learns when it resumes a VM itself
				}
				if got := text(err); got != s.refuse {
					t.Errorf("%s, then %s: %q, want %q", s.does, by, got, s.refuse)
				}
			}
		}
		if err := r.Runs(ctx, "nosuch"); err != nil {
			t.Errorf("a VM that there is not: %v", err)
		}
	})
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
