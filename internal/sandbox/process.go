package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"linus/internal/sandbox/rpc"
)

const (
	chunk     = 32 << 10         // bytes of output in one event
	backlog   = 4                // events queued per listener
	patience  = 30 * time.Second // how long a listener may hold up a process that has other listeners
	drain     = time.Second      // for output of a killed process, if others can still write to it
	retention = 30 * time.Second // how long a process can be found after its end
)

// launcher makes a process, and not this program, the first to be killed when memory runs out, and
// then execs it. The shell looks up the command, and reports problems with it by status 127.
const launcher = `echo 100 2>/dev/null >/proc/$$/oom_score_adj; exec "$@"`

// process is a process that a client has started. It lives until it ends, even without listeners.
type process struct {
	pid    uint32
	config *rpc.ProcessConfig
	tag    *string
	cmd    *exec.Cmd
	tty    *os.File      // this program's side of its terminal
	input  chan struct{} // held while writing to it
	killed chan struct{} // closed by the first signal: output is then awaited for drain only
	ended  chan struct{} // closed when the process is gone
	limit  *time.Timer   // kills the process at its client's time limit, if it has one

	mu        sync.Mutex
	stdin     *os.File
	listeners map[*listener]bool
	reaped    bool
	end       *rpc.ProcessEvent_EndEvent
	at        time.Time // when it ended
}

// listener is a stream of a process's events.
type listener struct {
	events chan *rpc.ProcessEvent // closed after the last one
	slow   chan struct{}          // closed when the process drops the listener
	gone   <-chan struct{}        // closed when the stream is gone
}

// start starts a process with its first listener, which misses no events.
func (s *Server) start(ctx context.Context, a account, req *rpc.StartRequest) (*process, *listener, error) {
	config := req.GetProcess()
	dir, err := s.path(a, config.GetCwd())
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, err)
	}
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return nil, nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("cwd '%s' does not exist, or is no directory", dir))
	}
	for name, value := range config.GetEnvs() {
		if strings.ContainsRune(name+value, 0) {
			return nil, nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("envs: %.100q has a NUL byte", name))
		}
	}
	p := &process{
		config: config, tag: req.Tag,
		input: make(chan struct{}, 1), killed: make(chan struct{}), ended: make(chan struct{}),
		listeners: map[*listener]bool{},
	}
	p.cmd = &exec.Cmd{
		Path: "/bin/sh", Args: append([]string{"sh", "-c", launcher, "sh", config.GetCmd()}, config.GetArgs()...),
		Dir: dir, Env: s.environment(a, config.GetEnvs()), SysProcAttr: a.process(),
	}
	l := p.listen(ctx)

	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, nil, connect.NewError(connect.CodeUnavailable, errors.New("the sandbox ends"))
	case len(s.processes) >= maxProcesses:
		return nil, nil, connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("the sandbox has %d processes: end some", maxProcesses))
	}
	outputs, theirs, err := p.connect(a, req)
	if err == nil {
		err = p.cmd.Start()
	}
	for _, f := range theirs {
		_ = f.Close()
	}
	if err != nil {
		for _, o := range outputs {
			_ = o.from.Close()
		}
		_ = p.closeStdin()
		return nil, nil, fault("start process", err)
	}
	p.pid = uint32(p.cmd.Process.Pid) //nolint:gosec // of a process, so positive
	s.processes = append(s.processes, p)

	// A client's time limit applies to the process, too, even if the client is gone.
	if deadline, ok := ctx.Deadline(); ok {
		p.limit = time.AfterFunc(time.Until(deadline), func() { _ = p.signal(syscall.SIGKILL) })
	}
	s.running.Go(func() { s.await(p, outputs) })
	return p, l, nil
}

// process returns the attributes of a process of the user, in a session of its own.
func (a account) process() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setsid: true}
	if os.Geteuid() == 0 {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
	}
	return attr
}

// output is an output of a process, and the event that carries its data.
type output struct {
	from *os.File
	data func([]byte) *rpc.ProcessEvent_DataEvent
}

// connect gives a process its terminal or its pipes. It returns this program's read ends, and the
// process's ends, to be closed after the process has started.
func (p *process) connect(a account, req *rpc.StartRequest) (ours []output, theirs []*os.File, err error) {
	if size := req.GetPty(); size != nil {
		master, slave, err := pty.Open()
		if err != nil {
			return nil, nil, fmt.Errorf("open a terminal: %w", err)
		}
		p.tty = master
		ours = []output{{master, func(b []byte) *rpc.ProcessEvent_DataEvent {
			return &rpc.ProcessEvent_DataEvent{Output: &rpc.ProcessEvent_DataEvent_Pty{Pty: b}}
		}}}
		p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = slave, slave, slave
		p.cmd.SysProcAttr.Setctty = true
		if err = p.resize(size); err == nil && os.Geteuid() == 0 {
			err = slave.Chown(int(a.uid), -1)
		}
		return ours, []*os.File{slave}, err
	}
	pipe := func(data func([]byte) *rpc.ProcessEvent_DataEvent) *os.File {
		r, w, e := os.Pipe()
		if e != nil {
			err = e
			return nil
		}
		ours, theirs = append(ours, output{r, data}), append(theirs, w)
		return w
	}
	p.cmd.Stdout = pipe(func(b []byte) *rpc.ProcessEvent_DataEvent {
		return &rpc.ProcessEvent_DataEvent{Output: &rpc.ProcessEvent_DataEvent_Stdout{Stdout: b}}
	})
	p.cmd.Stderr = pipe(func(b []byte) *rpc.ProcessEvent_DataEvent {
		return &rpc.ProcessEvent_DataEvent{Output: &rpc.ProcessEvent_DataEvent_Stderr{Stderr: b}}
	})
	if req.Stdin == nil || req.GetStdin() {
		r, w, e := os.Pipe()
		if e != nil {
			return ours, theirs, e
		}
		p.cmd.Stdin, p.stdin, theirs = r, w, append(theirs, r)
	}
	return ours, theirs, err
}

