// Package pgtest gives tests PostgreSQL databases. It starts a server of Debian's package postgresql as
// an unprivileged user, in its own directory, on a socket only in that directory. Tests are skipped if
// the package is not installed.
package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// variable chooses the database of the tests that can run on both.
const variable = "LINUS_TEST_DATABASE"

// Chosen reports whether tests that can run on SQLite or PostgreSQL are to run on PostgreSQL.
func Chosen() bool { return os.Getenv(variable) == "postgres" } //nolint:forbidigo // of tests only

// Choose is the environment variable, with its value, that chooses PostgreSQL.
const Choose = variable + "=postgres"

// URL returns the URL of the database that stands for a state directory; "" if tests run on SQLite.
func URL(t testing.TB, dir string) string {
	t.Helper()
	if !Chosen() {
		return ""
	}
	shared.Lock()
	defer shared.Unlock()
	if shared.urls[dir] == "" {
		shared.urls[dir] = sharedServer(t).Database(t)
		t.Cleanup(func() {
			shared.Lock()
			defer shared.Unlock()
			delete(shared.urls, dir)
		})
	}
	return shared.urls[dir]
}

// Database returns the URL of a new database, on the server that all tests of the package share.
func Database(t testing.TB) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	return sharedServer(t).Database(t)
}

var shared = struct {
	sync.Mutex
	server *Server
	urls   map[string]string // by state directory
}{urls: map[string]string{}}

func sharedServer(t testing.TB) *Server {
	t.Helper()
	if shared.server == nil {
		shared.server = start(t)
	}
	return shared.server
}

// Main runs a package's tests, and then stops their shared server.
func Main(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		shared.server.remove()
	}
	return code
}

// Database returns the URL of an empty database, for this test until it ends. The database may have a
// schema: emptying a database is cheaper than making one.
func (s *Server) Database(t testing.TB) string {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	var name string
	if n := len(s.free); n > 0 {
		name, s.free = s.free[n-1], s.free[:n-1]
	} else {
		s.made++
		name = fmt.Sprintf("test_%d", s.made)
		if err := s.do("postgres", "CREATE DATABASE "+name); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if s.do(name, emptying) == nil { // fails if the server was stopped
			s.mu.Lock()
			defer s.mu.Unlock()
			s.free = append(s.free, name)
		}
	})
	return s.url(name)
}

// emptying ends what a test has left in its database, and removes all rows except those with the schema's
// version.
const emptying = `DO $$ BEGIN
	PERFORM pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid();
	EXECUTE (SELECT coalesce('TRUNCATE ' || string_agg(quote_ident(tablename), ', ') || ' RESTART IDENTITY', '')
		FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'goose_db_version');
	IF to_regclass('goose_db_version') IS NOT NULL THEN
		DELETE FROM goose_db_version WHERE version_id = 99; -- of a test of a newer schema
	END IF;
END $$`

// url returns the URL of a database. The server accepts any password.
func (s *Server) url(database string) string {
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, Password), Path: "/" + database, RawQuery: url.Values{"host": {s.dir}}.Encode()}
	return u.String()
}

// Password is in the URLs of all databases: it must not appear anywhere.
const Password = "hunter2-of-the-database"

const role = "linus"

func (s *Server) do(database, text string) error {
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, s.url(database))
	if err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing to lose
	if _, err := conn.Exec(ctx, text); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}
