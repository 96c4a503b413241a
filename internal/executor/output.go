package executor

import (
	"context"
	"fmt"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

const (
	maxChunk     = 1 << 20          // most bytes that a call of Output returns
	readPatience = 10 * time.Second // for reading a task's output from its VM
)

// farthest is beyond any offset, and leaves room to count on from there.
const farthest = 1 << 62

// Output returns at most limit bytes (1 MiB if limit is 0 or larger) that a task wrote to a stream,
// from offset. A negative offset counts from the current end. Without a stream it returns what is
// stored of both, in order of arrival (see both). While the task runs it returns everything written
// so far, whatever the status mode; bytes that could be the beginning of a secret follow once they
// are known not to be. Afterwards it returns the head and tail that were kept.
func (e *Executor) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	if stream != job.Stdout && stream != job.Stderr && stream != "" {
		return job.Chunk{}, &job.FieldError{Field: "stream", Problem: fmt.Sprintf("%q is unknown", stream), Remedy: "use stdout or stderr, or leave it out for both"}
	}
	if err := job.Within("offset", offset, -farthest, farthest); err != nil {
		return job.Chunk{}, err
	}
	if limit <= 0 || limit > maxChunk {
		limit = maxChunk
	}
	for {
		j, err := e.o.Jobs.Job(ctx, id)
		if err != nil {
			return job.Chunk{}, err
		}
		if stream == "" {
			return e.both(ctx, j, offset, limit)
		}
		chunk, err := e.chunk(ctx, j, stream, offset, limit)
		if err != nil && e.endedSince(ctx, j) {
			continue // everything is in the store now
		}
		return chunk, err
	}
}

// endedSince reports whether a job that was unfinished in j has ended.
func (e *Executor) endedSince(ctx context.Context, j job.Job) bool {
	if j.Status.Terminal() {
		return false
	}
	now, err := e.o.Jobs.Job(ctx, j.ID)
	return err == nil && now.Status.Terminal()
}

// chunk is Output for j as just read from the store: if j has ended, the stored output is final.
func (e *Executor) chunk(ctx context.Context, j job.Job, stream string, offset, limit int64) (job.Chunk, error) {
	ended, asks, c := j.Status.Terminal(), e.asksGuest(j), e.captureOf(j)
	if asks {
		if err := c.CanHide(); err != nil {
			return job.Chunk{}, fmt.Errorf("the task's output is not shown while its secrets are unknown: %w", err)
		}
	}
	var guestErr error
	if offset < 0 {
		size := j.Output(stream).Total
		if asks {
			var state job.RunState
			if state, guestErr = e.probe(ctx, j); guestErr == nil {
				size = max(size, state.Written(stream))
			}
		}
		offset = max(0, size+offset)
	}
	data, at, err := e.o.Captured.Written(ctx, j.ID, stream, offset, limit)
	if err != nil {
		return job.Chunk{}, err
	}
	if n := int64(len(data)); asks && guestErr == nil && n < limit {
		var more []byte
		if more, guestErr = e.peek(ctx, j, stream, offset+n, limit-n); guestErr == nil {
			data = append(data, more...)
		}
	}
	if guestErr != nil {
		e.o.Log.Debug("output not read from the VM", "job_id", j.ID, "stream", stream, "err", c.ShownError(guestErr))
		if len(data) == 0 && e.endedSince(ctx, j) {
			return job.Chunk{}, guestErr
		}
	}
	at = max(at, offset)
	next := at + int64(len(data))
	return job.Chunk{Data: data, Offset: at, Next: next, Dropped: at - offset, Complete: ended && next >= j.Output(stream).Total}, nil
}

// both is Output of both streams, in order of arrival: if parts arrived in the same look at the VM,
// up to a tenth of a second apart, stdout comes first. For a running task it returns only what has
// arrived. Offsets count stored bytes, including the markers for dropped output.
func (e *Executor) both(ctx context.Context, j job.Job, offset, limit int64) (job.Chunk, error) {
	order, err := e.o.Captured.OutputOrder(ctx, j.ID)
	if err != nil {
		return job.Chunk{}, err
	}
	var total int64
	for _, part := range order {
		total += part.To - part.From
	}
	if offset < 0 {
		offset = max(0, total+offset)
	}
	c := job.Chunk{Offset: offset, Next: offset}
	at := int64(0) // offset of the part
	for _, part := range order {
		size := part.To - part.From
		skip := max(0, c.Next-at)
		if n := min(size-skip, limit-int64(len(c.Data))); n > 0 {
			data, err := e.o.Captured.Output(ctx, j.ID, part.Stream, part.From+skip, n)
			if err != nil {
				return job.Chunk{}, err
			}
			c.Data = append(c.Data, data...)
			c.Next += int64(len(data))
			if int64(len(data)) < n { // the output was cut meanwhile
				break
			}
		}
		at += size
	}
	c.Complete = j.Status.Terminal() && c.Next >= total
	return c, nil
}

// asksGuest reports whether the job's VM may have more output than the store.
func (e *Executor) asksGuest(j job.Job) bool {
	return e.o.Runner != nil && !j.StartedAt.IsZero() && j.Outcome == nil && j.VM != nil && j.VM.State == vm.Created
}

func (e *Executor) probe(ctx context.Context, j job.Job) (job.RunState, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return e.o.Runner.Probe(ctx, j)
}

func (e *Executor) peek(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return e.captureOf(j).Read(ctx, j, stream, offset, limit, false)
}
