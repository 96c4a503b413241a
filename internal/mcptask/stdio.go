package mcptask

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// Stdio answers requests about tasks on stdin and stdout.
type Stdio struct {
	server *Server
	out    io.Writer // takes a message at a time, from many goroutines
	work   sync.WaitGroup

	mu      sync.Mutex
	pending map[string]context.CancelFunc // by request ID
}

// Stdio returns a Stdio for one client; Close ends it.
func (s *Server) Stdio(out io.Writer) *Stdio {
	return &Stdio{server: s, out: out, pending: map[string]context.CancelFunc{}}
}

// Line handles a line of stdin if it is a request about tasks, and reports whether it is: mcp-go
// must only see the other lines. It does not wait for the answer.
func (s *Stdio) Line(ctx context.Context, line []byte) (mine bool) {
	if bytes.Contains(line, []byte(`"notifications/cancelled"`)) {
		s.cancel(line)
		return false
	}
	if !bytes.Contains(line, []byte(`"tasks/`)) && !bytes.Contains(line, []byte(`"taskIds"`)) {
		return false
	}
	q, mine := parse(line)
	if !mine {
		return false
	}
	ctx, cancel := context.WithCancel(ctx)
	id := fmt.Sprint(q.ID)
	s.mu.Lock()
	s.pending[id] = cancel
	s.mu.Unlock()
	s.work.Go(func() {
		defer func() {
			cancel()
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.pending, id)
		}()
		at, wrong := s.server.begin(ctx, q)
		if wrong != nil {
			_ = s.tell(answer(q, nil, wrong))
			return
		}
		_ = s.tell(s.server.serve(at, q, s.tell))
	})
	return true
}

// cancel ends the request that a notification names, if it is a request about tasks.
func (s *Stdio) cancel(line []byte) {
	var n struct {
		Params struct {
			RequestID any `json:"requestId"`
		} `json:"params"`
	}
	if json.Unmarshal(line, &n) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := s.pending[fmt.Sprint(n.Params.RequestID)]; end != nil {
		end()
	}
}

func (s *Stdio) tell(message any) error {
	if message == nil {
		return nil
	}
	data, err := json.Marshal(message)
	if err == nil {
		_, err = s.out.Write(append(data, '\n'))
	}
	return err
}

// Close ends all requests and waits for them.
func (s *Stdio) Close() {
	s.mu.Lock()
	for _, end := range s.pending {
		end()
	}
	s.mu.Unlock()
	s.work.Wait()
}
