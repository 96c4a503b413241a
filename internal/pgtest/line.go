package pgtest

import (
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"linus/internal/wiretest"
)

// Line is a connection to a server that can be held.
type Line struct {
	*wiretest.Wire
	dir string
}

// LineTo returns a new line to the server of a database. The line ends with the test.
func LineTo(t testing.TB, database string) Line {
	t.Helper()
	dir, err := os.MkdirTemp("", "linus-pg-line-") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const socket = ".s.PGSQL.5432"
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(parsed(database).Query().Get("host"), socket)
	return Line{dir: dir, Wire: wiretest.Start(t, listener, func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", server)
	}, 0)}
}

// URL returns the URL of a database of the server, reached over this line.
func (l Line) URL(database string) string {
	u := parsed(database)
	u.RawQuery = url.Values{"host": {l.dir}}.Encode()
	return u.String()
}

func parsed(database string) *url.URL {
	u, err := url.Parse(database)
	if err != nil {
		panic(err)
	}
	return u
}
