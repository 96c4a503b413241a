package remote_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

// soon fails the test when work, which a machine of bad will is part of, does
// not return although its time is over.
func soon(t *testing.T, what string, work func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		work()
	}()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s has not returned for half a minute", what)
	}
}

// A guest that no longer reads from its network: the host cannot deliver what it
// has buffered, and until it does, OpenSSH does not close the channel. Here the
// host does not report the channel's end at all.
func TestClose_DoesNotWaitForADeafGuest(t *testing.T) {
	host, vm := sshtest.Start(t, sshtest.Options{}), sshtest.Start(t, sshtest.Options{})
	o := options(host)
	o.KeepAlive = time.Hour // of such a channel keepalives between us and the host know nothing
	g := guest(t, pool(t, o), vm, nil)
	output(t, g, "true")
	host.Set(sshtest.Faults{Deaf: true})
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var err error
	soon(t, "the upload", func() {
		err = g.Upload(ctx, remote.File{Path: t.TempDir() + "/big", Data: make([]byte, 64<<20), Mode: 0o600})
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v", err)
	}
	soon(t, "Close", g.Close)
	host.Drop()
}

// A command that floods its output is let go of when the bound is reached, not
// when the time for it is over.
func TestOutput_EndsWithTheFlood(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	soon(t, "the flood", func() {
		out, err := pool(t, options(s)).Output(t.Context(), remote.Command{Name: "flood", Line: "yes"}, 100)
		if err == nil || !strings.Contains(err.Error(), "wrote more than 100 bytes") || len(out) != 100 {
			t.Errorf("%d bytes, err = %v", len(out), err)
		}
	})
}
