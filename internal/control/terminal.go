package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"

	"linus/internal/job"
)

// A terminal is a task's terminal over a WebSocket. Binary messages carry its bytes: the task's
// output to the client, and typed input from the client. Text messages are TerminalNews and
// TerminalRequest, as JSON.

// TerminalNews is what a client gets besides output. The first message has State and Input.
type TerminalNews struct {
	// State is sent when it changes, and before output that does not follow the output sent before.
	State *TerminalState `json:"state,omitempty"`
	// Input is how many bytes of input the task has received so far, from all clients. It is sent
	// after each part that was delivered.
	Input *int64 `json:"input,omitempty"`
	// Error says why a request of the client was refused.
	Error string `json:"error,omitempty"`
}

// TerminalState is the state of a job with a terminal.
type TerminalState struct {
	Status job.Status `json:"status"` // of the job
	Offset int64      `json:"offset"` // of the next byte of output
	Done   bool       `json:"done"`   // the output is complete; the connection ends
}

// TerminalRequest is what a client sends besides input.
type TerminalRequest struct {
	Rows    int    `json:"rows,omitempty"` // the terminal's new size; with Columns
	Columns int    `json:"columns,omitempty"`
	Signal  string `json:"signal,omitempty"` // to the task: INT, TERM, KILL, HUP or QUIT
	Close   bool   `json:"close,omitempty"`  // the end of the input
}

// Bounds of the interval at which the output is read: short after output, then longer and longer.
const (
	soonestLook = 20 * time.Millisecond
	latestLook  = 500 * time.Millisecond
)

const (
	terminalQueue = 16              // queued messages of a client
	writeTime     = 2 * time.Minute // for a client to receive a message
)

type terminal struct {
	engine job.Engine
	ws     *websocket.Conn
	id     string
	state  TerminalState
	asked  chan message
	begun  chan struct{} // closed when the task has begun
	look   chan struct{} // signals that there may be output
}

type message struct {
	text bool
	data []byte
}

func serveTerminal(ctx context.Context, e job.Engine, in terminalRef, accept accepting) error {
	j, err := e.Job(ctx, in.ID)
	if err == nil && !j.Manifest.TTY {
		err = &job.FieldError{Field: "id", Problem: "is a job without a terminal", Remedy: "submit it with tty, or read its output and send it input"}
	}
	if err != nil {
		return err
	}
	at := in.Offset
	if at < 0 {
		chunk, err := e.Output(ctx, in.ID, job.Stdout, at, 1)
		if err != nil {
			return err
		}
		at = chunk.Offset
	}
	ws, err := accept()
	if err != nil {
		return err
	}
	t := &terminal{
		engine: e, ws: ws, id: in.ID, state: TerminalState{Status: j.Status, Offset: at},
		asked: make(chan message, terminalQueue), begun: make(chan struct{}), look: make(chan struct{}, 1),
	}
	working, cancel := context.WithCancelCause(ctx)
	var both sync.WaitGroup
	both.Go(func() { cancel(t.listen(working)) })
	both.Go(func() {
		if err := t.obey(working); err != nil {
			cancel(err)
		}
	})
	err = t.show(working, j)
	if cause := context.Cause(working); cause != nil {
		err = cause
	}
	if websocket.CloseStatus(err) >= 0 { // the client has left
		err = nil
	}
	finish(ctx, ws, err) // ends listen
	cancel(nil)
	both.Wait()
	return nil
}

