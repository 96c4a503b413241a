package executor_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/store"
)

// family submits a job that fans out.
func (r *rig) family(change func(*job.Manifest)) job.Job {
	r.t.Helper()
	j, err := r.Job(r.t.Context(), r.submit(change))
	if err != nil {
		r.t.Fatal(err)
	}
	return j
}

func names(children []job.Child) (all []string) {
	for _, c := range children {
		all = append(all, c.Name+" "+c.How())
	}
	return all
}

func TestFanOut_IsAJobForEachCombination(t *testing.T) {
	r := newRig(t, 3)
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		env := p.Manifest.Env
		said := env["MATRIX_GO"] + " " + env["LINUS_SHARD"] + "/" + env["LINUS_SHARDS"] + " " + p.Manifest.Files[0].Content
		task := providertest.Task{Stdout: []byte(said), Artifacts: map[string][]byte{"dist/out": []byte(said)}}
		if env["MATRIX_GO"] == "1.26" && env["LINUS_SHARD"] == "2" {
			task.ExitCode = 3
		}
		return task
	}}, true)
	parent := r.family(func(m *job.Manifest) {
		m.Matrix, m.Shards, m.Env, m.Artifacts = []string{"go=1.25,1.26"}, 2, map[string]string{"MORE": "1"}, []string{"dist/*"}
		m.Files = []job.File{{Path: "/root/in", Content: base64.StdEncoding.EncodeToString([]byte("in"))}}
		m.Notify = &job.Notify{URL: "https://example.org/"}
	})
	if len(parent.Children) != 4 {
		t.Fatalf("children %+v", parent.Children)
	}
	j := r.wait(parent.ID)
	want := []string{"go=1.25,shard=1 success", "go=1.25,shard=2 success", "go=1.26,shard=1 success", "go=1.26,shard=2 exit code 3"}
	if diff := cmp.Diff(want, names(j.Children)); diff != "" {
		t.Error(diff)
	}
	if o := j.Outcome; o.Status != job.Failed || o.Reason != job.ReasonExitStatus || *o.ExitCode != 3 || o.Error != "go=1.26,shard=2: exit code 3; 1 of 4 did not succeed" {
		t.Errorf("outcome %+v", o)
	}
	for i, c := range j.Children {
		child := r.wait(c.ID) // its VM may go after the end of all of them
		if child.Parent != j.ID || child.Variant != c.Name || child.Manifest.Env["MORE"] != "1" || child.Manifest.FansOut() || child.Manifest.Notify != nil {
			t.Errorf("child %+v", child)
		}
		from, _, err := r.OpenArtifact(t.Context(), j.ID, c.Name+"/dist/out")
		if err != nil {
			t.Fatal(err)
		}
		said, _ := io.ReadAll(from)
		from.Close()
		if want := []string{"1.25 1/2", "1.25 2/2", "1.26 1/2", "1.26 2/2"}[i] + " " + base64.StdEncoding.EncodeToString([]byte("in")); string(said) != want {
			t.Errorf("it has left %q, not %q", said, want)
		}
	}
	if len(j.Artifacts) != 4 || j.Artifacts[3].Path != "go=1.26,shard=2/dist/out" {
		t.Errorf("artifacts %+v", j.Artifacts)
	}
	if _, _, err := r.OpenArtifact(t.Context(), j.ID, "go=2/dist/out"); err == nil || !strings.Contains(err.Error(), "go=1.25,shard=1") {
		t.Errorf("an artifact of none: %v", err)
	}
	page, err := r.List(t.Context(), job.Filter{Parent: j.ID})
	if err != nil || len(page.Jobs) != 4 || page.Jobs[0].Variant != "go=1.26,shard=2" || page.Jobs[0].Parent != j.ID {
		t.Errorf("list %+v, %v", page, err)
	}
	if result, err := r.Result(t.Context(), j.ID); err != nil || *result.ExitCode != 3 || result.Stdout != nil {
		t.Errorf("result %+v, %v", result, err)
	}
	if chunk, err := r.Output(t.Context(), j.ID, job.Stdout, 0, 0); err != nil || !chunk.Complete {
		t.Errorf("output %+v, %v", chunk, err)
	}
	if s := r.fake.Stats(); s.Creates != 4 || s.MostVMs > 3 {
		t.Errorf("stats %+v", s)
	}
	r.noLeaks()
	if err := r.DeleteJob(t.Context(), j.ID); err != nil {
		t.Fatal(err)
	}
	if page, err := r.List(t.Context(), job.Filter{}); err != nil || len(page.Jobs) != 0 {
		t.Errorf("left: %+v, %v", page, err)
	}
}

