package remote

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"

	"golang.org/x/crypto/ssh"
)

// Process is a running command on the other machine, with an open stdin and stdout. At most one Send and
// one Receive may be in progress at a time. After either fails, only Close is useful.
type Process struct {
	pool    *Pool
	session *ssh.Session
	name    string
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  *tail

	ended chan struct{} // closed when the command has ended or the connection is lost
	err   error         // how it ended, as Session.Wait returns it; set before ended is closed
}

// Begin starts a command, and returns once the other machine has accepted it. It does not use the
// command's Stdin, Stdout and Stderr. The command runs until it ends by itself: Close only closes its
// stdin and stdout.
func (p *Pool) Begin(ctx context.Context, cmd Command) (*Process, error) {
	c, session, err := p.session(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd.Name, err)
	}
	run := &Process{pool: p, session: session, name: cmd.Name, stderr: &tail{limit: stderrTail}, ended: make(chan struct{})}
	session.Stderr = run.stderr
	var stdout io.Reader
	if run.stdin, err = session.StdinPipe(); err == nil {
		stdout, err = session.StdoutPipe()
	}
	if err != nil {
		p.release(c)
		return nil, fmt.Errorf("%s: %w", cmd.Name, errors.Join(err, session.Close()))
	}
	mark := rand.Text()
	run.stdout = bufio.NewReader(&markedReader{mark: mark, from: bufio.NewReader(stdout)})
	accepted := make(chan struct{})
	err = p.start(c, session, markLine(mark, cmd.Line), func() { close(accepted) }, func(err error) {
		run.err = err
		close(run.ended)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", cmd.Name, err)
	}
	select {
	case <-accepted:
		return run, nil
	case <-run.ended:
		return nil, p.verdict(cmd, run.stderr, run.err)
	case <-ctx.Done():
		run.Close()
		return nil, fmt.Errorf("%s: %w; it may still run there", cmd.Name, context.Cause(ctx))
	}
}

// Send writes data to the command's stdin, and returns when all of it has been sent.
func (r *Process) Send(ctx context.Context, data io.Reader) error {
	_, err := await(ctx, r.pool, r.ended, func() (int64, error) { return io.Copy(r.stdin, data) }, nil)
	return r.verdict(ctx, err)
}

// Finish closes the command's stdin and waits for its end, as Wait does.
func (r *Process) Finish(ctx context.Context) error {
	r.pool.own(func() { _ = r.stdin.Close() }) // if this fails, the command or its connection has ended
	return r.Wait(ctx)
}

// Receive calls read with the command's stdout, and returns its result.
func Receive[T any](ctx context.Context, r *Process, read func(stdout *bufio.Reader) (T, error)) (T, error) {
	value, err := await(ctx, r.pool, nil, func() (T, error) { return read(r.stdout) }, nil)
	return value, r.verdict(ctx, err)
}

// Wait returns when the command has ended. Errors are those of Pool.Run.
func (r *Process) Wait(ctx context.Context) error {
	select {
	case <-r.ended:
		return r.pool.verdict(Command{Name: r.name}, r.stderr, r.err)
	case <-ctx.Done():
		return fmt.Errorf("%s: %w", r.name, context.Cause(ctx))
	}
}

// Running reports whether the command is not known to have ended.
func (r *Process) Running() bool {
	select {
	case <-r.ended:
		return false
	default:
		return true
	}
}

// Close closes the session. It does not wait, because the other machine may not answer.
func (r *Process) Close() { r.pool.own(func() { _ = r.session.Close() }) }

// verdict converts an error of talking to the command: if a stream has ended, the cause is the end of the
// command or of the connection.
func (r *Process) verdict(ctx context.Context, err error) error {
	if err == nil || ctx.Err() != nil || !broken(err) {
		return err
	}
	if err := r.Wait(ctx); err != nil {
		return err
	}
	return &Error{Op: "talk to " + r.name + " on", Addr: r.pool.Login(), Class: Lost, Err: errors.New("it has ended")}
}