// show sends the task's output until it is complete.
func (t *terminal) show(ctx context.Context, j job.Job) error {
	if err := t.tell(ctx, TerminalNews{State: &t.state, Input: &j.Stdin.Bytes}); err != nil {
		return err
	}
	j, err := t.await(ctx, j)
	if err != nil {
		return err
	}
	close(t.begun)
	for wait := soonestLook; ; {
		chunk, err := t.engine.Output(job.Following(ctx, wait/2), t.id, job.Stdout, t.state.Offset, maxFrame)
		if err != nil {
			return err
		}
		if chunk.Offset != t.state.Offset { // some of it is not kept
			t.state.Offset = chunk.Offset
			if err := t.tell(ctx, TerminalNews{State: &t.state}); err != nil {
				return err
			}
		}
		if len(chunk.Data) > 0 {
			if err := t.send(ctx, websocket.MessageBinary, chunk.Data); err != nil {
				return err
			}
			wait = soonestLook
		}
		t.state.Offset = chunk.Next
		if chunk.Complete {
			if j, err = t.engine.Job(ctx, t.id); err != nil {
				return err
			}
			t.state.Status, t.state.Done = j.Status, true
			return t.tell(ctx, TerminalNews{State: &t.state})
		}
		if len(chunk.Data) > 0 {
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
			wait = min(wait*3/2, latestLook)
		case <-t.look:
			wait = soonestLook
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// await waits until the task has begun, or never will, and sends the job's status changes.
func (t *terminal) await(ctx context.Context, j job.Job) (job.Job, error) {
	for after := int64(0); !j.Begun(); {
		events, now, err := t.engine.Watch(ctx, t.id, after)
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return j, err
		}
		for _, e := range events {
			after = e.Seq
		}
		if j = now; j.Status != t.state.Status {
			t.state.Status = j.Status
			if err := t.tell(ctx, TerminalNews{State: &t.state}); err != nil {
				return j, err
			}
		}
	}
	return j, nil
}

func (t *terminal) listen(ctx context.Context) error {
	for {
		kind, data, err := t.ws.Read(context.WithoutCancel(ctx)) // ctx would cut the connection
		if err != nil {
			return err
		}
		select {
		case t.asked <- message{kind == websocket.MessageText, data}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// obey serves the client's messages in order, once the task has begun.
func (t *terminal) obey(ctx context.Context) error {
	select {
	case <-t.begun:
	case <-ctx.Done():
		return nil
	}
	for {
		select {
		case m := <-t.asked:
			if err := t.do(ctx, m); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// do serves a message, together with the input queued behind it if it is input. Refusals are sent
// to the client. do returns an error only if it is unknown what the task got.
func (t *terminal) do(ctx context.Context, m message) error {
	if !m.text {
		var next *message
		if m, next = t.gather(m); next != nil {
			if err := t.do(ctx, m); err != nil {
				return err
			}
			return t.do(ctx, *next)
		}
		return t.input(ctx, m.data, false)
	}
	var q TerminalRequest
	_, err := job.DecodeStrict("", m.data, &q)
	if err != nil {
		err = fmt.Errorf("a text message is not a request: %w", err)
	}
	if err == nil && (q.Rows != 0 || q.Columns != 0) {
		err = t.engine.Resize(ctx, t.id, q.Rows, q.Columns)
	}
	if err == nil && q.Signal != "" {
		_, err = t.engine.Kill(ctx, t.id, q.Signal)
	}
	if err == nil && q.Close {
		return t.input(ctx, nil, true)
	}
	return t.refuse(ctx, err)
}

// gather appends the input queued behind m to it; next is the first message that is not input.
func (t *terminal) gather(m message) (all message, next *message) {
	for len(m.data) < job.MaxInput-maxFrame {
		select {
		case more := <-t.asked:
			if more.text {
				return m, &more
			}
			m.data = append(m.data, more.data...)
		default:
			return m, nil
		}
	}
	return m, nil
}

// input sends input, or its end, to the task.
func (t *terminal) input(ctx context.Context, data []byte, closed bool) error {
	err := t.engine.Input(ctx, t.id, data, closed)
	var field *job.FieldError
	if errors.Is(err, job.ErrCompleted) || errors.As(err, &field) || errors.Is(err, job.ErrNotAllowed) {
		return t.refuse(ctx, err)
	}
	if err != nil {
		return fmt.Errorf("input was not sent: %w", err)
	}
	select {
	case t.look <- struct{}{}:
	default:
	}
	j, err := t.engine.Job(ctx, t.id)
	if err != nil {
		return err
	}
	return t.tell(ctx, TerminalNews{Input: &j.Stdin.Bytes})
}

func (t *terminal) refuse(ctx context.Context, err error) error {
	if err == nil || errors.Is(err, job.ErrCompleted) {
		return nil
	}
	return t.tell(ctx, TerminalNews{Error: err.Error()})
}

func (t *terminal) tell(ctx context.Context, n TerminalNews) error {
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	return t.send(ctx, websocket.MessageText, data)
}

func (t *terminal) send(ctx context.Context, kind websocket.MessageType, data []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return t.ws.Write(ctx, kind, data)
}
