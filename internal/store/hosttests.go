package store

import (
	"context"

	"linus/internal/job"
)

// hostTestKey is the prefix of the keys in meta for tests of the host, whose IDs sort by time.
const hostTestKey = "hosttest/"

// HostTests returns all tests of the host, oldest first.
func (s *Store) HostTests(ctx context.Context) ([]job.HostTest, error) {
	all, err := query(ctx, s.read, scanDoc[job.HostTest], `SELECT value FROM meta WHERE key LIKE 'hosttest/%' ORDER BY key`)
	return all, tried(err, "read the tests of the host")
}

// PutHostTest adds or replaces a test of the host.
func (s *Store) PutHostTest(ctx context.Context, t job.HostTest) error {
	err := s.transaction(ctx, func(tx *tx) error { return setMetaDoc(ctx, tx, hostTestKey+t.ID, t) })
	return tried(err, "write test %s of the host", t.ID)
}

// DeleteHostTest removes a test of the host.
func (s *Store) DeleteHostTest(ctx context.Context, id string) error {
	_, err := execCounted(ctx, s.transaction, "", `DELETE FROM meta WHERE key = ?`, hostTestKey+id)
	return tried(err, "remove test %s of the host", id)
}
