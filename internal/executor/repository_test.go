package executor_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
)

// repositories stand for git: what comes in and goes out, in memory.
type repositories struct {
	mu      sync.Mutex
	calls   []string
	fetched map[string]bool
	own     []string // of the last call
	refuse  error    // of Fetch
	hostile error    // of Take
	fail    error    // of Push
}

const (
	baseCommit = "1111111111111111111111111111111111111111"
	lastCommit = "2222222222222222222222222222222222222222"
)

func (f *repositories) note(q job.RepositoryCall, what string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls, f.own = append(f.calls, what), q.Own
	q.Used(job.CredentialUse{Name: q.Repository.Credential, Method: "GET", Host: "git.example", Path: "/app", Status: 200})
}

func (f *repositories) Ready(job.Repository) error { return nil }

func (f *repositories) Fetch(_ context.Context, q job.RepositoryCall) (job.Checkout, error) {
	f.note(q, "fetch "+q.Commit)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refuse == nil {
		f.fetched[q.Job] = true
	}
	return job.Checkout{Ref: "refs/heads/main", Commit: baseCommit}, f.refuse
}

func (f *repositories) Has(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.fetched[id]
}

type memoryArchive struct{ *strings.Reader }

func (memoryArchive) Close() error { return nil }

func (f *repositories) Archive(string) (job.Archive, int64, error) {
	return memoryArchive{strings.NewReader("archive")}, int64(len("archive")), nil
}

func (f *repositories) Take(_ context.Context, q job.RepositoryCall, c *job.Checkout, bundle io.Reader, _ int64) (io.ReadCloser, error) {
	f.note(q, "take")
	data, err := io.ReadAll(bundle)
	if err == nil && string(data) != "bundle" {
		err = errors.New("it is another bundle")
	}
	c.Head, c.Commits, c.Files = lastCommit, 2, 3
	return io.NopCloser(strings.NewReader("patch")), errors.Join(err, f.hostile)
}

func (f *repositories) Push(_ context.Context, q job.RepositoryCall, head string) error {
	f.note(q, "push "+head+" to "+q.Push)
	return f.fail
}

func (f *repositories) Forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.fetched, id)
}

func withRepositories(t *testing.T) (*rig, *repositories) {
	t.Helper()
	f := &repositories{fetched: map[string]bool{}}
	r, _ := withSecrets(t, 2, map[string]string{"KEY": planted})
	r.stop()
	r.opts.Repositories = f
	r.restart()
	n := job.NewCredential{CredentialSpec: job.CredentialSpec{Name: "git", Host: "git.example", Header: "Authorization: Bearer", Secret: "KEY"}}
	if _, err := r.CreateCredential(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	return r, f
}

func onRepository(push string) func(*job.Manifest) {
	return func(m *job.Manifest) {
		m.Repository = job.Repository{URL: "https://git.example/app", Credential: "git"}
		m.Push.Branch = push
	}
}

// It is fetched before there is a VM, goes there, and what comes back is checked, kept and pushed;
// the next job may go on from there.
func TestRepository_InAndOut(t *testing.T) {
	r, f := withRepositories(t)
	var got job.Payload
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		got = p
		return providertest.Task{Artifacts: map[string][]byte{job.BundleArtifact: []byte("bundle")}}
	}}, true)
	j := r.wait(r.submit(onRepository("fix")))
	want := job.Checkout{Ref: "refs/heads/main", Commit: baseCommit, Head: lastCommit, Commits: 2, Files: 3, Pushed: "fix"}
	if j.Status != job.Success || j.Repository == nil || *j.Repository != want || got.RepositorySize != 7 || got.Commit != baseCommit {
		t.Fatalf("%+v, %+v, payload of %d bytes at %s", j.Outcome, j.Repository, got.RepositorySize, got.Commit)
	}
	files, _ := r.artifacts(j.ID)
	if files[job.PatchArtifact] != "patch" || files[job.BundleArtifact] != "bundle" {
		t.Errorf("artifacts %v", files)
	}
	if calls := strings.Join(f.calls, ", "); calls != "fetch , take, push "+lastCommit+" to fix" || len(f.own) != 0 {
		t.Errorf("calls %s, own %v", calls, f.own)
	}
	r.eventually(j.ID, func(job.Job) bool { return !f.Has(j.ID) }) // it is forgotten when the job is done
	events, err := r.store.Events(t.Context(), j.ID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"refs/heads/main is commit " + baseCommit, "2 commits, 3 files changed (+0 -0), pushed to fix", "credential git: GET git.example/app 200"} {
		if !slices.ContainsFunc(events, func(e job.Event) bool { return strings.Contains(e.Text, want) }) {
			t.Errorf("no event has %q", want)
		}
	}
	r.wait(r.submit(onRepository("fix")))
	if !slices.Equal(f.own, []string{lastCommit}) {
		t.Errorf("the next job may go on from %v", f.own)
	}
	r.wait(r.submit(onRepository("other")))
	if len(f.own) != 0 {
		t.Errorf("on another branch, from %v", f.own)
	}
}

