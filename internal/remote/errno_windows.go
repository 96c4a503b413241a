package remote

import "golang.org/x/sys/windows"

// What a system says of connections; Windows has numbers of its own.
const (
	errRefused  = windows.WSAECONNREFUSED
	errTimedOut = windows.WSAETIMEDOUT
	errReset    = windows.WSAECONNRESET
	errAborted  = windows.WSAECONNABORTED
)
