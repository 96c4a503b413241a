package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"linus/internal/sandbox/rpc"
)

// Start starts a process and streams its events until it has ended, or the client is gone.
func (s *Server) Start(ctx context.Context, req *rpc.StartRequest, stream *connect.ServerStream[rpc.StartResponse]) error {
	a, err := s.caller(ctx)
	if err != nil {
		return err
	}
	p, l, err := s.start(ctx, a, req)
	if err != nil {
		return err
	}
	return p.follow(ctx, l, func(e *rpc.ProcessEvent) error { return stream.Send(&rpc.StartResponse{Event: e}) })
}

// Connect streams the events of a process that was started before, from now on.
func (s *Server) Connect(ctx context.Context, req *rpc.ConnectRequest, stream *connect.ServerStream[rpc.ConnectResponse]) error {
	p, err := s.process(req.GetProcess(), true)
	if err != nil {
		return err
	}
	return p.follow(ctx, p.listen(ctx), func(e *rpc.ProcessEvent) error { return stream.Send(&rpc.ConnectResponse{Event: e}) })
}

// follow sends a listener's events, and a keepalive when there are none.
func (p *process) follow(ctx context.Context, l *listener, send func(*rpc.ProcessEvent) error) error {
	defer p.leave(l)
	if err := send(&rpc.ProcessEvent{Event: &rpc.ProcessEvent_Start{Start: &rpc.ProcessEvent_StartEvent{Pid: p.pid}}}); err != nil {
		return err
	}
	interval := keepalive(ctx)
	quiet := time.NewTimer(interval)
	defer quiet.Stop()
	for {
		var event *rpc.ProcessEvent
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.slow:
			return connect.NewError(connect.CodeResourceExhausted, fmt.Errorf("this stream took nothing of the process's output for %s, while others wait for it: connect to process %d again", patience, p.pid))
		case <-quiet.C:
			event = &rpc.ProcessEvent{Event: &rpc.ProcessEvent_Keepalive{Keepalive: &rpc.ProcessEvent_KeepAlive{}}}
		case e, more := <-l.events:
			if more {
				event = e
				break
			}
			if ctx.Err() != nil { // by the time limit that the stream shares with the process
				return ctx.Err()
			}
			return send(&rpc.ProcessEvent{Event: &rpc.ProcessEvent_End{End: p.end}})
		}
		if err := send(event); err != nil {
			return err
		}
		quiet.Reset(interval)
	}
}

// keepalive returns the client's interval for keepalives on a stream without events.
func keepalive(ctx context.Context) time.Duration {
	const standard, longest = 90, 24 * 60 * 60
	seconds := 0
	if info, ok := connect.CallInfoForHandlerContext(ctx); ok {
		seconds, _ = strconv.Atoi(info.RequestHeader().Get("Keepalive-Ping-Interval"))
	}
	if seconds <= 0 {
		seconds = standard
	}
	return time.Duration(min(seconds, longest)) * time.Second
}

// process finds a process by its ID or its tag. Of several matches it returns the one that started
// last, running processes before ended ones.
func (s *Server) process(selector *rpc.ProcessSelector, ended bool) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found *process
	consider := func(p *process) {
		switch by := selector.GetSelector().(type) {
		case *rpc.ProcessSelector_Pid:
			if p.pid == by.Pid {
				found = p
			}
		case *rpc.ProcessSelector_Tag:
			if p.tag != nil && *p.tag == by.Tag {
				found = p
			}
		}
	}
	for _, p := range s.ended {
		if ended && time.Since(p.at) <= retention {
			consider(p)
		}
	}
	for _, p := range s.processes {
		consider(p)
	}
	if found != nil {
		return found, nil
	}
	switch by := selector.GetSelector().(type) {
	case *rpc.ProcessSelector_Pid:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", by.Pid))
	case *rpc.ProcessSelector_Tag:
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with tag %.100s not found", by.Tag))
	}
	return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("process: give its pid or its tag"))
}

// List returns the running processes.
func (s *Server) List(context.Context, *rpc.ListRequest) (*rpc.ListResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := &rpc.ListResponse{}
	for _, p := range s.processes {
		list.Processes = append(list.Processes, &rpc.ProcessInfo{Pid: p.pid, Tag: p.tag, Config: p.config})
	}
	slices.SortFunc(list.Processes, func(a, b *rpc.ProcessInfo) int { return cmp.Compare(a.GetPid(), b.GetPid()) })
	return list, nil
}

