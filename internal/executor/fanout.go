package executor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/google/uuid"

	"linus/internal/job"
)

// The life of a parent: it follows its children to their ends. Like the life of a job with a VM,
// another engine can continue it at any instant.
var parentsLife = slices.Concat([]phase{{name: job.PhaseRun, run: (*Executor).followChildren, reason: job.ReasonInternal}}, ending)

// withChildren returns a parent that is about to be stored, with its children, which are checked
// like any job.
func (e *Executor) withChildren(ctx context.Context, s job.Submission, j job.Job) (job.Job, []job.Job, error) {
	variants, err := s.Manifest.Variants()
	if err != nil {
		return j, nil, err
	}
	children := make([]job.Job, len(variants))
	for i, v := range variants {
		m, err := e.completed(ctx, job.Submission{Manifest: v.Manifest, Client: s.Client, Principal: s.Principal})
		if err == nil {
			err = e.o.Fleet.Admit(ctx, s, m, append([]job.Job{j}, children[:i]...)...)
		}
		if err != nil {
			return j, nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		id, err := uuid.NewV7()
		if err != nil {
			return j, nil, fmt.Errorf("create a job ID: %w", err)
		}
		child := j
		child.ID, child.Parent, child.Variant, child.Manifest, child.Submission, child.Session, child.Children = id.String(), j.ID, v.Name, m, "", nil, nil
		children[i] = child
	}
	for _, c := range children {
		j.Children = append(j.Children, job.Child{Name: c.Variant, ID: c.ID, Status: c.Status})
	}
	return j, children, nil
}

// followChildren returns when all children have ended, and decides the parent.
func (e *Executor) followChildren(ctx context.Context, r *run, j job.Job) (change, error) {
	for _, next := range []job.Status{job.Provisioning, job.Running} {
		if !j.Status.CanBecome(next) {
			continue
		}
		var err error
		j, err = e.update(ctx, r.id, func(j *job.Job) ([]job.Event, error) {
			if j.StartedAt.IsZero() {
				j.StartedAt = now()
			}
			return j.Reach(next), nil
		})
		if err != nil {
			return nil, err
		}
	}
	j, err := e.awaitChildren(ctx, r, func(j job.Job) bool { return j.Manifest.FailFast })
	if err != nil {
		return nil, err
	}
	return deciding(job.JoinChildren(j.Children)), nil
}

// joinChildren ends the remaining children of a parent that was cancelled or killed, waits for
// their ends, and makes the parent's status terminal.
func (e *Executor) joinChildren(ctx context.Context, r *run) (change, error) {
	if _, err := e.awaitChildren(ctx, r, func(j job.Job) bool { return j.Outcome.Reason != job.ReasonExitStatus }); err != nil {
		return nil, err
	}
	return func(j *job.Job) ([]job.Event, error) {
		if j.Status.Terminal() {
			return nil, nil
		}
		j.Progress = ""
		if err := j.Finish(now()); err != nil {
			return nil, err
		}
		return []job.Event{{Kind: job.EventStatus, Text: string(j.Status)}}, nil
	}, nil
}

// awaitChildren waits for the ends of a parent's children, and records each one. Once a child has
// failed or the parent is decided, it ends the others if stop says so.
func (e *Executor) awaitChildren(ctx context.Context, r *run, stop func(job.Job) bool) (job.Job, error) {
	j, err := e.o.Jobs.Job(ctx, r.id)
	if err != nil || j.Status.Terminal() {
		return j, err
	}
	following, end := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer end(nil)
	ended, stopped := make(chan job.Job), false
	for _, c := range j.Children {
		if c.Status.Terminal() {
			continue
		}
		work.Go(func() {
			child, err := e.awaitChild(following, c)
			if err != nil {
				end(err)
				return
			}
			select {
			case ended <- child:
			case <-following.Done():
			}
		})
	}
	for {
		if !stopped && (oneFailed(j) || j.Outcome != nil) && stop(j) {
			stopped = true
			if err := e.endChildren(following, j); err != nil {
				return j, err
			}
		}
		if !slices.ContainsFunc(j.Children, func(c job.Child) bool { return !c.Status.Terminal() }) {
			return j, nil
		}
		select {
		case child := <-ended:
			if j, err = e.update(following, r.id, endOf(child)); err != nil {
				return j, err
			}
		case <-following.Done():
			return j, context.Cause(following)
		}
	}
}

func oneFailed(j job.Job) bool {
	return slices.ContainsFunc(j.Children, func(c job.Child) bool { return c.Status.Terminal() && c.Status != job.Success })
}

// endOf returns the change that records at its parent that a child has ended.
func endOf(child job.Job) change {
	return func(j *job.Job) ([]job.Event, error) {
		at := slices.IndexFunc(j.Children, func(c job.Child) bool { return c.Name == child.Variant })
		if at < 0 || j.Children[at].Status.Terminal() {
			return nil, nil
		}
		j.Children[at].Ended(child)
		left := 0
		for _, c := range j.Children {
			if !c.Status.Terminal() {
				left++
			}
		}
		j.Progress = fmt.Sprintf("%d of %d jobs have ended", len(j.Children)-left, len(j.Children))
		return []job.Event{{Kind: job.EventProgress, Phase: child.Variant, Text: j.Children[at].How() + ", job " + child.ID}}, nil
	}
}

// awaitChild returns a child when it has ended or, if it was lost, the job that runs it again. A
// child that was deleted meanwhile counts as lost.
func (e *Executor) awaitChild(ctx context.Context, c job.Child) (job.Job, error) {
	id, after := c.ID, int64(job.OnlyEnd)
	for {
		events, j, err := e.Watch(ctx, id, after)
		switch {
		case errors.Is(err, job.ErrNotFound):
			gone := job.Job{ID: id, Variant: c.Name, Status: job.Failed, CompletedAt: now()}
			gone.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonLost, At: gone.CompletedAt}
			return gone, nil
		case err != nil:
			return j, err
		case ctx.Err() != nil:
			return j, context.Cause(ctx)
		case j.RetriedAs != "":
			id, after = j.RetriedAs, job.OnlyEnd
		case !j.Status.Terminal():
		case !j.MayRunAgain():
			return j, nil
		case after == job.OnlyEnd: // it may be run again when its VM is gone
			after = 0
		case len(events) > 0:
			after = events[len(events)-1].Seq
		}
	}
}

