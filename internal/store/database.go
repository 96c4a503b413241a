package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"linus/internal/job"
)

// querier is the database to read from, or a transaction.
type querier interface {
	// each calls read with each row of a query's result.
	each(ctx context.Context, read func(scanner) error, text string, args ...any) error
	// try calls once with the context to query in, and again while that helps.
	try(ctx context.Context, once func(context.Context) error) error
}

// tried returns err with what was tried; nil if err is nil. job.ErrNotFound, a *job.FieldError and
// the error of a refusal stay as they are: it is no failure that something does not exist or is
// refused.
func tried(err error, format string, args ...any) error {
	if by, is := errors.AsType[refusal](err); is {
		return by.error
	}
	var refused *job.FieldError
	switch {
	case err == nil, errors.Is(err, job.ErrNotFound):
		return err
	case errors.As(err, &refused):
		return refused
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// refusal is the error of a caller's function that does not want its change written.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

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
	err = q.each(ctx, func(row scanner) error {
		v, err := read(row)
		all = append(all, v)
		return err
	}, text, args...)
	if err != nil {
		return nil, err
	}
	return all, nil
}

// atMost is LIMIT ? in a form whose number SQLite does not plan for. Otherwise SQLite would prepare
// the statement again for each number.
const atMost = ` LIMIT ? + 0`

// scanValue reads a row of one column.
func scanValue[T any](row scanner) (v T, err error) {
	err = row.Scan(&v)
	return v, err
}

// scanDoc decodes a row of one document.
func scanDoc[T any](row scanner) (v T, err error) {
	var doc string
	if err = row.Scan(&doc); err == nil {
		err = json.Unmarshal([]byte(doc), &v)
	}
	return v, err
}

// only returns the row that a query has found; job.ErrNotFound.
func only[T any](found []T, err error) (T, error) {
	if err == nil && len(found) == 0 {
		err = job.ErrNotFound
	}
	if err != nil {
		var none T
		return none, err
	}
	return found[0], nil
}

// changeDoc changes, in a transaction, the document of the row whose column has a value;
// job.ErrNotFound.
func changeDoc[T any](ctx context.Context, s *Store, tx *tx, table, column, value string, change func(*T) error) (is T, err error) {
	if is, err = only(query(ctx, tx, scanDoc[T], `SELECT doc FROM `+table+` WHERE `+column+` = ?`+s.dialect.lock(table), value)); err != nil {
		return is, err
	}
	if err = change(&is); err != nil {
		return is, refusal{err}
	}
	doc, err := json.Marshal(is)
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE `+table+` SET doc = ? WHERE `+column+` = ?`, string(doc), value)
	}
	return is, err
}

// first returns the first column of a query's first row; job.ErrNotFound.
func first[T any](ctx context.Context, q querier, text string, args ...any) (T, error) {
	return only(query(ctx, q, scanValue[T], text, args...))
}

// reader is the pool of connections that read. Each connection has a goroutine that runs its
// queries: otherwise each of a thousand jobs would keep the 40 KB of stack that a read takes.
type reader struct {
	runner runner
	s      *Store
	db     *sql.DB
	work   chan func()
	closed chan struct{}
	close  func()
}

func newReader(s *Store, db *sql.DB) *reader {
	r := &reader{runner: s.dialect.readsOn(db), s: s, db: db, work: make(chan func()), closed: make(chan struct{})}
	r.close = sync.OnceFunc(func() { close(r.closed) })
	for range readers {
		go func() {
			for {
				select {
				case do := <-r.work:
					do()
				case <-r.closed:
					return
				}
			}
		}()
	}
	return r
}

func (r *reader) each(ctx context.Context, read func(scanner) error, text string, args ...any) (err error) {
	done := make(chan struct{})
	do := func() {
		defer close(done)
		_, _, err = r.runner.run(ctx, []statement{{text: text, args: args}}, read)
	}
	select {
	case r.work <- do:
		<-done
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-r.closed:
		return errClosed
	}
}

func (r *reader) try(ctx context.Context, once func(context.Context) error) error {
	return r.s.persist(ctx, func() error {
		ctx, end := r.s.limited(ctx)
		defer end()
		return once(ctx)
	})
}

// tx is the writer's only connection, within a transaction.
type tx struct {
	runner runner
	conn   *sql.Conn
	// ctx is the transaction's own. Statements do not run in their callers' contexts: cancelling
	// one could roll back other callers' changes, too.
	ctx context.Context

	mark    string          // its row in meta; see postgres.go
	engine  string          // the engine that writes; empty: it does not share the database
	notices []job.Notice    // for the other engines
	soon    []string        // jobs that the others are notified of a little later
	told    []job.Happening // what the current change reports, once it is committed
	posted  []statement     // to run with the next statement
	broken  error           // the error of a posted statement: the transaction is unusable
}

func newTx(d dialect, conn *sql.Conn) *tx {
	return &tx{runner: d.writesOn(conn), conn: conn, ctx: context.Background()}
}

// renew prepares for another transaction, or for the end of this one.
func (t *tx) renew() { t.posted, t.broken = nil, nil }

// post queues a statement whose result nobody needs. It runs with the next statement, or with the
// commit, which saves a round trip. If it fails, so does the whole transaction.
func (t *tx) post(text string, args ...any) {
	t.posted = append(t.posted, statement{text: text, args: args})
}

func (t *tx) each(_ context.Context, read func(scanner) error, text string, args ...any) error {
	_, err := t.run(read, text, args)
	return err
}

// ExecContext runs a statement in the transaction's context, and returns how many rows it changed.
func (t *tx) ExecContext(_ context.Context, text string, args ...any) (int64, error) {
	return t.run(nil, text, args)
}

// run runs the posted statements, and one more.
func (t *tx) run(read func(scanner) error, text string, args []any) (int64, error) {
	if t.broken != nil {
		return 0, t.broken
	}
	all := append(t.posted, statement{text: text, args: args})
	t.posted = nil
	n, failed, err := t.runner.run(t.ctx, all, read)
	if err != nil && failed < len(all)-1 {
		t.broken = err
	}
	return n, err
}

// try runs once, without retrying: a failure is retried with its whole transaction.
func (t *tx) try(_ context.Context, once func(context.Context) error) error { return once(t.ctx) }
