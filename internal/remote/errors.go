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

// Class sorts connection faults by what a caller should do about them.
type Class string

// The classes.
const (
	Refused        Class = "refused"          // nothing listens there
	Unreachable    Class = "unreachable"      // no route, no such name
	Timeout        Class = "timeout"          // no answer in time
	Auth           Class = "auth"             // no key or password was accepted
	HostKeyUnknown Class = "host_key_unknown" // not in known_hosts
	HostKeyChanged Class = "host_key_changed" // another key than the one known
	Lost           Class = "lost"             // the connection broke, or was dropped while it was set up
)

// Error is a fault of the connection, not of what was run over it.
type Error struct {
	Op    string // what was tried, e.g. "connect"
	Addr  string // "user@host:port"
	Class Class
	Err   error

	// For the two host key classes: SHA256 fingerprints, with the key's type,
	// of what the machine showed and of what was known of it.
	Shown string
	Known []string
}

func (e *Error) Error() string {
	switch e.Class {
	case HostKeyUnknown:
		return fmt.Sprintf("%s %s: its host key is not known; it shows %s", e.Op, e.Addr, e.Shown)
	case HostKeyChanged:
		return fmt.Sprintf("%s %s: its host key has changed; it shows %s, known is %s", e.Op, e.Addr, e.Shown, strings.Join(e.Known, ", "))
	}
	return term.Text(fmt.Sprintf("%s %s: %v", e.Op, e.Addr, e.Err)) // of servers, too
}

func (e *Error) Unwrap() error { return e.Err }

// temporary reports whether the same attempt, made again at once, may succeed:
// sshd sheds load by dropping connections that have not yet logged in, and
// refuses for a moment while it restarts.
func (e *Error) temporary() bool { return e.Class == Refused || e.Class == Lost }

// ClassOf returns the class of the connection fault in err, "" when there is none.
func ClassOf(err error) Class {
	var e *Error
	if errors.As(err, &e) {
		return e.Class
	}
	return ""
}

// ExitError is a command that ran and did not exit with 0.
type ExitError struct {
	Name   string // the command's name for people
	Code   int    // exit code; 128 and the signal's number when Signal is set
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

// classify is the one place where faults of dialling and of the handshake get
// their class. The end of the caller's own context is no fault and passes as it is.
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
	case strings.Contains(err.Error(), "unable to authenticate"):
		e.Class = Auth // x/crypto has no type for it
	case broken(err):
		e.Class = Lost
	default:
		e.Class = Unreachable
	}
	return e
}

// broken reports whether err is how a connection's end shows to who reads from
// it or writes to it.
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

// openClass sorts what a host answers when it cannot connect on our behalf.
func openClass(err *ssh.OpenChannelError) Class {
	switch text := strings.ToLower(err.Message); {
	case strings.Contains(text, "refused"):
		return Refused
	case strings.Contains(text, "timed out"):
		return Timeout
	}
	return Unreachable
}
