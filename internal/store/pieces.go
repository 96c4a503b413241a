package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"

	"linus/internal/job"
)

const (
	// maxPiece is the size of a large file's pieces.
	maxPiece = 256 << 10
	// smallPiece is the size up to which an append extends a piece; that rewrites the piece.
	smallPiece = 8 << 10
	// maxName bounds a name in the key of job_data: PostgreSQL limits the size of index entries.
	maxName = 500
)

// pieces stores the files of jobs in the table job_data, each as pieces without a gap. A piece has
// the offset of its first byte. The store's transactions change pieces with the job's row locked.
// stdout.seen is an empty piece at the offset that was seen.
type pieces struct{ s *Store }

func (p *pieces) change(ctx context.Context, id string, work func(outputFiles, sealedStreams) error) error {
	return p.s.transaction(ctx, func(tx *tx) error {
		sealed, err := p.s.sealedIn(ctx, tx, id, p.s.dialect.lock("jobs"))
		if err != nil {
			return err
		}
		return work(pieceWriter{p, tx, id}, sealed)
	})
}

func (p *pieces) open(ctx context.Context, q querier, streams ...streamOf) ([]openCounts, error) {
	var ids, names []string
	for _, of := range streams {
		ids, names = append(ids, of.id, of.id), append(names, of.stream, of.stream+seenSuffix)
	}
	ends, err := p.ends(ctx, q, ids, names)
	if err != nil {
		return nil, fmt.Errorf("read counts of output: %w", err)
	}
	all := make([]openCounts, len(streams))
	for i := range all {
		all[i] = openCounts{ends[2*i], max(ends[2*i], ends[2*i+1])}
	}
	return all, nil
}

func (p *pieces) counts() string {
	end := func(name string) string {
		return `coalesce((SELECT d.at + octet_length(d.data) FROM job_data d WHERE d.job_id = jobs.id AND d.name = '` + name + `' ORDER BY d.at DESC LIMIT 1), 0)`
	}
	both := func(stream string) string {
		return end(stream) + `, greatest(` + end(stream) + `, ` + end(stream+seenSuffix) + `)`
	}
	return `CASE WHEN jobs.stdout IS NULL OR jobs.stderr IS NULL THEN concat_ws(' ', ` + both(job.Stdout) + `, ` + both(job.Stderr) + `) END`
}

// ends returns the sizes of files, 0 for a missing one.
func (p *pieces) ends(ctx context.Context, q querier, ids, names []string) ([]int64, error) {
	return query(ctx, q, scanValue[int64], `SELECT coalesce((SELECT d.at + octet_length(d.data) FROM job_data d
			WHERE d.job_id = w.id AND d.name = w.name ORDER BY d.at DESC LIMIT 1), 0)
		FROM unnest(?::text[], ?::text[]) WITH ORDINALITY AS w (id, name, n) ORDER BY w.n`, ids, names)
}

func (p *pieces) read(ctx context.Context, id, name string, offset, n int64) ([]byte, error) {
	data, err := p.upTo(ctx, id, name, offset, n)
	if err == nil && int64(len(data)) < n {
		err = io.ErrUnexpectedEOF
	}
	return data, err
}

// upTo returns n bytes of a file from offset, or fewer at its end.
func (p *pieces) upTo(ctx context.Context, id, name string, offset, n int64) ([]byte, error) {
	found, err := query(ctx, p.s.read, scanValue[[]byte], `SELECT substring(data FROM (greatest(at, ?) - at)::int + 1 FOR ?) FROM job_data
		WHERE job_id = ? AND name = ? AND at < ? AND at >= (SELECT coalesce(max(at), 0) FROM job_data WHERE job_id = ? AND name = ? AND at <= ?)
		ORDER BY at`, offset, min(n, math.MaxInt32), id, name, offset+n, id, name, offset)
	if err != nil {
		return nil, err
	}
	data := bytes.Join(found, nil)
	return data[:min(int64(len(data)), n)], nil
}

// forget has nothing to do: the pieces were deleted with the job's row.
func (p *pieces) forget(string) error { return nil }

func (p *pieces) forgetOrphans(context.Context) error { return nil }

// pieceWriter writes pieces of a job's files in a transaction.
type pieceWriter struct {
	p  *pieces
	tx *tx
	id string
}

func (w pieceWriter) open(stream string) (openCounts, error) {
	return only(w.p.open(w.tx.ctx, w.tx, streamOf{w.id, stream}))
}

