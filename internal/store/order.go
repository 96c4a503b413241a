package store

import (
	"context"
	"encoding/binary"

	"linus/internal/job"
)

// A file of the job records the order of its streams: a record for each turn, written before the
// turn's bytes. A record is a byte for the stream, and the offset in the stream of the turn's first
// byte.
const (
	orderName = "order"
	turnSize  = 9
	mostTurns = 8192 // recorded for a job; later bytes belong to the last turn of their stream
)

var turnStreams = []string{job.Stdout, job.Stderr}

// noteTurn records that the bytes of a stream from at come after everything that is stored.
func noteTurn(f outputFiles, stream string, at int64) error {
	is, err := f.open(orderName)
	if err != nil || is.held >= mostTurns*turnSize {
		return err
	}
	record := make([]byte, turnSize)
	if stream == job.Stderr {
		record[0] = 1
	}
	binary.BigEndian.PutUint64(record[1:], uint64(at)) //nolint:gosec // an offset
	return f.append(orderName, is.held-is.held%turnSize, record)
}

// forgetTurns deletes the recorded turns, because a stream was cut.
func forgetTurns(f outputFiles) error {
	is, err := f.open(orderName)
	if err == nil && is.held > 0 {
		err = f.truncate(orderName, 0)
	}
	return err
}

// OutputOrder returns what is stored of a job's streams, as Output counts it, in the order in which
// it was stored. Where no order is recorded, stdout comes before stderr.
func (s *Store) OutputOrder(ctx context.Context, id string) ([]job.OutputPart, error) {
	var of [2]parts // read before the turns: each byte among them has its turn
	for i, stream := range turnStreams {
		var err error
		if of[i], err = s.storedParts(ctx, id, stream, 0, 0); err != nil {
			return nil, err
		}
	}
	is, err := s.files.open(ctx, s.read, streamOf{id, orderName})
	if err != nil {
		return nil, err
	}
	size := is[0].held - is[0].held%turnSize
	var turns []byte
	if size > 0 {
		if turns, err = s.files.read(ctx, id, orderName, 0, size); err != nil {
			return nil, err
		}
	}
	type turn struct {
		stream int
		to     int64
	}
	all := make([]turn, 0, len(turns)/turnSize+4)
	last := [2]int{-1, -1}
	for ; len(turns) > 0; turns = turns[turnSize:] {
		stream := int(turns[0] & 1)
		if last[stream] >= 0 {
			all[last[stream]].to = int64(binary.BigEndian.Uint64(turns[1:])) //nolint:gosec // an offset
		}
		last[stream] = len(all)
		all = append(all, turn{stream, of[stream].head})
	}
	for i := range turnStreams { // bytes without a turn, and the tails
		if last[i] < 0 {
			all = append(all, turn{i, of[i].head})
		}
	}
	for i := range turnStreams {
		all = append(all, turn{i, of[i].head + of[i].tail})
	}
	var order []job.OutputPart
	var done [2]int64
	for _, t := range all {
		if to := min(t.to, of[t.stream].head+of[t.stream].tail); to > done[t.stream] {
			order = append(order, job.OutputPart{Stream: turnStreams[t.stream], From: done[t.stream], To: to})
			done[t.stream] = to
		}
	}
	return order, nil
}
