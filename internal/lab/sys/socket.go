package sys

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// DialUnix connects to a socket whose path may be longer than the 107 bytes an address holds.
func DialUnix(ctx context.Context, path string) (net.Conn, error) {
	short, done, err := ShortSocketPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	var d net.Dialer
	return d.DialContext(ctx, "unix", short)
}

// ShortSocketPath names a socket through an open directory, for paths longer than a socket address
// holds. The caller calls done after use.
func ShortSocketPath(path string) (short string, done func(), err error) {
	if len(path) < 100 {
		return path, func() {}, nil
	}
	dir, base := filepath.Split(path)
	f, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d/%s", f.Fd(), base), func() { f.Close() }, nil
}
