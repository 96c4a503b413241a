package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// Command is one command line for the login shell of the other machine.
type Command struct {
	Name   string // for people, in errors: "create-vm"
	Line   string // see Quote and EnvLine
	Stdin  io.Reader
	Stdout io.Writer // nil: thrown away
	Stderr io.Writer // nil: only its end is kept, for ExitError

	// OnCancel is run in a session of its own when ctx ends while the command
	// runs; it is to make the command end, which then has until CancelWait (0:
	// 10 s) after the cancellation to do so. Empty: the command is left running.
	OnCancel   string
	CancelWait time.Duration
}

// stderrTail bounds ExitError.Stderr.
const stderrTail = 8 << 10

// Run runs a command to its end. Errors are *ExitError when it ended otherwise
// than with 0, *CancelError when ctx ended first, *Error when the connection
// failed, so that how the command ended is not known. Nothing is written to
// Stdout and Stderr after Run has returned.
func (p *Pool) Run(ctx context.Context, cmd Command) error {
	c, session, err := p.session(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.Name, err)
	}
	tail := &tail{limit: stderrTail}
	stdout, stderr := &gate{to: cmd.Stdout}, &gate{to: io.MultiWriter(tail, orDiscard(cmd.Stderr))}
	defer stdout.shut()
	defer stderr.shut()
	session.Stdin, session.Stdout, session.Stderr = cmd.Stdin, stdout, stderr

	started, ended := make(chan struct{}), make(chan error, 1)
	owned := p.own(func() {
		defer p.release(c)
		defer func() { _ = session.Close() }()
		err := session.Start(cmd.Line)
		close(started)
		if err == nil {
			err = discardEOF(session.Wait())
		}
		ended <- err
	})
	if !owned {
		p.release(c)
		return fmt.Errorf("%s: %w", cmd.Name, errors.Join(errClosed, session.Close()))
	}
	select {
	case err := <-ended:
		return p.verdict(cmd, tail, err)
	case <-ctx.Done():
	}
	end := p.stop(ctx, cmd, started, ended)
	_ = session.Close()
	stderr.shut()
	return &CancelError{Name: cmd.Name, Cause: context.Cause(ctx), End: p.verdict(cmd, tail, end)}
}

// errLeftRunning is the end of a command that nothing was to stop.
var errLeftRunning = errors.New("left running")

// stop makes the command end and answers how it did.
func (p *Pool) stop(ctx context.Context, cmd Command, started <-chan struct{}, ended <-chan error) error {
	if cmd.OnCancel == "" {
		return errLeftRunning
	}
	wait := cmd.CancelWait
	if wait == 0 {
		wait = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	late := fmt.Errorf("did not end within %s", wait)
	select {
	case <-started:
	case <-ctx.Done():
		return late
	}
	stopped := make(chan error, 1)
	stopping, done := context.WithCancel(ctx)
	owned := p.own(func() {
		stopped <- p.Run(stopping, Command{Name: "stop " + cmd.Name, Line: cmd.OnCancel})
	})
	defer func() {
		done()
		if owned {
			<-stopped
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return late
	}
}

// verdict turns what x/crypto says of a session's end into this package's words.
func (p *Pool) verdict(cmd Command, stderr *tail, err error) error {
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case err == nil, errors.Is(err, errLeftRunning):
		return err
	case errors.As(err, &exit):
		return &ExitError{Name: cmd.Name, Code: exit.ExitStatus(), Signal: exit.Signal(), Stderr: stderr.String()}
	case errors.As(err, &missing), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return &Error{Op: "run " + cmd.Name + " on", Addr: p.Login(), Class: Lost, Err: errors.New("the connection ended before the command's exit status came")}
	}
	return fmt.Errorf("%s: %w", cmd.Name, err)
}

// Output runs a command and answers what it wrote to stdout, at most limit
// bytes; more is an error.
func (p *Pool) Output(ctx context.Context, cmd Command, limit int) ([]byte, error) {
	out := &bounded{limit: limit}
	cmd.Stdout = out
	if err := p.Run(ctx, cmd); err != nil {
		return out.Bytes(), err
	}
	if out.over {
		return out.Bytes(), fmt.Errorf("%s: wrote more than %d bytes", cmd.Name, limit)
	}
	return out.Bytes(), nil
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// gate passes writes on until it is shut: a session may go on for a moment
// after its caller has left.
type gate struct {
	mu   sync.Mutex
	to   io.Writer
	done bool
}

func (g *gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done || g.to == nil {
		return len(b), nil
	}
	return g.to.Write(b)
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.done = true
}

// tail keeps the last limit bytes written.
type tail struct {
	limit int
	mu    sync.Mutex
	kept  []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append(t.kept[:0], t.kept[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}

// bounded keeps the first limit bytes written and notes that there were more.
type bounded struct {
	bytes.Buffer
	limit int
	over  bool
}

func (b *bounded) Write(data []byte) (int, error) {
	room := b.limit - b.Len()
	if len(data) > room {
		b.over = true
		_, _ = b.Buffer.Write(data[:room])
		return len(data), nil
	}
	return b.Buffer.Write(data)
}
