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

// Limits of time: bodyTime for a request's body to arrive before the client has shown a token,
// uploadTime afterwards, and partTime for the client to read each part of the response.
const (
	bodyTime   = 10 * time.Second
	uploadTime = 5 * time.Minute
	partTime   = time.Minute
	lingerTime = time.Second // for the rest of a body that nobody has read
	partSize   = 64 << 10    // bytes
)

// paced limits how long a request's body takes, even if the request is refused: the rest of the
// body is read before the connection is free again. Handlers that know the client extend the limit.
// A client that does not read the response is cut off. Between writes there is no deadline, however
// long the handler takes: HTTP/2 would end a stream at its deadline even when nothing is being
// written.
func paced(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := &pacedWriter{w, http.NewResponseController(w)}
		answer.lift() // the deadline of the last response on this connection
		giveTime(w, r, bodyTime)
		if r.ContentLength != 0 {
			body := &pacedBody{ReadCloser: r.Body, control: answer.control}
			r.Body = body
			defer context.AfterFunc(r.Context(), body.cut)() // when the server stops
			defer body.leave()
		}
		next.ServeHTTP(answer, r)
		answer.renew() // for the rest that the server sends
	})
}

// pacedWriter gives the client partTime for each part of the response.
type pacedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
}

func (w *pacedWriter) renew() {
	_ = w.control.SetWriteDeadline(time.Now().Add(partTime)) // a test's recorder has no deadline
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

// Flush implements http.Flusher.
func (w *pacedWriter) Flush() {
	w.renew()
	defer w.lift()
	_ = w.control.Flush()
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// giveTime lets the request's body take d from now on.
func giveTime(w http.ResponseWriter, r *http.Request, d time.Duration) {
	if r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(d)) // a test's recorder has no deadline
	}
}

// pacedBody lifts the read deadline at the end of the body, because from then on the deadline would
// end the request. After an error the deadline stays, so that nobody waits for the rest.
type pacedBody struct {
	io.ReadCloser
	control *http.ResponseController

	mu          sync.Mutex
	gone, ended bool // gone: must not be read any more; ended: has arrived as a whole
	left        bool // the request is done, and its connection may serve another one
}

// cut ends a Read in progress and all later ones. If the whole body has arrived, there is no Read
// to end, and a deadline would end all later requests on this connection, since the server already
// waits for them.
func (b *pacedBody) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.gone = true
	if !b.ended {
		b.until(time.Unix(1, 0))
	}
}

// until sets the read deadline, unless the request is done. The caller holds mu.
func (b *pacedBody) until(deadline time.Time) {
	if !b.left {
		_ = b.control.SetReadDeadline(deadline) // a test's recorder has no deadline
	}
}

// leave limits how long the server waits for the rest of the body.
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
		b.cut() // sets the deadline again, since giveTime may have moved it
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

// end records that the whole body has arrived, and lifts the deadline.
func (b *pacedBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ended = true
	b.until(time.Time{})
}
