package control

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// messages cuts data into messages: of each the first byte is its length, and whether it is
// text.
func messages(data []byte) (all []message) {
	for len(data) > 0 && len(all) < 50 {
		n := min(int(data[0]&0x7f), len(data)-1)
		all = append(all, message{data[0]&0x80 != 0, data[1 : 1+n]})
		data = data[1+n:]
	}
	return all
}

func (m message) kind() websocket.MessageType {
	if m.text {
		return websocket.MessageText
	}
	return websocket.MessageBinary
}

// A tunnel carries what the other side sends, to the first empty message, and that alone.
func FuzzTunnelFrames(f *testing.F) {
	for _, data := range []string{"", "\x00", "\x03abc", "\x01a\x82bc\x01d", "\x03abc\x00\x01x", "\x80\x01a", "\x7f"} {
		f.Add([]byte(data), byte(1))
		f.Add([]byte(data), byte(200))
	}
	read := make(chan []byte)
	var size byte
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		tn := newTunnel(r.Context(), ws)
		defer tn.Close() //nolint:errcheck // its end is its end
		var all []byte
		for part := make([]byte, max(1, size)); err == nil; {
			var n int
			n, err = tn.Read(part)
			all = append(all, part[:n]...)
		}
		read <- all
	}))
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, data []byte, part byte) {
		size = part
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		ws, _, err := websocket.Dial(ctx, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow() //nolint:errcheck // it is closed
		var want []byte
		for _, m := range append(messages(data), message{}) {
			if err := ws.Write(ctx, m.kind(), m.data); err != nil {
				t.Fatal(err)
			}
			if len(m.data) == 0 {
				break
			}
			want = append(want, m.data...)
		}
		select {
		case got := <-read:
			if !bytes.Equal(got, want) {
				t.Errorf("%q arrives as %q", want, got)
			}
		case <-ctx.Done():
			t.Fatal("the tunnel does not end")
		}
	})
}

// Whatever a server says of a terminal, input that the task does not have is kept, and none
// is sent twice.
func FuzzTerminalNews(f *testing.F) {
	for _, text := range []string{`{"input":3}`, `{"input":-1}`, `{"input":-9223372036854775808}`, `{"input":9223372036854775807}`, `{"state":{"offset":-5,"done":true}}`, `{"input":null,"error":"x"}`, `[]`, ``} {
		f.Add([]byte(text), int64(2))
	}
	f.Fuzz(func(t *testing.T, data []byte, base int64) {
		n, err := decodeNews(data)
		if err != nil || n.Input == nil || base < 0 {
			return
		}
		term := &Terminal{base: base, unsent: []byte("abcdef"), room: sync.NewCond(&sync.Mutex{})}
		term.delivered(*n.Input)
		had := max(0, min(6, *n.Input-base))
		if *n.Input < base {
			had = 0
		}
		if int64(len(term.unsent)) != 6-had || term.base != max(base, *n.Input) {
			t.Errorf("of %d, from %d on, %d bytes are left, from %d on", *n.Input, base, len(term.unsent), term.base)
		}
	})
}

// Any body is decoded, or refused in words that are no fault of the engine's.
func FuzzBodies(f *testing.F) {
	table := verbs(nil)
	for i := range table {
		for _, body := range []string{"", "{}", `{"id":"x"}`, `{"manifest":{"task":"x"}}`, `{"vm":"x","path":"/a","data":"AA=="}`, `[]`, `{"a":1,"a":2}`, "{} x", "{\"task\":\"\xff\"}", `{"Manifest":{}}`} {
			f.Add(i, "a=1&limit=5&offset=9223372036854775807", body)
		}
	}
	f.Fuzz(func(t *testing.T, i int, query, body string) {
		if i < 0 || i >= len(table) {
			return
		}
		s := table[i].shape
		r := httptest.NewRequest(s.method, "/", bytes.NewReader([]byte(body)))
		r.URL.RawQuery = query
		if _, err := s.decode(r); err != nil {
			if code, _ := encodeError(err); code < 400 || code >= 500 {
				t.Errorf("%s %q is refused with %d: %v", s.Name, body, code, err)
			}
			return
		}
		if s.body && !json.Valid([]byte(body)) {
			t.Errorf("%s: %q is taken", s.Name, body)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})
}
