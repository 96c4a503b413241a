package dispatch

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A hook hears each event once, and remembers so many.
func TestEvents_AreHeardOnce(t *testing.T) {
	heard := 0
	e := &Events{Service: "X-Forge", Signature: "X-Forge-Signature", Secret: "s", Kind: "job", Hear: func(body []byte) error {
		if body[0] != '{' {
			return errors.New("it is none")
		}
		heard++
		return nil
	}}
	send := func(id, body string, change func(r *http.Request)) int {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(body))
		mac := hmac.New(sha256.New, []byte("s"))
		mac.Write([]byte(body))
		r.Header = http.Header{"Content-Type": {"application/json; charset=utf-8"}, "X-Forge-Event": {"job"}, "X-Forge-Delivery": {id}, "X-Forge-Signature": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}}
		change(r)
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		return w.Code
	}
	for _, tt := range []struct {
		name, id, body string
		change         func(r *http.Request)
		code, heard    int
	}{
		{"an event", "1", "{}", func(*http.Request) {}, http.StatusNoContent, 1},
		{"the same again", "1", "{}", func(*http.Request) {}, http.StatusConflict, 1},
		{"one without the service's name before its signature", "2", "{ }", func(r *http.Request) {
			r.Header.Set("X-Forge-Signature", strings.TrimPrefix(r.Header.Get("X-Forge-Signature"), "sha256="))
		}, http.StatusNoContent, 2},
		{"a signature of nothing", "3", "{}", func(r *http.Request) { r.Header.Del("X-Forge-Signature") }, http.StatusUnauthorized, 2},
		{"a signature of another secret", "3", "{}", func(r *http.Request) { r.Header.Set("X-Forge-Signature", strings.Repeat("0", 64)) }, http.StatusUnauthorized, 2},
		{"a signature that is none", "3", "{}", func(r *http.Request) { r.Header.Set("X-Forge-Signature", "sha256=zz") }, http.StatusUnauthorized, 2},
		{"another kind", "3", "{}", func(r *http.Request) { r.Header.Set("X-Forge-Event", "ping") }, http.StatusNoContent, 2},
		{"no ID", "", "{}", func(*http.Request) {}, http.StatusConflict, 2},
		{"a long ID", strings.Repeat("1", 101), "{}", func(*http.Request) {}, http.StatusConflict, 2},
		{"a form", "3", "{}", func(r *http.Request) { r.Header.Set("Content-Type", "application/x-www-form-urlencoded") }, http.StatusUnsupportedMediaType, 2},
		{"what is none", "3", "[]", func(*http.Request) {}, http.StatusBadRequest, 2},
		{"too much", "4", strings.Repeat(" ", maxEvent+1), func(*http.Request) {}, http.StatusRequestEntityTooLarge, 2},
		{"a question", "4", "{}", func(r *http.Request) { r.Method = http.MethodGet }, http.StatusMethodNotAllowed, 2},
	} {
		if code := send(tt.id, tt.body, tt.change); code != tt.code || heard != tt.heard {
			t.Errorf("%s: %d, heard %d; want %d, heard %d", tt.name, code, heard, tt.code, tt.heard)
		}
	}
	if code := send("5", "{}", func(*http.Request) {}); code != http.StatusConflict {
		t.Errorf("what was heard comes again as another delivery, which nobody has signed: %d", code)
	}
	for i := range maxSeen + 10 {
		e.first(fmt.Sprint("more", i))
	}
	if len(e.seen) != maxSeen || e.first(fmt.Sprint("more", maxSeen)) {
		t.Errorf("%d remembered", len(e.seen))
	}
}
