package store

import (
	"context"

	"linus/internal/job"
)

// credentialKey is the prefix of the keys in meta for credentials.
const credentialKey = "credential/" //nolint:gosec // a name

// Credentials returns all credentials, by name. Their values are not in the database.
func (s *Store) Credentials(ctx context.Context) ([]job.Credential, error) {
	all, err := query(ctx, s.read, scanDoc[job.Credential], `SELECT value FROM meta WHERE key LIKE 'credential/%' ORDER BY key`)
	return all, tried(err, "read credentials")
}

// Credential returns the credential with a name; job.ErrNotFound.
func (s *Store) Credential(ctx context.Context, name string) (job.Credential, error) {
	c, err := only(query(ctx, s.read, scanDoc[job.Credential], `SELECT value FROM meta WHERE key = ?`, credentialKey+name))
	return c, tried(err, "read a credential")
}

// InsertCredential adds a credential, and reports whether the name was free.
func (s *Store) InsertCredential(ctx context.Context, c job.Credential) (bool, error) {
	added, err := s.insertDoc(ctx, `INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING`, credentialKey+c.Name, c)
	return added, tried(err, "write credential %s", c.Name)
}

// DeleteCredential removes the credential with a name, if there is one.
func (s *Store) DeleteCredential(ctx context.Context, name string) error {
	_, err := execCounted(ctx, s.transaction, "", `DELETE FROM meta WHERE key = ?`, credentialKey+name)
	return tried(err, "remove credential %s", name)
}
