package job

import (
	"errors"
	"slices"
	"syscall"
)

// OwnFault is an error of what the engine itself depends on: its database cannot be reached, written
// or read. It says nothing about a job's VM or host, and decides no job.
type OwnFault struct{ Err error }

func (e *OwnFault) Error() string { return e.Err.Error() }

func (e *OwnFault) Unwrap() error { return e.Err }

// IsEngineFault reports whether err is the engine's own fault: an OwnFault, a HostError with Own
// set, or a lack of descriptors, disk or memory on the engine's machine.
func IsEngineFault(err error) bool {
	var fault *OwnFault
	var host *HostError
	return errors.As(err, &fault) || errors.As(err, &host) && host.Own || Exhausted(err)
}

// ExhaustedRemedy is what to do about a HostError that is the engine's own fault.
const ExhaustedRemedy = "the machine on which linus runs has no descriptors, disk or memory left: free some, or raise its limits (ulimit -n)"

// Exhausted reports whether a system call on this machine failed for lack of descriptors, disk or memory.
func Exhausted(err error) bool {
	return slices.ContainsFunc(exhausted, func(e error) bool { return errors.Is(err, e) })
}

var exhausted = []error{
	syscall.EMFILE, syscall.ENFILE, syscall.ENOSPC, syscall.EDQUOT, syscall.ENOMEM, syscall.ENOBUFS, syscall.EROFS, syscall.EIO,
}
