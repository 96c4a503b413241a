package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"linus/internal/sleep"

	"github.com/coder/websocket"
)

// maxUnsent bounds the input that a Terminal holds until the task has it, in bytes. It is small
// enough that sending it never waits for the other side.
const maxUnsent = 128 << 10

// Terminal is a task's terminal in another process. If the connection is lost, it connects again:
// output continues where it was, and input that did not arrive is sent again. Only one goroutine
// may read; others may write.
type Terminal struct {
	client *Client
	id     string
	next   int64 // offset of the output to read next

	// OnRefused is called with the reason why a request was refused; nil: it is not reported.
	OnRefused func(reason string)

	mu     sync.Mutex
	room   *sync.Cond      // signalled when input was delivered, or no more can be
	ws     *websocket.Conn // nil: not connected
	base   int64           // bytes of input that the task had before unsent
	unsent []byte          // input that the task may not have
	known  bool            // base is known
	closed bool            // the input ends after unsent
	size   [2]int          // rows and columns; zero: never set
	over   bool
}

// Terminal opens the terminal of a job, and shows its output from offset on. A negative offset
// counts from the end of the output. The caller must close the Terminal.
func (c *Client) Terminal(ctx context.Context, id string, offset int64) (*Terminal, error) {
	t := &Terminal{client: c, id: id, next: offset}
	t.room = sync.NewCond(&t.mu)
	return t, t.connect(ctx)
}

// connect opens the WebSocket, and sends the size, the unsent input and its end.
func (t *Terminal) connect(ctx context.Context) error {
	ws, err := t.client.open(ctx, shapeOf(terminalVerb), terminalRef{t.id, t.next})
	if err != nil {
		return err
	}
	first, err := readNews(ctx, ws)
	if err == nil && (first.State == nil || first.Input == nil) {
		err = errors.New("the terminal's stream does not begin with its state; is the server a different version?")
	}
	if err != nil {
		_ = ws.CloseNow()
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.over {
		_ = ws.CloseNow()
		return io.ErrClosedPipe
	}
	t.ws, t.next = ws, first.State.Offset
	if !t.known {
		t.base, t.known = max(0, *first.Input), true
	}
	t.delivered(*first.Input)
	if t.size[0] > 0 {
		t.ask(ctx, TerminalRequest{Rows: t.size[0], Columns: t.size[1]})
	}
	for rest := t.unsent; len(rest) > 0; {
		part := rest[:min(len(rest), maxFrame/2)]
		t.write(ctx, websocket.MessageBinary, part)
		rest = rest[len(part):]
	}
	if t.closed {
		t.ask(ctx, TerminalRequest{Close: true})
	}
	return nil
}

// delivered forgets input that the task has; total includes that of others. t.mu must be held.
func (t *Terminal) delivered(total int64) {
	if total > t.base {
		t.unsent = t.unsent[min(total-t.base, int64(len(t.unsent))):]
		t.base = total
	}
	t.room.Broadcast()
}

// Read returns the task's next output, which is empty if only the state has changed. The output is
// complete when the state has Done set. Errors other than ctx's are final.
func (t *Terminal) Read(ctx context.Context) ([]byte, TerminalState, error) {
	var lost time.Time
	for {
		t.mu.Lock()
		ws, over := t.ws, t.over
		t.mu.Unlock()
		if over {
			return nil, TerminalState{}, io.ErrClosedPipe
		}
		data, state, err := []byte(nil), (*TerminalState)(nil), error(nil)
		if ws == nil {
			err = t.connect(ctx)
			if err == nil {
				lost = time.Time{}
				continue
			}
		} else {
			data, state, err = t.receive(ctx, ws)
		}
		switch {
		case err == nil && state != nil:
			return nil, *state, nil
		case err == nil && len(data) > 0:
			return data, TerminalState{Offset: t.next}, nil
		case err == nil:
			continue
		case ctx.Err() != nil:
			return nil, TerminalState{}, ctx.Err()
		}
		t.mu.Lock()
		t.ws = nil
		t.mu.Unlock()
		if lost.IsZero() {
			lost = time.Now()
		}
		again := ws != nil || errors.Is(err, ErrNoEngine) || errors.Is(err, ErrLost)
		if !again || time.Since(lost) > reconnectTime {
			return nil, TerminalState{}, err
		}
		if sleep.For(ctx, reconnectWait) != nil {
			return nil, TerminalState{}, ctx.Err()
		}
	}
}

func (t *Terminal) receive(ctx context.Context, ws *websocket.Conn) ([]byte, *TerminalState, error) {
	kind, data, err := ws.Read(ctx)
	if err != nil {
		return nil, nil, err
	}
	if kind == websocket.MessageBinary {
		t.next += int64(len(data))
		return data, nil, nil
	}
	n, err := decodeNews(data)
	if err != nil {
		return nil, nil, err
	}
	if n.Input != nil {
		t.mu.Lock()
		t.delivered(*n.Input)
		t.mu.Unlock()
	}
	if n.Error != "" && t.OnRefused != nil {
		t.OnRefused(n.Error)
	}
	if n.State != nil {
		t.next = n.State.Offset
	}
	return nil, n.State, nil
}

// Write sends input. It waits while too much has not arrived; after Close: io.ErrClosedPipe.
func (t *Terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for written := 0; written < len(p); {
		for len(t.unsent) >= maxUnsent && !t.over {
			t.room.Wait()
		}
		if t.over || t.closed {
			return written, io.ErrClosedPipe
		}
		part := p[written:min(len(p), written+maxFrame/2)]
		t.unsent = append(t.unsent, part...)
		written += len(part)
		t.write(context.Background(), websocket.MessageBinary, part)
	}
	return len(p), nil
}

// CloseInput ends the task's input after what was written.
func (t *Terminal) CloseInput() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	t.ask(context.Background(), TerminalRequest{Close: true})
}

// Resize changes the terminal's size, in characters.
func (t *Terminal) Resize(rows, columns int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.size = [2]int{rows, columns}
	t.ask(context.Background(), TerminalRequest{Rows: rows, Columns: columns})
}

// Close leaves the terminal. The task continues.
func (t *Terminal) Close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	if t.ws != nil {
		_ = t.ws.CloseNow()
	}
	t.room.Broadcast()
}

// ask sends a request; the caller holds t.mu.
func (t *Terminal) ask(ctx context.Context, q TerminalRequest) {
	data, err := json.Marshal(q)
	if err == nil {
		t.write(ctx, websocket.MessageText, data)
	}
}

// write sends a message if there is a connection; the caller holds t.mu. If that fails, the reader
// notices and connects again.
func (t *Terminal) write(ctx context.Context, kind websocket.MessageType, data []byte) {
	if t.ws == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	if t.ws.Write(ctx, kind, data) != nil {
		_ = t.ws.CloseNow()
	}
}

func readNews(ctx context.Context, ws *websocket.Conn) (TerminalNews, error) {
	kind, data, err := ws.Read(ctx)
	if err == nil && kind != websocket.MessageText {
		err = errors.New("the terminal's stream begins with output; is the server a different version?")
	}
	if err != nil {
		return TerminalNews{}, err
	}
	return decodeNews(data)
}

func decodeNews(data []byte) (n TerminalNews, err error) {
	if err = json.Unmarshal(data, &n); err != nil {
		err = fmt.Errorf("read the terminal's state: %w", err)
	}
	return n, err
}
