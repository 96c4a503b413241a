package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"linus/internal/job"
)

// A stream's bytes are in three files of the job's directory. They bypass the
// database, so that many small writes stay cheap:
//
//	stdout       the stream from its first byte, up to the limit
//	stdout.seen  how much has been seen, once that is more than stdout holds
//	stdout.tail  marker and tail, when the sealed stream is too long
//
// The row seals a stream: stdout.tail counts from the moment the row has the
// stream's counts, and is rewritten by whoever seals before that. Readers do
// not see bytes of stdout that the row does not count. stdout only grows,
// unless its content turns out not to be the task's, and the other files are
// replaced as a whole, so that reading needs no lock.
const (
	seenSuffix = ".seen"
	tailSuffix = ".tail"
)

// AppendOutput appends the new part of data, as far as the limit allows, and
// returns how much of the stream has been seen: the offset to send next. Data
// seen before is skipped, data that would leave a gap is ignored, and a sealed
// stream accepts nothing.
func (s *Store) AppendOutput(ctx context.Context, id, stream string, offset int64, data []byte) (int64, error) {
	if offset < 0 || offset > math.MaxInt64-int64(len(data)) {
		return 0, &job.FieldError{Field: "offset", Problem: fmt.Sprintf("%d is out of range", offset), Remedy: "give the bytes sent before"}
	}
	unlock, err := s.lockOutput(ctx, id, stream)
	if err != nil {
		return 0, err
	}
	defer unlock()
	sealed, err := s.sealed(ctx, id, stream)
	if err != nil {
		return 0, err
	}
	if sealed.Valid {
		info, err := decodeCounts(id, sealed.String)
		return info.Total, err
	}
	held, seen, err := s.open(id, stream)
	if err != nil {
		return 0, err
	}
	end := offset + int64(len(data))
	if offset > seen || end <= seen {
		return seen, nil
	}
	data = data[seen-offset:]
	if seen == held { // nothing was left out yet: the head may grow
		fits := min(int64(len(data)), max(s.maxOutput-held, 0))
		if err := appendAt(s.outputPath(id, stream), held, data[:fits]); err != nil {
			return seen, fmt.Errorf("write %s of job %s: %w", stream, id, err)
		}
		held += fits
	}
	if end > held {
		if err := replaceFile(s.outputPath(id, stream+seenSuffix), strconv.FormatInt(end, 10)); err != nil {
			return held, fmt.Errorf("write %s of job %s: %w", stream, id, err)
		}
	}
	return end, nil
}

// CutOutput discards what is stored of an open stream beyond its first size
// bytes, and the count of what was seen. A sealed stream stays as it is.
func (s *Store) CutOutput(ctx context.Context, id, stream string, size int64) error {
	unlock, err := s.lockOutput(ctx, id, stream)
	if err != nil {
		return err
	}
	defer unlock()
	sealed, err := s.sealed(ctx, id, stream)
	if err != nil || sealed.Valid {
		return err
	}
	held, _, err := s.open(id, stream)
	if err == nil {
		err = os.Remove(s.outputPath(id, stream+seenSuffix))
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil && size < held {
		err = os.Truncate(s.outputPath(id, stream), max(0, size))
	}
	if err != nil {
		return fmt.Errorf("cut %s of job %s: %w", stream, id, err)
	}
	return nil
}

// SealOutput makes the stream final: total bytes, of which tail are the last.
// It keeps everything when the total is within the limit and all of it is
// available; otherwise the head, a marker with the count of dropped bytes, and
// at most half the limit of the tail. Sealing again returns the same.
func (s *Store) SealOutput(ctx context.Context, id, stream string, total int64, tail []byte) (job.OutputInfo, error) {
	unlock, err := s.lockOutput(ctx, id, stream)
	if err != nil {
		return job.OutputInfo{}, err
	}
	defer unlock()
	sealed, err := s.sealed(ctx, id, stream)
	if err != nil {
		return job.OutputInfo{}, err
	}
	if sealed.Valid {
		return decodeCounts(id, sealed.String)
	}
	held, seen, err := s.open(id, stream)
	if err != nil {
		return job.OutputInfo{}, err
	}
	if total < seen { // more was seen than is reported: a VM that is gone reports nothing
		total, tail = seen, nil
	}
	info, err := s.complete(id, stream, held, total, tail)
	if err != nil {
		return job.OutputInfo{}, fmt.Errorf("write %s of job %s: %w", stream, id, err)
	}
	return info, s.writeCounts(ctx, id, stream, info)
}

// complete puts the final bytes of a stream on disk and counts them.
func (s *Store) complete(id, stream string, held, total int64, tail []byte) (job.OutputInfo, error) {
	path := s.outputPath(id, stream)
	keep := min(int64(len(tail)), s.maxOutput/2, total)
	tail = tail[int64(len(tail))-keep:]
	tailStart := total - keep
	if total <= s.maxOutput && tailStart <= held {
		if err := appendAt(path, held, tail[held-tailStart:]); err != nil {
			return job.OutputInfo{}, err
		}
		return job.OutputInfo{Held: total, Total: total}, syncFile(path)
	}
	head := min(held, s.maxOutput-keep)
	info := job.OutputInfo{Total: total, Dropped: tailStart - head}
	end := append(marker(info.Dropped), tail...)
	info.Held = head + int64(len(end))
	if err := writeFile(path+tailSuffix, end); err != nil {
		return job.OutputInfo{}, err
	}
	return info, syncFile(path)
}

// Output returns at most limit stored bytes of a stream, marker included.
// offset counts stored bytes; at and past the end there are none.
func (s *Store) Output(ctx context.Context, id, stream string, offset, limit int64) ([]byte, error) {
	h, err := s.storedParts(ctx, id, stream, offset, limit)
	if err != nil {
		return nil, err
	}
	return s.readStored(id, stream, h, offset, limit)
}

// Written returns at most limit bytes of what the task wrote to a stream,
// starting at offset or, where those are not stored, at the next stored byte,
// and the offset at which they start. It does not read across a gap. At and
// past the end it returns none, with an offset no greater than what was seen.
func (s *Store) Written(ctx context.Context, id, stream string, offset, limit int64) (data []byte, at int64, err error) {
	h, err := s.storedParts(ctx, id, stream, offset, limit)
	if err != nil {
		return nil, 0, err
	}
	if offset < h.head {
		data, err = s.readStored(id, stream, h, offset, min(limit, h.head-offset))
		return data, offset, err
	}
	tail := h.head + h.dropped
	at = min(max(offset, tail), tail+h.tail-h.marker)
	data, err = s.readStored(id, stream, h, h.head+h.marker+at-tail, limit)
	return data, at, err
}

// parts is what is stored of a stream: the head and, for a sealed stream that
// was too long, after the dropped bytes, a tail that starts with a marker.
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
	sealed, err := s.sealed(ctx, id, stream)
	if err != nil {
		return parts{}, err
	}
	info, err := s.counts(id, stream, sealed)
	if err != nil || !sealed.Valid || info.Dropped == 0 {
		return parts{head: info.Held}, err
	}
	fi, err := os.Stat(s.outputPath(id, stream+tailSuffix))
	if err != nil {
		return parts{}, fmt.Errorf("read %s of job %s: %w", stream, id, err)
	}
	return parts{info.Held - fi.Size(), info.Dropped, fi.Size(), int64(len(marker(info.Dropped)))}, nil
}

