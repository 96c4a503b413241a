package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"sync"
)

// querier is the database to read from, or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// scanner is one row of a query's result.
type scanner interface{ Scan(dest ...any) error }

// query returns all rows of a query's result.
func query[T any](ctx context.Context, q querier, read func(scanner) (T, error), text string, args ...any) (all []T, err error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		v, err := read(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, v)
	}
	return all, rows.Err()
}

// openDatabase opens a pool of connections. A commit is on disk when it returns
// (synchronous=FULL): writers share commits, and with them the cost.
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

// statements are prepared once for each text: parsing one costs more than
// running it.
type statements struct {
	prepare func(ctx context.Context, text string) (*sql.Stmt, error)
	mu      sync.Mutex
	byText  map[string]*sql.Stmt
}

func (s *statements) get(ctx context.Context, text string) (*sql.Stmt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if stmt := s.byText[text]; stmt != nil {
		return stmt, nil
	}
	stmt, err := s.prepare(ctx, text)
	if err == nil {
		if s.byText == nil {
			s.byText = map[string]*sql.Stmt{}
		}
		s.byText[text] = stmt
	}
	return stmt, err
}

// reader is the pool of connections that read.
type reader struct {
	db *sql.DB
	statements
}

func newReader(db *sql.DB) *reader {
	return &reader{db: db, statements: statements{prepare: db.PrepareContext}}
}

// QueryContext runs a query.
func (r *reader) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	stmt, err := r.get(context.WithoutCancel(ctx), text)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// tx is the one connection that writes, within a transaction. Its statements
// are not cancelled: that could roll back other callers' changes, too.
type tx struct {
	conn *sql.Conn
	statements
}

func newTx(conn *sql.Conn) *tx {
	return &tx{conn: conn, statements: statements{prepare: conn.PrepareContext}}
}

// QueryContext runs a query.
func (t *tx) QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error) {
	ctx = context.WithoutCancel(ctx)
	stmt, err := t.get(ctx, text)
	if err != nil {
		return nil, err
	}
	return stmt.QueryContext(ctx, args...)
}

// ExecContext runs a statement.
func (t *tx) ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error) {
	ctx = context.WithoutCancel(ctx)
	stmt, err := t.get(ctx, text)
	if err != nil {
		return nil, err
	}
	return stmt.ExecContext(ctx, args...)
}

// first returns the first column of a query's first row; sql.ErrNoRows.
func first[T any](ctx context.Context, q querier, text string, args ...any) (T, error) {
	found, err := query(ctx, q, func(row scanner) (v T, err error) {
		err = row.Scan(&v)
		return v, err
	}, text, args...)
	if err == nil && len(found) == 0 {
		err = sql.ErrNoRows
	}
	if err != nil {
		var none T
		return none, err
	}
	return found[0], nil
}