// What cannot be fetched or pushed costs no VM.
func TestRepository_RefusedBeforeThereIsAVM(t *testing.T) {
	r, f := withRepositories(t)
	f.refuse = errors.New("branch fix is there")
	j := r.wait(r.submit(onRepository("fix")))
	if j.Outcome.Reason != job.ReasonProvisionFailed || !strings.Contains(j.Outcome.Error, "repository https://git.example/app: branch fix is there") || r.fake.Stats().Creates != 0 {
		t.Errorf("%+v, %d VMs", j.Outcome, r.fake.Stats().Creates)
	}
	for _, of := range []struct {
		change func(*job.Manifest)
		want   string
	}{
		{func(m *job.Manifest) { m.Repository.Credential = "nobody" }, `there is no credential "nobody"`},
		{func(m *job.Manifest) { m.Repository.URL = "https://other.example/app" }, "is for git.example, and not for other.example:443"},
		{func(m *job.Manifest) { m.Repository.URL = "git@git.example:app" }, "is for HTTPS, and the repository is reached by SSH"},
	} {
		m := job.Manifest{Task: "true", AgentType: job.AgentScript}
		onRepository("")(&m)
		of.change(&m)
		_, err := r.Submit(t.Context(), job.Submission{Manifest: m})
		refusal(t, err, of.want)
	}
}

// A bundle that is not as it should be is not kept, and a push that fails is told; the task's
// status is its own.
func TestRepository_ProblemsAreTold(t *testing.T) {
	r, f := withRepositories(t)
	exit := 0
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task {
		return providertest.Task{ExitCode: exit, Artifacts: map[string][]byte{job.BundleArtifact: []byte("bundle")}}
	}}, true)
	f.fail = errors.New("protected branch")
	if j := r.wait(r.submit(onRepository("fix"))); j.Status != job.Success || j.Repository.Problem != "nothing was pushed to fix: protected branch" || j.Repository.Pushed != "" || j.Repository.Commits != 2 {
		t.Errorf("%s, %+v", j.Status, j.Repository)
	}
	exit = 3
	if j := r.wait(r.submit(onRepository("fix"))); !strings.Contains(j.Repository.Problem, "the task has not succeeded") || len(j.Artifacts) != 2 {
		t.Errorf("%+v, %v", j.Repository, j.Artifacts)
	}
	f.hostile = &job.MalformedBundle{Err: errors.New("it is not a git bundle")}
	j := r.wait(r.submit(onRepository("fix")))
	if len(j.Artifacts) != 0 || j.Repository.Commits != 0 || !strings.Contains(j.Repository.Problem, "not a git bundle") || j.ArtifactsSkippedCount != 1 {
		t.Errorf("%+v, %v", j.Repository, j.Artifacts)
	}
}

// A bundle that could not be checked may be the only copy of what a task has done: it is kept, and that is told.
func TestRepository_WhatCouldNotBeCheckedIsKept(t *testing.T) {
	r, f := withRepositories(t)
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task {
		return providertest.Task{Artifacts: map[string][]byte{job.BundleArtifact: []byte("bundle")}}
	}}, true)
	for _, why := range []string{"it was tried for 5m0s", "git index-pack: fatal: Out of memory"} {
		f.hostile = errors.New(why)
		j := r.wait(r.submit(onRepository("fix")))
		files, _ := r.artifacts(j.ID)
		if files[job.BundleArtifact] != "bundle" || len(j.Artifacts) != 1 || j.Repository.Pushed != "" ||
			!strings.Contains(j.Repository.Problem, "could not be checked; it is in repository.bundle as the VM made it: "+why) {
			t.Errorf("%+v, %v", j.Repository, files)
		}
	}
}

// The patch is of what the engine has taken: a VM's file of that name is no artifact, with commits and without.
func TestRepository_PatchIsNotTheVMs(t *testing.T) {
	r, _ := withRepositories(t)
	files := map[string][]byte{job.BundleArtifact: []byte("bundle"), job.PatchArtifact: []byte("what the VM would have shown")}
	r.behave(providertest.Behaviour{Task: func(job.Payload) providertest.Task { return providertest.Task{Artifacts: files} }}, true)
	theirs := func(m *job.Manifest) { onRepository("")(m); m.Artifacts = []string{job.PatchArtifact} }
	j := r.wait(r.submit(theirs))
	got, _ := r.artifacts(j.ID)
	if got[job.PatchArtifact] != "patch" || !j.HasPatch() || j.ArtifactsSkippedCount != 1 || !strings.Contains(j.ArtifactsSkipped[0].Reason, "the engine's own patch") {
		t.Errorf("%v, %+v", got, j.SkippedArtifacts)
	}
	delete(files, job.BundleArtifact)
	if j = r.wait(r.submit(theirs)); j.HasPatch() || len(j.Artifacts) != 0 {
		t.Errorf("without commits: %v", j.Artifacts)
	}
	j = r.wait(r.submit(func(m *job.Manifest) { m.Artifacts = []string{job.PatchArtifact} }))
	if got, _ := r.artifacts(j.ID); j.HasPatch() || got[job.PatchArtifact] != "what the VM would have shown" {
		t.Errorf("without a repository: %v", got)
	}
}

var _ executor.Repositories = (*repositories)(nil)
