package remote

import "golang.org/x/sys/windows"

// The system's connection errors; Windows has its own numbers.
const (
	errRefused  = windows.WSAECONNREFUSED
	errTimedOut = windows.WSAETIMEDOUT
	errReset    = windows.WSAECONNRESET
	errAborted  = windows.WSAECONNABORTED
)
