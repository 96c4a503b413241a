package web

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

// How long a request's body may take to arrive: that of somebody who has shown no token
// yet, and of others; and how long a client may take for each part of the response.
const (
	bodyTime   = 10 * time.Second
	uploadTime = 5 * time.Minute
	partTime   = time.Minute
	lingerTime = time.Second // for the rest of a body that nobody has read
	partSize   = 64 << 10    // bytes
)

// paced bounds how long a request's body takes, also that of one that is refused: its rest
// is read before the connection is free again. Handlers that know the client give it more.
// A client that does not read the response is cut off. In between, the connection may be
// silent for as long as the handler takes: HTTP/2 would end a stream at its deadline even
// when nothing is being written.
func paced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &pacedWriter{w, http.NewResponseController(w)}
		answer.lift() // that of the last response on this connection
		giveTime(w, r, bodyTime)
		if r.ContentLength != 0 {
			body := &pacedBody{ReadCloser: r.Body, control: answer.control}
			r.Body = body
			defer context.AfterFunc(r.Context(), body.cut)() // the server stops
			defer body.leave()
		}
		next.ServeHTTP(answer, r)
		answer.renew() // the server sends the rest
	})
}

// pacedWriter gives the client time for each part.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w *pacedWriter) renew() {
	_ = w.control.SetWriteDeadline(time.Now().Add(partTime)) // a recorder in a test has none
}

func (w *pacedWriter) lift() { _ = w.control.SetWriteDeadline(time.Time{}) }

func (w *pacedWriter) Write(data []byte) (written int, err error) {
	defer w.lift()
	for rest := data; err == nil; rest = data[written:] {
		w.renew()
		var n int
		n, err = w.ResponseWriter.Write(rest[:min(len(rest), partSize)])
		if written += n; written == len(data) {
			break
		}
	}
	return written, err
}

// Flush is for handlers that ask for an http.Flusher.
func (w *pacedWriter) Flush() {
	w.renew()
	defer w.lift()
	_ = w.control.Flush()
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// giveTime is how long the request's body may take from now on.
func giveTime(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d)) // a recorder in a test has none
	}
}

// pacedBody lifts the deadline at its end: from then on, it would end the request. After an
// error it stays, so that nobody waits for the rest.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController

	mu          sync.Mutex
	gone, ended bool // nothing more is read of it; nothing more comes
	left        bool // the request is done, and its connection is no longer ours
}

// cut ends a Read, and those that come. When all has come there is none to end, and a deadline
// would end all requests that come by this connection, since the server waits for them already.
func (b *pacedBody) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	if !b.ended {
		b.until(time.Unix(1, 0))
	}
}

// until sets the deadline, with the lock held.
func (b *pacedBody) until(deadline time.Time) {
	if !b.left {
		_ = b.control.SetReadDeadline(deadline) // a recorder in a test has none
	}
}

// leave bounds the server's wait for the rest.
func (b *pacedBody) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended && !b.gone {
		b.until(time.Now().Add(lingerTime))
	}
	b.left = true
}

func (b *pacedBody) hasEnded() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended
}

func (b *pacedBody) isGone() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gone
}

func (b *pacedBody) Read(data []byte) (int, error) {
	if b.isGone() {
		b.cut() // whatever has been set since
		return 0, os.ErrDeadlineExceeded
	}
	n, err := b.ReadCloser.Read(data)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF):
		b.end()
	default:
		b.cut()
	}
	return n, err
}

// end notes that all has come.
func (b *pacedBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.until(time.Time{})
}
