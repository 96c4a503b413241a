//go:build unix

package remote

import "syscall"

// The system's connection errors; on Windows they have other numbers.
const (
	errRefused  = syscall.ECONNREFUSED
	errTimedOut = syscall.ETIMEDOUT
	errReset    = syscall.ECONNRESET
	errAborted  = syscall.ECONNABORTED
)
