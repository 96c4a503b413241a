package executor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"slices"
	"strings"

	"linus/internal/capture"
	"linus/internal/job"
)

// checkRepository returns what is wrong with a manifest's repository, as far as that is known
// without asking its server.
func (e *Executor) checkRepository(ctx context.Context, m job.Manifest) error {
	r := m.Repository
	if !r.Given() {
		return nil
	}
	if e.o.Repositories == nil {
		return &job.FieldError{Field: "manifest.repository", Problem: "cannot be fetched by this engine", Remedy: "leave it out"}
	}
	if err := e.o.Repositories.Ready(r); err != nil || r.Credential == "" {
		return err
	}
	const at = "manifest.repository.credential"
	c, err := e.credential(ctx, r.Credential)
	if errors.Is(err, job.ErrNotFound) {
		return unknownCredential(at, r.Credential)
	}
	if err != nil {
		return err
	}
	if err := c.Reads(r); err != nil {
		return &job.FieldError{Field: at, Problem: err.Error(), Remedy: "name one that is for the repository (linus credential list)"}
	}
	return nil
}

// repositoryCall returns what a job asks of its repository. done records the credential uses that
// are not recorded yet.
func (e *Executor) repositoryCall(ctx context.Context, r *run, j job.Job) (q job.RepositoryCall, done func(), err error) {
	seen := e.trafficOf(ctx, r)
	q = job.RepositoryCall{Job: j.ID, Repository: j.Manifest.Repository, Push: j.Manifest.Push.Branch, Used: seen.used}
	if j.Repository != nil {
		q.Commit = j.Repository.Commit
	}
	if q.Push == "" {
		return q, seen.end, nil
	}
	known, err := e.o.Branches.Branch(ctx, branchKey(j))
	for _, commit := range []string{known.Commit, known.Next} {
		if commit != "" {
			q.Own = append(q.Own, commit)
		}
	}
	return q, seen.end, err
}

// branchKey identifies the branch that a job pushes to, among the branches of its owner.
func branchKey(j job.Job) string {
	sum := sha256.Sum256([]byte(strings.Join([]string{j.Principal, strings.TrimSuffix(strings.TrimRight(j.Manifest.Repository.URL, "/"), ".git"), j.Manifest.Push.Branch}, "\x00")))
	return hex.EncodeToString(sum[:])
}

// fetchRepository fetches the job's repository before it has a VM, unless that was already done
// here. It returns the updated job.
func (e *Executor) fetchRepository(ctx context.Context, r *run, j job.Job) (job.Job, error) {
	m := j.Manifest
	if !m.Repository.Given() || j.Repository != nil && e.o.Repositories.Has(j.ID) {
		return j, nil
	}
	if e.o.Repositories == nil {
		return j, errors.New("this engine cannot fetch the job's repository")
	}
	job.Tell(ctx, job.Progress{Step: "repository", Text: "fetching " + m.Repository.URL})
	q, done, err := e.repositoryCall(ctx, r, j)
	if err != nil {
		return j, err
	}
	defer done()
	c, err := e.o.Repositories.Fetch(ctx, q)
	if err != nil {
		if ctx.Err() != nil {
			return j, context.Cause(ctx)
		}
		return j, fmt.Errorf("repository %s: %w", m.Repository.URL, err)
	}
	return e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
		j.Repository = &c
		at := c.Commit
		if c.Ref != "" {
			at = c.Ref + " is commit " + at
		}
		return []job.Event{{Kind: job.EventProgress, Phase: job.PhaseProvision, Text: "repository " + m.Repository.URL + ": " + at}}, nil
	})
}

// withRepository adds the job's repository to the payload for its VM, valid until done is called.
func (e *Executor) withRepository(ctx context.Context, r *run, j job.Job, p *job.Payload) (done func(), err error) {
	done = func() {}
	if !j.Manifest.Repository.Given() {
		return done, nil
	}
	if j, err = e.fetchRepository(ctx, r, j); err != nil { // another engine may have fetched it
		return done, err
	}
	archive, size, err := e.o.Repositories.Archive(j.ID)
	if err != nil {
		return done, fmt.Errorf("read the job's repository: %w", err)
	}
	p.Repository, p.RepositorySize, p.Commit = archive, size, j.Repository.Commit
	return func() { _ = archive.Close() }, nil
}

// takeCommits checks the task's commits, keeps a patch of them and pushes them. A malformed bundle
// is removed from the artifacts; a bundle that could not be checked may be the only copy, and
// stays. work bounds the time; errors are those of ctx and engine faults.
func (e *Executor) takeCommits(ctx, work context.Context, r *run, j job.Job, got *capture.Collected) (*job.Checkout, []job.Event, error) {
	if !j.Manifest.Repository.Given() || j.Repository == nil || j.StartedAt.IsZero() {
		return j.Repository, nil, nil
	}
	c := job.Checkout{Ref: j.Repository.Ref, Commit: j.Repository.Commit}
	err := e.takeBundle(ctx, work, r, j, &c, got)
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if job.IsEngineFault(err) {
		return nil, nil, err
	}
	events := []job.Event{{Kind: job.EventProgress, Phase: job.PhaseCollect, Text: "repository: " + c.Text()}}
	if err != nil {
		c.Problem = job.Bounded(err.Error())
		events = append(events, job.Event{Kind: job.EventWarning, Phase: job.PhaseCollect, Text: "repository: " + c.Problem})
	}
	return &c, events, nil
}