func (w pieceWriter) append(name string, offset int64, data []byte) error {
	if len(data) > 0 && len(data) < smallPiece && offset > 0 {
		n, err := w.tx.ExecContext(w.tx.ctx, `UPDATE job_data SET data = data || ?
			WHERE job_id = ? AND name = ? AND at >= ? AND at + octet_length(data) = ? AND octet_length(data) <= ?`,
			data, w.id, name, offset-smallPiece, offset, smallPiece-len(data))
		if err != nil || n > 0 {
			return err
		}
	}
	for len(data) > 0 {
		n := min(len(data), maxPiece)
		w.put(name, offset, data[:n])
		offset, data = offset+int64(n), data[n:]
	}
	return nil
}

// put writes a piece, replacing an empty one.
func (w pieceWriter) put(name string, at int64, data []byte) {
	w.tx.post(`INSERT INTO job_data (job_id, name, at, data) VALUES (?, ?, ?, ?)
		ON CONFLICT (job_id, name, at) DO UPDATE SET data = EXCLUDED.data`, w.id, name, at, data)
}

func (w pieceWriter) truncate(name string, size int64) error {
	w.tx.post(`DELETE FROM job_data WHERE job_id = ? AND name = ? AND at >= ?`, w.id, name, size)
	if size > 0 {
		w.tx.post(`UPDATE job_data SET data = substring(data FROM 1 FOR (? - at)::int)
			WHERE job_id = ? AND name = ? AND at > ? AND at + octet_length(data) > ?`, size, w.id, name, size-maxPiece, size)
	}
	return nil
}

// sync has nothing to do: the commit makes the bytes durable.
func (w pieceWriter) sync(string) error { return nil }

func (w pieceWriter) replace(name string, data []byte) error {
	err := w.truncate(name, 0)
	if err == nil {
		err = w.append(name, 0, data)
	}
	return err
}

func (w pieceWriter) see(stream string, n int64) error {
	err := w.truncate(stream+seenSuffix, 0)
	if err == nil && n > 0 {
		w.put(stream+seenSuffix, n, []byte{})
	}
	return err
}

func (w pieceWriter) seal(counts sealedStreams) error {
	sealRow(w.tx, w.id, counts)
	return nil
}

// put stores a part of an artifact, replacing everything from offset on.
func (p *pieces) put(ctx context.Context, id, path string, offset int64, data []byte) error {
	name := artifactName(path)
	return p.s.transaction(ctx, func(tx *tx) error {
		w := pieceWriter{p, tx, id}
		if _, err := p.s.sealedIn(ctx, tx, id, p.s.dialect.lock("jobs")); err != nil {
			return err
		}
		if err := w.truncate(name, offset); err != nil {
			return err
		}
		if offset == 0 { // an empty file is a file, too
			w.put(name, 0, []byte{})
		}
		ends, err := p.ends(ctx, tx, []string{id}, []string{name})
		if err == nil && ends[0] != offset {
			err = fmt.Errorf("a part at %d, but only %d bytes before it", offset, ends[0])
		}
		if err != nil {
			return err
		}
		return w.append(name, offset, data)
	})
}

func (p *pieces) drop(ctx context.Context, id, path string) error {
	return p.s.transaction(ctx, func(tx *tx) error { return pieceWriter{p, tx, id}.truncate(artifactName(path), 0) })
}

func (p *pieces) artifact(ctx context.Context, id, path string) (io.ReadCloser, error) {
	name := artifactName(path)
	_, err := first[int](ctx, p.s.read, `SELECT 1 FROM job_data WHERE job_id = ? AND name = ? LIMIT 1`, id, name)
	if errors.Is(err, job.ErrNotFound) {
		err = &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
	}
	if err != nil {
		return nil, err
	}
	return io.NopCloser(p.reader(ctx, id, name)), nil
}

// artifactName returns an artifact's name in job_data.
func artifactName(path string) string {
	if len(path) <= maxName {
		return "artifacts/" + path
	}
	sum := sha256.Sum256([]byte(path))
	return "long/" + hex.EncodeToString(sum[:])
}

// reader reads a file from its beginning.
func (p *pieces) reader(ctx context.Context, id, name string) io.Reader {
	offset := int64(0)
	return &inPieces{next: func() (piece []byte, err error) {
		piece, err = p.upTo(ctx, id, name, offset, maxPiece)
		offset += int64(len(piece))
		return piece, err
	}}
}

// inPieces reads the pieces that next returns; an empty piece is the end.
type inPieces struct {
	next func() ([]byte, error)
	rest []byte // read and not yet returned
}

// Read implements io.Reader.
func (r *inPieces) Read(to []byte) (n int, err error) {
	if len(r.rest) == 0 && len(to) > 0 {
		if r.rest, err = r.next(); err != nil {
			return 0, err
		}
		if len(r.rest) == 0 {
			return 0, io.EOF
		}
	}
	n = copy(to, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}
