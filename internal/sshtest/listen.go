package sshtest

import (
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
)

// serveRequests serves a connection's global requests until it ends: tcpip-forward and
// its cancellation, as OpenSSH does by default on the loopback address whatever is asked
// for. Others are refused.
func (s *Server) serveRequests(login ssh.Conn, requests <-chan *ssh.Request) {
	listeners := map[uint32]net.Listener{}
	var running sync.WaitGroup
	for r := range requests {
		var asked struct {
			Address string
			Port    uint32
		}
		var answer []byte
		ok := false
		switch readable := ssh.Unmarshal(r.Payload, &asked) == nil; {
		case readable && r.Type == "tcpip-forward" && !s.current().NoForwarding:
			l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(asked.Port)))) //nolint:noctx // binds at once
			if err != nil {
				break
			}
			ok = true
			if asked.Port == 0 {
				asked.Port = uint32(l.Addr().(*net.TCPAddr).Port)
				answer = ssh.Marshal(struct{ Port uint32 }{asked.Port})
			}
			listeners[asked.Port] = l
			address, port := asked.Address, asked.Port
			running.Go(func() { passBack(login, l, address, port, &running) })
		case readable && r.Type == "cancel-tcpip-forward":
			if l := listeners[asked.Port]; l != nil {
				ok = l.Close() == nil
			}
		}
		if r.WantReply {
			_ = r.Reply(ok, answer)
		}
	}
	for _, l := range listeners {
		_ = l.Close()
	}
	running.Wait()
}

// passBack passes connections made to l to the client.
func passBack(login ssh.Conn, l net.Listener, address string, port uint32, running *sync.WaitGroup) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		running.Go(func() {
			from := conn.RemoteAddr().(*net.TCPAddr)
			channel, requests, err := login.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
				Address    string
				Port       uint32
				Originator string
				From       uint32
			}{address, port, from.IP.String(), uint32(from.Port)}))
			if err != nil {
				_ = conn.Close()
				return
			}
			go answerGlobal(requests) // ends with the channel
			done := make(chan struct{})
			go func() {
				_, _ = io.Copy(conn, channel)
				_ = conn.Close()
				close(done)
			}()
			_, _ = io.Copy(channel, conn)
			_ = channel.Close()
			<-done
		})
	}
}