// SendInput sends input to a process's terminal or stdin.
func (s *Server) SendInput(ctx context.Context, req *rpc.SendInputRequest) (*rpc.SendInputResponse, error) {
	p, err := s.process(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	return &rpc.SendInputResponse{}, p.give(ctx, req.GetInput())
}

// StreamInput sends a stream of input to a process, in order.
func (s *Server) StreamInput(ctx context.Context, stream *connect.ClientStream[rpc.StreamInputRequest]) (*rpc.StreamInputResponse, error) {
	var p *process
	for stream.Receive() {
		var err error
		switch event := stream.Msg().GetEvent().(type) {
		case *rpc.StreamInputRequest_Start:
			p, err = s.process(event.Start.GetProcess(), false)
		case *rpc.StreamInputRequest_Data:
			if p == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("data came before a start that names the process"))
			}
			err = p.give(ctx, event.Data.GetInput())
		}
		if err != nil {
			return nil, err
		}
	}
	return &rpc.StreamInputResponse{}, stream.Err()
}

func (p *process) give(ctx context.Context, input *rpc.ProcessInput) error {
	p.mu.Lock()
	to, data := p.stdin, input.GetStdin()
	p.mu.Unlock()
	switch input.GetInput().(type) {
	case *rpc.ProcessInput_Pty:
		if to, data = p.tty, input.GetPty(); to == nil {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal: send stdin"))
		}
	case *rpc.ProcessInput_Stdin:
		if p.tty != nil {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has a terminal: send pty"))
		}
		if to == nil {
			return connect.NewError(connect.CodeFailedPrecondition, errors.New("stdin is closed, or the process was started without"))
		}
	default:
		return connect.NewError(connect.CodeInvalidArgument, errors.New("input: give stdin or pty"))
	}
	err := p.write(ctx, to, data)
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, os.ErrClosed) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO):
		return connect.NewError(connect.CodeFailedPrecondition, fmt.Errorf("the process takes no more input: %w", err))
	}
	return connect.NewError(connect.CodeInternal, fmt.Errorf("write to process %d: %w", p.pid, err))
}

// CloseStdin tells a process that no more input will come.
func (s *Server) CloseStdin(_ context.Context, req *rpc.CloseStdinRequest) (*rpc.CloseStdinResponse, error) {
	p, err := s.process(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if p.tty != nil {
		return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("a terminal has no stdin to close: send Ctrl+D (0x04)"))
	}
	if err := p.closeStdin(); err != nil {
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("close stdin of process %d: %w", p.pid, err))
	}
	return &rpc.CloseStdinResponse{}, nil
}

// SendSignal signals a process and its children. After SIGKILL it briefly waits for the end.
func (s *Server) SendSignal(ctx context.Context, req *rpc.SendSignalRequest) (*rpc.SendSignalResponse, error) {
	p, err := s.process(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	switch req.GetSignal() {
	case rpc.Signal_SIGNAL_SIGTERM, rpc.Signal_SIGNAL_SIGKILL:
	default:
		return nil, connect.NewError(connect.CodeInvalidArgument, fmt.Errorf("signal: %s is neither SIGNAL_SIGTERM nor SIGNAL_SIGKILL", req.GetSignal()))
	}
	switch err := p.signal(syscall.Signal(req.GetSignal())); {
	case errors.Is(err, os.ErrProcessDone):
		return nil, connect.NewError(connect.CodeNotFound, fmt.Errorf("process with pid %d not found", p.pid))
	case err != nil:
		return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("signal process %d: %w", p.pid, err))
	}
	if req.GetSignal() == rpc.Signal_SIGNAL_SIGKILL {
		long := time.NewTimer(2 * drain)
		defer long.Stop()
		select {
		case <-p.ended:
		case <-long.C: // it is in the kernel, and dies when that call ends
		case <-ctx.Done():
		}
	}
	return &rpc.SendSignalResponse{}, nil
}

// Update changes the size of a terminal.
func (s *Server) Update(_ context.Context, req *rpc.UpdateRequest) (*rpc.UpdateResponse, error) {
	p, err := s.process(req.GetProcess(), false)
	if err != nil {
		return nil, err
	}
	if size := req.GetPty(); size != nil {
		if p.tty == nil {
			return nil, connect.NewError(connect.CodeFailedPrecondition, errors.New("the process has no terminal to resize"))
		}
		if err := p.resize(size); err != nil {
			return nil, connect.NewError(connect.CodeInternal, fmt.Errorf("resize the terminal of process %d: %w", p.pid, err))
		}
	}
	return &rpc.UpdateResponse{}, nil
}
