package job

import (
	"errors"
	"slices"
	"syscall"
)

// OwnFault is an error of what the engine itself stands on: its database cannot be
// reached, written or read. It says nothing of a job's VM or host, and decides no job.
type OwnFault struct{ Err error }

func (e *OwnFault) Error() string { return e.Err.Error() }

func (e *OwnFault) Unwrap() error { return e.Err }

// IsEngineFault reports whether err is a fault of the engine's own: an OwnFault, a HostError that
// is one, or the machine it runs on has no descriptors, disk or memory left.
func IsEngineFault(err error) bool {
	var fault *OwnFault
	var host *HostError
	return errors.As(err, &fault) || errors.As(err, &host) && host.Own || Exhausted(err)
}

// ExhaustedRemedy is what to do about a HostError that is the engine's own.
const ExhaustedRemedy = "the machine on which linus runs has no descriptors, disk or memory left: free some, or raise its limits (ulimit -n)"

// Exhausted reports whether a call of this machine's system failed because it has no
// descriptors, disk or memory left.
func Exhausted(err error) bool {
	return slices.ContainsFunc(exhausted, func(e error) bool { return errors.Is(err, e) })
}

var exhausted = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.ENOBUFS, syscall.EROFS, syscall.EIO,
}
