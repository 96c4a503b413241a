package control_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/job"
)

// program is an engine with a VM in which a program takes all it is sent, and sends it
// back when that has ended.
type program struct {
	engine

	closed atomic.Int32
}

func (e *program) DialVM(_ context.Context, vm string, port int) (job.Tunnel, error) {
	if port != 80 {
		return nil, &job.FieldError{Field: "port", Problem: "nothing accepts connections there"}
	}
	r, w := io.Pipe()
	back, answer := io.Pipe()
	go func() {
		all, _ := io.ReadAll(r)
		_, _ = answer.Write(append([]byte(vm+": "), all...))
		_ = answer.Close()
	}()
	return &fullDuplex{Reader: back, PipeWriter: w, back: back, e: e}, nil
}

type fullDuplex struct {
	io.Reader
	*io.PipeWriter

	back *io.PipeReader
	e    *program
}

func (f *fullDuplex) CloseWrite() error { return f.PipeWriter.Close() }

func (f *fullDuplex) Close() error {
	f.e.closed.Add(1)
	return errors.Join(f.PipeWriter.Close(), f.back.Close())
}

func TestDialVM_CarriesBothWaysAndEndsEachByItself(t *testing.T) {
	e := &program{}
	s, r := serveAPI(t, e)
	c := dialRemote(t, r)
	conn, err := c.DialVM(t.Context(), "dev", 80)
	if err != nil {
		t.Fatal(err)
	}
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent)
	if _, err := conn.Write(sent); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(conn); err != nil || !bytes.Equal(got, append([]byte("dev: "), sent...)) {
		t.Errorf("%d bytes came back, %v", len(got), err)
	}
	if err := conn.Close(); err != nil && !errors.Is(err, io.EOF) {
		t.Logf("close: %v", err)
	}
	gone := func(want int32) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); e.closed.Load() < want; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d connections to the VM closed, want %d", e.closed.Load(), want)
			}
		}
	}
	gone(1)
	var field *job.FieldError
	if _, err := c.DialVM(t.Context(), "dev", 81); !errors.As(err, &field) || field.Field != "port" {
		t.Errorf("nothing listens: %v", err)
	}
	conn, err = c.DialVM(t.Context(), "dev", 80)
	if err != nil {
		t.Fatal(err)
	}
	s.CloseClientConnections()
	if err := conn.Close(); err != nil {
		t.Logf("close: %v", err)
	}
	gone(2)
	cut, err := c.DialVM(t.Context(), "dev", 80)
	if err != nil {
		t.Fatal(err)
	}
	_ = cut.Close()
	if _, err := cut.Read(make([]byte, 1)); err == nil {
		t.Error("a closed connection is read")
	}
	gone(3)
}
