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
// ended, and answers them with warnings about those that could not be kept.
// Files that are complete already, from before a restart, are not fetched again,
// and what there is of others is gone on with. Nothing is kept of a job that
// was lost, or cancelled: nobody waits for it. What is done in the VM ends with
// work; each file has a deadline of its own within that.
func (e *Executor) collectArtifacts(ctx, work context.Context, j job.Job, state RunState) (kept []job.Artifact, events []job.Event, err error) {
	if len(j.Manifest.Artifacts) == 0 || !state.Exited || j.Outcome.Reason == job.ReasonLost || j.Outcome.Reason == job.ReasonCancelled {
		return nil, nil, nil
	}
	warn := func(format string, args ...any) {
		events = append(events, job.Event{Kind: job.EventWarning, Phase: "collect", Text: fmt.Sprintf(format, args...)})
	}
	var found []FoundArtifact
	var skipped []string
	err = reach(work, e.CollectPatience, func(ctx context.Context) (err error) {
		found, skipped, err = e.Guest.Artifacts(ctx, j, e.Artifacts)
		return err
	})
	if err != nil && work.Err() != nil {
		err = errors.New(e.whyEnded(ctx, work, j, err))
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if err == nil {
		found, skipped, err = e.hideNames(j, found, skipped)
	}
	if err != nil {
		warn("no artifacts: they could not be looked for: %v", err)
	}
	for _, s := range skipped {
		warn("no artifact: %s", s)
	}
	left := e.Artifacts
	for _, f := range found {
		if left.Files == 0 || f.Size > left.Each || f.Size > left.All { // the VM is not to be believed
			warn("no artifact: %s: beyond the limits", f.Path)
			continue
		}
		if slices.ContainsFunc(kept, func(a job.Artifact) bool { return a.Path == f.Path }) {
			warn("no artifact: %s: another one has this name", f.Path)
			continue
		}
		if work.Err() != nil {
			warn("no artifact: %s: %s", f.Path, e.whyEnded(ctx, work, j, work.Err()))
			continue
		}
		if err := e.keepArtifact(ctx, work, j, f); err != nil {
			if ctx.Err() != nil {
				return nil, nil, ctx.Err()
			}
			warn("no artifact: %s: %v", f.Path, err)
			if err := e.Store.DropArtifact(ctx, j.ID, f.Path); err != nil {
				e.Log.Warn("what was kept of a file stays", "job_id", j.ID, "err", err)
			}
			continue
		}
		earnTime(work, perArtifact)
		kept = append(kept, f.Artifact)
		left.Files--
		left.All -= f.Size
	}
	return kept, events, nil
}

// perArtifact is the time that a file brought whole buys the others: small ones
// cost round trips, not bytes.
const perArtifact = 2 * time.Second

// errAltered says that a file is not what the VM has said it is.
var errAltered = errors.New("it was changed, or damaged on its way: its sha256 is another")

// keepArtifact copies one file into the store, once more when what came is not
// what was found.
func (e *Executor) keepArtifact(ctx, work context.Context, j job.Job, f FoundArtifact) error {
	timed, end := allow(work, e.CollectPatience, 2*f.Size)
	defer end()
	sum, have, err := e.keptOf(ctx, j, f)
	if err == nil {
		err = e.copyArtifact(timed, j, f, sum, have)
	}
	if errors.Is(err, errAltered) {
		err = e.copyArtifact(timed, j, f, sha256.New(), 0)
	}
	if err != nil && timed.Err() != nil {
		err = errors.New(e.whyEnded(ctx, timed, j, err))
	}
	return err
}

// keptOf answers how much of a file is in the store, and the sum of that.
func (e *Executor) keptOf(ctx context.Context, j job.Job, f FoundArtifact) (sum hash.Hash, have int64, err error) {
	sum = sha256.New()
	r, err := e.Store.OpenArtifact(ctx, j.ID, f.Path)
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
func (e *Executor) copyArtifact(ctx context.Context, j job.Job, f FoundArtifact, sum hash.Hash, have int64) error {
	if have == 0 { // an empty file is one, too
		if err := e.Store.PutArtifact(ctx, j.ID, f.Path, 0, nil); err != nil {
			return err
		}
	}
	for have < f.Size {
		var data []byte
		err := reach(ctx, e.CollectPatience, func(ctx context.Context) (err error) {
			data, err = e.Guest.ReadArtifact(ctx, j, f.Source, have, min(outputChunk, f.Size-have))
			return err
		})
		if err != nil {
			return err
		}
		if len(data) == 0 {
			return fmt.Errorf("it was changed: %w", endsEarly("it", have, f.Size))
		}
		earn(ctx, int64(len(data)))
		if err := e.Store.PutArtifact(ctx, j.ID, f.Path, have, data); err != nil {
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
