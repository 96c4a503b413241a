package store

import (
	"context"
	"database/sql"
	"errors"
)

// dialect is what differs between the databases. Statements are written once, with ? for their
// parameters, in SQL that both understand.
type dialect interface {
	// readsOn runs the queries of a pool, writesOn the statements of a connection.
	readsOn(db *sql.DB) runner
	writesOn(conn *sql.Conn) runner
	// lock returns the end of a SELECT that locks the selected rows of the table: nobody else
	// changes them before the transaction has ended.
	lock(table string) string
	// clock is an expression for the database's time, in seconds since 1970.
	clock() string
	// label is an expression for a job's label; its parameter is the label's key.
	label() string
	// send sends the transaction's notices when it commits.
	send(t *tx) error
	// fence makes the transaction fail with errBuried, at its commit at the latest, unless the
	// engine is a member. It keeps the engine a member until the transaction has ended.
	fence(t *tx, engine string) error
	// begin begins a transaction, and returns its ID for commitOutcome.
	begin(t *tx) (id string, err error)
	// commit commits the transaction; an error if it has already ended or failed.
	commit(t *tx) error
	// commitOutcome reports whether a transaction was committed if only that is unknown.
	commitOutcome(ctx context.Context, q querier, id string) (committed bool, err error)
	// dead reports whether a connection is unusable.
	dead(conn *sql.Conn) bool
	// passing reports whether an operation that failed with err may succeed when it is retried: the
	// database is away, or others were in the way.
	passing(err error) bool
	// own reports whether err is the database's own failure, and not caused by the request.
	own(err error) bool
}

type statement struct {
	text string
	args []any

	zero error // what a division by zero means; nil: nothing special
}

type runner interface {
	// run runs statements, one after the other, until one fails, and returns the index of that one.
	// For the last statement it calls read with each row of the result or, without read, returns
	// how many rows were changed.
	run(ctx context.Context, all []statement, read func(scanner) error) (changed int64, failed int, err error)
}

// rowsOf calls read with each row of a query's result.
func rowsOf(rows *sql.Rows, err error, read func(scanner) error) error {
	if err != nil {
		return err
	}
	for rows.Next() {
		if err := read(rows); err != nil {
			return errors.Join(err, rows.Close())
		}
	}
	return errors.Join(rows.Err(), rows.Close())
}
