package store

import (
	"context"
	"crypto/rand"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
)

const (
	oldestServer = 14 // oldest major version of PostgreSQL that is tested and still maintained

	// migrating is the advisory lock of the process that migrates: "linus" and a number.
	migrating = 0x6c696e7573_000001

	// Timeouts that keep connections from blocking others: an engine that is paused within a
	// transaction loses it, and a transaction that waits for a row's lock tries again later.
	idleTime = 10 * time.Second
	lockTime = 10 * time.Second
)

// postgres is the dialect of PostgreSQL. Others may write at the same time.
type postgres struct{}

func (postgres) readsOn(db *sql.DB) runner { return numbered{db} }

func (postgres) writesOn(conn *sql.Conn) runner {
	return &pipeline{conn: conn, texts: map[string]string{}}
}

// lock is the row lock that foreign key references by others do not wait for.
func (postgres) lock(table string) string { return " FOR NO KEY UPDATE OF " + table }

// label reads json, not jsonb, which cannot store text with a NUL in it.
func (postgres) label() string { return `jobs.doc::json #>> ARRAY['labels', CAST(? AS text)]` }

func (postgres) clock() string { return `extract(epoch FROM clock_timestamp())::float8` }

// After a connection was lost in the commit, the outcome of its transaction must be known for
// certain. The server's own transaction IDs do not tell: after a crash it may reuse IDs that it has
// lost. So each connection of a writer has a row in meta, whose value each of its transactions sets
// to a new ID. The row has the ID of the last transaction that was committed.

// marks is the prefix of the keys of these rows.
const marks = "commit "

// keptMarks is how long a connection's row stays after its last transaction.
const keptMarks = 24 * time.Hour

// begin also marks the transaction. Both statements are sent with its first one.
func (postgres) begin(t *tx) (id string, err error) {
	if t.mark == "" {
		t.mark = marks + rand.Text()
	}
	value, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	t.post(beginning)
	t.post(`INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value`, t.mark, value.String())
	return t.mark + "=" + value.String(), nil
}

const beginning = "BEGIN"

// fence is also sent with the transaction's first statement, and so has to fail by itself.
func (postgres) fence(t *tx, engine string) error {
	t.posted = append(t.posted, statement{
		text: `SELECT 1 / count(*) FROM (SELECT 1 FROM engines WHERE id = ? FOR KEY SHARE) AS member`, args: []any{engine}, zero: errBuried,
	})
	return nil
}

// commit checks the status first: PostgreSQL's COMMIT succeeds even if the transaction has failed
// or there is none.
func (postgres) commit(t *tx) error {
	unsent := len(t.posted) > 0 && t.posted[0].text == beginning
	err := raw(t.conn, func(c *pgx.Conn) error {
		if status := c.PgConn().TxStatus(); status != 'T' && !unsent && !c.IsClosed() {
			return fmt.Errorf("the transaction has ended before its commit (status %c)", status)
		}
		return nil
	})
	if err == nil {
		_, err = t.ExecContext(t.ctx, `COMMIT`)
	}
	return err
}

// commitOutcome writes to the row itself, and so waits for a transaction that has not ended: even
// if its client is gone it may still commit.
func (postgres) commitOutcome(ctx context.Context, q querier, id string) (bool, error) {
	key, value, _ := strings.Cut(id, "=")
	last, err := first[string](ctx, q, `INSERT INTO meta (key, value) VALUES (?, '') ON CONFLICT (key) DO UPDATE SET value = meta.value RETURNING value`, key)
	return err == nil && last == value, err
}

// forgetMarks removes the rows of connections that are long gone.
func (s *Store) forgetMarks(ctx context.Context, db *sql.DB) error {
	before := fmt.Sprintf("%012x", time.Now().Add(-keptMarks).UnixMilli())
	_, err := db.ExecContext(ctx, `DELETE FROM meta WHERE key LIKE $1 AND value < $2`, marks+"%", before[:8]+"-"+before[8:])
	return err
}

func (postgres) dead(conn *sql.Conn) bool {
	err := raw(conn, func(c *pgx.Conn) error {
		if c.IsClosed() {
			return net.ErrClosed
		}
		return nil
	})
	return err != nil
}

// raw calls work with the driver's connection.
func raw(conn *sql.Conn, work func(*pgx.Conn) error) error {
	return conn.Raw(func(c any) error {
		of, ok := c.(*stdlib.Conn)
		if !ok {
			return fmt.Errorf("the database's driver is %T", c)
		}
		return work(of.Conn())
	})
}

func (postgres) passing(err error) bool {
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
		return slices.Contains(passingCodes, refused.Code) || strings.HasPrefix(refused.Code, "08")
	}
	var unconnected *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &unconnected) || errors.As(err, &network) || pgconn.SafeToRetry(err) ||
		slices.ContainsFunc(lost, func(e error) bool { return errors.Is(err, e) })
}

func (d postgres) own(err error) bool {
	var refused *pgconn.PgError
	return d.passing(err) || errors.As(err, &refused) && !strings.HasPrefix(refused.Code, "23") // a violated constraint
}

