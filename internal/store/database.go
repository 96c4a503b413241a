package store

import (
	"context"
	"database/sql"
	"errors"
)

// querier is the database to read from, or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	// try calls once with the context to query in, and again while that helps.
	try(ctx context.Context, once func(context.Context) error) error
}

// scanner is one row of a query's result.
type scanner interface{ Scan(dest ...any) error }

// query returns all rows of a query's result.
func query[T any](ctx context.Context, q querier, read func(scanner) (T, error), text string, args ...any) (all []T, err error) {
	err = q.try(ctx, func(ctx context.Context) error {
		all, err = queryOnce(ctx, q, read, text, args...)
		return err
	})
	return all, err
}

func queryOnce[T any](ctx context.Context, q querier, read func(scanner) (T, error), text string, args ...any) (all []T, err error) {
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

// reader is the pool of connections that read.
type reader struct {
	runner
	s  *Store
	db *sql.DB
}

func newReader(s *Store, db *sql.DB) *reader {
	return &reader{runner: s.dialect.statements(db), s: s, db: db}
}

func (r *reader) try(ctx context.Context, once func(context.Context) error) error {
	return r.s.persist(ctx, func() error {
		ctx, end := r.s.limited(ctx)
		defer end()
		return once(ctx)
	})
}

// tx is the one connection that writes, within a transaction.
type tx struct {
	runner
	conn *sql.Conn
	// ctx is the transaction's own. Its statements do not run in their
	// callers': to cancel one could roll back other callers' changes, too.
	ctx context.Context

	engine  string   // on whose behalf it writes; empty: it shares with none
	notices []notice // for the other engines
}

func newTx(d dialect, conn *sql.Conn) *tx {
	return &tx{runner: d.statements(conn), conn: conn, ctx: context.Background()}
}

// QueryContext runs a query in the transaction's context.
func (t *tx) QueryContext(_ context.Context, text string, args ...any) (*sql.Rows, error) {
	return t.runner.QueryContext(t.ctx, text, args...)
}

// ExecContext runs a statement in the transaction's context.
func (t *tx) ExecContext(_ context.Context, text string, args ...any) (sql.Result, error) {
	return t.runner.ExecContext(t.ctx, text, args...)
}

// try runs once: what fails is tried again with its whole transaction.
func (t *tx) try(_ context.Context, once func(context.Context) error) error { return once(t.ctx) }
