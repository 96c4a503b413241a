package dispatch_test

import (
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"linus/internal/dispatch"
)

// heard is a queue that is told of work.
type heard struct{ said chan string }

func (h heard) Woken() <-chan struct{} { return nil }
func (h heard) Hook() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		h.said <- string(body)
		w.WriteHeader(http.StatusNoContent)
	})
}

func TestListenHook_HearsUntilItIsClosed(t *testing.T) {
	h := heard{make(chan string, 1)}
	log := slog.New(slog.DiscardHandler)
	l, err := dispatch.ListenHook(t.Context(), "127.0.0.1:0", h, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dispatch.ListenHook(t.Context(), l.Addr(), h, log); err == nil || !strings.Contains(err.Error(), "listen for webhooks at "+l.Addr()) {
		t.Errorf("a second one there: %v", err)
	}
	resp, err := http.Post("http://"+l.Addr()+"/any", "application/json", strings.NewReader("it waits"))
	if err != nil || resp.StatusCode != http.StatusNoContent || <-h.said != "it waits" {
		t.Fatal(resp, err)
	}
	_ = resp.Body.Close()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if c, err := net.DialTimeout("tcp", l.Addr(), time.Second); err == nil {
		_ = c.Close()
		t.Error("it listens on")
	}
}