func (e *Executor) takeBundle(ctx, work context.Context, r *run, j job.Job, c *job.Checkout, got *capture.Collected) error {
	kept := slices.IndexFunc(got.Artifacts, func(a job.Artifact) bool { return a.Path == job.BundleArtifact })
	if kept < 0 {
		for _, s := range got.Skipped.ArtifactsSkipped {
			if s.Path == job.BundleArtifact {
				return fmt.Errorf("what the task has committed is not known: %s", s.Reason)
			}
		}
		return nil // the task changed nothing
	}
	if _, err := e.fetchRepository(work, r, j); err != nil {
		return err
	}
	q, done, err := e.repositoryCall(ctx, r, j)
	if err != nil {
		return err
	}
	defer done()
	var malformed *job.MalformedBundle
	switch err := e.takePatch(work, q, c, got); {
	case errors.As(err, &malformed):
		got.Artifacts = slices.Delete(got.Artifacts, kept, kept+1)
		got.Skipped.Skip(job.BundleArtifact, err.Error())
		return errors.Join(err, e.o.Captured.DropArtifact(ctx, j.ID, job.BundleArtifact))
	case err != nil:
		return fmt.Errorf("what the task has committed could not be checked; it is in %s as the VM made it: %w", job.BundleArtifact, err)
	}
	return e.pushCommits(ctx, work, q, j, c)
}

// takePatch checks the bundle and keeps its patch as an artifact.
func (e *Executor) takePatch(ctx context.Context, q job.RepositoryCall, c *job.Checkout, got *capture.Collected) error {
	bundle, err := e.o.Captured.OpenArtifact(ctx, q.Job, job.BundleArtifact)
	if err != nil {
		return err
	}
	defer bundle.Close() //nolint:errcheck // only read
	left := e.o.Artifacts.All
	for _, a := range got.Artifacts {
		left -= a.Size
	}
	patch, err := e.o.Repositories.Take(ctx, q, c, bundle, min(left, e.o.Artifacts.Each))
	if err != nil {
		*c = job.Checkout{Ref: c.Ref, Commit: c.Commit}
		return err
	}
	if patch == nil {
		got.Skipped.Skip(job.PatchArtifact, "it cannot be made, or is beyond the limits")
		return nil
	}
	defer patch.Close() //nolint:errcheck // only read
	if len(got.Artifacts) >= e.o.Artifacts.Files {
		got.Skipped.Skip(job.PatchArtifact, "beyond the limits")
		return nil
	}
	a := job.Artifact{Path: job.PatchArtifact, Mode: "0644"}
	sum := sha256.New()
	if a.Size, err = e.keepFile(ctx, q.Job, a.Path, patch, sum); err == nil {
		a.SHA256 = hex.EncodeToString(sum.Sum(nil))
		got.Artifacts = append(got.Artifacts, a)
	}
	return err
}

// keepFile stores a file that the engine made as a job's artifact.
func (e *Executor) keepFile(ctx context.Context, id, name string, from io.Reader, sum hash.Hash) (size int64, err error) {
	for chunk := make([]byte, 1<<20); ; {
		n, readErr := io.ReadFull(from, chunk)
		if n > 0 || size == 0 {
			if err := e.o.Captured.PutArtifact(ctx, id, name, size, chunk[:n]); err != nil {
				return size, err
			}
			sum.Write(chunk[:n])
			size += int64(n)
		}
		switch {
		case errors.Is(readErr, io.EOF), errors.Is(readErr, io.ErrUnexpectedEOF):
			return size, nil
		case readErr != nil:
			return size, readErr
		}
	}
}

// pushCommits pushes the commits of a task that succeeded. It first records the commit that the branch
// will be at: if the engine is killed in between, the next one sees whether the commit was pushed.
func (e *Executor) pushCommits(ctx, work context.Context, q job.RepositoryCall, j job.Job, c *job.Checkout) error {
	switch {
	case q.Push == "" || c.Commits == 0:
		return nil
	case j.Outcome.Status != job.Success:
		return fmt.Errorf("nothing was pushed to %s: the task has not succeeded", q.Push)
	}
	key := branchKey(j)
	known, err := e.o.Branches.Branch(ctx, key)
	if err != nil {
		return err
	}
	if err := e.o.Branches.KeepBranch(ctx, key, job.PushedBranch{Job: j.ID, Commit: known.Commit, Next: c.Head}); err != nil {
		return err
	}
	if err := e.o.Repositories.Push(work, q, c.Head); err != nil {
		return fmt.Errorf("nothing was pushed to %s: %w", q.Push, err)
	}
	c.Pushed = q.Push
	return e.o.Branches.KeepBranch(ctx, key, job.PushedBranch{Job: j.ID, Commit: c.Head})
}
