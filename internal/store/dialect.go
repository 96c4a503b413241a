package store

import (
	"context"
	"database/sql"
	"errors"
)

// dialect is what differs between the databases. Statements are written once,
// with ? for their parameters, in what both understand.
type dialect interface {
	// readsOn runs the queries of a pool, writesOn the statements of a connection.
	readsOn(db *sql.DB) runner
	writesOn(conn *sql.Conn) runner
	// lock returns the end of a SELECT within a transaction which changes the
	// selected rows of the table: nobody else changes them before it has ended.
	lock(table string) string
	// clock is an expression for the database's time, in seconds since 1970.
	clock() string
	// label is an expression for the label of a job whose key is the parameter.
	label() string
	// send sends the notices of a transaction, when that commits.
	send(t *tx) error
	// fence ends the transaction with errBuried, at its commit at the latest, unless the
	// engine is a member, and keeps it one until the transaction has ended.
	fence(t *tx, engine string) error
	// begin begins a transaction, and returns its ID for commitOutcome.
	begin(t *tx) (id string, err error)
	// commit ends it; an error if it has ended, or failed, before.
	commit(t *tx) error
	// commitOutcome reports whether a transaction of which only that is unknown was
	// committed.
	commitOutcome(ctx context.Context, q querier, id string) (committed bool, err error)
	// dead reports whether a connection is of no use any more.
	dead(conn *sql.Conn) bool
	// passing reports whether what failed with err may succeed when it is tried
	// again: the database is away, or others were in the way.
	passing(err error) bool
	// own reports whether err is the database's, which could not do what it was asked,
	// and not of what it was asked.
	own(err error) bool
}

// statement is one statement with its parameters.
type statement struct {
	text string
	args []any

	zero error // what it means that it has divided by zero; nil: nothing else
}

// runner runs statements.
type runner interface {
	// run runs statements, one after the other, until one fails, and returns which. Of the
	// last one it calls read with each row of the result or, without read, returns how many
	// rows were changed.
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
