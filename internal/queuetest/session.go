package queuetest

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// The sessions' side: what a session's agent asks for, and the results of its tools.

func (q *Queue) session(w http.ResponseWriter, _ *http.Request, it *Item) {
	answer(w, map[string]any{"id": it.Session, "type": "session", "agent": map[string]any{"skills": []any{}}, "resources": []any{}})
}

// list answers with the session's history: what its agent has asked for, and the results.
func (q *Queue) list(w http.ResponseWriter, _ *http.Request, it *Item) {
	events := []any{}
	for i := range it.Asked {
		events = append(events, it.use(i))
		if i < len(it.Results) {
			events = append(events, map[string]any{"type": "user.tool_result", "id": fmt.Sprintf("evt_result_%d", i), "tool_use_id": useID(i), "processed_at": stamp(time.Now())})
		}
	}
	answer(w, map[string]any{"data": events, "next_page": nil})
}

func useID(i int) string { return fmt.Sprintf("evt_use_%d", i) }

func (it *Item) use(i int) any {
	return map[string]any{
		"type": "agent.tool_use", "id": useID(i), "name": "bash", "processed_at": stamp(time.Now()),
		"input": map[string]any{"command": it.tools[i], "timeout_ms": 60000}, "evaluated_permission": "allow",
	}
}

func (q *Queue) send(w http.ResponseWriter, r *http.Request, it *Item) {
	var sent struct {
		Events []struct {
			Type      string `json:"type"`
			ToolUseID string `json:"tool_use_id"`
			Content   []struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"events"`
	}
	if err := json.NewDecoder(r.Body).Decode(&sent); err != nil {
		q.fail(w, r, http.StatusBadRequest, err.Error())
		return
	}
	for _, e := range sent.Events {
		if e.Type != "user.tool_result" || e.ToolUseID != useID(len(it.Results)) {
			q.fail(w, r, http.StatusBadRequest, fmt.Sprintf("%s for %s is not waited for", e.Type, e.ToolUseID))
			return
		}
		var text strings.Builder
		for _, c := range e.Content {
			text.WriteString(c.Text)
		}
		it.Results = append(it.Results, strings.TrimSpace(text.String())) // the shell adds line ends
	}
	q.change()
	answer(w, map[string]any{"type": "send_session_events"})
}

// stream has the agent ask for one tool after the other, each once the previous one has a result.
func (q *Queue) stream(w http.ResponseWriter, r *http.Request, it *Item) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.WriteHeader(http.StatusOK)
	say := func(kind string, event any) {
		data, _ := json.Marshal(event) // our maps can always be encoded
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", kind, data)
	}
	for {
		flush(w)
		switch answered := len(it.Results); {
		case it.State == "stopped":
			return
		case answered < it.Asked:
		case it.Asked < len(it.tools):
			it.Asked++
			say("agent.tool_use", it.use(it.Asked-1))
			q.change()
			continue
		case !it.stays:
			say("session.status_terminated", map[string]any{"type": "session.status_terminated", "id": "evt_end", "processed_at": stamp(time.Now())})
			flush(w)
			return
		}
		changed := q.changed
		q.mu.Unlock()
		select {
		case <-changed:
		case <-r.Context().Done():
		}
		q.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

func flush(w http.ResponseWriter) {
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
}
