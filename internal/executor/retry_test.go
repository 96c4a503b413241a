package executor_test

import (
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// lose ends a running job's VM, so that the job is lost.
func (r *rig) lose(id string) {
	r.t.Helper()
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.fake.Vanish(j.VM.ID)
}

// A lost job is run again as a new job, as often as its manifest says, and each time once.
func TestRetry_RunsALostJobAgain(t *testing.T) {
	r := newRig(t, 4, hasty)
	until := make(chan struct{})
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{Until: until} }}, false)
	first := r.submit(func(m *job.Manifest) { m.Retry, m.Retries = job.RetryLost, 2 })
	var ids []string
	for id := first; id != "" && len(ids) < 4; {
		ids = append(ids, id)
		r.lose(id)
		j := r.wait(id)
		if j.Outcome.Reason != job.ReasonLost || j.VM.State != vm.Destroyed || j.Attempt != len(ids)-1 {
			t.Fatalf("%+v, %+v", j, j.Outcome)
		}
		if len(ids) > 1 && j.RetryOf != ids[len(ids)-2] {
			t.Errorf("%s is a retry of %s, not of %s", id, j.RetryOf, ids[len(ids)-2])
		}
		r.stop() // another engine does not do it again
		r.restart()
		id = j.RetriedAs
	}
	if len(ids) != 3 {
		t.Errorf("it was run %d times", len(ids))
	}
	page, err := r.List(t.Context(), job.Filter{})
	if err != nil || len(page.Jobs) != 3 {
		t.Errorf("%d jobs, %v", len(page.Jobs), err)
	}
	close(until)
}

// Only what is lost is run again, and only if its manifest says so.
func TestRetry_OnlyOfWhatIsLost(t *testing.T) {
	r := newRig(t, 4, hasty)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{ExitCode: 3})}, true)
	if j := r.wait(r.submit(func(m *job.Manifest) { m.Retry = job.RetryLost })); j.RetriedAs != "" || j.Outcome.Reason != job.ReasonExitStatus {
		t.Errorf("%+v", j)
	}
	until := make(chan struct{})
	defer close(until)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})}, false)
	id := r.submit()
	r.lose(id)
	if j := r.wait(id); j.RetriedAs != "" {
		t.Errorf("%+v", j)
	}
	id = r.submit(func(m *job.Manifest) { m.Retry = job.RetryLost })
	r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	if err := r.Cancel(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if j := r.wait(id); j.RetriedAs != "" {
		t.Errorf("%+v", j)
	}
}

// While its VM is not proven gone a job is run again only if its manifest says that its
// task may run twice.
func TestRetry_WaitsForTheOldVMToBeGone(t *testing.T) {
	for _, tt := range []struct {
		mode  job.RetryMode
		class job.HostClass // of why the VM cannot be destroyed
		again bool          // it is run again before the VM is gone
	}{
		{job.RetryLost, job.HostOffline, false},
		{job.RetryOffline, job.HostOffline, true},
		{job.RetryOffline, job.HostUnreachable, false},
	} {
		t.Run(string(tt.mode)+" "+string(tt.class), func(t *testing.T) {
			r, _ := onNodes(t, 4, func(job.Placement) (string, error) { return "pve1", nil })
			down := &job.HostError{Op: "reach node pve1", Host: "pve", Class: job.HostOffline, Text: "node 'pve1' is offline"}
			b := providertest.Behaviour{FailStep: "start_vm", Fail: down}
			for range 10 {
				b.Destroys = append(b.Destroys, &job.HostError{Op: "destroy VM", Host: "pve", Class: tt.class, Text: "not now"})
			}
			r.behave(b, false)
			id := r.submit(func(m *job.Manifest) { m.Retry = tt.mode })
			j := r.until(id, func(job.Job) bool { return len(r.warnings(id, "VM not destroyed, will be tried again")) > 1 }) // each says that it was not run again before
			if j.VM.State == vm.Destroyed || (j.RetriedAs != "") != tt.again {
				t.Errorf("its VM is %s, and it is run again as %q", j.VM.State, j.RetriedAs)
			}
			if j = r.wait(id); j.RetriedAs == "" { // the node is back
				t.Errorf("%+v", j)
			}
			if told := r.texts(id, job.EventProgress, "run again as job "); len(told) != 1 { // each try to destroy the VM asks again
				t.Errorf("it is run again %d times: %v", len(told), told)
			}
			ended := r.wait(j.RetriedAs)
			if ended.RetriedAs != "" || ended.CreatedAt.Sub(j.CreatedAt) > time.Minute {
				t.Errorf("%+v", ended)
			}
		})
	}
}
