package mcptool

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/mark3labs/mcp-go/server"

	"linus/internal/job"
	"linus/internal/mcptask"
)

// workers is how many tool calls run at once; with mcp-go's default of five,
// five slow ones would block all others.
const workers = 64

// answerTime is how long requests that are unfinished at the end of stdin may
// take.
const answerTime = 1500 * time.Millisecond

// Stdio is a server for one client, on stdin and stdout.
type Stdio struct {
	*mcpServer
	stdio    *server.StdioServer
	patience time.Duration
}

// NewStdio makes a server. It does not use the engine until it serves.
func NewStdio(o Options) *Stdio {
	m := newServer(o)
	s := server.NewStdioServer(m.MCPServer)
	server.WithWorkerPoolSize(workers)(s)
	server.WithErrorLogger(slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn))(s)
	return &Stdio{m, s, cmp.Or(o.answer, answerTime)}
}

// Serve speaks MCP on stdin and stdout, which carries nothing else, until
// stdin ends or ctx does. Requests sent just before the end of stdin are still
// answered when that takes less than 1.5 s.
func (s *Stdio) Serve(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	if _, known := job.PrincipalFrom(ctx); !known {
		ctx = job.WithPrincipal(ctx, job.Operator()) // who starts this process could open the engine's socket
	}
	defer s.close()
	g := &gate{out: stdout, quiet: make(chan struct{}, 1), patience: s.patience}
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

// gate is between the process's stdio and mcp-go's, which drops unanswered
// requests when its input ends. It counts requests in and responses out, and
// delays the end of input until all are answered, for patience at most.
type gate struct {
	mu      sync.Mutex
	out     io.Writer
	pending int
	quiet   chan struct{} // pending is 0 again

	patience time.Duration
	tasks    *mcptask.Stdio // nil: there are none
}

// feed copies lines from stdin to w and returns the error that stopped it.
func (g *gate) feed(ctx context.Context, stdin io.Reader, w io.Writer) error {
	lines := bufio.NewReader(stdin)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			if err != nil {
				line = append(line, '\n') // a last line without its end is a message too
			}
			if isRequest(line) {
				g.count(1)
			}
			if g.tasks != nil && g.tasks.Line(ctx, line) {
				continue
			}
			if _, err := w.Write(line); err != nil {
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

// drain waits until nothing is pending.
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

// Write writes one message; mcp-go writes each in one call.
func (g *gate) Write(message []byte) (int, error) {
	g.mu.Lock()
	_, err := g.out.Write(mcptask.Lift(message))
	g.mu.Unlock()
	if isResponse(message) {
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

// isRequest and isResponse classify messages by their JSON-RPC members. A
// response to an unreadable request has the id null and answers no request.
func isRequest(message []byte) bool {
	id, method := envelope(message)
	return id && method
}

func isResponse(message []byte) bool {
	id, method := envelope(message)
	return id && !method
}

func envelope(message []byte) (id, method bool) {
	var e struct {
		ID     any    `json:"id"`
		Method string `json:"method"`
	}
	if err := json.Unmarshal(message, &e); err != nil {
		return false, false
	}
	return e.ID != nil, e.Method != ""
}
