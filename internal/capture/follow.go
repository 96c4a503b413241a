package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"linus/internal/job"
)

// maxHeldBack bounds the bytes of a followed stream that are held back because they could be the
// beginning of a secret.
const maxHeldBack = 4 << 20

// heldBack is the unstored end of a followed stream.
type heldBack struct {
	offset int64 // of data in the stream
	data   []byte
}

// errGap says that a piece does not continue the stored output.
var errGap = errors.New("it does not follow on what is stored")

// Follow stores a piece of output that continues its stream, like Append. After an error nothing
// more can follow. Only the job's follower may call it.
func (c *Capture) Follow(ctx context.Context, p job.Piece) error {
	back := c.heldBack(p.Stream)
	if len(back.data) == 0 {
		back.offset = p.Offset
	}
	if back.offset+int64(len(back.data)) != p.Offset {
		return fmt.Errorf("%s from byte %d on: %w", p.Stream, p.Offset, errGap)
	}
	back.data = append(back.data, p.Data...)
	return c.storeHeldBack(ctx, p.Stream, false)
}

// FollowEnd stores the output held back, once it is known to be complete, and keeps the task's
// state for Collect. Only the job's follower may call it.
func (c *Capture) FollowEnd(ctx context.Context, state job.RunState) error {
	c.ended = &state
	for _, stream := range streams {
		back := c.heldBack(stream)
		if len(back.data) == 0 || back.offset+int64(len(back.data)) != state.Written(stream) {
			continue
		}
		if err := c.storeHeldBack(ctx, stream, true); err != nil {
			return err
		}
	}
	return nil
}

func (c *Capture) heldBack(stream string) *heldBack {
	if c.back[stream] == nil {
		c.back[stream] = &heldBack{}
	}
	return c.back[stream]
}

// storeHeldBack stores the output held back, except bytes that could be the beginning of a secret.
func (c *Capture) storeHeldBack(ctx context.Context, stream string, ended bool) error {
	c.receiving.RLock()
	defer c.receiving.RUnlock()
	if c.closed {
		return nil
	}
	back := c.heldBack(stream)
	next, err := c.keep(ctx, stream, back.offset, back.data, ended)
	switch {
	case err != nil:
		return err
	case next < back.offset:
		return fmt.Errorf("%s from byte %d on: %w", stream, back.offset, errGap)
	}
	stored := min(next-back.offset, int64(len(back.data)))
	back.data, back.offset = slices.Clone(back.data[stored:]), back.offset+stored
	if len(back.data) > maxHeldBack {
		return fmt.Errorf("%s from byte %d on could all be a secret", stream, back.offset)
	}
	return nil
}
