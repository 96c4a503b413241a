// Package sshtest is an SSH and SFTP server in the test's own process that
// really runs commands and really writes files, with faults on demand. It
// behaves as OpenSSH does where clients notice: a closed session leaves its
// process running, a signal request is answered and does nothing, environment
// requests are refused. For tests only.
package sshtest

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/pem"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"
)

// Options set up a server.
type Options struct {
	IP          string   // address to listen on; empty: 127.0.0.1
	Port        int      // 0: any free one
	Env         []string // added to the commands' environment
	Dir         string   // the commands' working directory; empty: the test's
	Password    string   // accepted beside the client key, when not empty
	ManyKeys    bool     // it has host keys of other types as well
	Trap        bool     // any public key logs in; commands are counted and not run, and there is no sftp
	MaxSessions int      // sessions a connection may have; 0: 10, as OpenSSH

	// Play answers commands in the place of a shell, each in a goroutine of its
	// own: it returns the exit status. Nil: commands are run.
	Play func(*Exec) int

	Faults Faults // from the start
}

// Faults are what goes wrong. They can be changed while the server runs.
type Faults struct {
	RefuseLogin  bool          // connections are dropped before the handshake
	Silent       bool          // connections are accepted and never answered
	Deaf         bool          // nothing is read any more of what clients send
	NoSFTP       bool          // no sftp subsystem
	NoForwarding bool          // neither to other machines nor back to the client
	DropAtExec   int           // the connection is cut at the n-th command from now on
	DropAfter    int64         // the connection is cut after sending so many bytes from now on
	DropAfterGot int64         // the connection is cut, once, after so many bytes were sent to it from now on
	NoExitStatus bool          // commands end without an exit status
	Delay        time.Duration // before each command
}

// Server is a running server. It ends with the test.
type Server struct {
	Host string // the IP it listens on
	Port int

	ClientKeyPath string   // private key that may log in
	KnownHosts    string   // known_hosts file with this server in it
	HostKey       string   // "ssh-ed25519 AAAA..."
	HostKeys      []string // all there are

	options Options
	config  *ssh.ServerConfig
	listen  net.Listener
	running sync.WaitGroup

	mu      sync.Mutex
	faults  Faults
	execs   int   // since the faults were set
	sent    int64 // the same
	got     int64 // the same
	stats   Stats
	last    string        // command line
	ended   chan struct{} // closed by Stop
	open    map[net.Conn]bool
	groups  map[int]bool // process groups of the commands that run
	stopped bool
}

// Exec is a command that Play answers. What is written to a session that has
// ended is lost, as a command's output is.
type Exec struct {
	Line           string
	Ended          <-chan struct{} // closed when the server stops; a session's end is nothing to a command
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Stats count what clients have done.
type Stats struct {
	Connections int // logins that succeeded
	Open        int // connections now
	Execs       int // commands run
	MaxSessions int // most sessions at once on one connection
	Forwards    int // direct-tcpip channels connected
}

// Start runs a server until the test ends.
func Start(t testing.TB, o Options) *Server {
	t.Helper()
	if o.IP == "" {
		o.IP = "127.0.0.1"
	}
	if o.MaxSessions == 0 {
		o.MaxSessions = 10
	}
	s := &Server{options: o, faults: o.Faults, ended: make(chan struct{}), open: map[net.Conn]bool{}, groups: map[int]bool{}}
	dir := t.TempDir()
	s.ClientKeyPath = filepath.Join(dir, "id_ed25519")
	s.KnownHosts = filepath.Join(dir, "known_hosts")
	client := newKey(t, s.ClientKeyPath)
	s.config = &ssh.ServerConfig{
		MaxAuthTries: 6,
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if o.Trap || string(key.Marshal()) == string(client.PublicKey().Marshal()) {
				return nil, nil
			}
			return nil, os.ErrPermission
		},
	}
	if o.Password != "" {
		s.config.PasswordCallback = func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if string(password) == o.Password {
				return nil, nil
			}
			return nil, os.ErrPermission
		}
	}
	host := newKey(t, filepath.Join(dir, "host_key"))
	s.config.AddHostKey(host)
	s.HostKey = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host.PublicKey())))
	s.HostKeys = []string{s.HostKey}
	if o.ManyKeys {
		s.addHostKeys(t)
	}
	var err error
	if s.listen, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(o.IP, strconv.Itoa(o.Port))); err != nil {
		t.Fatalf("sshtest: %v", err)
	}
	s.Host, s.Port = o.IP, s.listen.Addr().(*net.TCPAddr).Port
	line := knownhosts.Line([]string{s.Addr()}, host.PublicKey())
	if err := os.WriteFile(s.KnownHosts, []byte(line+"\n"), 0o600); err != nil {
		t.Fatalf("sshtest: %v", err)
	}
	s.running.Go(s.accept)
	t.Cleanup(s.Stop)
	return s
}

