package dispatch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"sync"
)

// Events handles webhooks with events of one kind, as GitHub and similar services send them: JSON,
// signed, each with an ID. It refuses replays.
type Events struct {
	Service   string // prefix of its headers, e.g. X-GitHub
	Signature string // header with the body's HMAC-SHA256 in hex
	Secret    string
	Kind      string // of the events that Hear handles; others are accepted and ignored

	// Hear handles an event. It returns an error if the body is not an event of the kind.
	Hear func(body []byte) error

	mu   sync.Mutex
	seen []string // IDs and signatures of deliveries
}

const (
	maxEvent = 1 << 20 // bytes; events of jobs are about 20 KB
	maxSeen  = 20000   // two for each remembered delivery
)

func (e *Events) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
	given, err := hex.DecodeString(strings.TrimPrefix(r.Header.Get(e.Signature), "sha256="))
	mac := hmac.New(sha256.New, []byte(e.Secret))
	mac.Write(body)
	if err != nil || !hmac.Equal(given, mac.Sum(nil)) {
		http.Error(w, "the signature was not made with the webhook's secret", http.StatusUnauthorized)
		return
	}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/json" {
		http.Error(w, "set the webhook's content type to application/json", http.StatusUnsupportedMediaType)
		return
	}
	if r.Header.Get(e.Service+"-Event") != e.Kind {
		w.WriteHeader(http.StatusNoContent) // a ping, or an event subscribed to by mistake
		return
	}
	if id := r.Header.Get(e.Service + "-Delivery"); id == "" || len(id) > 100 || !e.first(id) || !e.first(string(given)) { // the ID is not signed
		http.Error(w, "this delivery was received before, or has no ID", http.StatusConflict)
		return
	}
	if err := e.Hear(body); err != nil {
		http.Error(w, "the event is not a "+e.Kind, http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// first reports whether a delivery is new, and remembers it.
func (e *Events) first(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if slices.Contains(e.seen, id) {
		return false
	}
	e.seen = append(e.seen[max(0, len(e.seen)-maxSeen+1):], id)
	return true
}
