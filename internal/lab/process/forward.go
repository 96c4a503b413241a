package process

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// forwarder is what one SSH connection to a process guest forwards, as OpenSSH
// does by default: to wherever the client asks, and back to the client from the
// loopback address only. The guest shares the machine's network.
type forwarder struct {
	conn    ssh.Conn
	mu      sync.Mutex
	back    map[string]net.Listener // by the request's address
	running sync.WaitGroup
}

// forwardingAllowed reads the guest's sshd_config, as sshd does: `AllowTcpForwarding
// no` in it, and there is none.
func forwardingAllowed() bool {
	f, err := os.Open("/etc/ssh/sshd_config")
	if err != nil {
		return true
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if words := strings.Fields(lines.Text()); len(words) == 2 && strings.EqualFold(words[0], "AllowTcpForwarding") {
			return !strings.EqualFold(words[1], "no")
		}
	}
	return true
}

// requests returns a connection's global requests until it ends.
func (f *forwarder) requests(requests <-chan *ssh.Request) {
	for request := range requests {
		var answer []byte
		ok := false
		switch request.Type {
		case "tcpip-forward":
			answer, ok = f.listen(request.Payload)
		case "cancel-tcpip-forward":
			ok = f.cancel(request.Payload)
		}
		if request.WantReply {
			_ = request.Reply(ok, answer)
		}
	}
	f.mu.Lock()
	for _, l := range f.back {
		l.Close()
	}
	f.mu.Unlock()
	f.running.Wait()
}

// forwardRequest is the payload of both requests, RFC 4254 section 7.1.
type forwardRequest struct {
	Address string
	Port    uint32
}

func (r forwardRequest) key() string { return net.JoinHostPort(r.Address, strconv.Itoa(int(r.Port))) }

func (f *forwarder) listen(payload []byte) (answer []byte, ok bool) {
	var r forwardRequest
	if err := ssh.Unmarshal(payload, &r); err != nil || !forwardingAllowed() {
		return nil, false
	}
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(r.Port))))
	if err != nil {
		fmt.Fprintf(os.Stderr, "ssh: forward %s: %v\n", r.key(), err)
		return nil, false
	}
	if r.Port == 0 {
		r.Port = uint32(l.Addr().(*net.TCPAddr).Port)
		answer = ssh.Marshal(struct{ Port uint32 }{r.Port})
	}
	f.mu.Lock()
	f.back[r.key()] = l
	f.mu.Unlock()
	f.running.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			f.running.Go(func() { f.passBack(r, conn) })
		}
	})
	return answer, true
}

func (f *forwarder) cancel(payload []byte) bool {
	var r forwardRequest
	if err := ssh.Unmarshal(payload, &r); err != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l, ok := f.back[r.key()]
	if ok {
		delete(f.back, r.key())
		l.Close()
	}
	return ok
}

// passBack hands a connection made in the guest to the client.
func (f *forwarder) passBack(r forwardRequest, conn net.Conn) {
	from := conn.RemoteAddr().(*net.TCPAddr)
	channel, requests, err := f.conn.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
		Address    string
		Port       uint32
		Originator string
		From       uint32
	}{r.Address, r.Port, from.IP.String(), uint32(from.Port)}))
	if err != nil {
		conn.Close()
		return
	}
	splice(channel, requests, conn)
}

// connect serves a direct-tcpip channel.
func (f *forwarder) connect(offered ssh.NewChannel) {
	var to struct {
		Host       string
		Port       uint32
		Originator string
		From       uint32
	}
	if err := ssh.Unmarshal(offered.ExtraData(), &to); err != nil || !forwardingAllowed() {
		_ = offered.Reject(ssh.Prohibited, "open failed")
		return
	}
	conn, err := (&net.Dialer{Timeout: loginTimeout}).DialContext(context.Background(), "tcp", net.JoinHostPort(to.Host, strconv.Itoa(int(to.Port))))
	if err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	channel, requests, err := offered.Accept()
	if err != nil {
		conn.Close()
		return
	}
	splice(channel, requests, conn)
}

// splice passes bytes both ways until both have ended, one way fails, or the
// channel is gone: with it goes the connection, even one that says nothing, but
// not before what the channel brought was passed on.
func splice(channel ssh.Channel, requests <-chan *ssh.Request, conn net.Conn) {
	var out sync.WaitGroup
	out.Go(func() {
		_, _ = io.Copy(conn, channel)
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	go func() { // ends with the channel
		ssh.DiscardRequests(requests)
		_ = conn.SetWriteDeadline(time.Now().Add(loginTimeout))
		out.Wait()
		conn.Close()
	}()
	_, _ = io.Copy(channel, conn)
	_ = channel.CloseWrite()
	out.Wait()
	channel.Close()
	conn.Close()
}
