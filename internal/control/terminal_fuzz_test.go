package control_test

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"linus/internal/control"
)

// Whatever a client sends, a terminal's task gets the binary messages in order and nothing
// else, and the end when it is asked for. Of each message the first byte of data is its
// length, and whether it is text.
func FuzzTerminalMessages(f *testing.F) {
	for _, data := range []string{"", "\x03abc", "\x01a\x82{}\x01b", "\x8d{\"close\":true}", "\x9b{\"rows\":30,\"columns\":100000}", "\x90{\"signal\":\"KILL\"}", "\x90{\"sgnal\":\"KILL\"}\x00", "\x81[", "\x83\xff\xfe\xfd", "\x85{}{}x"} {
		f.Add([]byte(data))
	}
	var current atomic.Pointer[tty]
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control.API(current.Load(), control.APIOptions{}).ServeHTTP(w, r)
	}))
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, data []byte) {
		e := newTTY()
		current.Store(e)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ws, _, err := websocket.Dial(ctx, s.URL+"/api/v1/jobs/j1/terminal", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow() //nolint:errcheck // it is closed
		var typed []byte
		for n := 0; len(data) > 0 && n < 15; n++ {
			kind, part := websocket.MessageBinary, data[1:1+min(int(data[0]&0x7f), len(data)-1)]
			if data[0]&0x80 != 0 {
				kind = websocket.MessageText
			} else {
				typed = append(typed, part...)
			}
			data = data[1+len(part):]
			if ws.Write(ctx, kind, part) != nil {
				break // it has ended
			}
		}
		_ = ws.Write(ctx, websocket.MessageText, []byte(`{"close":true}`))
		for err = nil; err == nil; {
			_, _, err = ws.Read(ctx)
		}
		if ctx.Err() != nil {
			t.Fatal("the terminal does not end")
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if !bytes.HasPrefix(typed, e.screen) {
			t.Errorf("%q typed, and the task has %q", typed, e.screen)
		}
	})
}