// await forwards a process's output until the process has ended, and then its end.
func (s *Server) await(p *process, outputs []output) {
	var reading sync.WaitGroup
	for _, o := range outputs {
		reading.Go(func() { p.read(o) })
	}
	said := make(chan struct{})
	go func() { reading.Wait(); close(said) }()
	select {
	case <-said:
	case <-p.killed:
	}
	// Wait for its end but leave it a zombie: its ID is not reused until it is reaped.
	for {
		if err := unix.Waitid(unix.P_PID, int(p.pid), nil, unix.WEXITED|unix.WNOWAIT, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	late := time.NewTimer(drain)
	select {
	case <-said:
	case <-late.C: // a child of it holds its output open
	}
	late.Stop()
	for _, o := range outputs {
		_ = o.from.Close()
	}
	p.mu.Lock()
	err := p.cmd.Wait()
	p.reaped = true
	p.mu.Unlock()
	_ = p.closeStdin()
	if p.limit != nil {
		p.limit.Stop()
	}

	state := p.cmd.ProcessState
	code := int32(state.ExitCode()) //nolint:gosec // -1 to 255
	end := &rpc.ProcessEvent_EndEvent{ExitCode: code, Exited: state.Exited(), Status: state.String()}
	if err != nil {
		text := err.Error()
		end.Error = &text
	}
	now := time.Now()
	s.mu.Lock()
	p.mu.Lock()
	p.end, p.at = end, now
	p.mu.Unlock()
	s.processes = slices.DeleteFunc(s.processes, func(other *process) bool { return other == p })
	s.ended = slices.DeleteFunc(s.ended, func(old *process) bool { return now.Sub(old.at) > retention })
	if len(s.ended) >= maxProcesses {
		s.ended = s.ended[1:]
	}
	s.ended = append(s.ended, p)
	s.mu.Unlock()
	close(p.ended)

	<-said // a listener that is behind gets what was read
	p.mu.Lock()
	for l := range p.listeners {
		close(l.events)
	}
	p.listeners = nil
	p.mu.Unlock()
}

// read forwards one output. Output without listeners is lost, as in E2B's.
func (p *process) read(o output) {
	buf := make([]byte, chunk)
	for {
		n, err := o.from.Read(buf)
		if n > 0 {
			p.tell(func() *rpc.ProcessEvent {
				return &rpc.ProcessEvent{Event: &rpc.ProcessEvent_Data{Data: o.data(bytes.Clone(buf[:n]))}}
			})
		}
		if err != nil {
			return
		}
	}
}

// tell sends an event to each listener. It waits for the only listener, so that a slow client
// misses nothing, but drops one of several that receives nothing for the time patience.
func (p *process) tell(event func() *rpc.ProcessEvent) {
	p.mu.Lock()
	listeners := slices.Collect(maps.Keys(p.listeners))
	p.mu.Unlock()
	if len(listeners) == 0 {
		return
	}
	e := event()
	for _, l := range listeners {
		select {
		case l.events <- e:
			continue
		default:
		}
		wait := time.NewTimer(patience)
		for waiting := true; waiting; {
			select {
			case l.events <- e:
				waiting = false
			case <-l.gone:
				waiting = false
			case <-wait.C:
				waiting = !p.giveUp(l)
				wait.Reset(patience)
			}
		}
		wait.Stop()
	}
}

// listen adds a listener until it leaves. For a process that has ended it only gets the end.
func (p *process) listen(ctx context.Context) *listener {
	l := &listener{events: make(chan *rpc.ProcessEvent, backlog), slow: make(chan struct{}), gone: ctx.Done()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listeners == nil {
		close(l.events)
	} else {
		p.listeners[l] = true
	}
	return l
}

func (p *process) leave(l *listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.listeners, l)
}

// giveUp drops a listener, unless it is the only one. It reports whether the listener is gone.
func (p *process) giveUp(l *listener) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.listeners) == 1 && p.listeners[l] {
		return false
	}
	if p.listeners[l] {
		delete(p.listeners, l)
		close(l.slow)
	}
	return true
}

// signal signals a process and its children, which are a group, unless the process was reaped.
func (p *process) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.reaped {
		return os.ErrProcessDone
	}
	select {
	case <-p.killed:
	default:
		close(p.killed)
	}
	return syscall.Kill(-int(p.pid), sig)
}

// write sends input to a process. It stops waiting for the process to read it when ctx ends.
func (p *process) write(ctx context.Context, to *os.File, data []byte) error {
	select {
	case p.input <- struct{}{}:
		defer func() { <-p.input }()
	case <-ctx.Done():
		return ctx.Err()
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = to.SetWriteDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	_, err := to.Write(data)
	if !stop() {
		<-interrupted
		_ = to.SetWriteDeadline(time.Time{})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return ctx.Err()
	}
	return err
}

func (p *process) closeStdin() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stdin == nil {
		return nil
	}
	err := p.stdin.Close()
	p.stdin = nil
	return err
}

func (p *process) resize(size *rpc.PTY) error {
	return pty.Setsize(p.tty, &pty.Winsize{
		Cols: uint16(min(size.GetSize().GetCols(), 0xffff)),
		Rows: uint16(min(size.GetSize().GetRows(), 0xffff)),
	})
}
