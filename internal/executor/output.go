package executor

import (
	"context"
	"fmt"
	"slices"
	"time"

	"linus/internal/job"
)

const (
	outputChunk  = 1 << 20          // bytes fetched at once
	maxChunk     = 1 << 20          // bytes one call of Output answers
	readPatience = 10 * time.Second // for a VM that is asked what its task has written
)

// Output returns what a task has written to a stream from offset, at most limit
// bytes (1 MiB when 0 or more); a negative offset counts from the end as it is
// now. While the task runs that is what it has written by now, whatever the
// status mode and however much; what could be the beginning of a secret comes
// when it is known not to be. Afterwards it is head and tail of what was kept.
func (e *Executor) Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error) {
	if stream != job.Stdout && stream != job.Stderr {
		return job.Chunk{}, &job.FieldError{Field: "stream", Problem: fmt.Sprintf("%q is unknown", stream), Remedy: "use stdout or stderr"}
	}
	if limit <= 0 || limit > maxChunk {
		limit = maxChunk
	}
	for {
		j, err := e.o.Store.Job(ctx, id)
		if err != nil {
			return job.Chunk{}, err
		}
		chunk, err := e.chunk(ctx, j, stream, offset, limit)
		if err != nil && e.endedSince(ctx, j) {
			continue // all there is, is here now
		}
		return chunk, err
	}
}

// endedSince reports whether a job that ran has come to its end.
func (e *Executor) endedSince(ctx context.Context, j job.Job) bool {
	if j.Status.Terminal() {
		return false
	}
	now, err := e.o.Store.Job(ctx, j.ID)
	return err == nil && now.Status.Terminal()
}

// chunk is Output for a job as it was a moment ago: when that had ended, all
// that is held is final.
func (e *Executor) chunk(ctx context.Context, j job.Job, stream string, offset, limit int64) (job.Chunk, error) {
	ended, asks := j.Status.Terminal(), e.asksGuest(j)
	if asks {
		if _, err := e.masker(j); err != nil {
			return job.Chunk{}, fmt.Errorf("what the task has written is not shown while its secrets are not known: %w", err)
		}
	}
	var guestErr error
	if offset < 0 {
		size := counts(j, stream).Total
		if asks {
			var state job.RunState
			if state, guestErr = e.probe(ctx, j); guestErr == nil {
				size = max(size, written(state, stream))
			}
		}
		offset = max(0, size+offset)
	}
	data, at, err := e.o.Store.Written(ctx, j.ID, stream, offset, limit)
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
		e.o.Log.Debug("output not read from the VM", "job_id", j.ID, "stream", stream, "err", e.hideError(ctx, j.ID, guestErr))
		if len(data) == 0 && e.endedSince(ctx, j) {
			return job.Chunk{}, guestErr
		}
	}
	at = max(at, offset)
	next := at + int64(len(data))
	return job.Chunk{Data: data, Offset: at, Next: next, Dropped: at - offset, Complete: ended && next >= counts(j, stream).Total}, nil
}

// asksGuest reports whether the job's VM has more of its output than we.
func (e *Executor) asksGuest(j job.Job) bool {
	return e.o.Guest != nil && !j.StartedAt.IsZero() && j.Outcome == nil && j.VM != nil && j.VM.State == job.VMCreated
}

func counts(j job.Job, stream string) job.OutputInfo {
	if stream == job.Stderr {
		return j.Stderr
	}
	return j.Stdout
}

func written(s job.RunState, stream string) int64 {
	if stream == job.Stderr {
		return s.StderrBytes
	}
	return s.StdoutBytes
}

func (e *Executor) probe(ctx context.Context, j job.Job) (job.RunState, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return e.o.Guest.Probe(ctx, j)
}

// peek reads from the VM what its running task has written, without secrets.
func (e *Executor) peek(ctx context.Context, j job.Job, stream string, offset, limit int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, readPatience)
	defer cancel()
	return e.readHidden(ctx, j, stream, offset, limit, false)
}