// endChildren ends the unfinished children in the same way as their parent.
func (e *Executor) endChildren(ctx context.Context, j job.Job) error {
	for _, c := range j.Children {
		if c.Status.Terminal() {
			continue
		}
		for id := c.ID; id != ""; { // also the jobs that run it again
			child, err := e.o.Jobs.Job(ctx, id)
			if err == nil && !child.Status.Terminal() && child.Outcome == nil {
				if j.Outcome != nil && j.Outcome.Reason == job.ReasonKilled {
					_, err = e.Kill(ctx, id, j.StopSignal)
				} else {
					err = e.Cancel(ctx, id)
				}
			}
			if err != nil && !errors.Is(err, job.ErrNotFound) && !errors.Is(err, job.ErrCompleted) {
				return err
			}
			id = child.RetriedAs
		}
	}
	return nil
}

// withFamily returns a parent with the current state of its children and, once the parent has
// ended, their artifacts, each under the child's name.
func (e *Executor) withFamily(ctx context.Context, j job.Job) (job.Job, error) {
	if len(j.Children) == 0 {
		return j, nil
	}
	children, err := e.o.Jobs.Children(ctx, j.ID)
	j.Children = slices.Clone(j.Children)
	for i, c := range j.Children {
		at := slices.IndexFunc(children, func(j job.Job) bool { return j.ID == c.ID })
		if at < 0 {
			continue
		}
		child := children[at]
		if !c.Status.Terminal() && !child.Status.Terminal() {
			j.Children[i].Status = child.Status
		}
		if !j.Status.Terminal() {
			continue
		}
		for _, a := range child.Artifacts {
			a.Path = c.Name + "/" + a.Path
			j.Artifacts = append(j.Artifacts, a)
		}
		for _, s := range child.ArtifactsSkipped {
			j.Skip(c.Name+"/"+s.Path, s.Reason)
		}
		j.ArtifactsSkippedCount += child.ArtifactsSkippedCount - len(child.ArtifactsSkipped)
	}
	return j, err
}

func (e *Executor) openChilds(ctx context.Context, j job.Job, path string) (io.ReadCloser, job.Artifact, error) {
	name, rest, _ := strings.Cut(path, "/")
	at := slices.IndexFunc(j.Children, func(c job.Child) bool { return c.Name == name })
	if at < 0 {
		names := make([]string, len(j.Children))
		for i, c := range j.Children {
			names[i] = c.Name
		}
		return nil, job.Artifact{}, &job.FieldError{Field: "path", Problem: fmt.Sprintf("the job has no artifact %q", path), Remedy: "begin with the name of one of its jobs: " + strings.Join(names, ", "), Fault: job.FaultUnknown}
	}
	r, about, err := e.OpenArtifact(ctx, j.Children[at].ID, rest)
	about.Path = path
	return r, about, err
}