func TestFanOut_EndsWithItsParent(t *testing.T) {
	for _, tt := range []struct {
		name   string
		end    func(*rig, string) error
		reason job.Reason
	}{
		{"cancelled", func(r *rig, id string) error { return r.Cancel(context.Background(), id) }, job.ReasonCancelled},
		{"killed", func(r *rig, id string) error {
			_, err := r.Kill(context.Background(), id, "INT")
			return err
		}, job.ReasonKilled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 2)
			r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: make(chan struct{})})}, false)
			j := r.family(func(m *job.Manifest) { m.Shards = 3 })
			r.until(j.Children[0].ID, func(j job.Job) bool { return j.Status == job.Running })
			if err := tt.end(r, j.ID); err != nil {
				t.Fatal(err)
			}
			if j = r.wait(j.ID); j.Outcome.Reason != tt.reason {
				t.Errorf("outcome %+v", j.Outcome)
			}
			for _, c := range j.Children {
				if child := r.wait(c.ID); child.Outcome.Reason != tt.reason || c.Reason != tt.reason {
					t.Errorf("child %+v, as its parent has it %+v", child.Outcome, c)
				}
			}
			r.noLeaks()
		})
	}
}

func TestFanOut_FailFastCancelsTheOthers(t *testing.T) {
	r := newRig(t, 2)
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		if p.Manifest.Env["LINUS_SHARD"] == "2" {
			return providertest.Task{ExitCode: 7}
		}
		return providertest.Task{Until: make(chan struct{})}
	}}, false)
	j := r.wait(r.family(func(m *job.Manifest) { m.Shards, m.FailFast = 3, true }).ID)
	if diff := cmp.Diff([]string{"shard=1 cancelled", "shard=2 exit code 7", "shard=3 cancelled"}, names(j.Children)); diff != "" {
		t.Error(diff)
	}
	if *j.Outcome.ExitCode != 7 {
		t.Errorf("outcome %+v", j.Outcome)
	}
}

// Another engine goes on with a parent and its children, and does nothing twice.
func TestFanOut_OutlastsTheEngine(t *testing.T) {
	r := newRig(t, 4)
	until := make(chan struct{})
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		if p.Manifest.Env["LINUS_SHARD"] == "1" {
			return providertest.Task{}
		}
		return providertest.Task{Until: until}
	}}, false)
	j := r.family(func(m *job.Manifest) { m.Shards = 3 })
	r.until(j.ID, func(j job.Job) bool { return j.Children[0].Status == job.Success })
	r.stop()
	r.restart()
	close(until)
	if j = r.wait(j.ID); j.Status != job.Success || *j.Outcome.ExitCode != 0 {
		t.Errorf("outcome %+v", j.Outcome)
	}
	if told := r.texts(j.ID, job.EventProgress, "success, job "); len(told) != 3 {
		t.Errorf("told %v", told)
	}
	if s := r.fake.Stats(); s.Creates != 3 {
		t.Errorf("stats %+v", s)
	}
}

// What runs a lost child again takes its place.
func TestFanOut_FollowsAChildThatIsRunAgain(t *testing.T) {
	r := newRig(t, 4, hasty)
	until := make(chan struct{})
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{Until: until} }}, false)
	j := r.family(func(m *job.Manifest) { m.Shards, m.Retry = 2, job.RetryLost })
	first := j.Children[0].ID
	r.lose(first)
	again := r.until(first, func(j job.Job) bool { return j.RetriedAs != "" }).RetriedAs
	close(until)
	if j = r.wait(j.ID); j.Status != job.Success || j.Children[0].ID != again || j.Children[0].Name != "shard=1" {
		t.Errorf("%+v, %+v", j.Outcome, j.Children)
	}
	// With the parent all of them go.
	for _, id := range []string{first, again, j.Children[1].ID} {
		r.wait(id)
	}
	if err := r.DeleteJob(t.Context(), j.ID); err != nil {
		t.Error(err)
	}
	if page, err := r.List(t.Context(), job.Filter{}); err != nil || len(page.Jobs) != 0 {
		t.Errorf("left: %+v, %v", page.Jobs, err)
	}
}

