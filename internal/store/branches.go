package store

import (
	"context"
	"errors"

	"linus/internal/job"
)

// branchKey is the prefix of the keys in meta for branches that jobs push to.
const branchKey = "branch/"

// Branch returns what is recorded of the branch with a key, or the zero value.
func (s *Store) Branch(ctx context.Context, key string) (job.PushedBranch, error) {
	b, err := only(query(ctx, s.read, scanDoc[job.PushedBranch], `SELECT value FROM meta WHERE key = ?`, branchKey+key))
	if errors.Is(err, job.ErrNotFound) {
		return b, nil
	}
	return b, tried(err, "read a branch")
}

// KeepBranch records the state of a branch.
func (s *Store) KeepBranch(ctx context.Context, key string, b job.PushedBranch) error {
	err := s.transaction(ctx, func(tx *tx) error { return setMetaDoc(ctx, tx, branchKey+key, b) })
	return tried(err, "record a branch")
}
