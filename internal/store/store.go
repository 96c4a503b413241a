// Package store stores jobs: it implements executor.Store on one SQLite
// database and one directory of files per job. It owns the schema, the
// transactions and the layout of the state directory, and knows nothing of what
// runs the jobs.
//
//	linus.db                   jobs, their manifests and events
//	jobs/<id>/stdout, stderr   what has been seen of the output, up to the limit
//	jobs/<id>/artifacts        the files the job left
//
// What a call has acknowledged survives the death of the process, and all but
// the output of a running job, which its VM still has, a power cut. Several
// processes may have the same directory open.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"

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
	// only one anyway.
	readers = 4
)

// Options configure Open.
type Options struct {
	Dir       string       // the state directory; created (0700) if missing
	MaxOutput int64        // bytes kept of each output stream; 0: 10 MiB
	MaxJobs   int          // jobs with a slot, on all engines together; 0: no limit
	Log       *slog.Logger // nil: silent

	driver string // of database/sql; "sqlite" but in tests
}

// Store is an open state directory. Its methods may be called concurrently.
type Store struct {
	dir       string
	maxOutput int64
	log       *slog.Logger
	read      *reader
	maxJobs   int
	engine    atomic.Pointer[string] // see engines.go; nil: it did not join

	write   *tx           // of writeAll alone, once the store is open
	waiting changes       // for writeAll
	written chan struct{} // writeAll has ended; nil: it did not begin
	pools   []*sql.DB     // to close, in this order
}

// Open opens the state directory, creates it if it is new, and brings the
// schema up to date. It refuses a database written by a newer linus.
func Open(ctx context.Context, o Options) (*Store, error) {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, fmt.Errorf("open state directory: %w", err)
	}
	s := &Store{dir: dir, maxOutput: o.MaxOutput, maxJobs: o.MaxJobs, log: o.Log, waiting: changes{news: make(chan struct{}, 1)}}
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
	if err := s.openPools(ctx, cmp.Or(o.driver, "sqlite"), path); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.written = make(chan struct{})
	go s.writeAll()
	return s, nil
}

// openPools opens the database and brings it up to date.
func (s *Store) openPools(ctx context.Context, driver, path string) error {
	write, err := openDatabase(driver, path, 1, "&_txlock=immediate")
	if err != nil {
		return err
	}
	s.pools = []*sql.DB{write}
	read, err := openDatabase(driver, path, readers, "&_pragma=query_only(1)")
	if err != nil {
		return err
	}
	s.pools = []*sql.DB{read, write} // the writer last: it folds the log into the database
	s.read = newReader(read)
	if err := s.migrate(ctx, path, write); err != nil {
		return err
	}
	conn, err := write.Conn(ctx)
	if err != nil {
		return fmt.Errorf("open database %s: %w", path, err)
	}
	s.write = newTx(conn)
	return nil
}

// Close waits for calls under way and closes the database.
func (s *Store) Close() error {
	s.waiting.close()
	var errs []error
	if s.written != nil {
		<-s.written
		_ = s.write.conn.Close() // back to its pool; it may be there already
	}
	for _, db := range s.pools {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// InstallationID returns this state directory's UUID, generated once: the
// linus-owner marker of every VM of ours.
func (s *Store) InstallationID(ctx context.Context) (string, error) {
	var id string
	err := s.transaction(ctx, func(tx *tx) error {
		_, err := tx.ExecContext(ctx,
			`INSERT INTO meta (key, value) VALUES ('installation_id', ?) ON CONFLICT DO NOTHING`, uuid.NewString())
		if err != nil {
			return err
		}
		id, err = first[string](ctx, tx, `SELECT value FROM meta WHERE key = 'installation_id'`)
		return err
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

// migrate brings the schema up to date, one process at a time.
func (s *Store) migrate(ctx context.Context, path string, db *sql.DB) error {
	unlock, err := lockDir(s.dir)
	if err != nil {
		return fmt.Errorf("lock state directory: %w", err)
	}
	defer unlock()
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	provider, err := goose.NewProvider(goose.DialectSQLite3, db, files)
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
