package forge

import (
	"encoding/json"
	"net/http"
	"time"

	"linus/internal/dispatch"
)

// hooked is a queue that hears Gitea's webhooks.
type hooked struct{ *Queue }

// Woken receives when a webhook announces a waiting job.
func (h hooked) Woken() <-chan struct{} { return h.woken }

// Hook handles workflow_job events (services/webhook/deliver.go and modules/structs/hook.go of Gitea
// 1.24). If the forge lists its jobs, an event is only a hint to look now.
func (h hooked) Hook() http.Handler {
	return &dispatch.Events{Service: "X-Gitea", Signature: "X-Gitea-Signature", Secret: h.HookSecret, Kind: "workflow_job", Hear: func(body []byte) error {
		var e struct {
			Action string   `json:"action"`
			Job    forgeJob `json:"workflow_job"`
		}
		if err := json.Unmarshal(body, &e); err != nil {
			return err
		}
		h.hear(e.Action, e.Job)
		return nil
	}}
}

// hear records a job that waits, or removes one that no longer waits.
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
