package remote_test

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"linus/internal/loops"
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
	loops.NotInCheck(t)
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

// A machine that replies "OK" to all that SFTP asks has no file behind it: that is an error,
// and not the end of this process.
func TestFiles_OKInsteadOfAFileIsAnError(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{ServeFiles: func(channel io.ReadWriteCloser) {
		for first := true; ; first = false {
			var size [4]byte
			if _, err := io.ReadFull(channel, size[:]); err != nil {
				return
			}
			request := make([]byte, binary.BigEndian.Uint32(size[:]))
			if _, err := io.ReadFull(channel, request); err != nil {
				return
			}
			reply := []byte{0, 0, 0, 5, 2, 0, 0, 0, 3} // the version
			if !first {
				reply = append(append([]byte{0, 0, 0, 17, 101}, request[1:5]...), make([]byte, 12)...)
			}
			if _, err := channel.Write(reply); err != nil {
				return
			}
		}
	}})
	p := pool(t, options(s))
	_, read := p.ReadRange(t.Context(), "/x", 0, 10)
	errs := []error{read, p.Upload(t.Context(), remote.File{Path: "/x", Data: []byte("abc"), Mode: 0o600})}
	for _, work := range []func(*remote.FileSystem) error{
		func(f *remote.FileSystem) error {
			e, err := f.Stat("/x")
			return errors.Join(err, errors.New(e.Name()+" "+e.Mode().String()))
		},
		func(f *remote.FileSystem) error { _, _, _, err := f.Read("/x", 0, 10); return err },
	} {
		errs = append(errs, p.WithFiles(t.Context(), 1<<20, work))
	}
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "replies make no sense") {
			t.Errorf("%d: %v", i, err)
		}
	}
}
