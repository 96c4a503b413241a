package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// artifactsDir is the directory, within a job's, of the files the job left.
// Their names come from the VM: all access goes through an os.Root, which
// nothing can escape.
const artifactsDir = "artifacts"

// PutArtifact keeps a part of a file; see executor.Store.
func (s *Store) PutArtifact(ctx context.Context, id, path string, offset int64, data []byte) (err error) {
	if _, err := s.TokenHash(ctx, id); err != nil { // the row proves the ID as a directory's name
		return err
	}
	if !fs.ValidPath(path) {
		return fmt.Errorf("keep artifact %q of job %s: not a relative path", path, id)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("keep artifact %s of job %s: %w", path, id, err)
		}
	}()
	if err := s.makeJobDir(id); err != nil {
		return err
	}
	dir := filepath.Join(s.jobDir(id), artifactsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := root.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	flags := os.O_WRONLY | os.O_CREATE
	if offset == 0 {
		flags |= os.O_TRUNC
	}
	f, err := root.OpenFile(path, flags, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, offset)
	return errors.Join(err, f.Sync(), f.Close())
}

// DropArtifact removes what was kept of a file, if anything.
func (s *Store) DropArtifact(ctx context.Context, id, path string) error {
	if _, err := s.TokenHash(ctx, id); err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Join(s.jobDir(id), artifactsDir))
	if err == nil {
		err = errors.Join(root.Remove(path), root.Close())
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("drop artifact %s of job %s: %w", path, id, err)
	}
	return nil
}

// OpenArtifact returns a kept file; job.ErrNotFound for an unknown job, an
// error that is fs.ErrNotExist for a file it does not have.
func (s *Store) OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, error) {
	if _, err := s.TokenHash(ctx, id); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(filepath.Join(s.jobDir(id), artifactsDir))
	if err != nil {
		return nil, fmt.Errorf("open artifact %s of job %s: %w", path, id, err)
	}
	f, err := root.Open(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open artifact %s of job %s: %w", path, id, err), root.Close())
	}
	return f, root.Close()
}
