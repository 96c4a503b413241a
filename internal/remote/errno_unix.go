//go:build unix

package remote

import "syscall"

// What a system says of connections; Windows has numbers of its own.
const (
	errRefused  = syscall.ECONNREFUSED
	errTimedOut = syscall.ETIMEDOUT
	errReset    = syscall.ECONNRESET
	errAborted  = syscall.ECONNABORTED
)
