package sshtest

import (
	"context"
	"errors"
	"io"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"linus/internal/lazyregexp"
)

// connection is one login.
type connection struct {
	server *Server
	net    net.Conn

	mu       sync.Mutex
	sessions int
}

func (s *Server) serve(raw net.Conn) {
	login, channels, requests, err := ssh.NewServerConn(raw, s.config)
	if err != nil {
		return
	}
	s.mu.Lock()
	s.stats.Connections++
	s.mu.Unlock()
	var running sync.WaitGroup
	running.Go(func() { s.serveRequests(login, requests) })
	c := &connection{server: s, net: raw}
	for channel := range channels {
		switch channel.ChannelType() {
		case "session":
			if c.enter() {
				running.Go(func() {
					defer c.leave()
					c.session(channel)
				})
			} else {
				_ = channel.Reject(ssh.ConnectionFailed, "open failed") // OpenSSH's text
			}
		case "direct-tcpip":
			running.Go(func() { s.forward(channel) })
		default:
			_ = channel.Reject(ssh.UnknownChannelType, "unsupported channel type")
		}
	}
	_ = login.Close()
	running.Wait()
}

func answerGlobal(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply {
			_ = r.Reply(false, nil)
		}
	}
}

func (c *connection) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions >= c.server.options.MaxSessions {
		return false
	}
	c.sessions++
	c.server.mu.Lock()
	c.server.stats.MaxSessions = max(c.server.stats.MaxSessions, c.sessions)
	c.server.mu.Unlock()
	return true
}

func (c *connection) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions--
}

func (c *connection) session(offered ssh.NewChannel) {
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	defer func() { _ = channel.Close() }()
	var running sync.WaitGroup
	defer running.Wait()
	for r := range requests {
		ok, start := false, func() {}
		switch r.Type {
		case "exec":
			var payload struct{ Line string }
			if ok = ssh.Unmarshal(r.Payload, &payload) == nil; ok {
				start = func() { c.exec(channel, payload.Line) }
			}
		case "subsystem":
			var payload struct{ Name string }
			ok = ssh.Unmarshal(r.Payload, &payload) == nil && payload.Name == "sftp" && !c.server.current().NoSFTP && !c.server.options.Trap
			if ok {
				start = func() { c.server.serveFiles(channel) }
			}
		case "signal":
			ok = true // without effect, as with OpenSSH
		}
		if r.WantReply {
			_ = r.Reply(ok, nil)
		}
		running.Go(start) // after the reply: a quick command closes the channel
	}
}

func (s *Server) serveFiles(channel ssh.Channel) {
	defer func() { _ = channel.Close() }()
	if s.options.ServeFiles != nil {
		s.options.ServeFiles(channel)
		return
	}
	server, err := sftp.NewServer(channel)
	if err == nil {
		_ = server.Serve()
	}
}

// marked matches a command line that first says where the login shell's output ends.
var marked = lazyregexp.New(`(?s)^echo; echo ([A-Z0-9]+); (.*)$`)

// exec runs a command in its own process group. What the command leaves running keeps
// the session open only as long as it keeps its output open.
func (c *connection) exec(channel ssh.Channel, line string) {
	defer func() { _ = channel.Close() }()
	s := c.server
	began, plain := "", line
	if parts := marked.FindStringSubmatch(line); parts != nil {
		began, plain = "\n"+parts[1]+"\n", parts[2]
	}
	s.mu.Lock()
	s.execs++
	s.stats.Execs++
	s.last = plain
	faults, drop := s.faults, s.faults.DropAtExec > 0 && s.execs == s.faults.DropAtExec
	s.mu.Unlock()
	if faults.Delay > 0 {
		<-time.After(faults.Delay)
	}
	if s.options.Trap {
		return
	}
	if s.options.Play != nil {
		if drop {
			_ = c.net.Close()
		}
		_, _ = io.WriteString(channel, began)
		code := s.options.Play(&Exec{Line: plain, Ended: s.ended, Stdin: channel, Stdout: channel, Stderr: channel.Stderr()})
		if !faults.NoExitStatus {
			sendExit(channel, uint32(code))
		}
		return
	}
	cmd := exec.CommandContext(context.Background(), "bash", "-c", line)
	cmd.Env = append(cmd.Environ(), s.options.Env...)
	cmd.Dir = s.options.Dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
	stdin, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		_, _ = io.WriteString(channel.Stderr(), err.Error())
		sendExit(channel, 127)
		return
	}
	if !s.track(cmd.Process.Pid) {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	defer s.untrack(cmd.Process.Pid)
	if drop {
		_ = c.net.Close()
	}
	go func() { // ends with the channel
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	}()
	err = cmd.Wait()
	if faults.NoExitStatus {
		return
	}
	var exit *exec.ExitError
	switch {
	case err == nil:
		sendExit(channel, 0)
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signaled():
		sendSignal(channel, exit.Sys().(syscall.WaitStatus).Signal())
	case errors.As(err, &exit):
		sendExit(channel, uint32(exit.ExitCode()))
	default: // its output could not be passed on; OpenSSH still reports the status
		sendExit(channel, uint32(cmd.ProcessState.ExitCode()))
	}
}

// track records a command's process group; false once the server stops.
func (s *Server) track(group int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[group] = true
	return !s.stopped
}

func (s *Server) untrack(group int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.groups, group)
}

func sendExit(channel ssh.Channel, code uint32) {
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{code}))
}

func sendSignal(channel ssh.Channel, signal syscall.Signal) {
	name := map[syscall.Signal]string{syscall.SIGTERM: "TERM", syscall.SIGKILL: "KILL", syscall.SIGINT: "INT", syscall.SIGHUP: "HUP", syscall.SIGPIPE: "PIPE"}[signal]
	_, _ = channel.SendRequest("exit-signal", false, ssh.Marshal(struct {
		Name, Text, Lang string
		Core             bool
	}{Name: name}))
}

func (s *Server) forward(offered ssh.NewChannel) {
	var target struct {
		Host       string
		Port       uint32
		Originator string
		From       uint32
	}
	if s.current().NoForwarding {
		_ = offered.Reject(ssh.Prohibited, "open failed")
		return
	}
	if err := ssh.Unmarshal(offered.ExtraData(), &target); err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, err.Error())
		return
	}
	conn, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", net.JoinHostPort(target.Host, strconv.Itoa(int(target.Port))))
	if err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	defer func() { _ = conn.Close() }()
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	defer func() { _ = channel.Close() }()
	s.mu.Lock()
	s.stats.Forwards++
	s.mu.Unlock()
	go answerGlobal(requests)
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(conn, channel)
		_ = conn.Close()
		close(done)
	}()
	_, _ = io.Copy(channel, conn)
	_ = channel.Close()
	<-done
}
