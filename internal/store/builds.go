package store

import "context"

// buildKey is the prefix of the keys in meta for template builds, whose IDs sort by time.
const buildKey = "build/"

// Build returns an engine's note about a template build; job.ErrNotFound.
func (s *Store) Build(ctx context.Context, id string) (string, error) {
	note, err := first[string](ctx, s.read, `SELECT value FROM meta WHERE key = ?`, buildKey+id)
	return note, tried(err, "read build %s", id)
}

// NoteBuild notes the state of a template build, and forgets builds with IDs before oldest.
func (s *Store) NoteBuild(ctx context.Context, id, note, oldest string) error {
	err := s.transaction(ctx, func(tx *tx) error {
		if err := setMeta(ctx, tx, buildKey+id, note); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `DELETE FROM meta WHERE key LIKE 'build/%' AND key < ?`, buildKey+oldest)
		return err
	})
	return tried(err, "note build %s", id)
}