// passingCodes are errors of the server that pass.
var passingCodes = []string{
	"40001", "40P01", "55P03", // others were in the way: serialization, deadlock, lock
	"57P01", "57P02", "57P03", // the server is shutting down, has crashed, is starting up
	"25006", "25P03", // it is a standby; the transaction was idle for too long
	"53300", // too many connections
}

// lost are errors of a connection that is gone.
var lost = []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, driver.ErrBadConn, sql.ErrConnDone, context.DeadlineExceeded}

// numbered runs queries whose parameters are written ?. pgx prepares each text once per connection.
type numbered struct{ db *sql.DB }

func (n numbered) run(ctx context.Context, all []statement, read func(scanner) error) (int64, int, error) {
	rows, err := n.db.QueryContext(ctx, number(all[0].text), storable(all[0].args)...)
	return 0, 0, rowsOf(rows, err, read)
}

// number replaces each ? of a statement with $1, $2, ...
func number(text string) string {
	var b strings.Builder
	for n := 1; ; n++ {
		before, after, found := strings.Cut(text, "?")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		b.WriteString("$" + strconv.Itoa(n))
		text = after
	}
}

// storable replaces texts in args that PostgreSQL does not accept: no text, least of all a guest's,
// may make a write fail.
func storable(args []any) []any {
	for i, arg := range args {
		switch v := arg.(type) {
		case string:
			args[i] = plain(v)
		case sql.NullString:
			v.String = plain(v.String)
			args[i] = v
		}
	}
	return args
}

// plain returns text with a replacement character for each NUL and for invalid UTF-8.
func plain(text string) string {
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	return strings.ReplaceAll(text, "\x00", string(utf8.RuneError))
}

// openPostgres opens the database of o.URL.
func (s *Store) openPostgres(ctx context.Context, o Options) error {
	config, err := pgx.ParseConfig(o.URL)
	if err != nil {
		return errors.New("LINUS_DATABASE_URL cannot be read; write it as postgres://USER@HOST:5432/DATABASE") // err may contain the password
	}
	s.dialect, s.files, s.answerTime = postgres{}, &pieces{s: s}, answerTime
	s.name = "PostgreSQL database " + config.Database + " at " + place(config)
	if config.ConnectTimeout == 0 {
		config.ConnectTimeout = 5 * time.Second
	}
	if config.RuntimeParams["application_name"] == "" {
		config.RuntimeParams["application_name"] = "linus"
	}
	config.RuntimeParams["idle_in_transaction_session_timeout"] = strconv.FormatInt(idleTime.Milliseconds(), 10)
	config.RuntimeParams["lock_timeout"] = strconv.FormatInt(lockTime.Milliseconds(), 10)
	s.listening = config.Copy()
	s.writer = openPool(config, 1)
	config.RuntimeParams["default_transaction_read_only"] = "on"
	read := openPool(config, readers)
	s.pools = []*sql.DB{read, s.writer}
	s.read = newReader(s, read)
	if err := s.persist(ctx, func() error { return s.migratePostgres(ctx, read) }); err != nil || o.copying {
		return err
	}
	return errors.Join(s.refuseUnfinished(ctx), s.forgetMarks(ctx, s.writer))
}

// openPool returns a pool of connections, which are made when they are needed.
func openPool(config *pgx.ConnConfig, connections int) *sql.DB {
	db := stdlib.OpenDB(*config.Copy())
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db
}

// place says where a database is, for messages.
func place(config *pgx.ConnConfig) string {
	if strings.HasPrefix(config.Host, "/") {
		return config.Host // a socket's directory
	}
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// migratePostgres checks the server's version and brings the schema up to date, one process at a
// time.
func (s *Store) migratePostgres(ctx context.Context, locks *sql.DB) error {
	conn, err := s.lockSchema(ctx, locks)
	if err != nil {
		return fmt.Errorf("open %s: %w", s.name, err)
	}
	defer func() {
		unlocking, end := s.limited(context.WithoutCancel(ctx))
		defer end()
		_, _ = conn.ExecContext(unlocking, `SELECT pg_advisory_unlock($1)`, int64(migrating)) // the lock also ends with the connection
		_ = conn.Close()                                                                      // returns to its pool
	}()
	return s.migrate(ctx, goose.DialectPostgres, s.writer, schema{
		files: "migrations/postgres", database: s.name, other: "set LINUS_DATABASE_URL to another database",
	})
}

// lockSchema returns a connection that holds the schema's lock.
func (s *Store) lockSchema(ctx context.Context, locks *sql.DB) (*sql.Conn, error) {
	ctx, end := s.limited(ctx)
	defer end()
	conn, err := locks.Conn(ctx)
	if err != nil {
		return nil, err
	}
	var version int
	err = conn.QueryRowContext(ctx, `SELECT current_setting('server_version_num')::int / 10000`).Scan(&version)
	if err == nil && version < oldestServer {
		err = fmt.Errorf("the server is of version %d; linus needs PostgreSQL %d or newer", version, oldestServer)
	}
	if err == nil {
		_, err = conn.ExecContext(ctx, `SELECT pg_advisory_lock($1)`, int64(migrating))
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
