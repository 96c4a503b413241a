package store

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"sync"

	"github.com/pressly/goose/v3"
	modernc "modernc.org/sqlite" // also registers the database driver "sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"linus/internal/job"
)

const (
	databaseName = "linus.db"
	jobsDir      = "jobs"
)

// sqlite is the dialect of SQLite. All processes together have one writer at a time: what it reads
// does not change.
type sqlite struct{}

func (sqlite) readsOn(db *sql.DB) runner { return &prepared{source: db} }

func (sqlite) writesOn(conn *sql.Conn) runner { return &prepared{source: conn} }

func (sqlite) lock(string) string { return "" }

func (sqlite) clock() string { return `unixepoch('subsec')` }

func (sqlite) label() string { return `jobs.doc ->> ('$.labels."' || ? || '"')` }

func (sqlite) fence(t *tx, engine string) error {
	_, err := first[int](t.ctx, t, `SELECT 1 FROM engines WHERE id = ?`, engine)
	if errors.Is(err, job.ErrNotFound) {
		return errBuried
	}
	return err
}

func (sqlite) begin(t *tx) (string, error) {
	_, err := t.ExecContext(t.ctx, `BEGIN IMMEDIATE`)
	return "", err
}

func (sqlite) commit(t *tx) error {
	_, err := t.ExecContext(t.ctx, `COMMIT`)
	return err
}

func (sqlite) commitOutcome(context.Context, querier, string) (bool, error) { return false, nil }

func (sqlite) dead(*sql.Conn) bool { return false }

func (sqlite) passing(error) bool { return false }

func (sqlite) own(err error) bool {
	var refused *modernc.Error
	return errors.As(err, &refused) && refused.Code()&0xff != sqlite3.SQLITE_CONSTRAINT || errors.Is(err, driver.ErrBadConn) || errors.Is(err, sql.ErrConnDone)
}

// openSQLite opens the database of the state directory.
func (s *Store) openSQLite(ctx context.Context, o Options) error {
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("open state directory: %w", err)
	}
	path := filepath.Join(dir, databaseName)
	s.dir = dir
	s.dialect, s.files, s.name = sqlite{}, &directories{s: s, dir: filepath.Join(dir, jobsDir)}, databaseName
	if err := os.MkdirAll(filepath.Join(dir, jobsDir), 0o700); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	if err := makePrivate(path); err != nil {
		return fmt.Errorf("create database: %w", err)
	}
	driver := cmp.Or(o.driver, "sqlite")
	write, err := openDatabase(driver, path, 1, "&_txlock=immediate")
	if err != nil {
		return err
	}
	s.writer, s.pools = write, []*sql.DB{write}
	read, err := openDatabase(driver, path, readers, "&_pragma=query_only(1)")
	if err != nil {
		return err
	}
	s.pools = []*sql.DB{read, write} // the writer last: closing it folds the log into the database
	s.read = newReader(s, read)
	unlock, err := lockDir(dir)
	if err != nil {
		return fmt.Errorf("lock state directory: %w", err)
	}
	defer unlock()
	return s.migrate(ctx, goose.DialectSQLite3, write, schema{
		files: "migrations/sqlite", database: "database " + path, other: "set LINUS_STATE_DIR to another directory",
	})
}

// openDatabase opens a pool of connections. A commit is on disk when it returns (synchronous=FULL):
// writers share commits, and so their cost.
func openDatabase(driver, path string, connections int, options string) (*sql.DB, error) {
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: "_pragma=busy_timeout(10000)" +
		"&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)" + options}
	db, err := sql.Open(driver, dsn.String())
	if err != nil {
		return nil, fmt.Errorf("open database %s: %w", path, err)
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
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

// prepared prepares each text once: parsing a statement costs more than running it.
type prepared struct {
	source interface {
		PrepareContext(ctx context.Context, text string) (*sql.Stmt, error)
	}
	mu     sync.Mutex
	byText map[string]*sql.Stmt
}

func (p *prepared) get(ctx context.Context, text string) (*sql.Stmt, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if stmt := p.byText[text]; stmt != nil {
		return stmt, nil
	}
	stmt, err := p.source.PrepareContext(context.WithoutCancel(ctx), text)
	if err == nil {
		if p.byText == nil {
			p.byText = map[string]*sql.Stmt{}
		}
		p.byText[text] = stmt
	}
	return stmt, err
}

// run runs statements to their end, whatever happens to ctx: each is bounded, and watching a
// context during a statement would take two goroutines, which cost more than most statements.
func (p *prepared) run(ctx context.Context, all []statement, read func(scanner) error) (changed int64, failed int, err error) {
	if err := ctx.Err(); err != nil {
		return 0, 0, err
	}
	ctx = context.WithoutCancel(ctx)
	for i, of := range all {
		stmt, err := p.get(ctx, of.text)
		if err != nil {
			return 0, i, err
		}
		if i == len(all)-1 && read != nil {
			rows, err := stmt.QueryContext(ctx, of.args...)
			return 0, i, rowsOf(rows, err, read)
		}
		result, err := stmt.ExecContext(ctx, of.args...)
		if err == nil {
			changed, err = result.RowsAffected()
		}
		if err != nil {
			return 0, i, err
		}
	}
	return changed, 0, nil
}
