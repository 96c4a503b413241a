package callback

import (
	"io"
	"net/http"
	"time"
)

// patient reads a request's body as long as it keeps coming: each piece in time, and all of it no
// slower than the lowest rate. Time that its reader spends between reads does not count.
type patient struct {
	io.ReadCloser
	bounds  bounds
	control *http.ResponseController
	waited  time.Duration // for the bytes read
	read    int64         // bytes
}

func (p *patient) Read(data []byte) (int, error) {
	began := time.Now()
	left := p.bounds.grace + time.Duration(p.read)*time.Second/time.Duration(p.bounds.rate) - p.waited
	p.deadline(began.Add(min(left, p.bounds.stall)))
	n, err := p.ReadCloser.Read(data)
	p.deadline(time.Time{}) // or it would interrupt the response
	p.waited += time.Since(began)
	p.read += int64(n)
	return n, err
}

// leave bounds the wait for the rest of an unwanted body.
func (p *patient) leave() { p.deadline(time.Now().Add(p.bounds.linger)) }

func (p *patient) deadline(at time.Time) {
	_ = p.control.SetReadDeadline(at) // a test's recorder has none
}
