package remote_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"linus/internal/remote"
	"linus/internal/sshtest"
)

func line(in *bufio.Reader) (string, error) { return in.ReadString('\n') }

func TestProcess_IsTalkedTo(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	r, err := pool(t, options(s)).Begin(t.Context(), remote.Command{Name: "talk", Line: `while read -r x; do echo "<$x>"; done; head -c 3; echo end >&2; exit 3`})
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"one", "two"} {
		if err := r.Send(t.Context(), strings.NewReader(word+"\n")); err != nil {
			t.Fatal(err)
		}
		if got, err := remote.Receive(t.Context(), r, line); err != nil || got != "<"+word+">\n" {
			t.Errorf("%q, %v", got, err)
		}
	}
	if !r.Running() {
		t.Error("it has ended")
	}
	r.Close()
	var exit *remote.ExitError
	if err := r.Wait(t.Context()); err == nil || errors.As(err, &exit) || remote.ClassOf(err) != remote.Lost {
		t.Errorf("closed before its exit status: %v", err)
	}
}

// The end of its input may end a command: that is no failure to talk to it.
func TestProcess_EndsWithItsInput(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	r, err := pool(t, options(s)).Begin(t.Context(), remote.Command{Name: "take", Line: "exec cat >/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Send(t.Context(), strings.NewReader("all")); err != nil {
		t.Fatal(err)
	}
	if err := r.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// What is said to, or read from, a command that is over is how it ended.
func TestProcess_EndsWithItsCommand(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	begin := func(line string) *remote.Process {
		t.Helper()
		r, err := p.Begin(t.Context(), remote.Command{Name: "it", Line: line})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var exit *remote.ExitError
	r := begin("printf abc; echo why >&2; exit 4")
	if got, err := remote.Receive(t.Context(), r, func(in *bufio.Reader) (string, error) {
		got := make([]byte, 4)
		n, err := io.ReadFull(in, got)
		return string(got[:n]), err
	}); got != "abc" || !errors.As(err, &exit) || exit.Code != 4 || exit.Stderr != "why\n" {
		t.Errorf("%q, %v", got, err)
	}
	r = begin("exec <&-; exit 5")
	_ = r.Wait(t.Context())
	if err := r.Send(t.Context(), bytes.NewReader(make([]byte, 8<<20))); !errors.As(err, &exit) || exit.Code != 5 || r.Running() {
		t.Errorf("%v", err)
	}
	r = begin("sleep 60")
	s.Drop()
	if _, err := remote.Receive(t.Context(), r, line); remote.ClassOf(err) != remote.Lost {
		t.Errorf("%v", err)
	}
}

// Neither a command that says nothing nor one that reads nothing holds its caller.
func TestProcess_EndsWithItsCaller(t *testing.T) {
	s := sshtest.Start(t, sshtest.Options{})
	p := pool(t, options(s))
	r, err := p.Begin(t.Context(), remote.Command{Name: "mute", Line: "exec sleep 60"})
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	for name, work := range map[string]func(context.Context) error{
		"send":    func(ctx context.Context) error { return r.Send(ctx, bytes.NewReader(make([]byte, 64<<20))) },
		"receive": func(ctx context.Context) error { _, err := remote.Receive(ctx, r, line); return err },
		"wait":    r.Wait,
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(20*time.Millisecond, func() { cancel(why) })
		if err := work(ctx); !errors.Is(err, why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	began := time.Now()
	p.Close()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("closed after %s", took)
	}
	if _, err := p.Begin(t.Context(), remote.Command{Line: "true"}); err == nil {
		t.Error("a closed pool began a command")
	}
}
