//go:build unix

package remote

import "syscall"

// The system's connection errors; Windows has its own numbers.
const (
	errRefused  = syscall.ECONNREFUSED
	errTimedOut = syscall.ETIMEDOUT
	errReset    = syscall.ECONNRESET
	errAborted  = syscall.ECONNABORTED
)
