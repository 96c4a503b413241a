package capture

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
	"strings"
	"time"

	"linus/internal/job"
	"linus/internal/patience"
)

// collectArtifacts stores the files that the job's patterns match, once its task has ended, and
// records what could not be stored and why. Files that were completed before a restart are not
// fetched again; partial ones are resumed. Nothing is stored for a lost or cancelled job, because
// nobody waits for it. work bounds the work in the VM; each file has its own deadline within that.
func (c *Capture) collectArtifacts(ctx, work context.Context, j job.Job, state job.RunState, got *Collected) error {
	if len(c.manifest.Artifacts) == 0 && !c.manifest.Repository.Given() {
		return nil
	}
	if why := whyNotSearched(j, state); why != "" {
		c.skipAll(got, "not searched for: "+why)
		return nil
	}
	var found []job.FoundArtifact
	err := patience.RetryUnreachable(work, c.o.Patience, func(ctx context.Context) (err error) {
		found, got.Skipped, err = c.o.Runner.Artifacts(ctx, j, c.o.Artifacts)
		return err
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if ours(work, err) {
		return err
	}
	if err == nil {
		found = c.onlyAsked(found, &got.Skipped)
		found, got.Skipped, err = c.hideNames(found, got.Skipped)
	}
	if err != nil {
		found, got.Skipped = nil, job.SkippedArtifacts{}
		c.skipAll(got, "it could not be searched for: "+c.whyEnded(work, err))
	}
	left := c.o.Artifacts
	for _, f := range found {
		switch {
		case left.Files == 0 || f.Size > left.Each || f.Size > left.All: // the VM is not trusted
			got.Skipped.Skip(f.Path, "beyond the limits")
			continue
		case f.Path == job.PatchArtifact && c.manifest.Repository.Given():
			got.Skipped.Skip(f.Path, "the engine's own patch of the repository has this name: give the file another one")
			continue
		case slices.ContainsFunc(got.Artifacts, func(a job.Artifact) bool { return within(a.Path, f.Path) || within(f.Path, a.Path) }):
			got.Skipped.Skip(f.Path, "another artifact has this name")
			continue
		case work.Err() != nil:
			got.Skipped.Skip(f.Path, c.whyEnded(work, work.Err()))
			continue
		}
		if err := c.keepArtifact(ctx, work, j, f); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if ours(work, err) {
				return err
			}
			got.Skipped.Skip(f.Path, err.Error())
			if err := c.o.Store.DropArtifact(ctx, c.id, f.Path); err != nil {
				c.o.Log.Warn("what was kept of a file stays", "job_id", c.id, "err", err)
			}
			continue
		}
		patience.ExtendTime(work, perArtifact)
		got.Artifacts = append(got.Artifacts, f.Artifact)
		left.Files--
		left.All -= f.Size
	}
	return nil
}

// within reports whether name is of or below it.
func within(of, name string) bool { return of == name || strings.HasPrefix(name, of+"/") }

// onlyAsked removes files that the manifest does not ask for. Only a compromised VM lists such files.
func (c *Capture) onlyAsked(found []job.FoundArtifact, skipped *job.SkippedArtifacts) []job.FoundArtifact {
	asked := askedBy(c.manifest)
	return slices.DeleteFunc(slices.Clone(found), func(f job.FoundArtifact) bool {
		if asked.names(f.Path) {
			return false
		}
		skipped.Skip(f.Path, "the manifest does not ask for it")
		return true
	})
}

// skipAll records for each of the job's patterns why it was not searched for.
func (c *Capture) skipAll(got *Collected, why string) {
	for _, pattern := range c.manifest.Artifacts {
		got.Skipped.Skip(c.hide(pattern), why)
	}
	if c.manifest.Repository.Given() {
		got.Skipped.Skip(job.BundleArtifact, why)
	}
}

// whyNotSearched returns why searching for artifacts is pointless; empty if it is not.
func whyNotSearched(j job.Job, state job.RunState) string {
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

// Warnings returns the events about artifacts that were not kept.
func (c Collected) Warnings() (events []job.Event) {
	for _, s := range c.Skipped.ArtifactsSkipped {
		events = append(events, job.Event{Kind: job.EventWarning, Phase: job.PhaseCollect, Text: "no artifact: " + s.Path + ": " + s.Reason})
	}
	if more := c.Skipped.ArtifactsSkippedCount - len(c.Skipped.ArtifactsSkipped); more > 0 {
		events = append(events, job.Event{Kind: job.EventWarning, Phase: job.PhaseCollect, Text: fmt.Sprintf("no artifact: %d more", more)})
	}
	return events
}

// perArtifact is how much a completely fetched file extends the time for the others: small files
// cost round trips, not bytes.
const perArtifact = 2 * time.Second

// errAltered says that a file does not have the sha256 that the VM reported.
var errAltered = errors.New("it was changed, or damaged in transit: its sha256 differs")

// keepArtifact copies one file into the store, and once more if the copy differs from the reported file.
func (c *Capture) keepArtifact(ctx, work context.Context, j job.Job, f job.FoundArtifact) error {
	timed, end := patience.Allow(work, c.o.Patience, 2*f.Size)
	defer end()
	sum, have, err := c.keptOf(ctx, f)
	if err == nil {
		err = c.copyArtifact(timed, j, f, sum, have)
	}
	if errors.Is(err, errAltered) {
		err = c.copyArtifact(timed, j, f, sha256.New(), 0)
	}
	if err == nil || ours(work, err) {
		return err
	}
	return errors.New(c.whyEnded(timed, err))
}

// keptOf returns how many bytes of a file are stored, and their checksum.
func (c *Capture) keptOf(ctx context.Context, f job.FoundArtifact) (sum hash.Hash, have int64, err error) {
	sum = sha256.New()
	r, err := c.o.Store.OpenArtifact(ctx, c.id, f.Path)
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

// copyArtifact copies the rest of a file. have bytes of it are stored and included in sum.
func (c *Capture) copyArtifact(ctx context.Context, j job.Job, f job.FoundArtifact, sum hash.Hash, have int64) error {
	if have == 0 { // an empty file is stored, too
		if err := c.o.Store.PutArtifact(ctx, c.id, f.Path, 0, nil); err != nil {
			return err
		}
	}
	for have < f.Size {
		var data []byte
		err := patience.RetryUnreachable(ctx, c.o.Patience, func(ctx context.Context) (err error) {
			data, err = c.o.Runner.ReadArtifact(ctx, j, f.Source, have, min(chunkSize, f.Size-have))
			return err
		})
		if err != nil {
			return err
		}
		if len(data) == 0 {
			return fmt.Errorf("it was changed: %w", endsEarly("it", have, f.Size))
		}
		patience.Extend(ctx, int64(len(data)))
		if err := c.o.Store.PutArtifact(ctx, c.id, f.Path, have, data); err != nil {
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
