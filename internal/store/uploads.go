package store

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
)

// Uploads are the files that template builds copy. Their owners name them by a hash, for all
// engines of a PostgreSQL database.

// HasUpload reports whether an owner has an upload, and counts that as a use.
func (s *Store) HasUpload(ctx context.Context, owner, hash string) (bool, error) {
	n, err := execCounted(ctx, s.transaction, "", `UPDATE uploads SET used = ? WHERE owner = ? AND hash = ?`, timeText(time.Now()), owner, hash)
	return n > 0, tried(err, "look for upload %s", hash)
}

// PutUpload stores an owner's upload of size bytes, replacing one with the same hash. It first
// removes all uploads not used since old. room is false if the owner would have more than most
// bytes.
func (s *Store) PutUpload(ctx context.Context, owner, hash string, size, most int64, old time.Time, from io.Reader) (room bool, err error) {
	id := uuid.NewString()
	err = s.transaction(ctx, func(tx *tx) error {
		if _, err := tx.ExecContext(ctx, `DELETE FROM uploads WHERE used < ?`, timeText(old)); err != nil {
			return err
		}
		has, err := first[int64](ctx, tx, `SELECT CAST(coalesce(sum(size), 0) AS bigint) FROM uploads WHERE owner = ?`, owner)
		if room = has+size <= most; err == nil && room {
			tx.post(`INSERT INTO uploads (id, owner, hash, size, used) VALUES (?, ?, '', ?, ?)`, id, owner, size, timeText(time.Now()))
		}
		return err
	})
	if err == nil && room {
		if err = s.putPieces(ctx, id, size, from); err == nil {
			err = s.transaction(ctx, func(tx *tx) error {
				tx.post(`DELETE FROM uploads WHERE owner = ? AND hash = ?`, owner, hash)
				tx.post(`UPDATE uploads SET hash = ? WHERE id = ?`, hash, id)
				return nil
			})
		}
		if err != nil {
			_, other := execCounted(context.WithoutCancel(ctx), s.transaction, "", `DELETE FROM uploads WHERE id = ?`, id)
			err = errors.Join(err, other)
		}
	}
	return room, tried(err, "store upload %s", hash)
}

func (s *Store) putPieces(ctx context.Context, id string, size int64, from io.Reader) error {
	buffer := make([]byte, maxPiece)
	for at := int64(0); at < size; {
		piece := buffer[:min(maxPiece, size-at)]
		if _, err := io.ReadFull(from, piece); err != nil {
			return err
		}
		if _, err := execCounted(ctx, s.transaction, "", `INSERT INTO upload_data (upload_id, at, data) VALUES (?, ?, ?)`, id, at, piece); err != nil {
			return err
		}
		at += int64(len(piece))
	}
	return nil
}

// OpenUpload opens an owner's upload; job.ErrNotFound. ctx bounds reading it.
func (s *Store) OpenUpload(ctx context.Context, owner, hash string) (io.ReadCloser, error) {
	var left int64
	id, err := only(query(ctx, s.read, func(row scanner) (id string, err error) {
		err = row.Scan(&id, &left)
		return id, err
	}, `SELECT id, size FROM uploads WHERE owner = ? AND hash = ?`, owner, hash))
	if err != nil {
		return nil, tried(err, "open upload %s", hash)
	}
	at := int64(0)
	return io.NopCloser(&inPieces{next: func() ([]byte, error) {
		if left <= 0 {
			return nil, nil
		}
		piece, err := first[[]byte](ctx, s.read, `SELECT data FROM upload_data WHERE upload_id = ? AND at = ?`, id, at)
		if errors.Is(err, job.ErrNotFound) {
			err = errors.New("it was uploaded again, or has expired")
		}
		at, left = at+int64(len(piece)), left-int64(len(piece))
		return piece, err
	}}), nil
}
