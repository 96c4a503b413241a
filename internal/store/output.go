package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math"

	"linus/internal/job"
)

// A stream's bytes are in two files of the job: the head, which has the stream's name, from the
// first byte up to the limit and, if the sealed stream is too long, a tail with a marker before it.
//
// The row seals a stream: the tail counts from the moment the row has the stream's counts, and is
// rewritten by whoever seals before that. Readers do not see bytes of the head that the row does
// not count. The head only grows, unless its content turns out not to be the task's, and the tail
// is replaced as a whole, so reading needs no lock.
const (
	seenSuffix = ".seen"
	tailSuffix = ".tail"
)

// AppendOutput appends the new part of data, up to the limit, and returns how much of the stream
// has been seen: the offset to send next. Data seen before is skipped, data that would leave a gap
// is ignored, and a sealed stream accepts nothing.
func (s *Store) AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (seen int64, err error) {
	return s.appendOutput(ctx, id, stream, offset, data, false)
}

// AppendTurn is AppendOutput for a stream after output of the other one: the new part of data comes
// after everything that is stored of both, as OutputOrder reports.
func (s *Store) AppendTurn(ctx context.Context, id, stream string, offset int64, data []byte) (seen int64, err error) {
	return s.appendOutput(ctx, id, stream, offset, data, true)
}

func (s *Store) appendOutput(ctx context.Context, id, stream string, offset int64, data []byte, turns bool) (seen int64, err error) {
	if offset < 0 || offset > math.MaxInt64-int64(len(data)) {
		return 0, &job.FieldError{Field: "offset", Problem: fmt.Sprintf("%d is out of range", offset), Remedy: "give the bytes sent before"}
	}
	err = s.changeOutput(ctx, id, stream, func(f outputFiles, sealed sealedStreams) (err error) {
		if counts := sealed[stream]; counts.Valid {
			info, err := decodeCounts(id, counts.String)
			seen = info.Total
			return err
		}
		seen, err = s.appendNew(f, stream, offset, data, turns)
		return tried(err, "write %s of job %s", stream, id)
	})
	return seen, err
}

// appendNew appends the new part of data to an open stream.
func (s *Store) appendNew(f outputFiles, stream string, offset int64, data []byte, turns bool) (seen int64, err error) {
	is, err := f.open(stream)
	if err != nil {
		return 0, err
	}
	end := offset + int64(len(data))
	if offset > is.seen || end <= is.seen {
		return is.seen, nil
	}
	data = data[is.seen-offset:]
	if is.seen == is.held { // nothing was left out yet: the head may grow
		fits := min(int64(len(data)), max(s.maxOutput-is.held, 0))
		if turns && fits > 0 {
			if err := noteTurn(f, stream, is.held); err != nil {
				return is.seen, err
			}
		}
		if err := f.append(stream, is.held, data[:fits]); err != nil {
			return is.seen, err
		}
		is.held += fits
	}
	if end > is.held {
		if err := f.see(stream, end); err != nil {
			return is.held, err
		}
	}
	return end, nil
}

// CutOutput discards what is stored of an open stream beyond its first size bytes, and the count of
// what was seen. A sealed stream stays as it is.
func (s *Store) CutOutput(ctx context.Context, id, stream string, size int64) error {
	return s.changeOutput(ctx, id, stream, func(f outputFiles, sealed sealedStreams) error {
		if sealed[stream].Valid {
			return nil
		}
		is, err := f.open(stream)
		if err == nil {
			err = f.see(stream, 0)
		}
		if err == nil && size < is.held {
			err = errors.Join(forgetTurns(f), f.truncate(stream, max(0, size)))
		}
		return tried(err, "cut %s of job %s", stream, id)
	})
}

