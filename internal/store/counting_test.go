package store

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"strings"
	"sync"
	"testing"
)

// countingName is a database driver that counts what passes through it.
const countingName = "sqlite, counted"

// counts are what the database was asked for, by all stores with the counting
// driver: tests that read them do not run side by side.
type counts struct{ statements, rows, commits int }

var (
	counting     sync.Mutex
	counted      counts
	registerOnce sync.Once
)

// during returns what the database was asked for while f ran.
func during(f func()) counts {
	counting.Lock()
	counted = counts{}
	counting.Unlock()
	f()
	counting.Lock()
	defer counting.Unlock()
	return counted
}

// openCounted opens a store whose statements during counts.
func openCounted(t testing.TB, dir string) *Store {
	t.Helper()
	sqliteOnly(t)
	registerOnce.Do(func() {
		db, err := sql.Open("sqlite", "")
		if err != nil {
			t.Fatal(err)
		}
		sql.Register(countingName, countingDriver{db.Driver()})
	})
	return openStore(t, Options{Dir: dir, MaxOutput: 100, driver: countingName})
}

type countingDriver struct{ driver.Driver }

func (d countingDriver) Open(name string) (driver.Conn, error) {
	c, err := d.Driver.Open(name)
	if err != nil {
		return nil, err
	}
	return countingConn{c.(wholeConn)}, nil
}

type wholeConn interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
}

type countingConn struct{ wholeConn }

func (c countingConn) PrepareContext(ctx context.Context, text string) (driver.Stmt, error) {
	s, err := c.wholeConn.PrepareContext(ctx, text)
	if err != nil {
		return nil, err
	}
	return countingStmt{s.(wholeStmt), text}, nil
}

type wholeStmt interface {
	driver.Stmt
	driver.StmtExecContext
	driver.StmtQueryContext
}

type countingStmt struct {
	wholeStmt
	text string
}

func (s countingStmt) count() {
	counting.Lock()
	defer counting.Unlock()
	counted.statements++
	if strings.HasPrefix(s.text, "COMMIT") {
		counted.commits++
	}
}

func (s countingStmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	s.count()
	return s.wholeStmt.ExecContext(ctx, args)
}

func (s countingStmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	s.count()
	r, err := s.wholeStmt.QueryContext(ctx, args)
	if err != nil {
		return nil, err
	}
	return countingRows{r}, nil
}

type countingRows struct{ driver.Rows }

func (r countingRows) Next(dest []driver.Value) error {
	err := r.Rows.Next(dest)
	if err == nil {
		counting.Lock()
		defer counting.Unlock()
		counted.rows++
	}
	return err
}
