package credential

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"time"
)

// patient sets the deadlines that end a request when no byte passes for the time idle.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
	idle    time.Duration
	hide    hider
}

func (p *patient) WriteHeader(code int) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.idle))
	p.hide.header(p.Header()) // of an early hint, too
	p.ResponseWriter.WriteHeader(code)
}

func (p *patient) Write(b []byte) (int, error) {
	_ = p.control.SetWriteDeadline(time.Now().Add(p.idle))
	return p.ResponseWriter.Write(b)
}

// Unwrap supports http.ResponseController.
func (p *patient) Unwrap() http.ResponseWriter { return p.ResponseWriter }

// patientBody is a request's body. It may be read after the request, when it must set no deadline.
type patientBody struct {
	io.ReadCloser
	p *patient

	mu     sync.Mutex
	closed bool
}

func (b *patientBody) until(deadline time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		_ = b.p.control.SetReadDeadline(deadline)
	}
}

func (b *patientBody) Read(to []byte) (int, error) {
	b.until(time.Now().Add(b.p.idle))
	n, err := b.ReadCloser.Read(to)
	if errors.Is(err, io.EOF) { // after another error, nobody waits for the rest
		b.until(time.Time{})
	}
	return n, err
}

// Close is called before the request is done.
func (b *patientBody) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	return b.ReadCloser.Close()
}
