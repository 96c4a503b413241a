package remote

import (
	"errors"
	"net"

	"linus/internal/job"
)

// exitClass are the exit codes of our scripts, on the host and in guests. No
// script of ours exits with 255: that is ssh's own.
var exitClass = map[int]job.HostClass{
	1: job.HostInvalid, 2: job.HostDependency, 3: job.HostConfig, 4: job.HostOffline, 5: job.HostVM, 6: job.HostTimeout,
	129: job.HostCancelled, 130: job.HostCancelled, 141: job.HostCancelled, 143: job.HostCancelled,
	255: job.HostUnreachable,
}

// connectionClass is what each fault of a connection is to who asked for work.
var connectionClass = map[Class]job.HostClass{
	Refused: job.HostUnreachable, Unreachable: job.HostUnreachable, Timeout: job.HostUnreachable, Lost: job.HostUnreachable,
	Auth: job.HostAuth, HostKeyUnknown: job.HostKeyChanged, HostKeyChanged: job.HostKeyChanged,
}

// HostClass is how a script of ours ended, by its exit code; "" when that is none
// of a script's. Who runs it on a machine that may lie takes only the classes that
// the script has.
func (e *ExitError) HostClass() job.HostClass { return exitClass[e.Code] }

// HostClass is the class of the host error that a fault of the connection to the
// host, or to a VM, makes; "" for the class "".
func (c Class) HostClass() job.HostClass { return connectionClass[c] }

// Passing reports whether err is a fault of the connection that may pass by
// itself: the machine does not answer. An exit code is none.
func Passing(err error) bool {
	var network net.Error
	if class := ClassOf(err); class != "" {
		return class.HostClass() == job.HostUnreachable
	}
	return errors.As(err, &network)
}
