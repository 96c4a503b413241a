// Package store stores jobs: it implements executor.Store on one SQLite
// database and one directory of files per job. It owns the schema, the
// transactions and the layout of the state directory, and knows nothing of what
// runs the jobs.
//
//	linus.db                   jobs, their manifests (without files) and events
//	jobs/<id>/manifest.json    the whole manifest, file contents included
//	jobs/<id>/stdout, stderr   what has been seen of the output, up to the limit
//
// What a call has acknowledged survives the death of the process. Several
// processes may have the same directory open.
package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"

	"github.com/google/uuid"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite" // the database driver "sqlite"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	databaseName = "linus.db"
	jobsDir      = "jobs"

	// readers is the size of the read pool. There is one writer: SQLite allows
	// only one anyway, and waiting for it in Go is fair and free of busy
	// errors.
	readers = 4
)

// Options configure Open.
type Options struct {
	Dir       string       // the state directory; created (0700) if missing
	MaxOutput int64        // bytes kept of each output stream; 0: 10 MiB
	Log       *slog.Logger // nil: silent
}

// Store is an open state directory. Its methods may be called concurrently.
type Store struct {
	dir       string
	maxOutput int64
	log       *slog.Logger
	write     *sql.DB // one connection; each transaction takes the write lock at once
	read      *sql.DB
}

// Open opens the state directory, creates it if it is new, and brings the
// schema up to date. It refuses a database written by a newer linus.
func Open(ctx context.Context, o Options) (*Store, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	s := &Store{dir: dir, maxOutput: o.MaxOutput, log: o.Log}
	if s.maxOutput == 0 {
		s.maxOutput = 10 << 20
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(filepath.Join(dir, jobsDir), 0o700); err != nil {
		return nil, fmt.Errorf("create state directory: %w", err)
	}
	path := filepath.Join(dir, databaseName)
	if err := makePrivate(path); err != nil {
		return nil, fmt.Errorf("create database: %w", err)
	}
	if s.write, err = openDatabase(path, 1, "&_txlock=immediate"); err == nil {
		s.read, err = openDatabase(path, readers, "&_pragma=query_only(1)")
	}
	if err == nil {
		err = s.migrate(ctx, path)
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Close waits for calls under way and closes the database.
func (s *Store) Close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} { // the writer last: it folds the log into the database
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// InstallationID returns this state directory's UUID, generated once: the
// linus-owner marker of every VM of ours.
func (s *Store) InstallationID(ctx context.Context) (string, error) {
	var id string
	err := s.transaction(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx,
			`INSERT INTO meta (key, value) VALUES ('installation_id', ?) ON CONFLICT DO NOTHING`, uuid.NewString())
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx, `SELECT value FROM meta WHERE key = 'installation_id'`).Scan(&id)
	})
	if err != nil {
		return "", fmt.Errorf("read installation id from %s: %w", databaseName, err)
	}
	return id, nil
}

// makePrivate ensures that the file exists and only its owner can read it;
// SQLite gives its log and index files the same mode.
func makePrivate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Close())
}

// openDatabase opens a pool of connections. synchronous=NORMAL survives the
// death of the process; a power failure may lose the last moments, but never
// consistency.
func openDatabase(path string, connections int, options string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(10000)" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)&_pragma=foreign_keys(1)" + options}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

// migrate brings the schema up to date, one process at a time.
func (s *Store) migrate(ctx context.Context, path string) error {
	unlock, err := lockDir(s.dir)
	if err != nil {
		return fmt.Errorf("lock state directory: %w", err)
	}
	defer unlock()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, s.write, files)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("open database %s: %w", path, err)
	}
	if current > target {
		return fmt.Errorf("database %s was written by a newer linus (schema %d, this one knows %d); "+
			"run the newer linus, or set LINUS_STATE_DIR to another directory", path, current, target)
	}
	applied, err := provider.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrate database %s: %w", path, err)
	}
	if len(applied) > 0 {
		s.log.Info("database migrated", "from", current, "to", target)
	}
	return nil
}

// transaction runs work in one immediate transaction on the writer. It rolls
// back when work fails or panics.
func (s *Store) transaction(ctx context.Context, work func(*sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // after a commit there is nothing to roll back
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}
