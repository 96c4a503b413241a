package web

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestStream_SendsAPartWhenItHasChanged(t *testing.T) {
	w := httptest.NewRecorder()
	s := newStream(w)
	for _, html := range []string{"a\nb", "a\nb", "<pre>x\ry</pre>", "a\nb"} {
		if err := s.part("p", html); err != nil {
			t.Fatal(err)
		}
	}
	want := "retry: 1000\n\nevent: p\ndata: a\ndata: b\n\nevent: p\ndata: <pre>x&#13;y</pre>\n\nevent: p\ndata: a\ndata: b\n\n"
	if got := w.Body.String(); got != want || w.Header().Get("Content-Type") != "text/event-stream" {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestSession_EndsWithItsTime(t *testing.T) {
	s := newSessions(Options{Token: "some-token-of-ours"}, &logouts{})
	with := func(end time.Time) string {
		value := strconv.FormatInt(end.Unix(), 10) + ".00"
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.AddCookie(s.cookie(r, value+"."+s.mac("session", value), time.Hour))
		return s.of(r)
	}
	if with(time.Now().Add(time.Minute)) == "" || with(time.Now().Add(-time.Second)) != "" {
		t.Error("a session does not end when it should")
	}
}

func TestStatic_IsCachedForeverUnderItsHash(t *testing.T) {
	p := newPages(Options{Token: "some-token-of-ours"})
	get := func(hash, name string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		Handler(p.Options).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1/static/"+hash+"/"+name, nil))
		return w
	}
	for name, kind := range map[string]string{"htmx.min.js": "text/javascript", "sse.min.js": "text/javascript", "linus.js": "text/javascript", "style.css": "text/css", "icon.svg": "image/svg+xml", "LICENSES.txt": "text/plain"} {
		w := get(p.static, name)
		if w.Code != 200 || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || !strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
	}
	packed := get(p.static, "xterm.js")
	unpacked, err := gzip.NewReader(packed.Body)
	if err != nil || packed.Header().Get("Content-Encoding") != "gzip" || !strings.HasPrefix(packed.Header().Get("Content-Type"), "text/javascript") {
		t.Fatalf("xterm.js: %v %v", err, packed.Header())
	}
	if text, err := io.ReadAll(unpacked); err != nil || !strings.Contains(string(text), "Terminal") {
		t.Errorf("xterm.js: %v, %d bytes", err, len(text))
	}
	for hash, name := range map[string]string{"older": "xterm.js", p.static: "none.js"} {
		if w := get(hash, name); w.Code != 404 || strings.Contains(w.Header().Get("Cache-Control"), "immutable") || w.Header().Get("Content-Encoding") != "" {
			t.Errorf("%s/%s: %d %v", hash, name, w.Code, w.Header())
		}
	}
}
