package process

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/creack/pty"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"linus/internal/lab/sshserver"
	"linus/internal/lab/sys"
)

// newSSHServer returns a process guest's SSH server. It behaves like OpenSSH: a closed session
// leaves its process running, a signal request does nothing, the exit status is sent when the
// process ends, and the channel closes when the output ends.
func newSSHServer(g *guest, hostKey ssh.Signer) *sshserver.Server {
	config := &ssh.ServerConfig{ServerVersion: "SSH-2.0-pvelab", PublicKeyCallback: g.authorize}
	config.AddHostKey(hostKey)
	return &sshserver.Server{
		Config: config, MaxSessions: sshserver.MaxSessions, Forwards: forwardingAllowed,
		Session: func(conn *sshserver.Conn, channel ssh.Channel, requests <-chan *ssh.Request) {
			session := &session{guest: g, channel: channel, env: g.loginEnv(conn)}
			session.serve(requests)
		},
	}
}

// servedKey is the host key that the SSH server read when it was started.
const servedKey = labDir + "/host-key"

// restartSSH makes the server read its host key.
func restartSSH() error {
	key, err := os.ReadFile(hostKeyPath)
	if err != nil {
		return err
	}
	return sys.WriteFile(servedKey, key, 0o600)
}

// serveSSH serves a connection to the guest's SSH server, unless the card's link is down.
func (g *guest) serveSSH(conn net.Conn) {
	if !linkIsUp() {
		return
	}
	key, err := sshserver.Key(servedKey, "", false)
	if err == nil {
		err = newSSHServer(g, key).Serve(conn, func() {})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "ssh: %s: %v\n", conn.RemoteAddr(), err)
	}
}

// authorize looks up a key in the login user's authorized_keys.
func (g *guest) authorize(conn ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	if conn.User() != g.config.User {
		return nil, fmt.Errorf("unknown user %q", conn.User())
	}
	rest, err := os.ReadFile(filepath.Join(g.home(), ".ssh", "authorized_keys"))
	for err == nil && len(rest) > 0 {
		var known ssh.PublicKey
		var options []string
		known, _, options, rest, err = ssh.ParseAuthorizedKey(rest)
		if err == nil && string(known.Marshal()) == string(key.Marshal()) && !expired(options) {
			return &ssh.Permissions{}, nil
		}
	}
	return nil, errors.New("key is not authorized")
}

// expired reports whether a line of authorized_keys has an expiry time, in the guest's time zone,
// that has passed. A time in any other format than linus writes counts as expired.
func expired(options []string) bool {
	for _, option := range options {
		if until, ok := strings.CutPrefix(option, "expiry-time="); ok {
			at, err := time.ParseInLocation("20060102150405", strings.Trim(until, `"`), time.Local)
			if err != nil || !time.Now().Before(at) {
				return true
			}
		}
	}
	return false
}

// forwardingAllowed looks for `AllowTcpForwarding no` in the guest's sshd_config, as sshd does.
func forwardingAllowed() bool {
	config, err := os.ReadFile("/etc/ssh/sshd_config")
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(config)) {
		if words := strings.Fields(line); len(words) == 2 && strings.EqualFold(words[0], "AllowTcpForwarding") {
			return !strings.EqualFold(words[1], "no")
		}
	}
	return true
}

func (g *guest) loginEnv(conn ssh.ConnMetadata) []string {
	remoteHost, remotePort, _ := net.SplitHostPort(conn.RemoteAddr().String())
	localHost, localPort, _ := net.SplitHostPort(conn.LocalAddr().String())
	return []string{
		"HOME=" + g.home(), "USER=" + g.config.User, "LOGNAME=" + g.config.User, "SHELL=/bin/bash", "PATH=" + guestPath,
		"LANG=C.UTF-8", "SSH_CLIENT=" + strings.Join([]string{remoteHost, remotePort, localPort}, " "),
		"SSH_CONNECTION=" + strings.Join([]string{remoteHost, remotePort, localHost, localPort}, " "),
	}
}

