package mcptool

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/mcp"
	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/mcptask"
)

// workers is the number of concurrent tool calls. With mcp-go's default of five, five slow calls
// would block all others.
const workers = 64

// answerTime is the time limit for requests that are unfinished at the end of stdin.
const answerTime = 1500 * time.Millisecond

// Stdio is a server for one client, on stdin and stdout.
type Stdio struct {
	*mcpServer
	stdio    *server.StdioServer
	patience time.Duration
}

// NewStdio returns a server, which does not use the engine until Serve.
func NewStdio(o Options) *Stdio {
	m := newServer(o)
	s := server.NewStdioServer(m.MCPServer)
	server.WithWorkerPoolSize(workers)(s)
	server.WithErrorLogger(slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn))(s)
	return &Stdio{m, s, cmp.Or(o.answer, answerTime)}
}

// Serve speaks MCP on stdin and stdout until stdin or ctx ends. It writes nothing else to stdout.
// It still answers requests sent just before the end of stdin if that takes less than 1.5 s.
func (s *Stdio) Serve(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if _, known := job.PrincipalFrom(ctx); !known {
		ctx = job.WithPrincipal(ctx, job.Operator()) // whoever starts this process could open the engine's socket
	}
	defer s.close()
	g := &gate{out: stdout, quiet: make(chan struct{}, 1), patience: s.patience, numbers: newNumbers(), batches: map[string]*batch{}}
	if s.tasks != nil {
		g.tasks = s.tasks.Stdio(g)
		defer g.tasks.Close()
	}
	in, feed := io.Pipe()
	defer in.Close() //nolint:errcheck // ends the feeding goroutine at its next line
	go func() { feed.CloseWithError(g.feed(ctx, stdin, feed)) }()
	if err := s.stdio.Listen(ctx, in, g); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serve MCP on stdio: %w", err)
	}
	return nil
}

// gate is between the process's stdio and mcp-go, which drops unanswered requests when its input
// ends. It counts requests in and responses out, and delays the end of input, for at most patience,
// until all are answered.
type gate struct {
	mu      sync.Mutex
	out     io.Writer
	pending int
	quiet   chan struct{} // pending is 0 again

	batches  map[string]*batch // by request ID
	version  string            // of the protocol, as the client requested it; used by feed only
	numbers  numbers
	patience time.Duration
	tasks    *mcptask.Stdio // nil: no tasks
}

// feed copies messages from stdin to w, one per line, and returns the error that stopped it.
func (g *gate) feed(ctx context.Context, stdin io.Reader, w io.Writer) error {
	lines := bufio.NewReader(stdin)
	for first := true; ; first = false {
		line, err := lines.ReadBytes('\n')
		if first {
			line = bytes.TrimPrefix(line, byteOrderMark)
		}
		if len(bytes.TrimSpace(line)) > 0 {
			if err != nil {
				line = append(line, '\n') // a last line without a newline is a message too
			}
			if err := g.line(ctx, line, w); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			g.drain(ctx)
			return io.EOF
		case err != nil:
			return fmt.Errorf("read stdin: %w", err)
		}
	}
}

// line handles a line of stdin: a message, or a batch of them.
func (g *gate) line(ctx context.Context, line []byte, w io.Writer) error {
	messages, err := inBatch(line, g.version)
	switch {
	case err != nil:
		data, err := json.Marshal(refused(err))
		if err == nil {
			_, err = g.Write(append(data, '\n'))
		}
		return err
	case messages == nil:
		return g.message(ctx, line, nil, w)
	}
	together := &batch{}
	for i, message := range messages {
		messages[i] = append(message, '\n')
		if envelopeOf(message).isRequest() {
			together.open++
		}
	}
	for _, message := range messages {
		if err := g.message(ctx, message, together, w); err != nil {
			return err
		}
	}
	return nil
}

// message handles one message; of is its batch, or nil.
func (g *gate) message(ctx context.Context, message []byte, of *batch, w io.Writer) error {
	message = g.numbers.hide(message)
	e := envelopeOf(message)
	if e.Method == string(mcp.MethodInitialize) {
		g.version = e.Params.ProtocolVersion
	}
	if e.isRequest() {
		g.count(1)
		if of != nil {
			g.mu.Lock()
			g.batches[fmt.Sprint(e.ID)] = of
			g.mu.Unlock()
		}
	}
	if g.tasks != nil && g.tasks.Line(ctx, message) {
		return nil
	}
	_, err := w.Write(message)
	return err
}

// batch collects the answers to requests that were sent as a batch.
type batch struct {
	open    int // unanswered requests
	answers []json.RawMessage
}

// gather returns what to write for a message: all answers of a batch with its last answer, and
// nothing before. The caller holds g.mu.
func (g *gate) gather(message []byte, e envelope) []byte {
	id := fmt.Sprint(e.ID)
	of := g.batches[id]
	if of == nil || !e.isResponse() {
		return message
	}
	delete(g.batches, id)
	of.answers = append(of.answers, bytes.Clone(message)) // mcp-go reuses the memory
	if of.open--; of.open > 0 {
		return nil
	}
	all, _ := json.Marshal(of.answers) // each is JSON
	return append(all, '\n')
}

func (g *gate) drain(ctx context.Context) {
	late := time.NewTimer(g.patience)
	defer late.Stop()
	for g.count(0) > 0 {
		select {
		case <-g.quiet:
		case <-late.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Write writes one message; mcp-go writes each message in one call.
func (g *gate) Write(message []byte) (int, error) {
	e := envelopeOf(message)
	g.mu.Lock()
	var err error
	if out := g.gather(mcptask.Lift(message), e); out != nil {
		_, err = g.out.Write(g.numbers.restore(out))
	}
	g.mu.Unlock()
	if e.isResponse() {
		g.count(-1)
	}
	return len(message), err
}

func (g *gate) count(change int) int {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = max(0, g.pending+change)
	if g.pending == 0 {
		select {
		case g.quiet <- struct{}{}:
		default:
		}
	}
	return g.pending
}

// envelope has the fields of a message that tell what it is. A response to an unreadable request
// has the ID null and answers no request.
type envelope struct {
	ID     any
	Method string
	Params struct{ ProtocolVersion string }
}

func envelopeOf(message []byte) (e envelope) {
	_ = json.Unmarshal(message, &e) // continues after a wrong type
	return e
}

func (e envelope) isRequest() bool  { return e.ID != nil && e.Method != "" }
func (e envelope) isResponse() bool { return e.ID != nil && e.Method == "" }
