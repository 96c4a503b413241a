package actions

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// Bounds of webhooks: GitHub's events of jobs are of some 20 KB.
const (
	maxEvent = 1 << 20 // bytes
	maxSeen  = 10000   // deliveries that are remembered
)

// hooked is a queue that hears GitHub's webhooks.
type hooked struct{ *Queue }

// Woken has something when a webhook tells of a job that waits.
func (h hooked) Woken() <-chan struct{} { return h.woken }

// Hook hears workflow_job events, as "Validating webhook deliveries" and "Webhook events and
// payloads" have them. What an event says is a hint where to look, and nothing else is believed.
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
		if !signed(h.HookSecret, r.Header.Get("X-Hub-Signature-256"), body) {
			http.Error(w, "the signature is not of the webhook's secret", http.StatusUnauthorized)
			return
		}
		if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
			http.Error(w, "set the webhook's content type to application/json", http.StatusUnsupportedMediaType)
			return
		}
		event := r.Header.Get("X-GitHub-Event")
		if event != "workflow_job" {
			w.WriteHeader(http.StatusNoContent) // ping, and what was subscribed to by mistake
			return
		}
		id := r.Header.Get("X-GitHub-Delivery")
		if id == "" || len(id) > 100 || !h.first(id) {
			http.Error(w, "this delivery has come before, or has no ID", http.StatusConflict)
			return
		}
		var e struct {
			Action     string      `json:"action"`
			Job        workflowJob `json:"workflow_job"`
			Repository repository  `json:"repository"`
		}
		if err := json.Unmarshal(body, &e); err != nil {
			http.Error(w, "the event is no workflow_job", http.StatusBadRequest)
			return
		}
		h.hear(e.Action, e.Repository.Name, e.Job)
		w.WriteHeader(http.StatusNoContent)
	})
}

func signed(secret, signature string, body []byte) bool {
	given, err := hex.DecodeString(strings.TrimPrefix(signature, "sha256="))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	return err == nil && hmac.Equal(given, mac.Sum(nil))
}

// first reports whether a delivery has not come before, and remembers it.
func (h hooked) first(id string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.seen[id] {
		return false
	}
	if len(h.order) >= maxSeen {
		delete(h.seen, h.order[0])
		h.order = h.order[1:]
	}
	h.seen[id] = true
	h.order = append(h.order, id)
	return true
}

// hear notes where to look.
func (h hooked) hear(action, repository string, j workflowJob) {
	owner, _, _ := strings.Cut(repository, "/")
	ours := repositoryName.MatchString(repository) && (len(h.Repositories) == 0 && strings.EqualFold(owner, h.Organization) ||
		slices.ContainsFunc(h.Repositories, func(r string) bool { return strings.EqualFold(r, repository) }))
	if !ours || !h.serves(j.Labels) || j.Run <= 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if action != queued {
		delete(h.waiting, j.ID) // it has a runner, or needs none any more
		return
	}
	if len(h.noted) >= maxNoted {
		h.Log.Warn("webhooks tell of more runs than can be looked at; the next look at all finds the others", "noted", len(h.noted))
		return
	}
	h.noted[noted{repository, j.Run}] = true
	select {
	case h.woken <- struct{}{}:
	default:
	}
}