// SealOutput makes streams final, together. Each stream has a total number of bytes, the last of
// which are the tail. SealOutput keeps everything if the total is within the limit and all of it is
// available; otherwise it keeps the head, a marker with the count of dropped bytes, and at most
// half the limit of the tail. Sealing again returns the same.
func (s *Store) SealOutput(ctx context.Context, id string, ends ...job.StreamEnd) (infos []job.OutputInfo, err error) {
	for _, end := range ends {
		if err := checkStream(end.Stream); err != nil {
			return nil, err
		}
	}
	err = s.changeOutput(ctx, id, job.Stdout, func(f outputFiles, sealed sealedStreams) error {
		infos = make([]job.OutputInfo, len(ends))
		open := false
		for i, end := range ends {
			var err error
			if counts := sealed[end.Stream]; counts.Valid {
				infos[i], err = decodeCounts(id, counts.String)
			} else {
				open = true
				infos[i], err = s.complete(f, end)
				sealed[end.Stream] = encodeCounts(infos[i])
			}
			if err != nil {
				return fmt.Errorf("write %s of job %s: %w", end.Stream, id, err)
			}
		}
		if !open {
			return nil
		}
		err := f.seal(sealed)
		return tried(err, "write counts of job %s to %s", id, s.name)
	})
	if err != nil {
		return nil, err
	}
	return infos, nil
}

// complete makes the final bytes of an open stream durable and counts them.
func (s *Store) complete(f outputFiles, of job.StreamEnd) (job.OutputInfo, error) {
	stream, total, tail := of.Stream, of.Total, of.Tail
	is, err := f.open(stream)
	if err != nil {
		return job.OutputInfo{}, err
	}
	held := is.held
	if total < is.seen { // more was seen than reported: a VM that is gone reports nothing
		total, tail = is.seen, nil
	}
	keep := min(int64(len(tail)), s.maxOutput/2, total)
	tail = tail[int64(len(tail))-keep:]
	tailStart := total - keep
	if total <= s.maxOutput && tailStart <= held {
		if len(tail[held-tailStart:]) > 0 {
			if err := noteTurn(f, stream, held); err != nil {
				return job.OutputInfo{}, err
			}
		}
		if err := f.append(stream, held, tail[held-tailStart:]); err != nil {
			return job.OutputInfo{}, err
		}
		return job.OutputInfo{Held: total, Total: total}, f.sync(stream)
	}
	head := min(held, s.maxOutput-keep)
	info := job.OutputInfo{Total: total, Dropped: tailStart - head}
	end := append(marker(info.Dropped), tail...)
	info.Held = head + int64(len(end))
	if err := f.replace(stream+tailSuffix, end); err != nil {
		return job.OutputInfo{}, err
	}
	return info, f.sync(stream)
}

// Output returns at most limit stored bytes of a stream, including the marker. offset counts stored
// bytes; at and past the end there are none.
func (s *Store) Output(ctx context.Context, id, stream string, offset, limit int64) ([]byte, error) {
	h, err := s.storedParts(ctx, id, stream, offset, limit)
	if err != nil {
		return nil, err
	}
	return s.readStored(ctx, id, stream, h, offset, limit)
}

// Written returns at most limit bytes of what the task wrote to a stream, and the offset at which
// they start: offset or, where its bytes are not stored, that of the next stored byte. It does not
// read across a gap. At and past the end it returns no bytes, and an offset no greater than what
// was seen.
func (s *Store) Written(ctx context.Context, id, stream string, offset, limit int64) (data []byte, at int64, err error) {
	h, err := s.storedParts(ctx, id, stream, offset, limit)
	if err != nil {
		return nil, 0, err
	}
	if offset < h.head {
		data, err = s.readStored(ctx, id, stream, h, offset, min(limit, h.head-offset))
		return data, offset, err
	}
	tail := h.head + h.dropped
	at = min(max(offset, tail), tail+h.tail-h.marker)
	data, err = s.readStored(ctx, id, stream, h, h.head+h.marker+at-tail, limit)
	return data, at, err
}

// parts are the sizes of what is stored of a stream: the head and, for a sealed stream that was too
// long, the dropped bytes and a tail that starts with a marker.
type parts struct{ head, dropped, tail, marker int64 }

