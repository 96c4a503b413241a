package executor_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// running submits a job whose task runs until the test ends or release is
// called, and waits until it does.
func running(t *testing.T, r *rig) (j job.Job, release func()) {
	t.Helper()
	do, release := hold(t, providertest.Task{Stdout: []byte("whole\n")})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit()
	return r.until(id, func(j job.Job) bool { return j.Status == job.Running }), release
}

// soon waits for what no event tells of.
func (r *rig) soon(id string, what func(job.Job) bool) job.Job {
	r.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		j, err := r.store.Job(r.t.Context(), id)
		if err != nil {
			r.t.Fatal(err)
		}
		if what(j) {
			return j
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("waited a minute; the job is %+v, silence %+v, outcome %+v", j, j.Silence, j.Outcome)
		}
	}
}

func TestFollow_AVMThatMovesIsFollowed(t *testing.T) {
	r := newRig(t, 1)
	j, release := running(t, r)
	if j.BootID == "" {
		t.Error("the boot the task was started under is not on record")
	}
	before := j.VM.IP
	r.fake.Move(j.VM.ID, "10.97.0.7", false)
	j = r.until(j.ID, func(j job.Job) bool { return j.VM.IP == "10.97.0.7" || j.Outcome != nil })
	release()
	if j = r.wait(j.ID); j.Status != job.Success || j.Stdout.Total != 6 || j.Stdout.Incomplete {
		t.Errorf("job %+v, %+v", j, j.Outcome)
	}
	events, err := r.store.Events(t.Context(), j.ID, 0)
	if err != nil || !slices.ContainsFunc(events, func(e job.Event) bool {
		return strings.Contains(e.Text, "is now at 10.97.0.7, according to its guest, and no longer at "+before)
	}) {
		t.Errorf("events %+v, %v", events, err)
	}
	r.noLeaks()
}

// A VM that others share moves for each of its jobs, and for the next.
func TestFollow_ASharedVMThatMovesIsFollowed(t *testing.T) {
	r := newRig(t, 1)
	vm := *r.makeVM("dev").VM
	do, release := hold(t, providertest.Task{})
	r.behave(providertest.Behaviour{Task: do}, false)
	ids := []string{r.submit(sharing("dev")), r.submit(sharing("dev"))}
	for _, id := range ids {
		r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	}
	r.fake.Move(vm.ID, "10.97.0.8", false)
	for _, id := range append(ids, vm.Job) {
		r.eventually(id, func(j job.Job) bool { return j.VM.IP == "10.97.0.8" }) // whichever job has noticed it
	}
	release()
	for _, id := range append(ids, r.submit(sharing("dev"))) {
		if j := r.wait(id); j.Status != job.Success {
			t.Errorf("job %+v", j.Outcome)
		}
	}
}

// A VM that restarts and comes back elsewhere lost its task, as one that comes
// back where it was.
func TestFollow_AVMThatRestartsElsewhereIsLost(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		t.Run(map[bool]string{false: "at a free address", true: "at another VM's address"}[taken], func(t *testing.T) {
			r := newRig(t, 2, hasty)
			r.stop()
			r.opts.HeartbeatThreshold = time.Hour
			r.restart()
			to := "10.97.0.9"
			if taken {
				to = r.makeVM("dev").VM.IP
			}
			j, _ := running(t, r)
			before := j.VM.IP
			r.fake.Move(j.VM.ID, to, true)
			j = r.wait(j.ID)
			if j.Outcome.Reason != job.ReasonLost || !strings.Contains(j.Outcome.Error, "while the task ran") {
				t.Errorf("outcome %+v", j.Outcome)
			}
			if want := map[bool]string{false: to, true: before}[taken]; j.VM.IP != want {
				t.Errorf("it was taken to be at %s, not %s", j.VM.IP, want)
			}
		})
	}
}

// Engines that live shorter than the threshold find a silent task lost together.
func TestFollow_SilenceAddsUpOverEngines(t *testing.T) {
	r := newRig(t, 1, hasty)
	r.opts.HeartbeatThreshold = 5 * time.Second
	j, _ := running(t, r)
	silent := providertest.Behaviour{}
	for range 1000 {
		silent.Probes = append(silent.Probes, errors.New("no answer"))
	}
	r.fake.Set(silent)
	var unseen time.Duration
	for engines := 0; j.Outcome == nil; engines++ {
		r.stop()
		r.restart()
		j = r.soon(j.ID, func(j job.Job) bool { return j.Outcome != nil || j.Silence.Unseen > unseen })
		if unseen = j.Silence.Unseen; engines > 20 {
			t.Fatalf("%d engines have listened for %s", engines, unseen)
		}
	}
	if o := r.wait(j.ID).Outcome; o.Reason != job.ReasonLost || !strings.Contains(o.Error, "no heartbeat and no answer over SSH for 5s") {
		t.Errorf("outcome %+v", o)
	}
}

// muteVM is a guest whose SSH server takes connections and says nothing.
type muteVM struct{ executor.Runner }

func (muteVM) Probe(ctx context.Context, _ job.Job) (job.RunState, error) {
	<-ctx.Done()
	return job.RunState{}, context.Cause(ctx)
}

