package view

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// Problem is an error on the wire, as in RFC 9457. Programs use the code, people the detail.
type Problem struct {
	Type      string            `json:"type"`                 // urn:linus:problem: followed by the code
	Title     string            `json:"title"`                // of the status
	Status    int               `json:"status"`               // of the response
	Detail    string            `json:"detail"`               // what is wrong and what to do, for people
	Code      string            `json:"code"`                 // what is wrong, for programs
	Remedy    string            `json:"remedy,omitempty"`     // what to do, if it is a single thing
	RequestID string            `json:"request_id,omitempty"` // as in the header Request-Id
	Fields    []*job.FieldError `json:"fields,omitempty"`     // what is wrong with the request, field by field

	JobStatus job.Status         `json:"job_status,omitempty"` // not_complete: the job's
	Host      *job.HostError     `json:"host,omitempty"`       // host: what failed there
	Denied    *job.DeniedError   `json:"denied,omitempty"`     // denied: the role that is needed
	Narrowed  *job.NarrowedError `json:"narrowed,omitempty"`   // narrowed: the toolsets of which the token needs one

	Limit *job.Limit `json:"-"` // limit: said in headers
}

// ProblemType is the content type of a problem.
const ProblemType = "application/problem+json"

// RequestHeader is the response header with a request's ID, which is also in the log and in
// problems.
const RequestHeader = "Request-Id"

// requestID matches the IDs that a client may give its request.
var requestID = lazyregexp.New(`^[A-Za-z0-9._-]{1,64}$`)

// Identify returns the ID of a request. It sets the ID in the response if that has none yet: the
// client's own, or a new one.
func Identify(w http.ResponseWriter, r *http.Request) string {
	id := w.Header().Get(RequestHeader)
	if id == "" {
		if id = r.Header.Get(RequestHeader); !requestID.MatchString(id) {
			id = rand.Text()
		}
		w.Header().Set(RequestHeader, id)
	}
	return id
}

// Send sends the problem as the response. It sets the fields that follow from the code and the
// status, and the headers for retries and limits.
func (p Problem) Send(w http.ResponseWriter, status int) {
	p.Type, p.Title, p.Status, p.RequestID = "urn:linus:problem:"+p.Code, http.StatusText(status), status, w.Header().Get(RequestHeader)
	data, err := json.Marshal(p)
	if err != nil {
		panic(http.ErrAbortHandler) // cannot happen
	}
	h := w.Header()
	switch status {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		h.Set("Retry-After", "5")
	}
	if l := p.Limit; l != nil {
		policy, left := fmt.Sprintf("%q;q=%d", l.Name, l.Most), fmt.Sprintf("%q;r=0", l.Name)
		if l.Window > 0 {
			policy += fmt.Sprintf(";w=%d", l.Window/time.Second)
		}
		if room := int((l.Room + time.Second - 1) / time.Second); room > 0 {
			left += fmt.Sprintf(";t=%d", room)
			h.Set("Retry-After", strconv.Itoa(room))
		}
		h.Set("RateLimit-Policy", policy)
		h.Set("RateLimit", left)
	}
	h.Del("ETag")
	h.Set("Content-Type", ProblemType)
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	_, _ = w.Write(data) // fails only if the client is gone
}
