package web

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// deadlines counts those that are set.
type deadlines struct {
	*httptest.ResponseRecorder
	set int
}

func (d *deadlines) SetReadDeadline(time.Time) error {
	d.set++
	return nil
}

// A request whose context ends just as it is done touches its connection no more: over
// HTTP/2 its response has no stream then.
func TestPacedBody_LeavesItsConnectionAlone(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	b := &pacedBody{ReadCloser: http.NoBody, control: http.NewResponseController(w)}
	b.leave()
	before := w.set
	b.cut()
	if n, err := b.Read(make([]byte, 1)); err == nil || w.set != before {
		t.Errorf("after its end: %d bytes, %v; %d deadlines, then %d", n, err, before, w.set)
	}
}

// Whoever ends their own login has sent all of the form by then, and the browser goes on with
// the connection: a deadline that passes would end the requests that come by it.
func TestPacedBody_ThatHasEndedIsNotCut(t *testing.T) {
	w := &deadlines{ResponseRecorder: httptest.NewRecorder()}
	b := &pacedBody{ReadCloser: io.NopCloser(strings.NewReader("form")), control: http.NewResponseController(w)}
	if _, err := io.ReadAll(b); err != nil {
		t.Fatal(err)
	}
	before := w.set
	b.cut()
	if n, err := b.Read(make([]byte, 1)); err == nil || w.set != before {
		t.Errorf("after the end: %d bytes, %v; %d deadlines, then %d", n, err, before, w.set)
	}
}
