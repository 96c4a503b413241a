// Package sshtest is an SSH and SFTP server in the test's own process that really runs commands and
// really writes files, with faults on demand. It behaves like OpenSSH where clients notice: a closed
// session leaves its process running, a signal request is acknowledged without effect, environment
// requests are refused. For tests only.
package sshtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"linus/internal/lab/sshserver"
)

// Options of a server.
type Options struct {
	IP       string   // address to listen on; empty: 127.0.0.1
	Port     int      // 0: any free one
	Env      []string // added to the environment of commands
	Dir      string   // working directory of commands; empty: the test's
	Password string   // accepted in addition to the client key, unless empty
	ManyKeys bool     // add host keys of other types
	Trap     bool     // accept any public key; commands are counted but not run, and there is no sftp
	// Certify returns the certificate that the server presents with its host key; nil: there is none.
	Certify func(key ssh.PublicKey) *ssh.Certificate
	// ClientAuthority signs the certificates that clients must have to log in; nil: they need none.
	ClientAuthority ssh.PublicKey

	MaxSessions int // sessions per connection; 0: 10, like OpenSSH

	// ServeFiles serves the sftp subsystem on a channel, until it returns. Nil: it serves the files of
	// this machine.
	ServeFiles func(channel io.ReadWriteCloser)

	// Play plays commands instead of a shell, each in its own goroutine, and returns the exit status.
	// Nil: commands are run.
	Play func(*Exec) int

	Faults Faults // at the start
}

// Faults to inject. They can be changed while the server runs.
type Faults struct {
	RefuseLogin  bool  // connections are dropped before the handshake
	Silent       bool  // connections are accepted, and then nothing is sent
	Deaf         bool  // nothing more is read from clients
	NoSFTP       bool  // no sftp subsystem
	NoForwarding bool  // no forwarding, neither to other machines nor back to the client
	DropAtExec   int   // the connection is cut at the n-th command from now on
	DropAfter    int64 // the connection is cut after sending this many bytes from now on
	DropAfterGot int64 // the connection is cut, once, after receiving this many bytes from now on
	NoExitStatus bool  // commands end without an exit status
}

// Server is a running server. It ends with the test.
type Server struct {
	Host string // the IP it listens on
	Port int

	ClientKeyPath string   // file with the client's private key
	KnownHosts    string   // known_hosts file with this server in it
	HostKey       string   // "ssh-ed25519 AAAA..."
	HostKeys      []string // of all types

	options Options
	server  sshserver.Server
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
	groups  map[int]bool // process groups of running commands
	stopped bool
}

// Exec is a command for Play. Output to a session that has ended is lost, as with a real command.
type Exec struct {
	Line           string
	Ended          <-chan struct{} // closed when the server stops; the end of a session does not affect a command
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Stats counts what clients have done.
type Stats struct {
	Connections int // successful logins
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
		o.MaxSessions = sshserver.MaxSessions
	}
	s := &Server{options: o, faults: o.Faults, ended: make(chan struct{}), open: map[net.Conn]bool{}, groups: map[int]bool{}}
	dir := t.TempDir()
	s.ClientKeyPath = filepath.Join(dir, "id_ed25519")
	s.KnownHosts = filepath.Join(dir, "known_hosts")
	client := newKey(t, s.ClientKeyPath, false)
	config := &ssh.ServerConfig{
		MaxAuthTries: 6,
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if o.Trap || string(key.Marshal()) == string(client.PublicKey().Marshal()) {
				return nil, nil
			}
			return nil, os.ErrPermission
		},
	}
	if o.ClientAuthority != nil {
		checker := &ssh.CertChecker{IsUserAuthority: func(by ssh.PublicKey) bool { return string(by.Marshal()) == string(o.ClientAuthority.Marshal()) }}
		config.PublicKeyCallback = func(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if _, ok := key.(*ssh.Certificate); !ok {
				return nil, os.ErrPermission
			}
			return checker.Authenticate(conn, key)
		}
	}
	if o.Password != "" {
		config.PasswordCallback = func(_ ssh.ConnMetadata, password []byte) (*ssh.Permissions, error) {
			if string(password) == o.Password {
				return nil, nil
			}
			return nil, os.ErrPermission
		}
	}
	host := newKey(t, filepath.Join(dir, "host_key"), false)
	config.AddHostKey(host)
	if o.Certify != nil {
		certified, err := ssh.NewCertSigner(o.Certify(host.PublicKey()), host)
		if err != nil {
			t.Fatal(err)
		}
		config.AddHostKey(certified)
	}
	s.HostKey = sshserver.Public(host)
	s.HostKeys = []string{s.HostKey}
	if o.ManyKeys {
		s.addHostKeys(t, config)
	}
	s.server = sshserver.Server{
		Config: config, MaxSessions: o.MaxSessions, Session: s.session,
		Forwards:  func() bool { return !s.current().NoForwarding },
		Forwarded: func() { s.count(&s.stats.Forwards) },
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

// NewKey writes a new private key, and returns its public key as an authorized_keys line.
func NewKey(t testing.TB, path string) string {
	t.Helper()
	return sshserver.Public(newKey(t, path, false))
}

func newKey(t testing.TB, path string, ofRSA bool) ssh.Signer {
	t.Helper()
	_ = os.Remove(path) // a key that was there before
	signer, err := sshserver.Key(path, "sshtest", ofRSA)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// addHostKeys gives the server an ECDSA and an RSA key in addition to its own.
func (s *Server) addHostKeys(t testing.TB, config *ssh.ServerConfig) {
	t.Helper()
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ecdsaKey, err := ssh.NewSignerFromKey(curve)
	if err != nil {
		t.Fatal(err)
	}
	// Without SHA-1, as OpenSSH since 8.8.
	rsaKey, err := ssh.NewSignerWithAlgorithms(newKey(t, filepath.Join(t.TempDir(), "host_rsa"), true).(ssh.AlgorithmSigner),
		[]string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256})
	if err != nil {
		t.Fatal(err)
	}
	for _, signer := range []ssh.Signer{ecdsaKey, rsaKey} {
		config.AddHostKey(signer)
		s.HostKeys = append(s.HostKeys, sshserver.Public(signer))
	}
}

// Addr returns "host:port".
func (s *Server) Addr() string { return net.JoinHostPort(s.Host, strconv.Itoa(s.Port)) }

// Set changes the faults and restarts the counts of commands and bytes.
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

// Drop cuts every open connection.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for conn := range s.open {
		_ = conn.Close()
	}
}

// Stop stops the server, its connections and running commands.
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

func (s *Server) count(n *int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	*n++
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
			_ = s.server.Serve(conn, func() { s.count(&s.stats.Connections) }) // a refused client notices by itself
		})
	}
}

// counted closes the connection once a fault's number of bytes has been sent or received.
type counted struct {
	net.Conn
	server *Server
}

// Read reads nothing from the network while the server is deaf.
func (c *counted) Read(b []byte) (int, error) {
	for c.server.deaf() {
		time.Sleep(10 * time.Millisecond) //nolint:forbidigo // until the test changes the fault or stops the server
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
