package store

import (
	"context"
	"fmt"
	"io"
	"io/fs"
)

// PutArtifact stores a part of a file; see capture.Store.
func (s *Store) PutArtifact(ctx context.Context, id, path string, offset int64, data []byte) error {
	if _, err := s.TokenHash(ctx, id); err != nil { // the row proves that the ID is a valid directory name
		return err
	}
	if path == "." || !fs.ValidPath(path) {
		return fmt.Errorf("keep artifact %q of job %s: not a relative path", path, id)
	}
	err := s.files.put(ctx, id, path, offset, data)
	return tried(err, "keep artifact %s of job %s", path, id)
}

// DropArtifact removes what is stored of a file, if anything.
func (s *Store) DropArtifact(ctx context.Context, id, path string) error {
	if _, err := s.TokenHash(ctx, id); err != nil {
		return err
	}
	err := s.files.drop(ctx, id, path)
	return tried(err, "drop artifact %s of job %s", path, id)
}

// OpenArtifact opens a stored file. It returns job.ErrNotFound for an unknown job, and an error
// that is fs.ErrNotExist for a file the job does not have. ctx bounds reading the file.
func (s *Store) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, error) {
	if _, err := s.TokenHash(ctx, id); err != nil {
		return nil, err
	}
	f, err := s.files.artifact(ctx, id, path)
	return f, tried(err, "open artifact %s of job %s", path, id)
}
