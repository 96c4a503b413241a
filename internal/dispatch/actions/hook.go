package actions

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"linus/internal/dispatch"
)

// hooked is a queue that hears GitHub's webhooks.
type hooked struct{ *Queue }

// Woken receives when a webhook announces a waiting job.
func (h hooked) Woken() <-chan struct{} { return h.woken }

// Hook handles workflow_job events, see "Validating webhook deliveries" and "Webhook events and
// payloads". An event is only a hint where to look; nothing else in it is trusted.
func (h hooked) Hook() http.Handler {
	return &dispatch.Events{Service: "X-GitHub", Signature: "X-Hub-Signature-256", Secret: h.HookSecret, Kind: "workflow_job", Hear: func(body []byte) error {
		var e struct {
			Action     string      `json:"action"`
			Job        workflowJob `json:"workflow_job"`
			Repository repository  `json:"repository"`
		}
		if err := json.Unmarshal(body, &e); err != nil {
			return err
		}
		h.hear(e.Action, e.Repository.Name, e.Job)
		return nil
	}}
}

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
		delete(h.waiting, j.ID) // it has a runner, or does not need one any more
		return
	}
	if len(h.noted) >= maxNoted {
		h.Log.Warn("webhooks report more runs than can be looked at; the next full look finds the others", "noted", len(h.noted))
		return
	}
	h.noted[noted{repository, j.Run}] = 0
	select {
	case h.woken <- struct{}{}:
	default:
	}
}