func (muteVM) Stop(ctx context.Context, _ job.Job, _ string) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// What is to be collected of a VM that does not answer is given up by engines
// together, too.
func TestCollect_PatienceAddsUpOverEngines(t *testing.T) {
	r := newRig(t, 1)
	j, _ := running(t, r)
	r.stop()
	r.opts.Runner, r.opts.CollectPatience = muteVM{r.fake}, 50*time.Second
	r.restart()
	if err := r.Cancel(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	var unseen time.Duration
	for engines := 0; !j.Status.Terminal(); engines++ {
		j = r.soon(j.ID, func(j job.Job) bool { return j.Status.Terminal() || j.Outcome != nil && j.Silence.Unseen > unseen })
		if unseen = j.Silence.Unseen; engines > 20 {
			t.Fatalf("%d engines have waited for %s", engines, unseen)
		}
		if !j.Status.Terminal() {
			r.stop()
			r.restart()
		}
	}
	if j = r.wait(j.ID); j.Outcome.Reason != job.ReasonCancelled || !j.Stdout.Incomplete {
		t.Errorf("job %+v, outcome %+v", j, j.Outcome)
	}
}

// Engines that do not live until SSH gives up decide all the same: by what the
// host says of the VM meanwhile, and by what all of them have not heard.
func TestFollow_EnginesThatDoNotOutliveALook(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(*rig, vm.VM){
		"restarted elsewhere": func(r *rig, v vm.VM) { r.fake.Move(v.ID, "10.97.0.9", true) },
		"stopped":             func(r *rig, v vm.VM) { _ = r.fake.StopVM(t.Context(), v) },
		"silent":              func(*rig, vm.VM) {},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, hasty)
			j, _ := running(t, r)
			r.stop()
			fault(r, *j.VM)
			if name == "silent" { // for long
				if _, err := r.store.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) {
					j.Silence.Unseen = 2*time.Minute + 18*time.Second
					return job.Record{}, nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			r.opts.Runner = muteVM{r.fake}
			r.restart()
			var unseen time.Duration
			for j.Outcome == nil {
				j = r.soon(j.ID, func(j job.Job) bool { return j.Outcome != nil || j.Silence.Unseen > unseen })
				if j.Outcome == nil {
					unseen = j.Silence.Unseen
					r.stop()
					if j.VM.IP == "10.97.0.9" {
						r.opts.Runner = r.fake
					}
					r.restart()
				}
			}
			if j = r.wait(j.ID); j.Outcome.Reason != job.ReasonLost {
				t.Errorf("outcome %+v", j.Outcome)
			}
		})
	}
}

// A sign of life ends a silence, in the row too: the next engine begins anew.
func TestFollow_ASignOfLifeEndsASilence(t *testing.T) {
	t.Parallel()
	for _, sign := range []string{"callback", "answer"} {
		t.Run(sign, func(t *testing.T) {
			r := newRig(t, 1)
			r.stop()
			r.opts.HeartbeatInterval = time.Second // after which a callback's word is doubted
			r.restart()
			tokens := make(chan string, 1)
			do, release := hold(t, providertest.Task{})
			silent := providertest.Behaviour{Task: do, OnStart: func(_ job.Job, p job.Payload) { tokens <- p.Token }}
			for range 1000 {
				silent.Probes = append(silent.Probes, errors.New("no answer"))
			}
			r.fake.Set(silent)
			id := r.submit()
			token := <-tokens
			r.soon(id, func(j job.Job) bool { return j.Silence.Unseen > 0 })
			if sign == "callback" {
				if err := r.Report(t.Context(), id, token, job.Report{Kind: job.ReportHeartbeat}); err != nil {
					t.Fatal(err)
				}
				r.soon(id, func(j job.Job) bool { return j.Silence.Heard > 0 && j.Silence.Unseen-j.Silence.Heard < 5*time.Second })
			} else {
				r.fake.Set(providertest.Behaviour{})
				r.soon(id, func(j job.Job) bool { return j.Silence == job.Silence{} })
			}
			release()
			r.fake.Set(providertest.Behaviour{})
			if j := r.wait(id); j.Status != job.Success {
				t.Errorf("outcome %+v", j.Outcome)
			}
		})
	}
}

// Whoever holds the token can send callbacks for ever. A task SSH does not show
// for longer than it may run has run too long.
func TestFollow_CallbacksDoNotOutliveTheTimeout(t *testing.T) {
	r := newRig(t, 1)
	j, _ := running(t, r)
	r.stop()
	if _, err := r.store.Update(t.Context(), j.ID, func(j *job.Job) (job.Record, error) {
		j.Silence = job.Silence{Unseen: 2 * time.Hour, Heard: 2*time.Hour - time.Second}
		return job.Record{}, nil
	}); err != nil {
		t.Fatal(err)
	}
	r.fake.Set(providertest.Behaviour{Probes: []error{errors.New("no answer")}})
	r.restart()
	if j = r.wait(j.ID); j.Status != job.Timeout {
		t.Errorf("outcome %+v", j.Outcome)
	}
}
