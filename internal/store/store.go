// Package store stores jobs: it implements executor.Stores on a database, SQLite or PostgreSQL, and
// on a place for the files of jobs. It owns the schema, the transactions and the layout of the
// state directory, and knows nothing of what runs the jobs.
//
// With SQLite everything is in the state directory:
//
//	linus.db                   jobs, their manifests and events
//	jobs/<id>/stdout, stderr   the output seen so far, up to the limit
//	jobs/<id>/artifacts        the files the job left
//
// Acknowledged calls survive the death of the process. They also survive a power cut, except for
// the output of a running job, which its VM still has. Several processes may have the same
// directory open.
//
// With PostgreSQL everything is in the database, files as rows of pieces: there is nothing else to
// share between machines or to back up. Acknowledged calls have been committed. A database that
// goes away for a moment delays calls, but does not make them fail; see patience.
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
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"linus/internal/job"
	"linus/internal/vm"
)

//go:embed migrations
var migrations embed.FS

// readers is the size of the read pool. There is one writer: concurrent callers share its commits.
const readers = 4

// Options configure Open.
type Options struct {
	Dir       string        // the state directory; created (0700) if missing. Not used with URL
	URL       string        // of a PostgreSQL database; "": SQLite in Dir
	MaxOutput int64         // bytes kept of each output stream; 0: 10 MiB
	Reserve   int64         // bytes of the state directory's file system that Spare keeps free
	MaxJobs   int           // jobs with a slot, on all engines together; 0: no limit
	Log       *slog.Logger  // nil: silent
	Patience  time.Duration // how long calls wait for a database that is away or busy with others; 0: 30 s

	copying bool   // the database is the target of a Copy
	driver  string // of database/sql; "sqlite" except in tests
}

// Store is an open database. Its methods may be called concurrently.
type Store struct {
	dialect   dialect
	files     files
	name      string // of the database, for errors: without credentials
	maxOutput int64
	dir       string // the state directory; "": the database is elsewhere
	reserve   int64
	log       *slog.Logger
	read      *reader
	maxJobs   int
	searched  int                    // see the constant
	engine    atomic.Pointer[string] // see engines.go; nil: the engine has not joined

	// VMMessages returns the messages to deliver about a change of a VM that no job has made. They
	// are recorded with the change; nil: there are none. Set it before the store is used.
	VMMessages func(was, is vm.VM) []job.Webhook
	// Changes receives the new contents of changed rows of jobs and VMs, in the order in which this
	// engine committed them; nil: nothing is reported. Set it before the store is used.
	Changes *job.Changes

	patience, answerTime time.Duration // see the constants; answerTime 0: no limit

	listening *pgx.ConnConfig // of the connection for other engines' notices; nil: there are none

	writer   *sql.DB // the pool of write's connection
	write    *tx     // used by writeAll only, once the store is open; nil: not connected
	waiting  changes // for writeAll
	gathered gathered
	written  chan struct{} // closed when writeAll has ended; nil: it was not started
	pools    []*sql.DB     // to close, in this order
}

// Open opens the database, creates what is missing, and brings the schema up to date. It refuses
// databases written by a newer linus, or before the first release.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{
		reserve: o.Reserve, maxOutput: cmp.Or(o.MaxOutput, 10<<20), maxJobs: o.MaxJobs, log: o.Log, patience: openPatience, searched: searched,
		waiting: changes{news: make(chan struct{}, 1)}, gathered: gathered{jobs: map[string]bool{}},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	open := s.openSQLite
	if o.URL != "" {
		open = s.openPostgres
	}
	err := open(ctx, o)
	if err == nil {
		err = s.connect()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.patience = cmp.Or(o.Patience, patience)
	s.written = make(chan struct{})
	go s.writeAll()
	return s, nil
}

// Close waits for calls under way and closes the database.
func (s *Store) Close() error {
	s.waiting.close()
	var errs []error
	if s.written != nil {
		<-s.written
	}
	if s.write != nil {
		_ = s.write.conn.Close() // back to its pool; it may be there already
	}
	if s.read != nil {
		s.read.close()
	}
	for _, db := range s.pools {
		errs = append(errs, db.Close())
	}
	return errors.Join(errs...)
}

// InstallationID returns this installation's UUID, generated once. It is the linus-owner marker of
// every VM that the installation makes.
func (s *Store) InstallationID(ctx context.Context) (string, error) {
	return s.Remember(ctx, "installation_id", uuid.NewString())
}

// Remember returns the text stored under a name. The first call with a non-empty value stores it;
// "" means that nothing is stored yet.
func (s *Store) Remember(ctx context.Context, name, value string) (string, error) {
	stored := ""
	err := s.transaction(ctx, func(tx *tx) (err error) {
		if value != "" {
			if _, err = tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO NOTHING`, name, value); err != nil {
				return err
			}
		}
		stored, err = first[string](ctx, tx, `SELECT value FROM meta WHERE key = ?`, name)
		if errors.Is(err, job.ErrNotFound) {
			return nil
		}
		return err
	})
	return stored, tried(err, "read %s from %s", name, s.name)
}

// schema says where the migrations of a database are, and how error messages name the database and
// an alternative.
type schema struct{ files, database, other string }

// stepsOf returns the migrations in a directory. Both databases run a file of many statements as it
// stands; goose would split it, with buffers of 16 MiB for each new database.
func stepsOf(dir string) (steps []*goose.Migration, err error) {
	files, err := fs.Glob(migrations, dir+"/*.sql")
	for _, file := range files {
		text, readErr := fs.ReadFile(migrations, file)
		version, nameErr := goose.NumericComponent(file)
		err = errors.Join(err, readErr, nameErr)
		steps = append(steps, goose.NewGoMigration(version, &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, string(text))
			return err
		}}, nil))
	}
	return steps, err
}

// migrate brings the schema up to date. The caller ensures that no other process does so at the
// same time.
func (s *Store) migrate(ctx context.Context, d goose.Dialect, db *sql.DB, of schema) error {
	steps, err := stepsOf(of.files)
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	provider, err := goose.NewProvider(d, db, nil, goose.WithGoMigrations(steps...))
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	current, target, err := provider.GetVersions(ctx)
	if err != nil {
		return fmt.Errorf("open %s: %w", of.database, err)
	}
	if current > target {
		return fmt.Errorf("%s was written by a newer linus (schema %d, this one knows %d); "+
			"run the newer linus, or %s", of.database, current, target, of.other)
	}
	if oldest := provider.ListSources()[0].Version; current != 0 && current < oldest {
		return fmt.Errorf("%s was made by a version of linus before the first release (schema %d, this one needs %d); "+
			"remove it, or %s", of.database, current, oldest, of.other)
	}
	applied, err := provider.Up(ctx)
	if err != nil {
		return fmt.Errorf("migrate %s: %w", of.database, err)
	}
	if len(applied) > 0 {
		s.log.Info("database migrated", "from", current, "to", target)
	}
	return nil
}
