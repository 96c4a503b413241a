package control_test

import (
	"io"
	"net"
	"sync"
	"testing"
)

// proxy forwards connections, until they are cut.
type proxy struct {
	addr string

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{addr: l.Addr().String()}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			var d net.Dialer
			far, err := d.DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, near, far)
			p.mu.Unlock()
			for _, pair := range [][2]net.Conn{{near, far}, {far, near}} {
				all.Go(func() {
					_, _ = io.Copy(pair[0], pair[1])
					_ = pair[0].Close()
				})
			}
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		p.cut()
		all.Wait()
	})
	return p
}

// cut ends every connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.conns = nil
}
