// Package sshserver is what the SSH servers of process guests and of tests have in common. It
// behaves like OpenSSH: the number of sessions on a connection is limited, forwarding goes to
// wherever the client asks, and forwarding back to the client is from the loopback address only.
// Its users implement what a session does.
package sshserver

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"linus/internal/lab/sys"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"
)

// MaxSessions is the number of sessions on one connection, the same as OpenSSH's default.
const MaxSessions = 10

const (
	loginTimeout = 30 * time.Second
	dialTimeout  = 30 * time.Second
)

// Server serves connections. All fields but Forwarded are required.
type Server struct {
	Config      *ssh.ServerConfig
	MaxSessions int                                           // on one connection
	Session     func(*Conn, ssh.Channel, <-chan *ssh.Request) // serves a session and its requests, and returns when both have ended
	Forwards    func() bool                                   // reports whether connections are forwarded now
	Forwarded   func()                                        // is called for each connection made for a client
}

// Conn is the connection of a client that has logged in.
type Conn struct {
	*ssh.ServerConn
	server   *Server
	sessions atomic.Int32
	running  sync.WaitGroup

	mu   sync.Mutex
	back map[string]net.Listener // by the address and port the client asked for
}

// Sessions is the number of open sessions.
func (c *Conn) Sessions() int { return int(c.sessions.Load()) }

// Serve serves a connection until it and its sessions have ended. It calls began when the client
// has logged in. An error says why the client could not log in.
func (s *Server) Serve(conn net.Conn, began func()) error {
	_ = conn.SetDeadline(time.Now().Add(loginTimeout))
	login, channels, requests, err := ssh.NewServerConn(conn, s.Config)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Time{})
	began()
	c := &Conn{ServerConn: login, server: s, back: map[string]net.Listener{}}
	defer c.running.Wait()
	c.running.Go(func() { c.answer(requests) })
	for offered := range channels {
		switch {
		case offered.ChannelType() == "direct-tcpip":
			c.running.Go(func() { c.forward(offered) })
		case offered.ChannelType() == "direct-streamlocal@openssh.com":
			c.running.Go(func() { c.forwardLocal(offered) })
		case offered.ChannelType() != "session":
			_ = offered.Reject(ssh.UnknownChannelType, "unknown channel type")
		case c.Sessions() >= s.MaxSessions:
			_ = offered.Reject(ssh.ConnectionFailed, "open failed") // OpenSSH's text
		default:
			channel, requests, err := offered.Accept()
			if err != nil {
				continue
			}
			c.sessions.Add(1)
			c.running.Go(func() {
				defer c.sessions.Add(-1)
				s.Session(c, channel, requests)
			})
		}
	}
	return nil
}

// SendStatus sends the client a command's exit status.
func SendStatus(channel ssh.Channel, code int) {
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{uint32(code)}))
}

// SendEnd sends the client how a process ended.
func SendEnd(channel ssh.Channel, status syscall.WaitStatus) {
	if !status.Signaled() {
		SendStatus(channel, status.ExitStatus())
		return
	}
	_, _ = channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
		Signal            string
		CoreDumped        bool
		Message, Language string
	}{Signal: strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG"), CoreDumped: status.CoreDump()}))
}

// Key returns the Ed25519 or RSA private key in a file, which it creates if missing.
func Key(path, comment string, ofRSA bool) (ssh.Signer, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		raw, err = newKey(comment, ofRSA)
		if err == nil {
			err = sys.WriteFile(path, raw, 0o600)
		}
	}
	if err != nil {
		return nil, err
	}
	signer, err := ssh.ParsePrivateKey(raw)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return signer, nil
}

func newKey(comment string, ofRSA bool) ([]byte, error) {
	var private crypto.PrivateKey
	var err error
	if ofRSA {
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	} else {
		_, private, err = ed25519.GenerateKey(rand.Reader)
	}
	if err != nil {
		return nil, err
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	return pem.EncodeToMemory(block), err
}

// Public returns the key as a line of authorized_keys, without the line's end.
func Public(signer ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))
}
