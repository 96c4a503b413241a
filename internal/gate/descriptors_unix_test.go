//go:build unix

package gate

import (
	"log/slog"
	"syscall"
	"testing"
)

// Whatever the process may open, most of it is left for what is not a connection.
func TestNew_LeavesDescriptorsForTheRest(t *testing.T) {
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before) }()
	for _, tt := range []struct {
		files uint64
		want  Bounds
	}{{400, Bounds{All: 100, Address: 25, Loopback: 50}}, {before.Max, Bounds{All: 200, Address: 50, Loopback: 100}}} {
		now := before
		now.Cur = tt.files
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
			t.Fatal(err)
		}
		if got := New(nil, Bounds{All: 200, Address: 50, Loopback: 100}, "test", slog.New(slog.DiscardHandler)).bounds; got != tt.want {
			t.Errorf("of %d files: %+v, want %+v", tt.files, got, tt.want)
		}
	}
}
