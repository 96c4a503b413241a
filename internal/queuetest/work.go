package queuetest

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// The queue's side: items are polled, taken, kept by heartbeats, and stopped.

// reclaim is the time after which a polled item that was not acknowledged is given out again.
const reclaim = 5 * time.Second

func (q *Queue) poll(w http.ResponseWriter, r *http.Request) {
	if !q.allowed(w, r, Key) {
		return
	}
	block := 0
	if text := r.URL.Query().Get("block_ms"); text != "" {
		var err error
		if block, err = strconv.Atoi(text); err != nil || block < 1 || block > 999 {
			q.fail(w, r, http.StatusBadRequest, "block_ms is not 1 to 999")
			return
		}
	}
	end := time.After(time.Duration(block) * time.Millisecond)
	for {
		q.mu.Lock()
		q.lapse()
		changed := q.changed
		for _, it := range q.items {
			if it.State != "queued" || time.Since(it.polled) < reclaim {
				continue
			}
			it.polled = time.Now()
			it.Claimed = append(it.Claimed, r.Header.Get("Anthropic-Worker-Id"))
			answer(w, it.json(it.secret))
			q.mu.Unlock()
			return
		}
		q.mu.Unlock()
		select {
		case <-changed:
		case <-end:
			answer(w, nil)
			return
		case <-r.Context().Done():
			return
		}
	}
}

// json returns an item as the API shows it. Only the client that polls it gets the secret.
func (it *Item) json(secret string) any {
	return map[string]any{
		"id": it.ID, "type": "work", "state": it.State, "environment_id": Environment, "secret": orNull(secret),
		"data": map[string]any{"type": it.Kind, "id": it.Session}, "metadata": map[string]string{},
		"actor":      map[string]any{"type": "api_key", "api_key_id": "apk_test"},
		"created_at": stamp(time.Now()), "acknowledged_at": nil, "started_at": nil, "latest_heartbeat_at": orNull(it.last), "stop_requested_at": nil, "stopped_at": nil,
	}
}

func (q *Queue) ack(w http.ResponseWriter, r *http.Request, it *Item) {
	if it.State != "queued" || it.polled.IsZero() {
		q.fail(w, r, http.StatusConflict, "the item is "+it.State)
		return
	}
	it.State, it.seen = "starting", time.Now()
	it.Claims++
	q.change()
	answer(w, it.json(""))
}

func (q *Queue) heartbeat(w http.ResponseWriter, r *http.Request, it *Item) {
	ttl := int(max(time.Second, q.ttl) / time.Second)
	expected := r.URL.Query().Get("expected_last_heartbeat")
	extended := false
	switch {
	case it.State == "stopping", it.State == "stopped":
	case it.State == "queued" || expected != cmp.Or(it.last, "NO_HEARTBEAT"):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusPreconditionFailed)
		_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]any{
			"type": "invalid_request_error", "message": fmt.Sprintf("Heartbeat precondition failed: expected %s, actual was %s", expected, cmp.Or(it.last, "NULL")),
			"details": map[string]any{"error_code": "heartbeat_precondition_failed", "current_state": map[string]any{
				"state": it.State, "last_heartbeat": orNull(it.last), "lease_extended": false, "ttl_seconds": ttl,
			}},
		}})
		return
	default:
		extended, it.State, it.seen = true, "active", time.Now()
		it.Beats++
		it.last = stamp(it.seen)
		q.change()
	}
	answer(w, map[string]any{"type": "work_heartbeat", "last_heartbeat": it.last, "lease_extended": extended, "state": it.State, "ttl_seconds": ttl})
}

func (q *Queue) stop(w http.ResponseWriter, r *http.Request, it *Item) {
	var body struct {
		Force bool `json:"force"`
	}
	_ = json.NewDecoder(r.Body).Decode(&body) // an empty body does not force
	switch {
	case it.State == "stopped":
		q.fail(w, r, http.StatusConflict, "the item has stopped")
		return
	case body.Force:
		it.State = "stopped"
		it.Stops++
	default:
		it.State = "stopping"
	}
	q.change()
	w.WriteHeader(http.StatusNoContent)
}
