package store

import (
	"context"
	"database/sql"
)

// dialect is what differs between the databases. Statements are written once,
// with ? for their parameters, in what both understand.
type dialect interface {
	// statements runs the statements of a pool or a connection.
	statements(on source) runner
	// lock returns the end of a SELECT within a transaction which changes the
	// selected rows of the table: nobody else changes them before it has ended.
	lock(table string) string
	// hold returns the end of a SELECT within a transaction which keeps others from
	// removing the selected rows before it has ended.
	hold(table string) string
	// clock is an expression for the database's time, in seconds since 1970.
	clock() string
	// send sends the notices of a transaction, when that commits.
	send(t *tx) error
	// begin begins a transaction, and returns its ID for fate.
	begin(t *tx) (id string, err error)
	// commit ends it; an error if it has ended, or failed, before.
	commit(t *tx) error
	// fate reports whether a transaction of which only that is unknown was
	// committed.
	fate(ctx context.Context, q querier, id string) (committed bool, err error)
	// dead reports whether a connection is of no use any more.
	dead(conn *sql.Conn) bool
	// passing reports whether what failed with err may succeed when it is tried
	// again: the database is away, or others were in the way.
	passing(err error) bool
}

// source is a pool of connections or one of them.
type source interface {
	runner
	PrepareContext(ctx context.Context, text string) (*sql.Stmt, error)
}

// runner runs statements.
type runner interface {
	QueryContext(ctx context.Context, text string, args ...any) (*sql.Rows, error)
	ExecContext(ctx context.Context, text string, args ...any) (sql.Result, error)
}
