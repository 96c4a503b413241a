package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"linus/internal/term"
)

// Class classifies connection faults by what a caller should do about them.
type Class string

// The classes.
const (
	Refused        Class = "refused"          // nothing listens there
	Unreachable    Class = "unreachable"      // no route, no such name
	Timeout        Class = "timeout"          // no answer in time
	Auth           Class = "auth"             // no key or password was accepted
	HostKeyUnknown Class = "host_key_unknown" // not in known_hosts
	HostKeyChanged Class = "host_key_changed" // not the known key
	HostKeyRefused Class = "host_key_refused" // it is revoked, or its certificate is not valid
	Lost           Class = "lost"             // the connection broke, or was dropped while it was set up
)

// Error is a fault of the connection, not of what was run over it.
type Error struct {
	Op    string // what was tried, e.g. "connect"
	Addr  string // "user@host:port"
	Class Class
	Err   error

	// For the host key classes: SHA256 fingerprints, with the key's type,
	// of the key presented and of the keys known.
	Shown string
	Known []string
}

// faults are the first words of errors, by class: what follows may be long.
var faults = map[Class]string{
	Refused: "connection refused", Unreachable: "not reachable", Timeout: "no answer", Auth: "login failed", Lost: "connection lost",
}

func (e *Error) Error() string {
	switch e.Class {
	case HostKeyUnknown:
		return fmt.Sprintf("host key not known: %s %s: it presents %s", e.Op, e.Addr, e.Shown)
	case HostKeyChanged:
		return fmt.Sprintf("host key changed: %s %s: it presents %s, known is %s", e.Op, e.Addr, e.Shown, strings.Join(e.Known, ", "))
	case HostKeyRefused:
		return fmt.Sprintf("host key refused: %s %s: it presents %s: %v", e.Op, e.Addr, e.Shown, e.Err)
	}
	return term.Text(fmt.Sprintf("%s: %s %s: %v", faults[e.Class], e.Op, e.Addr, e.Err)) // may quote a server
}

func (e *Error) Unwrap() error { return e.Err }

// temporary reports whether an immediate retry may succeed: sshd sheds load by dropping connections that
// have not yet logged in, and refuses connections briefly while it restarts.
func (e *Error) temporary() bool { return e.Class == Refused || e.Class == Lost }

// ClassOf returns the class of the connection fault in err, "" when there is none.
func ClassOf(err error) Class {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Class
	}
	return ""
}

// ExitError is returned for a command that ran and did not exit with 0.
type ExitError struct {
	Name   string // the command's name for people
	Code   int    // exit code; 128 plus the signal's number when Signal is set
	Signal string // e.g. "TERM" when a signal ended it, else empty
	Stderr string // the end of what it wrote to stderr, at most 8 KiB
}

func (e *ExitError) Error() string {
	how := fmt.Sprintf("exit code %d", e.Code)
	if e.Signal != "" {
		how = "ended by signal " + e.Signal
	}
	if text := strings.TrimSpace(e.Stderr); text != "" {
		return e.Name + ": " + how + ": " + text
	}
	return e.Name + ": " + how
}

// classify is the only place that assigns classes to faults of dialling and of the handshake. The end of
// the caller's own context is not a fault, and gets no class.
func classify(ctx context.Context, op, addr string, err error) error {
	var known *Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	e := &Error{Op: op, Addr: addr, Err: err}
	var netErr net.Error
	var dns *net.DNSError
	var open *ssh.OpenChannelError
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s: %w", op, addr, context.Cause(ctx))
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errTimedOut):
		e.Class = Timeout
	case errors.Is(err, errRefused):
		e.Class = Refused
	case errors.As(err, &dns):
		e.Class = Unreachable
	case errors.As(err, &netErr) && netErr.Timeout():
		e.Class = Timeout
	case errors.As(err, &open):
		e.Class = openClass(open)
	case strings.Contains(err.Error(), "unable to authenticate"), // x/crypto has no type for it
		strings.Contains(strings.ToLower(err.Error()), "too many authentication failures"): // the server's, when many keys were offered
		e.Class = Auth
	case broken(err):
		e.Class = Lost
	default:
		e.Class = Unreachable
	}
	return e
}

// broken reports whether err is what a reader or writer of a closed connection gets.
func broken(err error) bool {
	for _, end := range []error{
		io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, sftp.ErrSSHFxConnectionLost,
		syscall.EPIPE, errReset, errAborted, errTimedOut,
	} {
		if errors.Is(err, end) {
			return true
		}
	}
	return false
}

// openClass classifies a host's error when it cannot connect for us.
func openClass(err *ssh.OpenChannelError) Class {
	switch text := strings.ToLower(err.Message); {
	case strings.Contains(text, "refused"):
		return Refused
	case strings.Contains(text, "timed out"):
		return Timeout
	}
	return Unreachable
}