// marker replaces the dropped bytes in a sealed stream.
func marker(dropped int64) []byte { return fmt.Appendf(nil, "\n[linus: %d bytes dropped]\n", dropped) }

// readStored reads across the one or two files of a stream; offset counts stored
// bytes.
func (s *Store) readStored(id, stream string, h parts, offset, limit int64) (data []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("read %s of job %s: %w", stream, id, err)
		}
	}()
	for _, p := range []struct {
		name string
		size int64
	}{{stream, h.head}, {stream + tailSuffix, h.tail}} {
		n := min(limit, p.size-offset)
		if n <= 0 {
			offset = max(0, offset-p.size)
			continue
		}
		piece, err := readAt(s.outputPath(id, p.name), offset, n)
		if err != nil {
			return nil, err
		}
		data = append(data, piece...)
		offset, limit = 0, limit-n
	}
	return data, nil
}

// lockOutput locks both streams of a job; job.ErrNotFound.
func (s *Store) lockOutput(ctx context.Context, id, stream string) (unlock func(), err error) {
	if err := checkStream(stream); err != nil {
		return nil, err
	}
	if !isID(id) {
		return nil, job.ErrNotFound
	}
	unlock, err = lockDir(s.jobDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := s.sealed(ctx, id, stream); err != nil {
			return nil, err
		}
		if err = s.makeJobDir(id); err == nil {
			unlock, err = lockDir(s.jobDir(id))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("lock output of job %s: %w", id, err)
	}
	return unlock, nil
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

// sealed reads a stream's final counts from the row: NULL while open. The
// column has the stream's name, which checkStream has checked.
func (s *Store) sealed(ctx context.Context, id, stream string) (sql.NullString, error) {
	counts, err := first[sql.NullString](ctx, s.read, `SELECT `+stream+` FROM jobs WHERE id = ?`, id)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return counts, job.ErrNotFound
	case err != nil:
		return counts, fmt.Errorf("read job %s: %w", id, err)
	}
	return counts, nil
}

// writeCounts seals the stream.
func (s *Store) writeCounts(ctx context.Context, id, stream string, info job.OutputInfo) error {
	text, err := json.Marshal(info)
	if err == nil {
		err = s.transaction(ctx, func(tx *tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE jobs SET `+stream+` = ? WHERE id = ?`, string(text), id) //nolint:gosec // stream is a column's name, checked by checkStream
			return err
		})
	}
	if err != nil {
		return fmt.Errorf("write counts of job %s to %s: %w", id, databaseName, err)
	}
	return nil
}

// counts returns a stream's counts: the sealed ones, or else those of its
// files.
func (s *Store) counts(id, stream string, sealed sql.NullString) (job.OutputInfo, error) {
	if sealed.Valid {
		return decodeCounts(id, sealed.String)
	}
	held, seen, err := s.open(id, stream)
	return job.OutputInfo{Held: held, Total: seen, Dropped: seen - held}, err
}

func decodeCounts(id, text string) (job.OutputInfo, error) {
	var info job.OutputInfo
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		return info, fmt.Errorf("decode counts of job %s: %w", id, err)
	}
	return info, nil
}

// open returns how many bytes of an open stream are stored, and how many were
// seen. The latter is read first: once that file exists, stdout is final.
func (s *Store) open(id, stream string) (held, seen int64, err error) {
	text, err := os.ReadFile(s.outputPath(id, stream+seenSuffix))
	if err == nil {
		seen, err = strconv.ParseInt(string(text), 10, 64)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, 0, fmt.Errorf("read %s of job %s: %w", stream, id, err)
	}
	fi, err := os.Stat(s.outputPath(id, stream))
	switch {
	case err == nil:
		held = fi.Size()
	case !errors.Is(err, fs.ErrNotExist):
		return 0, 0, fmt.Errorf("read %s of job %s: %w", stream, id, err)
	}
	return held, max(held, seen), nil
}

func (s *Store) outputPath(id, name string) string { return filepath.Join(s.jobDir(id), name) }
