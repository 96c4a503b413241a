package capture

import (
	"context"
	"fmt"
	"slices"

	"github.com/cenkalti/backoff/v5"

	"linus/internal/job"
	"linus/internal/patience"
)

const chunkSize = 1 << 20 // bytes per read

var streams = []string{job.Stdout, job.Stderr}

// Append stores output that the job's runner sent and returns the offset to send next, which may be
// before the end of data. It stores nothing after Close.
func (c *Capture) Append(ctx context.Context, stream string, offset int64, data []byte) (int64, error) {
	c.receiving.RLock()
	defer c.receiving.RUnlock()
	if c.closed {
		return c.seen(ctx, stream)
	}
	return c.keep(ctx, stream, offset, data, false)
}

// CatchUp fetches output that callbacks have not delivered, and records the agent's steps. Only the
// job's follower may call it.
func (c *Capture) CatchUp(ctx context.Context, j job.Job, state job.RunState) {
	for _, stream := range streams {
		if err := c.catchUp(ctx, j, stream, min(state.Written(stream), c.o.MaxOutput), false); err != nil {
			c.o.Log.Debug("output not fetched", "job_id", c.id, "stream", stream, "err", c.ShownError(err))
		}
	}
	c.Narrate(ctx, j)
}

// Read returns at most limit bytes of a stream in the VM, from offset, without secrets. ended says that
// nothing more will be written. Read reads farther back and ahead than asked, for secrets that extend into
// the range. Bytes that could be the beginning of a secret are not returned until they are known not to be.
func (c *Capture) Read(ctx context.Context, j job.Job, stream string, offset, limit int64, ended bool) ([]byte, error) {
	m, err := c.hider()
	if err != nil {
		return nil, err
	}
	margin := int64(m.Longest())
	back := min(offset, margin)
	want := back + limit + 2*margin // up to margin bytes may be held back
	data, err := c.o.Runner.ReadOutput(ctx, j, stream, offset-back, want)
	if err != nil || int64(len(data)) <= back {
		return nil, err
	}
	patience.Extend(ctx, int64(len(data)))
	masked, n := m.Mask(data, ended && int64(len(data)) < want)
	if int64(n) <= back {
		return nil, nil
	}
	return masked[back:min(int64(n), back+limit)], nil
}

// keep stores a part of a stream, without secrets, and returns the offset to continue at: bytes
// that could be the beginning of a secret are not stored yet. The stored part never ends within a
// secret, so that none is overlooked.
func (c *Capture) keep(ctx context.Context, stream string, offset int64, data []byte, ended bool) (int64, error) {
	m, err := c.hider()
	if err != nil {
		return 0, fmt.Errorf("secrets of job %s: %w", c.id, err)
	}
	if !m.Empty() && offset >= 0 {
		seen, err := c.seen(ctx, stream)
		if err != nil || offset > seen || offset+int64(len(data)) <= seen {
			return seen, err
		}
		data, _ = m.Mask(data[seen-offset:], ended)
		offset = seen
	}
	return c.append(ctx, stream, offset, data)
}

// append stores a part of a stream. If the last stored part was, or may have been, of the other
// stream, it records that this part comes after it.
func (c *Capture) append(ctx context.Context, stream string, offset int64, data []byte) (int64, error) {
	c.order.Lock()
	defer c.order.Unlock()
	store := c.o.Store.AppendTurn
	if c.turn == stream {
		store = c.o.Store.AppendOutput
	}
	next, err := store(ctx, c.id, stream, offset, data)
	before, known := c.stored[stream]
	switch {
	case err != nil || !known:
		c.turn = "" // it may or may not have been stored
	case next > before:
		c.turn = stream
	}
	if err == nil {
		if c.stored == nil {
			c.stored = map[string]int64{}
		}
		c.stored[stream] = next
	}
	return next, err
}

func (c *Capture) seen(ctx context.Context, stream string) (int64, error) {
	return c.o.Store.AppendOutput(ctx, c.id, stream, 0, nil)
}

// catchUp extends the store's copy of a stream to size bytes. If the task may write more, it stops
// before bytes that could be the beginning of a secret.
func (c *Capture) catchUp(ctx context.Context, j job.Job, stream string, size int64, ended bool) error {
	offset, err := c.seen(ctx, stream)
	for chunk := int64(chunkSize); err == nil && offset < size; {
		var data []byte
		if data, err = c.o.Runner.ReadOutput(ctx, j, stream, offset, chunk); err != nil {
			return err
		}
		patience.Extend(ctx, int64(len(data)))
		last := int64(len(data)) < chunk
		before := offset
		if offset, err = c.keep(ctx, stream, offset, data, last && ended); err != nil {
			return err
		}
		switch {
		case offset > before:
		case last && ended:
			return endsEarly(stream, offset, size)
		case last:
			return nil
		default: // a secret longer than the chunk may begin here
			chunk *= 2
		}
	}
	return err
}

// fetch extends the store's copy of a finished stream to total bytes. Of a stream beyond the limit
// it stores the head and returns the tail.
func (c *Capture) fetch(ctx context.Context, j job.Job, stream string, total int64) (tail []byte, err error) {
	if total <= c.o.MaxOutput {
		return nil, c.catchUp(ctx, j, stream, total, true)
	}
	half := c.o.MaxOutput / 2
	if err := c.catchUp(ctx, j, stream, half, true); err != nil {
		return nil, err
	}
	for at := total - half; at < total; at = total - half + int64(len(tail)) {
		data, err := c.Read(ctx, j, stream, at, min(chunkSize, total-at), true)
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

// endsEarly returns the error of a stream or file that is shorter than the VM reported. Retrying
// would not change it.
func endsEarly(what string, at, size int64) error {
	return backoff.Permanent(fmt.Errorf("%s ends at %d of %d bytes", what, at, size))
}
