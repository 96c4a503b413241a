package remote

import (
	"errors"
	"net"

	"linus/internal/job"
)

// exitClass are the exit codes of our scripts, on the host and in guests. None
// of them exits with 255, which is ssh's own code.
var exitClass = map[int]job.HostClass{
	1: job.HostInvalid, 2: job.HostDependency, 3: job.HostConfig, 4: job.HostOffline, 5: job.HostVM, 6: job.HostTimeout,
	129: job.HostCancelled, 130: job.HostCancelled, 141: job.HostCancelled, 143: job.HostCancelled,
	255: job.HostUnreachable,
}

// connectionClass is the class of each connection fault as callers see it.
var connectionClass = map[Class]job.HostClass{
	Refused: job.HostUnreachable, Unreachable: job.HostUnreachable, Timeout: job.HostUnreachable, Lost: job.HostUnreachable,
	Auth: job.HostAuth, HostKeyUnknown: job.HostKeyChanged, HostKeyChanged: job.HostKeyChanged, HostKeyRefused: job.HostKeyChanged,
}

// HostClass is the class of a script's exit code; "" if it is not one of a
// script's. A caller whose script runs on an untrusted machine accepts only the
// classes that script has.
func (e *ExitError) HostClass() job.HostClass { return exitClass[e.Code] }

// HostClass is the class of the host error for a fault of the connection to the
// host, or to a VM; "" for the class "".
func (c Class) HostClass() job.HostClass { return connectionClass[c] }

// Passing reports whether err is a connection fault that may pass without
// action: the machine does not answer. An exit code is not.
func Passing(err error) bool {
	var network net.Error
	if class := ClassOf(err); class != "" {
		return class.HostClass() == job.HostUnreachable
	}
	return errors.As(err, &network)
}
