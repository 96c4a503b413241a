package mcptask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/mark3labs/mcp-go/mcp"
)

// ServeHTTP answers requests about tasks, and passes all others to next, mcp-go's handler. It reads
// no bodies of older clients, nor of requests whose headers name no method of tasks.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request, next http.Handler) {
	method := r.Header.Get(mcp.HeaderMethod)
	switch {
	case r.Method != http.MethodPost || !mcp.IsModernProtocol(r.Header.Get(mcp.HeaderProtocolVersion)):
	case method == string(mcp.MethodToolsCall):
		w = Changed(w, liftEach)
	case method == methodGet || method == methodUpdate || method == methodCancel || method == methodListen:
		body, err := io.ReadAll(r.Body)
		q, mine := parse(body)
		if mine && err == nil && q.Method == method && q.Params.Meta.ProtocolVersion() == r.Header.Get(mcp.HeaderProtocolVersion) {
			s.answer(w, r, q)
			return
		}
		r.Body = struct { // with what was read, and the error if there was one
			io.Reader
			io.Closer
		}{io.MultiReader(bytes.NewReader(body), r.Body), r.Body}
	}
	next.ServeHTTP(w, r)
}

// answer answers a request whose method and version match its headers.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, q request) {
	ctx, wrong := s.begin(r.Context(), q)
	if name, ok := mcp.DecodeHeaderValue(r.Header.Get(mcp.HeaderName)); q.Method != methodListen && (!ok || name != q.Params.TaskID) {
		wrong = &fault{Code: mcp.HEADER_MISMATCH, Message: mcp.HeaderName + " header must be the taskId of the request"}
	}
	if wrong == nil && q.Method == methodListen {
		out := http.NewResponseController(w)
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Cache-Control", "no-cache")
		tell := func(message any) error {
			data, err := json.Marshal(message)
			switch {
			case err != nil:
				return err
			case message == nil:
				_, err = io.WriteString(w, ": \n\n")
			default:
				_, err = fmt.Fprintf(w, "event: message\ndata: %s\n\n", data)
			}
			if err == nil {
				err = out.Flush()
			}
			return err
		}
		_ = tell(s.serve(ctx, q, tell)) // fails if the client has gone
		return
	}
	message := answer(q, nil, wrong)
	if wrong == nil {
		message = s.serve(ctx, q, nil)
	}
	status := http.StatusOK
	if failed, ok := message.(mcp.JSONRPCError); ok && failed.Error.Code != mcp.INTERNAL_ERROR {
		status = http.StatusBadRequest
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(message) // fails if the client has gone
}

// liftEach lifts the messages in one write of mcp-go: JSON, or an event.
func liftEach(data []byte) []byte {
	const field = "data: "
	lines := bytes.SplitAfter(data, []byte("\n"))
	for i, line := range lines {
		if event, ok := bytes.CutPrefix(line, []byte(field)); ok {
			lines[i] = append([]byte(field), Lift(event)...)
		} else {
			lines[i] = Lift(line)
		}
	}
	return bytes.Join(lines, nil)
}

// Changed returns a ResponseWriter that applies change to each write: mcp-go's whole messages.
func Changed(w http.ResponseWriter, change func([]byte) []byte) http.ResponseWriter {
	return &changed{w, change}
}

type changed struct {
	http.ResponseWriter

	change func([]byte) []byte
}

func (c *changed) Write(data []byte) (int, error) {
	if _, err := c.ResponseWriter.Write(c.change(data)); err != nil {
		return 0, err
	}
	return len(data), nil
}

// Flush is needed by mcp-go for streams.
func (c *changed) Flush() { _ = http.NewResponseController(c.ResponseWriter).Flush() }

// Unwrap supports http.ResponseController.
func (c *changed) Unwrap() http.ResponseWriter { return c.ResponseWriter }
