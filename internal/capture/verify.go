package capture

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"linus/internal/job"
)

// verify compares the stored output with the VM's and truncates it where they differ: anyone who
// has seen the job's token can send callbacks. Output from the task's channel is stored together
// with theirs, and compared in the same way. The rest is then fetched like any other missing
// output. verify costs nothing if nothing is stored yet, and one checksum if the output matches. It
// reads the output only if the checksum differs, as with masked secrets. It skips a VM that went
// down while the task ran, which may have lost output that callbacks had delivered.
func (c *Capture) verify(ctx context.Context, j job.Job, state job.RunState) error {
	if !state.Started || state.Reason == "lost" || j.Outcome.Reason == job.ReasonLost {
		return nil
	}
	j, err := c.o.Store.Job(ctx, c.id)
	if err != nil {
		return err
	}
	var ours [2]string
	var sizes [2]int64 // bytes to compare: the part of the stored output that will be kept
	whole := state.Sums != [2]string{}
	for i, stream := range streams {
		total, held := state.Written(stream), j.Output(stream)
		if sizes[i] = min(held.Held, total); total > c.o.MaxOutput {
			sizes[i] = min(held.Held, c.o.MaxOutput-c.o.MaxOutput/2)
		}
		whole = whole && sizes[i] == total
		if held.Total > total {
			if err := c.cutOff(ctx, stream, sizes[i]); err != nil {
				return err
			}
		}
		if ours[i], err = c.sumHeld(ctx, stream, sizes[i]); err != nil {
			return err
		}
	}
	if sizes[0] == 0 && sizes[1] == 0 {
		return nil
	}
	theirs := state.Sums // of the same bytes, if those are the whole output
	if !whole {
		if theirs, err = c.o.Runner.Sums(ctx, j, sizes[0], sizes[1]); err != nil {
			return err
		}
	}
	for i, stream := range streams {
		if ours[i] == theirs[i] {
			continue
		}
		same, err := c.common(ctx, j, stream, sizes[i])
		if err == nil && same < sizes[i] {
			err = c.cutOff(ctx, stream, same)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// sumHeld returns the sha256, in hex, of the first size stored bytes of a stream.
func (c *Capture) sumHeld(ctx context.Context, stream string, size int64) (string, error) {
	sum := sha256.New()
	for at := int64(0); at < size; {
		data, err := c.o.Store.Output(ctx, c.id, stream, at, min(chunkSize, size-at))
		if err != nil {
			return "", err
		}
		if len(data) == 0 {
			return "", endsEarly("the stored "+stream, at, size)
		}
		sum.Write(data)
		at += int64(len(data))
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// common returns how many bytes at the start of a stream equal the VM's.
func (c *Capture) common(ctx context.Context, j job.Job, stream string, size int64) (at int64, err error) {
	for at < size {
		theirs, err := c.Read(ctx, j, stream, at, min(chunkSize, size-at), true)
		if err != nil {
			return at, err
		}
		ours, err := c.o.Store.Output(ctx, c.id, stream, at, int64(len(theirs)))
		if err != nil {
			return at, err
		}
		same := 0
		for same < min(len(ours), len(theirs)) && ours[same] == theirs[same] {
			same++
		}
		at += int64(same)
		if same < len(theirs) || same == 0 {
			return at, nil
		}
	}
	return at, nil
}

// cutOff truncates a stream to the bytes that the task wrote.
func (c *Capture) cutOff(ctx context.Context, stream string, size int64) error {
	c.order.Lock()
	c.turn, c.stored = "", nil
	c.order.Unlock()
	if err := c.o.Store.CutOutput(ctx, c.id, stream, size); err != nil {
		return err
	}
	text := fmt.Sprintf("%s as delivered by callbacks differs from the VM's from byte %d on: fetched again over SSH", stream, size)
	_, err := c.o.Update(ctx, c.id, func(*job.Job) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventWarning, Phase: job.PhaseCollect, Text: text}}, nil
	})
	return err
}
