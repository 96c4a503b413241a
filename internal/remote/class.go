package remote

import (
	"errors"
	"net"

	"linus/internal/job"
)

// exitClass maps the exit codes of our scripts, on the host and in guests, to classes. No script exits
// with 255, which is ssh's own code.
var exitClass = map[int]job.HostClass{
	1: job.HostInvalid, 2: job.HostDependency, 3: job.HostConfig, 4: job.HostOffline, 5: job.HostVM, 6: job.HostTimeout,
	129: job.HostCancelled, 130: job.HostCancelled, 141: job.HostCancelled, 143: job.HostCancelled,
	255: job.HostUnreachable,
}

// connectionClass maps connection faults to the classes that callers see.
var connectionClass = map[Class]job.HostClass{
	Refused: job.HostUnreachable, Unreachable: job.HostUnreachable, Timeout: job.HostUnreachable, Lost: job.HostUnreachable,
	Auth: job.HostAuth, HostKeyUnknown: job.HostKeyChanged, HostKeyChanged: job.HostKeyChanged, HostKeyRefused: job.HostKeyChanged,
}

// HostClass returns the class of a script's exit code; "" if no script has that code. A caller whose
// script runs on an untrusted machine accepts only the classes that this script has.
func (e *ExitError) HostClass() job.HostClass { return exitClass[e.Code] }

// HostClass returns the host error class of a connection fault with a host or VM; "" for the class "".
func (c Class) HostClass() job.HostClass { return connectionClass[c] }

// Passing reports whether err is a connection fault that may pass without action: the machine does not
// answer. An exit code is not such a fault.
func Passing(err error) bool {
	var network net.Error
	if class := ClassOf(err); class != "" {
		return class.HostClass() == job.HostUnreachable
	}
	return errors.As(err, &network)
}