// storedParts returns what is stored of a stream, and validates offset and limit.
func (s *Store) storedParts(ctx context.Context, id, stream string, offset, limit int64) (parts, error) {
	if offset < 0 {
		return parts{}, &job.FieldError{Field: "offset", Problem: fmt.Sprintf("%d is out of range", offset), Remedy: "give 0 or more"}
	}
	if limit < 0 {
		return parts{}, &job.FieldError{Field: "limit", Problem: fmt.Sprintf("%d is out of range", limit), Remedy: "give 0 or more"}
	}
	if err := checkStream(stream); err != nil {
		return parts{}, err
	}
	all, err := s.sealedIn(ctx, s.read, id, "")
	if err != nil {
		return parts{}, err
	}
	sealed, file := all[stream], stream
	var info job.OutputInfo
	if sealed.Valid {
		if info, err = decodeCounts(id, sealed.String); err != nil || info.Dropped == 0 {
			return parts{head: info.Held}, err
		}
		file += tailSuffix
	}
	stored, err := s.files.open(ctx, s.read, streamOf{id, file})
	switch {
	case err != nil:
		return parts{}, err
	case !sealed.Valid:
		return parts{head: stored[0].held}, nil
	}
	tail := stored[0].held
	return parts{info.Held - tail, info.Dropped, tail, int64(len(marker(info.Dropped)))}, nil
}

// marker replaces the dropped bytes in a sealed stream.
func marker(dropped int64) []byte { return fmt.Appendf(nil, "\n[linus: %d bytes dropped]\n", dropped) }

// readStored reads across the one or two files of a stream; offset counts stored bytes.
func (s *Store) readStored(ctx context.Context, id, stream string, h parts, offset, limit int64) (data []byte, err error) {
	defer func() { err = tried(err, "read %s of job %s", stream, id) }()
	for _, p := range []struct {
		name string
		size int64
	}{{stream, h.head}, {stream + tailSuffix, h.tail}} {
		n := min(limit, p.size-offset)
		if n <= 0 {
			offset = max(0, offset-p.size)
			continue
		}
		piece, err := s.files.read(ctx, id, p.name, offset, n)
		if err != nil {
			return nil, err
		}
		data = append(data, piece...)
		offset, limit = 0, limit-n
	}
	return data, nil
}

// changeOutput calls work with a job's output while nobody else changes it; job.ErrNotFound.
func (s *Store) changeOutput(ctx context.Context, id, stream string, work func(outputFiles, sealedStreams) error) error {
	if err := checkStream(stream); err != nil {
		return err
	}
	if !isID(id) {
		return job.ErrNotFound
	}
	return s.files.change(ctx, id, work)
}

func checkStream(stream string) error {
	if stream == job.Stdout || stream == job.Stderr {
		return nil
	}
	return &job.FieldError{
		Field: "stream", Problem: fmt.Sprintf("%q is unknown", stream),
		Remedy: "use one of: " + job.Stdout + ", " + job.Stderr,
	}
}

// sealedIn reads the final counts of a job's streams from its row; job.ErrNotFound. lock is
// appended to the query.
func (s *Store) sealedIn(ctx context.Context, q querier, id, lock string) (sealedStreams, error) {
	sealed, err := only(query(ctx, q, func(row scanner) (sealedStreams, error) {
		var stdout, stderr sql.NullString
		err := row.Scan(&stdout, &stderr)
		return sealedStreams{job.Stdout: stdout, job.Stderr: stderr}, err
	}, `SELECT stdout, stderr FROM jobs WHERE id = ?`+lock, id))
	return sealed, tried(err, "read job %s", id)
}

func sealRow(tx *tx, id string, counts sealedStreams) {
	tx.post(`UPDATE jobs SET stdout = ?, stderr = ? WHERE id = ?`, counts[job.Stdout], counts[job.Stderr], id)
}

func encodeCounts(info job.OutputInfo) sql.NullString {
	text, _ := json.Marshal(info) // numbers and texts: cannot fail
	return sql.NullString{String: string(text), Valid: true}
}

func decodeCounts(id, text string) (job.OutputInfo, error) {
	var info job.OutputInfo
	err := json.Unmarshal([]byte(text), &info)
	return info, tried(err, "decode counts of job %s", id)
}
