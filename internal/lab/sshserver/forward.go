package sshserver

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"linus/internal/sleep"
)

// answer answers a connection's global requests until the connection ends.
func (c *Conn) answer(requests <-chan *ssh.Request) {
	for r := range requests {
		var asked forwardRequest
		var answer []byte
		ok := ssh.Unmarshal(r.Payload, &asked) == nil
		switch {
		case ok && r.Type == "tcpip-forward":
			answer, ok = c.listen(asked)
		case ok && r.Type == "cancel-tcpip-forward":
			ok = c.cancel(asked)
		default:
			ok = false
		}
		if r.WantReply {
			_ = r.Reply(ok, answer)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.back {
		_ = l.Close()
	}
}

// forwardRequest is the payload of both requests, RFC 4254 section 7.1.
type forwardRequest struct {
	Address string
	Port    uint32
}

func join(address string, port uint32) string {
	return net.JoinHostPort(address, strconv.Itoa(int(port)))
}

// listen listens for the client, always on the loopback address, whatever address it asks for.
func (c *Conn) listen(r forwardRequest) (answer []byte, ok bool) {
	if !c.server.Forwards() {
		return nil, false
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", join("127.0.0.1", r.Port))
	for n := 0; errors.Is(err, syscall.EADDRINUSE) && n < 100; n++ { // a child process may hold a closed listener until its exec
		_ = sleep.For(context.Background(), 2*time.Millisecond)
		l, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", join("127.0.0.1", r.Port))
	}
	if err != nil {
		return nil, false
	}
	if r.Port == 0 {
		r.Port = uint32(l.Addr().(*net.TCPAddr).Port)
		answer = ssh.Marshal(struct{ Port uint32 }{r.Port})
	}
	c.mu.Lock()
	c.back[join(r.Address, r.Port)] = l
	c.mu.Unlock()
	c.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			c.running.Go(func() { c.passBack(r, conn) })
		}
	})
	return answer, true
}

func (c *Conn) cancel(r forwardRequest) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := join(r.Address, r.Port)
	l, ok := c.back[key]
	if ok {
		delete(c.back, key)
		_ = l.Close()
	}
	return ok
}

// forwardChannel is the payload with which both kinds of forwarding channel are opened: where they
// lead, and where the connection comes from.
type forwardChannel struct {
	Address    string
	Port       uint32
	Originator string
	From       uint32
}

// passBack hands a connection that was made to this server to the client.
func (c *Conn) passBack(r forwardRequest, conn net.Conn) {
	from := conn.RemoteAddr().(*net.TCPAddr)
	channel, requests, err := c.OpenChannel("forwarded-tcpip", ssh.Marshal(forwardChannel{r.Address, r.Port, from.IP.String(), uint32(from.Port)}))
	if err != nil {
		_ = conn.Close()
		return
	}
	splice(channel, requests, conn)
}

// forward serves a direct-tcpip channel.
func (c *Conn) forward(offered ssh.NewChannel) {
	var to forwardChannel
	if err := ssh.Unmarshal(offered.ExtraData(), &to); err != nil || !c.server.Forwards() {
		_ = offered.Reject(ssh.Prohibited, "open failed")
		return
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(context.Background(), "tcp", join(to.Address, to.Port))
	if err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	c.passOn(offered, conn)
}

// forwardLocal serves a direct-streamlocal@openssh.com channel, to a Unix socket. OpenSSH gives the
// same reason for every failure to connect.
func (c *Conn) forwardLocal(offered ssh.NewChannel) {
	var to struct {
		Path, Reserved string
		Number         uint32
	}
	if err := ssh.Unmarshal(offered.ExtraData(), &to); err != nil || !c.server.Forwards() {
		_ = offered.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	conn, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(context.Background(), "unix", to.Path)
	if err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "open failed")
		return
	}
	c.passOn(offered, conn)
}

// passOn connects a channel that a client has asked for to its destination.
func (c *Conn) passOn(offered ssh.NewChannel, conn net.Conn) {
	channel, requests, err := offered.Accept()
	if err != nil {
		_ = conn.Close()
		return
	}
	if c.server.Forwarded != nil {
		c.server.Forwarded()
	}
	splice(channel, requests, conn)
}

// splice passes bytes both ways until both directions have ended, one fails, or the channel is gone.
// It then closes the connection, even a silent one, once the channel's data has been passed on.
func splice(channel ssh.Channel, requests <-chan *ssh.Request, conn net.Conn) {
	var out sync.WaitGroup
	out.Go(func() {
		_, _ = io.Copy(conn, channel)
		_ = conn.(interface{ CloseWrite() error }).CloseWrite()
	})
	go func() { // ends with the channel
		ssh.DiscardRequests(requests)
		_ = conn.SetWriteDeadline(time.Now().Add(dialTimeout))
		out.Wait()
		_ = conn.Close()
	}()
	_, _ = io.Copy(channel, conn)
	_ = channel.CloseWrite()
	out.Wait()
	_ = channel.Close()
	_ = conn.Close()
}