// session is one session channel.
type session struct {
	guest   *guest
	channel ssh.Channel
	env     []string
	master  *os.File // set if a terminal was asked for
	slave   *os.File
	ours    []*os.File // this side's ends of the process's files
	started bool
	work    sync.WaitGroup
}

// serve answers a session's requests until the client closes it. A process that still runs then
// keeps running, without its pipes.
func (s *session) serve(requests <-chan *ssh.Request) {
	defer s.work.Wait()
	defer func() {
		for _, f := range s.ours {
			f.Close()
		}
	}()
	defer s.channel.Close()
	for request := range requests {
		err := s.request(request)
		if err != nil {
			fmt.Fprintf(os.Stderr, "ssh: %s: %v\n", request.Type, err)
		}
		if request.WantReply {
			_ = request.Reply(err == nil, nil)
		}
	}
}

var errRefused = errors.New("refused")

func (s *session) request(request *ssh.Request) error {
	switch request.Type {
	case "env":
		var v struct{ Name, Value string }
		if err := ssh.Unmarshal(request.Payload, &v); err != nil {
			return err
		}
		if v.Name != "LANG" && !strings.HasPrefix(v.Name, "LC_") { // Debian's AcceptEnv
			return errRefused
		}
		s.env = append(s.env, v.Name+"="+v.Value)
		return nil
	case "pty-req":
		return s.openTerminal(request.Payload)
	case "window-change":
		var v windowSize
		if err := ssh.Unmarshal(request.Payload, &v); err != nil || s.master == nil {
			return errors.Join(errRefused, err)
		}
		return pty.Setsize(s.master, v.size())
	case "signal":
		return nil
	}
	if s.started {
		return errRefused
	}
	switch request.Type {
	case "shell":
		return s.startProcess([]string{"/bin/bash", "-l"})
	case "exec":
		var v struct{ Command string }
		if err := ssh.Unmarshal(request.Payload, &v); err != nil {
			return err
		}
		return s.startProcess([]string{"/bin/bash", "-c", v.Command})
	case "subsystem":
		var v struct{ Name string }
		if err := ssh.Unmarshal(request.Payload, &v); err != nil || v.Name != "sftp" {
			return errors.Join(errRefused, err)
		}
		return s.startSFTP()
	}
	return errRefused
}

type windowSize struct{ Columns, Rows, Width, Height uint32 }

func (w windowSize) size() *pty.Winsize {
	return &pty.Winsize{Cols: uint16(w.Columns), Rows: uint16(w.Rows)}
}

func (s *session) openTerminal(payload []byte) error {
	var v struct {
		Term                         string
		Columns, Rows, Width, Height uint32
		Modes                        string
	}
	if err := ssh.Unmarshal(payload, &v); err != nil || s.master != nil {
		return errors.Join(errRefused, err)
	}
	window := windowSize{v.Columns, v.Rows, v.Width, v.Height}
	var err error
	if s.master, s.slave, err = pty.Open(); err != nil {
		return err
	}
	s.ours = append(s.ours, s.master, s.slave)
	s.env = append(s.env, "TERM="+v.Term)
	return pty.Setsize(s.master, window.size())
}

// startProcess runs a command in its own session, on the terminal or on pipes.
func (s *session) startProcess(argv []string) error {
	run, err := s.guest.procs.run(argv, s.guest.home(), s.env, s.master, s.slave, s.channel, s.channel, s.channel.Stderr())
	if err != nil {
		return err
	}
	s.ours = append(s.ours, run.ours...)
	s.started = true
	s.work.Go(run.drained.Wait)
	go func() { // ends with the process, which may outlive the session; all of this then fails, harmlessly
		sshserver.SendEnd(s.channel, <-run.done)
		run.drained.Wait()
		_ = s.channel.CloseWrite()
		s.channel.Close()
	}()
	return nil
}

func (s *session) startSFTP() error {
	server, err := sftp.NewServer(s.channel, sftp.WithServerWorkingDirectory(s.guest.home()))
	if err != nil {
		return err
	}
	s.started = true
	s.work.Go(func() {
		_ = server.Serve() // ends with the channel
		sshserver.SendStatus(s.channel, 0)
		s.channel.Close()
	})
	return nil
}
