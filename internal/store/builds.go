package store

import "context"

// buildKey is the beginning of the keys in meta that stand for builds of templates; their IDs sort by
// time.
const buildKey = "build/"

// Build returns what an engine has noted of a build of a template; job.ErrNotFound.
func (s *Store) Build(ctx context.Context, id string) (string, error) {
	note, err := first[string](ctx, s.read, `SELECT value FROM meta WHERE key = ?`, buildKey+id)
	return note, tried(err, "read build %s", id)
}

// NoteBuild notes how a build of a template is, and forgets those whose IDs are before another.
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
