package remote

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"sync"

	"golang.org/x/crypto/ssh"

	"linus/internal/capped"
	"linus/internal/term"
)

// Command is a command line for the other machine's login shell, which must be a POSIX shell.
type Command struct {
	Name   string // for people, in errors: "create-vm"
	Line   string // see Quote and EnvLine
	Stdin  io.Reader
	Stdout io.Writer // does not get what the login shell prints; nil: discarded
	Stderr io.Writer // nil: only its last part is kept, for ExitError
}

// stderrTail bounds ExitError.Stderr.
const stderrTail = 8 << 10

// Run runs a command to completion. It returns an *ExitError if the command did not exit with 0, and an
// *Error if the connection failed, in which case the command's outcome is unknown. If ctx ends first the
// command is left running. Nothing is written to Stdout and Stderr after Run has returned.
func (p *Pool) Run(ctx context.Context, cmd Command) error {
	c, session, err := p.session(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.Name, err)
	}
	tail := &tail{limit: stderrTail}
	mark := rand.Text()
	stdout, stderr := &gate{to: &AfterMark{Mark: []byte("\n" + mark + "\n"), To: orDiscard(cmd.Stdout)}}, &gate{to: io.MultiWriter(tail, orDiscard(cmd.Stderr))}
	defer stdout.shut()
	defer stderr.shut()
	session.Stdin, session.Stdout, session.Stderr = cmd.Stdin, stdout, stderr

	ended := make(chan error, 1)
	if err := p.start(c, session, markLine(mark, cmd.Line), func() {}, func(err error) { ended <- err }); err != nil {
		return fmt.Errorf("%s: %w", cmd.Name, err)
	}
	select {
	case err := <-ended:
		return p.verdict(cmd, tail, err)
	case <-ctx.Done():
	}
	_ = session.Close()
	return fmt.Errorf("%s: %w; it may still run there", cmd.Name, context.Cause(ctx))
}

// start runs a command in a session, which it closes. It calls began when the other machine has accepted
// the command, and ended when the command has ended.
func (p *Pool) start(c *conn, session *ssh.Session, line string, began func(), ended func(error)) error {
	owned := p.own(func() {
		defer p.release(c)
		defer func() { _ = session.Close() }()
		err := session.Start(line)
		if err == nil {
			began()
			err = discardEOF(session.Wait())
		}
		ended(err)
	})
	if !owned {
		p.release(c)
		return errors.Join(errClosed, session.Close())
	}
	return nil
}

// verdict converts x/crypto's error at a session's end into this package's.
func (p *Pool) verdict(cmd Command, stderr *tail, err error) error {
	var exit *ssh.ExitError
	var missing *ssh.ExitMissingError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &ExitError{Name: cmd.Name, Code: exit.ExitStatus(), Signal: term.Line(exit.Signal()), Stderr: term.Text(stderr.String())}
	case errors.As(err, &missing), broken(err):
		return &Error{Op: "run " + cmd.Name + " on", Addr: p.Login(), Class: Lost, Err: errors.New("the connection ended before the command's exit status came")}
	}
	return fmt.Errorf("%s: %w", cmd.Name, err)
}

// Output runs a command and returns what it wrote to stdout. It fails, without waiting for the end, if
// that is more than limit bytes.
func (p *Pool) Output(ctx context.Context, cmd Command, limit int) ([]byte, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	tooMuch := fmt.Errorf("wrote more than %d bytes", limit)
	out := &capped.Writer{Most: limit, Over: func() { cancel(tooMuch) }}
	cmd.Stdout = out
	err := p.Run(ctx, cmd)
	if err == nil && errors.Is(context.Cause(ctx), tooMuch) { // the command had already ended
		err = fmt.Errorf("%s: %w", cmd.Name, tooMuch)
	}
	return out.Bytes(), err
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// gate passes writes on until it is shut: a session may continue briefly after its caller has left.
type gate struct {
	mu   sync.Mutex
	to   io.Writer
	done bool
}

func (g *gate) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.done {
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
