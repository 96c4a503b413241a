package sshtest

import (
	"context"
	"io"
	"os/exec"
	"sync"
	"syscall"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"linus/internal/lab/sshserver"
	"linus/internal/lazyregexp"
)

// session serves a session. Signals from clients have no effect, as with OpenSSH.
func (s *Server) session(c *sshserver.Conn, channel ssh.Channel, requests <-chan *ssh.Request) {
	s.mu.Lock()
	s.stats.MaxSessions = max(s.stats.MaxSessions, c.Sessions())
	s.mu.Unlock()
	defer func() { _ = channel.Close() }()
	var running sync.WaitGroup
	defer running.Wait()
	for r := range requests {
		var payload struct{ Text string } // exec and subsystem requests have the same form
		readable, start := ssh.Unmarshal(r.Payload, &payload) == nil, func() {}
		ok := r.Type == "signal"
		switch {
		case r.Type == "exec" && readable:
			ok, start = true, func() { s.exec(c, channel, payload.Text) }
		case r.Type == "subsystem" && payload.Text == "sftp" && !s.current().NoSFTP && !s.options.Trap:
			ok, start = true, func() { s.serveFiles(channel) }
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

// marked matches a command line that first prints where the login shell's output ends.
var marked = lazyregexp.New(`(?s)^echo; echo ([A-Z0-9]+); (.*)$`)

// exec runs a command in its own process group. What the command leaves running keeps the session open
// only as long as it keeps its output open.
func (s *Server) exec(c *sshserver.Conn, channel ssh.Channel, line string) {
	defer func() { _ = channel.Close() }()
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
	if s.options.Trap {
		return
	}
	if s.options.Play != nil {
		if drop {
			_ = c.Close()
		}
		_, _ = io.WriteString(channel, began)
		code := s.options.Play(&Exec{Line: plain, Ended: s.ended, Stdin: channel, Stdout: channel, Stderr: channel.Stderr()})
		if !faults.NoExitStatus {
			sshserver.SendStatus(channel, code)
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
		sshserver.SendStatus(channel, 127)
		return
	}
	if !s.track(cmd.Process.Pid) {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	defer s.untrack(cmd.Process.Pid)
	if drop {
		_ = c.Close()
	}
	go func() { // ends with the channel
		_, _ = io.Copy(stdin, channel)
		_ = stdin.Close()
	}()
	_ = cmd.Wait()
	if faults.NoExitStatus {
		return
	}
	// OpenSSH reports the status even if it could not pass on the output.
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok {
		sshserver.SendEnd(channel, status)
	}
}

// track records a command's process group. It returns false once the server is stopping.
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
