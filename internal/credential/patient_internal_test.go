package credential

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

type deadlines struct {
	http.ResponseWriter
	set int
}

func (d *deadlines) SetReadDeadline(time.Time) error {
	d.set++
	return nil
}

// What still reads a body when its request is done, as a transport may, touches nothing of
// that: over HTTP/2 it would end the engine.
func TestPatientBody_SetsNoDeadlineOfARequestThatIsDone(t *testing.T) {
	w := &deadlines{ResponseWriter: httptest.NewRecorder()}
	b := &patientBody{ReadCloser: io.NopCloser(strings.NewReader("x")), p: &patient{control: http.NewResponseController(w), idle: time.Minute}}
	if _, err := b.Read(make([]byte, 1)); err != nil || w.set != 1 {
		t.Errorf("%v, %d deadlines", err, w.set)
	}
	_ = b.Close()
	if _, err := b.Read(make([]byte, 1)); err != io.EOF || w.set != 1 { //nolint:errorlint // as it is
		t.Errorf("%v, %d deadlines", err, w.set)
	}
}
