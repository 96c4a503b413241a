package sshtest

import (
	"context"
	"io"
	"net"
)

// Forward carries connections to what dial returns, both ways, as an SSH tunnel does, until
// the listener is closed.
func Forward(from net.Listener, dial func(context.Context) (net.Conn, error)) {
	for {
		near, err := from.Accept()
		if err != nil {
			return
		}
		far, err := dial(context.Background())
		if err != nil {
			return
		}
		go func() {
			_, _ = io.Copy(far, near)
			_ = far.Close()
		}()
		go func() {
			_, _ = io.Copy(near, far)
			_ = near.Close()
		}()
	}
}
