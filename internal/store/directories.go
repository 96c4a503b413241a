package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"linus/internal/wholefile"
)

// directories stores the files of jobs on disk, in one directory per job. They bypass the database,
// so that many small writes stay cheap. A stream's bytes are in three files:
//
//	stdout       the stream from its first byte, up to the limit
//	stdout.seen  how much has been seen, once that is more than stdout holds
//	stdout.tail  marker and tail, if the sealed stream is too long
//
// stdout.seen has its number as text.
type directories struct {
	s   *Store
	dir string
}

func (d *directories) jobDir(id string) string { return filepath.Join(d.dir, id) }

func (d *directories) path(id, name string) string { return filepath.Join(d.dir, id, name) }

// makeJobDir makes the directory of a job's files, if it is missing.
func (d *directories) makeJobDir(id string) error {
	err := os.Mkdir(d.jobDir(id), 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return wholefile.SyncDir(d.dir)
}

// change locks both streams of a job.
func (d *directories) change(ctx context.Context, id string, work func(outputFiles, sealedStreams) error) error {
	unlock, err := lockDir(d.jobDir(id))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := d.s.sealedIn(ctx, d.s.read, id, ""); err != nil {
			return err
		}
		if err = d.makeJobDir(id); err == nil {
			unlock, err = lockDir(d.jobDir(id))
		}
	}
	if err != nil {
		return fmt.Errorf("lock output of job %s: %w", id, err)
	}
	defer unlock()
	sealed, err := d.s.sealedIn(ctx, d.s.read, id, "")
	if err != nil {
		return err
	}
	return work(directory{d, ctx, id}, sealed)
}

func (d *directories) counts() string { return "" }

// open reads the seen count first: once that file exists, the head is final.
func (d *directories) open(_ context.Context, _ querier, streams ...streamOf) ([]openCounts, error) {
	all := make([]openCounts, len(streams))
	for i, of := range streams {
		if _, err := os.Stat(d.jobDir(of.id)); errors.Is(err, fs.ErrNotExist) {
			continue // usual before a task has started
		}
		held, seen := int64(0), int64(0)
		text, err := os.ReadFile(d.path(of.id, of.stream+seenSuffix))
		if err == nil {
			seen, err = strconv.ParseInt(string(text), 10, 64)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read %s of job %s: %w", of.stream, of.id, err)
		}
		fi, err := os.Stat(d.path(of.id, of.stream))
		switch {
		case err == nil:
			held = fi.Size()
		case !errors.Is(err, fs.ErrNotExist):
			return nil, fmt.Errorf("read %s of job %s: %w", of.stream, of.id, err)
		}
		all[i] = openCounts{held, max(held, seen)}
	}
	return all, nil
}

func (d *directories) read(_ context.Context, id, name string, offset, n int64) ([]byte, error) {
	return readAt(d.path(id, name), offset, n)
}

// directory is the files of a job's output while it is locked.
type directory struct {
	*directories
	ctx context.Context // of the call that holds the lock
	id  string
}

func (d directory) open(stream string) (openCounts, error) {
	return only(d.directories.open(d.ctx, d.s.read, streamOf{d.id, stream}))
}

func (d directory) append(name string, offset int64, data []byte) error {
	return appendAt(d.path(d.id, name), offset, data)
}

func (d directory) truncate(name string, size int64) error {
	return os.Truncate(d.path(d.id, name), size)
}

func (d directory) sync(name string) error { return syncFile(d.path(d.id, name)) }

func (d directory) replace(name string, data []byte) error {
	return writeFile(d.path(d.id, name), data, true)
}

func (d directory) see(stream string, n int64) error {
	path := d.path(d.id, stream+seenSuffix)
	if n > 0 {
		return writeFile(path, strconv.AppendInt(nil, n, 10), false)
	}
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (d directory) seal(counts sealedStreams) error {
	return d.s.transaction(d.ctx, func(tx *tx) error {
		sealRow(tx, d.id, counts)
		return nil
	})
}

// artifactsDir is the subdirectory for the files the job left. Their names come from the VM: all
// access goes through an os.Root, which nothing can escape.
const artifactsDir = "artifacts"

func (d *directories) put(_ context.Context, id, path string, offset int64, data []byte) error {
	if err := d.makeJobDir(id); err != nil {
		return err
	}
	dir := d.path(id, artifactsDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return withoutPlace(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return withoutPlace(err)
	}
	return withoutPlace(errors.Join(putIn(root, path, offset, data), root.Close()))
}

// withoutPlace removes the path on this machine from an error about a job's file: the job's owner
// sees the error.
func withoutPlace(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s: %w", at.Op, at.Err)
	}
	return err
}

func putIn(root *os.Root, path string, offset int64, data []byte) error {
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

func (d *directories) drop(_ context.Context, id, path string) error {
	root, err := os.OpenRoot(d.path(id, artifactsDir))
	if err == nil {
		err = errors.Join(root.Remove(path), root.Close())
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (d *directories) artifact(_ context.Context, id, path string) (io.ReadCloser, error) {
	root, err := os.OpenRoot(d.path(id, artifactsDir))
	if err != nil {
		return nil, withoutPlace(err)
	}
	f, err := root.Open(path)
	if err != nil {
		return nil, withoutPlace(errors.Join(err, root.Close()))
	}
	return f, root.Close()
}

func (d *directories) forget(id string) error { return os.RemoveAll(d.jobDir(id)) }

// orphanAge is how old a job's directory without a row must be before it is removed: a restored
// database is younger than its files.
const orphanAge = time.Hour

// A search for orphans reads the names of all jobs: two seconds of CPU time for a million.
// orphansSearched is the key in meta for the time when the last search ended.
const (
	orphansEvery    = 24 * time.Hour
	orphansSearched = "orphans_searched"
)

// forgetOrphans removes job directories without a row, once a day. An interrupted Forget leaves
// such directories.
func (d *directories) forgetOrphans(ctx context.Context) error {
	last, err := query(ctx, d.s.read, scanValue[string], `SELECT value FROM meta WHERE key = ?`, orphansSearched)
	if err != nil {
		return fmt.Errorf("find directories without a job: %w", err)
	}
	if len(last) > 0 {
		at, err := time.Parse(time.RFC3339Nano, last[0])
		if ago := time.Since(at); err == nil && ago >= 0 && ago < orphansEvery {
			return nil
		}
	}
	if err := d.removeOrphans(ctx); err != nil {
		return err
	}
	return d.s.transaction(ctx, func(tx *tx) error { return setMeta(ctx, tx, orphansSearched, timeText(time.Now())) })
}

func (d *directories) removeOrphans(ctx context.Context) error {
	dir, err := os.Open(d.dir)
	if err != nil {
		return fmt.Errorf("find directories without a job: %w", err)
	}
	defer dir.Close() //nolint:errcheck // only read
	for {
		names, err := dir.Readdirnames(forgottenAtOnce) // there may be a million
		orphans, queryErr := d.s.unknown(ctx, names)
		if err := errors.Join(queryErr, d.removeOld(orphans)); err != nil {
			return fmt.Errorf("remove directories without a job: %w", err)
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("find directories without a job: %w", err)
		}
	}
}

// removeOld removes the directories of ids that have not changed for orphanAge.
func (d *directories) removeOld(ids []string) error {
	for _, id := range ids {
		info, err := os.Stat(d.jobDir(id))
		if err != nil || time.Since(info.ModTime()) < orphanAge {
			continue
		}
		if err := os.RemoveAll(d.jobDir(id)); err != nil {
			return err
		}
	}
	return nil
}
