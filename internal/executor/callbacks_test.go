package executor_test

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
)

// hold lets a task run until the test ends or calls release.
func hold(t *testing.T, what providertest.Task) (do func(job.Payload) providertest.Task, release func()) {
	until := make(chan struct{})
	released := false
	release = func() {
		if !released {
			released = true
			close(until)
		}
	}
	t.Cleanup(release)
	what.Until = until
	return task(what), release
}

func TestFollow_SilentCallbacksAreGivenAnotherWay(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		way  job.CallbackWay
		kind string
		text string
	}{
		{"tunnel", job.CallbacksTunnel, job.EventProgress, "through the SSH connection"},
		{"none", job.CallbacksNone, job.EventWarning, "the VM is asked over SSH"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			do, release := hold(t, providertest.Task{})
			r.behave(providertest.Behaviour{Task: do, Ways: []job.CallbackWay{tt.way}}, false)
			id := r.submit()
			r.until(id, func(job.Job) bool {
				events, err := r.store.Events(t.Context(), id, 0)
				return err == nil && slices.ContainsFunc(events, func(e job.Event) bool {
					return e.Kind == tt.kind && strings.Contains(e.Text, tt.text)
				})
			})
			release()
			if j := r.wait(id); j.Status != job.Success || r.fake.Stats().Callbacks != 1 {
				t.Errorf("job = %+v, ways looked for %d times", j, r.fake.Stats().Callbacks)
			}
		})
	}
}

func TestFollow_CallbacksThatArriveAreLeftAlone(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{}, true)
	if j := r.wait(r.submit()); j.Status != job.Success || r.fake.Stats().Callbacks != 0 {
		t.Errorf("job = %+v, %+v", j, r.fake.Stats())
	}
}

func TestFollow_OutputOfASilentTaskIsFetchedWhileItRuns(t *testing.T) {
	r := newRig(t, 1)
	do, release := hold(t, providertest.Task{Stdout: []byte("so far"), Stderr: []byte("so bad")})
	r.behave(providertest.Behaviour{Task: do, Ways: []job.CallbackWay{job.CallbacksNone}}, false)
	id := r.submit(func(m *job.Manifest) { m.StatusMode = job.StatusStreaming })
	held := func(stream string) string {
		out, err := r.store.Output(t.Context(), id, stream, 0, 100)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	for deadline := time.Now().Add(time.Minute); held(job.Stdout) != "so far" || held(job.Stderr) != "so bad"; {
		if time.Now().After(deadline) {
			t.Fatal("nothing of the output came while the task ran")
		}
		time.Sleep(50 * time.Millisecond)
	}
	if j, err := r.Job(t.Context(), id); err != nil || j.Outcome != nil {
		t.Errorf("the task had ended: %+v, %v", j, err)
	}
	release()
	r.wait(id)
}

func TestFollow_ARebootedVMsJobIsLost(t *testing.T) {
	r := newRig(t, 1)
	do, _ := hold(t, providertest.Task{})
	r.behave(providertest.Behaviour{Task: do}, false)
	id := r.submit()
	j := r.until(id, func(j job.Job) bool { return j.Status == job.Running })
	r.fake.LoseRunner(j.VM.ID)
	if j = r.wait(id); j.Outcome.Reason != job.ReasonLost || !strings.Contains(j.Outcome.Error, "rebooted") {
		t.Errorf("outcome = %+v", j.Outcome)
	}
}

// A VM whose callbacks do not arrive is not made to try at every look; one that
// nothing reached, still less often.
func TestFollow_WaysAreLookedForAgainAfterABackOff(t *testing.T) {
	t.Parallel()
	const interval = 30 * time.Second // of heartbeats
	tests := []struct {
		name string
		way  job.CallbackWay
		wait time.Duration // until the next try
	}{
		{"tunnel", job.CallbacksTunnel, 2 * interval},
		{"none", job.CallbacksNone, 12 * interval},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			notOnPostgres(t)
			synctest.Test(t, func(t *testing.T) {
				r := newRigHere(t, 1)
				r.stop()
				r.opts.HeartbeatInterval, r.opts.CleanupInterval = interval, time.Minute
				r.restart()
				do, release := hold(t, providertest.Task{})
				r.behave(providertest.Behaviour{Task: do, Ways: slices.Repeat([]job.CallbackWay{tt.way}, 100)}, false)
				id := r.submit()
				tried := func(n int) {
					t.Helper()
					for deadline := time.Now().Add(time.Hour); r.fake.Stats().Callbacks < n; time.Sleep(time.Second) {
						if time.Now().After(deadline) {
							t.Fatalf("no try %d", n)
						}
					}
				}
				tried(1)
				for n := 2; n < 5; n++ {
					last := time.Now()
					tried(n)
					if pause := time.Since(last); pause < tt.wait || pause > tt.wait+10*time.Second {
						t.Errorf("tried again after %s, want %s", pause, tt.wait)
					}
				}
				release()
				r.wait(id)
			})
		})
	}
}