// readHidden returns at most limit bytes of a stream in the VM, from offset,
// without secrets; ended says that nothing more will be written. It looks
// farther back and ahead than asked, for secrets that reach into it.
func (e *Executor) readHidden(ctx context.Context, j job.Job, stream string, offset, limit int64, ended bool) ([]byte, error) {
	m, err := e.masker(j)
	if err != nil {
		return nil, err
	}
	margin := int64(m.Longest())
	back := min(offset, margin)
	want := back + limit + 2*margin // as much may be held back
	data, err := e.o.Guest.ReadOutput(ctx, j, stream, offset-back, want)
	if err != nil || int64(len(data)) <= back {
		return nil, err
	}
	earn(ctx, int64(len(data)))
	masked, n := m.Mask(data, ended && int64(len(data)) < want)
	if int64(n) <= back {
		return nil, nil
	}
	return masked[back:min(int64(n), back+limit)], nil
}

// keep takes what a runner sends of a stream, without secrets, and returns the
// offset to go on at: what could be the beginning of a secret is not taken yet.
// What is held never ends within a secret, so that none is overlooked.
func (e *Executor) keep(ctx context.Context, j job.Job, stream string, offset int64, data []byte, ended bool) (int64, error) {
	m, err := e.masker(j)
	if err != nil {
		return 0, fmt.Errorf("secrets of job %s: %w", j.ID, err)
	}
	if !m.Empty() && offset >= 0 {
		seen, err := e.o.Store.AppendOutput(ctx, j.ID, stream, 0, nil)
		if err != nil || offset > seen || offset+int64(len(data)) <= seen {
			return seen, err
		}
		data, _ = m.Mask(data[seen-offset:], ended)
		offset = seen
	}
	return e.o.Store.AppendOutput(ctx, j.ID, stream, offset, data)
}

// endsEarly is the error of a stream, or a file, that is not as long as the VM
// has said.
func endsEarly(what string, at, size int64) error {
	return &earlyEnd{fmt.Sprintf("%s ends at %d of %d bytes", what, at, size)}
}

type earlyEnd struct{ text string }

func (e *earlyEnd) Error() string { return e.text }

// catchUp brings the store's copy of a stream up to size bytes, or, where the
// task may write more, to what can be told by now.
func (e *Executor) catchUp(ctx context.Context, j job.Job, stream string, size int64, ended bool) error {
	offset, err := e.o.Store.AppendOutput(ctx, j.ID, stream, 0, nil)
	for chunk := int64(outputChunk); err == nil && offset < size; {
		var data []byte
		if data, err = e.o.Guest.ReadOutput(ctx, j, stream, offset, chunk); err != nil {
			return err
		}
		earn(ctx, int64(len(data)))
		last := int64(len(data)) < chunk
		before := offset
		if offset, err = e.keep(ctx, j, stream, offset, data, last && ended); err != nil {
			return err
		}
		switch {
		case offset > before:
		case last && ended:
			return endsEarly(stream, offset, size)
		case last:
			return nil
		default: // a secret longer than that might begin here
			chunk *= 2
		}
	}
	return err
}

// fetch brings the store's copy of a stream that has ended up to total bytes,
// or, for one beyond the limit, up to the head, and returns the tail.
func (e *Executor) fetch(ctx context.Context, j job.Job, stream string, total int64) ([]byte, error) {
	if total <= e.o.MaxOutput {
		return nil, e.catchUp(ctx, j, stream, total, true)
	}
	if err := e.catchUp(ctx, j, stream, e.o.MaxOutput/2, true); err != nil {
		return nil, err
	}
	var tail []byte
	for at := total - e.o.MaxOutput/2; at < total; at = total - e.o.MaxOutput/2 + int64(len(tail)) {
		data, err := e.readHidden(ctx, j, stream, at, min(outputChunk, total-at), true)
		if err != nil {
			return nil, err
		}
		if len(data) == 0 {
			return nil, endsEarly(stream, at, total)
		}
		tail = slices.Concat(tail, data)
	}
	return tail, nil
}
