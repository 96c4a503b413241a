package forge

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"
	"time"
)

const (
	maxEvent = 1 << 20 // bytes
	maxSeen  = 10000   // deliveries that are remembered
)

// hooked is a queue that hears Gitea's webhooks.
type hooked struct{ *Queue }

// Woken has something when a webhook tells of a job that waits.
func (h hooked) Woken() <-chan struct{} { return h.woken }

// Hook hears workflow_job events (services/webhook/deliver.go and modules/structs/hook.go of Gitea
// 1.24). Where the forge lists its jobs, an event is only the hint to look now.
func (h hooked) Hook() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			http.Error(w, "webhooks are posted", http.StatusMethodNotAllowed)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxEvent))
		if err != nil {
			status := http.StatusBadRequest
			if _, long := errors.AsType[*http.MaxBytesError](err); long {
				status = http.StatusRequestEntityTooLarge
			}
			http.Error(w, "the event cannot be read, or is longer than 1 MB", status)
			return
		}
		given, err := hex.DecodeString(r.Header.Get("X-Gitea-Signature"))
		mac := hmac.New(sha256.New, []byte(h.HookSecret))
		mac.Write(body)
		if err != nil || !hmac.Equal(given, mac.Sum(nil)) {
			http.Error(w, "the signature is not of the webhook's secret", http.StatusUnauthorized)
			return
		}
		if r.Header.Get("X-Gitea-Event") != "workflow_job" {
			w.WriteHeader(http.StatusNoContent) // what was subscribed to by mistake
			return
		}
		if id := r.Header.Get("X-Gitea-Delivery"); id == "" || len(id) > 100 || !h.first(id) {
			http.Error(w, "this delivery has come before, or has no ID", http.StatusConflict)
			return
		}
		var e struct {
			Action string   `json:"action"`
			Job    forgeJob `json:"workflow_job"`
		}
		if err := json.Unmarshal(body, &e); err != nil {
			http.Error(w, "the event is no workflow_job", http.StatusBadRequest)
			return
		}
		h.hear(e.Action, e.Job)
		w.WriteHeader(http.StatusNoContent)
	})
}

// first reports whether a delivery has not come before, and remembers it.
func (h hooked) first(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Contains(h.seen, id) {
		return false
	}
	h.seen = append(h.seen[max(0, len(h.seen)-maxSeen+1):], id)
	return true
}

// hear notes a job that waits, or waits no more.
func (h hooked) hear(action string, j forgeJob) {
	w, ours := h.work(j)
	if !ours {
		return
	}
	h.mu.Lock()
	switch {
	case action != h.waits:
		delete(h.told, w.ID)
	case len(h.told) < maxTold:
		h.told[w.ID] = told{w, time.Now()}
	}
	h.mu.Unlock()
	select {
	case h.woken <- struct{}{}:
	default:
	}
}