// NewKey writes a fresh private key and returns its public half as an
// authorized_keys line.
func NewKey(t testing.TB, path string) string {
	t.Helper()
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(newKey(t, path).PublicKey())))
}

func newKey(t testing.TB, path string) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "sshtest")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// addHostKeys gives the server an ECDSA and an RSA key beside its own.
func (s *Server) addHostKeys(t testing.TB) {
	t.Helper()
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	primes, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []any{curve, primes} {
		signer, err := ssh.NewSignerFromKey(key)
		if err == nil && key == any(primes) { // without SHA-1, as OpenSSH since 8.8
			signer, err = ssh.NewSignerWithAlgorithms(signer.(ssh.AlgorithmSigner), []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256})
		}
		if err != nil {
			t.Fatal(err)
		}
		s.config.AddHostKey(signer)
		s.HostKeys = append(s.HostKeys, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey()))))
	}
}

// Addr is "host:port".
func (s *Server) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Set changes the faults and counts commands and bytes anew.
func (s *Server) Set(f Faults) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.execs, s.sent, s.got = f, 0, 0, 0
}

// Stats returns the counts so far.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Open = len(s.open)
	return stats
}

// LastExec returns the last command line that was run.
func (s *Server) LastExec() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// Drop cuts every connection there is.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		_ = conn.Close()
	}
}

// Stop ends the server, its connections and the commands that still run.
func (s *Server) Stop() {
	s.mu.Lock()
	if !s.stopped {
		s.stopped = true
		close(s.ended)
	}
	for group := range s.groups {
		_ = syscall.Kill(-group, syscall.SIGKILL)
	}
	s.mu.Unlock()
	_ = s.listen.Close()
	s.Drop()
	s.running.Wait()
}

func (s *Server) current() Faults {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults
}

func (s *Server) deaf() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.faults.Deaf && !s.stopped
}

func (s *Server) accept() {
	for {
		raw, err := s.listen.Accept()
		if err != nil {
			return
		}
		conn := &counted{Conn: raw, server: s}
		s.mu.Lock()
		if s.stopped || s.faults.RefuseLogin {
			s.mu.Unlock()
			_ = raw.Close()
			continue
		}
		s.open[conn] = true
		silent := s.faults.Silent
		s.mu.Unlock()
		s.running.Go(func() {
			defer func() {
				_ = conn.Close()
				s.mu.Lock()
				delete(s.open, conn)
				s.mu.Unlock()
			}()
			if silent {
				_, _ = raw.Read(make([]byte, 1<<10))
				_, _ = raw.Read(make([]byte, 1)) // until the client gives up
				return
			}
			s.serve(conn)
		})
	}
}

// counted cuts the connection once the fault's count of bytes has gone either way.
type counted struct {
	net.Conn
	server *Server
}

// Read takes nothing off the network while the server is deaf.
func (c *counted) Read(b []byte) (int, error) {
	for c.server.deaf() {
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // until the test lets it hear, or ends it
	}
	n, err := c.Conn.Read(b)
	c.server.mu.Lock()
	before, limit := c.server.got, c.server.faults.DropAfterGot
	c.server.got += int64(n)
	cut := limit > 0 && before <= limit && c.server.got > limit
	c.server.mu.Unlock()
	if cut {
		return 0, c.Close()
	}
	return n, err
}

func (c *counted) Write(b []byte) (int, error) {
	c.server.mu.Lock()
	c.server.sent += int64(len(b))
	cut := c.server.faults.DropAfter > 0 && c.server.sent > c.server.faults.DropAfter
	c.server.mu.Unlock()
	if cut {
		return 0, c.Close()
	}
	return c.Conn.Write(b)
}
