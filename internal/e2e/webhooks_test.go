package e2e

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/loops"
)

// An engine that is killed between the end of a job and the delivery of its message
// leaves it to the next one, which sends the same.
func TestWebhook_OutlivesKill9(t *testing.T) {
	loops.AtNightOnly(t, "TestWebhooks_OutliveTheEngine has the next engine send what one has left")
	t.Parallel()
	type message struct{ id, signature, body string }
	got := make(chan message, 10)
	hang := make(chan struct{})
	var calls atomic.Int32
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		wait := calls.Add(1) == 1
		got <- message{r.Header.Get("webhook-id"), r.Header.Get("webhook-signature"), string(body)}
		if wait {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}
	}))
	defer receiver.Close()
	defer close(hang)
	h := newHost(t, "process", "WEBHOOK_URL="+receiver.URL, "WEBHOOK_SECRET=0123456789abcdef")
	id := strings.TrimSpace(h.cli(t, "job", "submit", "--", "exit", "3"))
	next := func() message {
		t.Helper()
		select {
		case m := <-got:
			return m
		case <-time.After(3 * time.Minute):
			t.Fatal("no message came")
			return message{}
		}
	}
	before := next()
	if !h.killEngine() {
		t.Fatal("there is no engine to kill")
	}
	h.cli(t, "job", "list") // starts the next
	after := next()
	if before.id == "" || after.id != before.id || after.body != before.body || !strings.Contains(after.body, id) || !strings.HasPrefix(after.signature, "v1,") {
		t.Errorf("sent %+v, then %+v", before, after)
	}
}
