package webhook

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/loops"
)

// The vector is that of the specification's libraries.
func TestSignature_IsThatOfStandardWebhooks(t *testing.T) {
	key, err := job.WebhookKey("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := Signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("signature %s, want %s", got, want)
	}
	for _, bad := range []string{"", "short", "whsec_!", "whsec_AAAA", strings.Repeat("x", 513)} {
		if _, err := job.WebhookKey(bad); err == nil {
			t.Errorf("key %.20q is accepted", bad)
		}
	}
}

// receiver is an HTTP server, and a message to it.
func receiver(t *testing.T, h http.HandlerFunc) job.Webhook {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return job.Webhook{ID: "msg_1", URL: s.URL + "/hook?token=t0ken", Private: true, Body: []byte(`{"a":1}`)}
}

func sender() *Sender {
	return New(Options{Key: []byte("0123456789abcdef"), Version: "test"})
}

func TestSend_SignsWhatItSends(t *testing.T) {
	var got http.Header
	var body []byte
	w := receiver(t, func(_ http.ResponseWriter, r *http.Request) {
		got = r.Header
		body, _ = io.ReadAll(r.Body)
	})
	if r := sender().Send(t.Context(), w); r.Err != nil || r.Status != 200 || r.Host == "" || strings.Contains(r.Host, "t0ken") {
		t.Fatalf("%+v", r)
	}
	at := got.Get("webhook-timestamp")
	if want := Signature([]byte("0123456789abcdef"), "msg_1", at, body); got.Get("webhook-signature") != want || got.Get("webhook-id") != "msg_1" || string(body) != `{"a":1}` || got.Get("Content-Type") != "application/json" {
		t.Errorf("sent %v %s, want the signature %s", got, body, want)
	}
}

func TestSend_SaysHowItEnded(t *testing.T) {
	for _, tt := range []struct {
		name    string
		status  int
		says    string
		final   bool
		private bool
	}{
		{"ok", 204, "", false, true},
		{"an error", 500, "returned 500", false, true},
		{"unknown", 404, "returned 404", false, true},
		{"no more", 410, "wants no more", true, true},
		{"a redirect", 302, "is not followed", false, true},
		{"a private address", 200, "not public", true, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var calls atomic.Int32
			var w job.Webhook
			w = receiver(t, func(rw http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				rw.Header().Set("Location", w.URL)
				rw.WriteHeader(tt.status)
			})
			w.Private = tt.private
			r := sender().Send(t.Context(), w)
			if (r.Err == nil) != (tt.says == "") || r.Err != nil && !strings.Contains(r.Err.Error(), tt.says) || r.Final != tt.final {
				t.Errorf("%+v, want %q, final %v", r, tt.says, tt.final)
			}
			if r.Err != nil && strings.Contains(r.Err.Error(), "t0ken") {
				t.Errorf("the error has the URL: %v", r.Err)
			}
			if want := int32(1); tt.private && calls.Load() != want || !tt.private && calls.Load() != 0 {
				t.Errorf("%d calls", calls.Load())
			}
		})
	}
}

// A receiver that hangs, in whatever part, or never stops talking is left.
func TestSend_AHostileReceiver(t *testing.T) {
	loops.NotInCheck(t)
	for name, h := range map[string]http.HandlerFunc{
		"says nothing": func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"hangs later": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"never stops": func(w http.ResponseWriter, r *http.Request) {
			for {
				if _, err := w.Write(bytes.Repeat([]byte("x"), 4096)); err != nil {
					return
				}
			}
		},
		"breaks the line": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			delivered := name == "hangs later" || name == "never stops"
			limit := 500 * time.Millisecond
			if delivered { // its header must come in time
				limit = 5 * time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			w := receiver(t, func(rw http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // so that it notices when the client leaves
				h(rw, r)
			})
			done := make(chan job.WebhookResult, 1)
			go func() { done <- sender().Send(ctx, w) }()
			select {
			case r := <-done:
				if delivered != (r.Err == nil) || r.Final {
					t.Errorf("%+v", r)
				}
			case <-time.After(time.Minute):
				t.Error("it does not end")
			}
		})
	}
	if r := sender().Send(t.Context(), job.Webhook{ID: "msg_1"}); r.Err == nil || !r.Final {
		t.Errorf("without a URL: %+v", r)
	}
	if r := sender().Send(t.Context(), job.Webhook{ID: "msg_1", URL: "http://127.0.0.1:1/", Private: true}); r.Err == nil || r.Final {
		t.Errorf("nobody there: %+v", r)
	}
	if r := sender().Send(t.Context(), job.Webhook{ID: "msg_1", URL: "http://localhost:1/"}); !errors.Is(r.Err, errPrivate) {
		t.Errorf("a name of a private address: %+v", r)
	}
}
