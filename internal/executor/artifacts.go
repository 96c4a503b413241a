package executor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"slices"
	"time"

	"linus/internal/job"
)

// collectArtifacts keeps the files the job's patterns match, once its task has
// ended, and returns them, and what could not be kept and why. Files that are
// complete already, from before a restart, are not fetched again, and what there
// is of others is gone on with. Nothing is kept of a job that was lost, or
// cancelled: nobody waits for it. What is done in the VM ends with work; each
// file has a deadline of its own within that.
func (e *Executor) collectArtifacts(ctx, work context.Context, j job.Job, state job.RunState) (kept []job.Artifact, skipped job.SkippedArtifacts, err error) {
	if why := notLookedFor(j, state); why != "" {
		for _, pattern := range j.Manifest.Artifacts {
			skipped.Skip(e.hide(j, pattern), "not looked for: "+why)
		}
		return nil, skipped, nil
	}
	if len(j.Manifest.Artifacts) == 0 {
		return nil, skipped, nil
	}
	var found []job.FoundArtifact
	err = reach(work, e.o.CollectPatience, func(ctx context.Context) (err error) {
		found, skipped, err = e.o.Guest.Artifacts(ctx, j, e.o.Artifacts)
		return err
	})
	if ctx.Err() != nil {
		return nil, skipped, ctx.Err()
	}
	if err == nil {
		found, skipped, err = e.hideNames(j, found, skipped)
	}
	if err != nil {
		found, skipped = nil, job.SkippedArtifacts{}
		for _, pattern := range j.Manifest.Artifacts {
			skipped.Skip(e.hide(j, pattern), "it could not be looked for: "+e.whyEnded(ctx, work, j, err))
		}
	}
	left := e.o.Artifacts
	for _, f := range found {
		switch {
		case left.Files == 0 || f.Size > left.Each || f.Size > left.All: // the VM is not to be believed
			skipped.Skip(f.Path, "beyond the limits")
			continue
		case slices.ContainsFunc(kept, func(a job.Artifact) bool { return a.Path == f.Path }):
			skipped.Skip(f.Path, "another one has this name")
			continue
		case work.Err() != nil:
			skipped.Skip(f.Path, e.whyEnded(ctx, work, j, work.Err()))
			continue
		}
		if err := e.keepArtifact(ctx, work, j, f); err != nil {
			if ctx.Err() != nil {
				return nil, skipped, ctx.Err()
			}
			skipped.Skip(f.Path, err.Error())
			if err := e.o.Store.DropArtifact(ctx, j.ID, f.Path); err != nil {
				e.o.Log.Warn("what was kept of a file stays", "job_id", j.ID, "err", err)
			}
			continue
		}
		earnTime(work, perArtifact)
		kept = append(kept, f.Artifact)
		left.Files--
		left.All -= f.Size
	}
	return kept, skipped, nil
}

// notLookedFor says why there is no point in looking for artifacts; empty: there
// is.
func notLookedFor(j job.Job, state job.RunState) string {
	switch {
	case j.Outcome.Reason == job.ReasonLost:
		return "the job was lost"
	case j.Outcome.Reason == job.ReasonCancelled:
		return "the job was cancelled"
	case !state.Exited:
		return "its output could not be fetched either"
	}
	return ""
}

// skippedEvents tell of artifacts that were not kept.
func skippedEvents(skipped job.SkippedArtifacts) (events []job.Event) {
	for _, s := range skipped.ArtifactsSkipped {
		events = append(events, job.Event{Kind: job.EventWarning, Phase: "collect", Text: "no artifact: " + s.Path + ": " + s.Reason})
	}
	if more := skipped.ArtifactsSkippedCount - len(skipped.ArtifactsSkipped); more > 0 {
		events = append(events, job.Event{Kind: job.EventWarning, Phase: "collect", Text: fmt.Sprintf("no artifact: %d more", more)})
	}
	return events
}

// perArtifact is the time that a file brought whole buys the others: small ones
// cost round trips, not bytes.
const perArtifact = 2 * time.Second

// errAltered says that a file is not what the VM has said it is.
var errAltered = errors.New("it was changed, or damaged on its way: its sha256 is another")

// keepArtifact copies one file into the store, once more when what came is not
// what was found.
func (e *Executor) keepArtifact(ctx, work context.Context, j job.Job, f job.FoundArtifact) error {
	timed, end := allow(work, e.o.CollectPatience, 2*f.Size)
	defer end()
	sum, have, err := e.keptOf(ctx, j, f)
	if err == nil {
		err = e.copyArtifact(timed, j, f, sum, have)
	}
	if errors.Is(err, errAltered) {
		err = e.copyArtifact(timed, j, f, sha256.New(), 0)
	}
	if err != nil {
		return errors.New(e.whyEnded(ctx, timed, j, err))
	}
	return nil
}

// keptOf returns how much of a file is in the store, and the sum of that.
func (e *Executor) keptOf(ctx context.Context, j job.Job, f job.FoundArtifact) (sum hash.Hash, have int64, err error) {
	sum = sha256.New()
	r, err := e.o.Store.OpenArtifact(ctx, j.ID, f.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return sum, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	have, err = io.Copy(sum, r)
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, 0, err
	}
	if have > f.Size {
		return sha256.New(), 0, nil
	}
	return sum, have, nil
}

// copyArtifact copies what is missing of a file, have bytes of which are kept
// and in sum.
func (e *Executor) copyArtifact(ctx context.Context, j job.Job, f job.FoundArtifact, sum hash.Hash, have int64) error {
	if have == 0 { // an empty file is one, too
		if err := e.o.Store.PutArtifact(ctx, j.ID, f.Path, 0, nil); err != nil {
			return err
		}
	}
	for have < f.Size {
		var data []byte
		err := reach(ctx, e.o.CollectPatience, func(ctx context.Context) (err error) {
			data, err = e.o.Guest.ReadArtifact(ctx, j, f.Source, have, min(outputChunk, f.Size-have))
			return err
		})
		if err != nil {
			return err
		}
		if len(data) == 0 {
			return fmt.Errorf("it was changed: %w", endsEarly("it", have, f.Size))
		}
		earn(ctx, int64(len(data)))
		if err := e.o.Store.PutArtifact(ctx, j.ID, f.Path, have, data); err != nil {
			return err
		}
		sum.Write(data)
		have += int64(len(data))
	}
	if hex.EncodeToString(sum.Sum(nil)) != f.SHA256 {
		return errAltered
	}
	return nil
}