// With fail_fast a lost child is not run again once another one has failed.
func TestFanOut_FailFastRunsNothingAgain(t *testing.T) {
	r := newRig(t, 4, hasty)
	fails := make(chan struct{})
	b := providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		if p.Manifest.Env["LINUS_SHARD"] == "2" {
			return providertest.Task{ExitCode: 7, Until: fails}
		}
		return providertest.Task{Until: make(chan struct{})}
	}}
	for range 10_000 {
		b.Destroys = append(b.Destroys, &job.HostError{Op: "destroy VM", Host: "pve", Class: job.HostUnreachable, Text: "not now"})
	}
	r.behave(b, false)
	j := r.family(func(m *job.Manifest) { m.Shards, m.FailFast, m.Retry = 2, true, job.RetryLost })
	first := j.Children[0].ID
	r.lose(first)
	r.until(first, func(job.Job) bool { return len(r.warnings(first, "VM not destroyed, will be tried again")) > 0 })
	close(fails)
	r.until(j.ID, func(j job.Job) bool { return j.Children[1].Status.Terminal() })
	b.Destroys = nil
	r.behave(b, false)
	if diff := cmp.Diff([]string{"shard=1 lost", "shard=2 exit code 7"}, names(r.wait(j.ID).Children)); diff != "" {
		t.Error(diff)
	}
	if child := r.wait(first); child.RetriedAs != "" {
		t.Errorf("run again as %s", child.RetriedAs)
	}
}

// beforeRetry is a store that calls when a lost job is about to be run again.
type beforeRetry struct {
	*store.Store
	call func()
}

func (s beforeRetry) Insert(ctx context.Context, j job.Job, key string, within job.Limits, children ...job.Job) (job.Job, bool, error) {
	if j.RetryOf != "" {
		s.call()
	}
	return s.Store.Insert(ctx, j, key, within, children...)
}

// Nor is it if the others are ended just then, by the failure of one or with their parent.
func TestFanOut_EndsWhatIsRunAgainJustThen(t *testing.T) {
	for _, failFast := range []bool{true, false} {
		t.Run(fmt.Sprintf("fail_fast %v", failFast), func(t *testing.T) {
			r := newRig(t, 4, hasty)
			r.stop()
			fails, family := make(chan struct{}), make(chan job.Job, 1)
			r.opts.Jobs = beforeRetry{r.store, func() {
				j := <-family
				if failFast {
					close(fails)
				} else if err := r.Cancel(context.Background(), j.ID); err != nil {
					t.Error(err)
				}
				r.until(j.Children[2].ID, func(j job.Job) bool { return j.Outcome != nil }) // the first was looked at before
			}}
			r.restart()
			r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
				if p.Manifest.Env["LINUS_SHARD"] == "2" {
					return providertest.Task{ExitCode: 7, Until: fails}
				}
				return providertest.Task{Until: make(chan struct{})}
			}}, false)
			j := r.family(func(m *job.Manifest) { m.Shards, m.FailFast, m.Retry = 3, failFast, job.RetryLost })
			family <- j
			first := j.Children[0].ID
			r.until(j.Children[2].ID, func(j job.Job) bool { return j.Status == job.Running })
			r.lose(first)
			again := r.until(first, func(j job.Job) bool { return j.RetriedAs != "" }).RetriedAs
			if next := r.until(again, func(j job.Job) bool { return j.Outcome != nil }); next.Outcome.Reason != job.ReasonCancelled {
				t.Errorf("what runs it again: %+v", next.Outcome)
			}
			r.wait(j.ID)
		})
	}
}

// All children are stored, or none.
func TestFanOut_IsAllOrNothing(t *testing.T) {
	r := newRig(t, 1)
	ctx := job.WithPrincipal(t.Context(), job.Principal{Name: "ci", Role: job.RoleRun, Limits: job.Limits{Jobs: 3}})
	_, err := r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, Shards: 3}})
	var over *job.FieldError
	if !errors.As(err, &over) || over.Limit == nil || over.Limit.Name != "jobs" {
		t.Errorf("four jobs of three: %v", err)
	}
	for _, key := range []string{"one", "one"} {
		_, err = r.Submit(ctx, job.Submission{IdempotencyKey: key, Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, Shards: 2}})
		if err != nil {
			t.Error(err)
		}
	}
	if page, err := r.List(t.Context(), job.Filter{}); err != nil || len(page.Jobs) != 3 {
		t.Errorf("%d jobs, %v", len(page.Jobs), err)
	}
	_, err = r.Submit(t.Context(), job.Submission{Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, Matrix: []string{"cpu=2,64"}}})
	if err == nil || !strings.Contains(err.Error(), "cpu=64: ") || !strings.Contains(err.Error(), "resources.cpu") {
		t.Errorf("a child that may not be: %v", err)
	}
}

func TestFanOut_OfEngines(t *testing.T) {
	f := newCohort(t, 2, 4, nil)
	j := f.engines[0].family(func(m *job.Manifest) { m.Shards = 4 })
	other := slices.Index([]int{0, 1}, 1)
	j = f.engines[other].wait(j.ID)
	if j.Status != job.Success {
		t.Errorf("%+v", j.Outcome)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, c := range j.Children {
		if f.begun[c.ID] != 1 || c.Name != "shard="+strconv.Itoa(i+1) {
			t.Errorf("%s was begun %d times", c.Name, f.begun[c.ID])
		}
	}
}
