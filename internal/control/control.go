// Package control connects the faces of linus on one machine (CLI, MCP server) to the
// engine of a state directory: HTTP and JSON over a unix socket only its owner can
// open. It transports calls and errors and decides nothing.
package control

import (
	"errors"
	"fmt"
	"net/http"

	"linus/internal/job"
)

// Info describes the engine a client is connected to. Over the API it has only the
// version and the caller.
type Info struct {
	Version  string            `json:"version"`            // of the engine's binary
	PID      int               `json:"pid,omitempty"`      // of the engine
	ID       string            `json:"id,omitempty"`       // unique to this run of the engine
	Callback string            `json:"callback,omitempty"` // address listened on for callbacks
	Settings map[string]string `json:"settings,omitempty"` // effective settings; secrets hashed
	// Background: it was started because a client needed it, and may be replaced
	// when it is idle.
	Background bool `json:"background,omitempty"`
	// Service: systemd runs it, and would start it again.
	Service bool `json:"service,omitempty"`

	Caller *Caller `json:"caller,omitempty"` // nil: the operator
}

// Caller is whom an engine takes a client for.
type Caller struct {
	Name     string   `json:"name"`
	Role     job.Role `json:"role"`
	Toolsets []string `json:"toolsets,omitempty"` // that its token is narrowed to
}

// Errors of calls to an engine that has ended. After ErrNoEngine nothing has been
// done; after ErrLost the request may or may not have been carried out.
var (
	ErrNoEngine = errors.New("no engine is running")
	ErrLost     = errors.New("the engine went away")
	ErrStopped  = errors.New("the engine was stopped")
)

// unreachable is ErrNoEngine of a server, of whose engine nothing is known.
type unreachable struct{ err error }

func (u *unreachable) Error() string {
	return "the server cannot be reached: " + u.err.Error()
}
func (u *unreachable) Unwrap() []error { return []error{ErrNoEngine, u.err} }

// maxBody bounds a request: a manifest and the fields around it.
const maxBody = job.MaxManifest + 64<<10

// failure is an error on the wire: a code, the text, and the fields of its type.
type failure struct {
	Code   string            `json:"code"`
	Text   string            `json:"text"`
	Status job.Status        `json:"status,omitempty"`
	Fields []*job.FieldError `json:"fields,omitempty"`
	Host   *job.HostError    `json:"host,omitempty"`
	Denied *job.DeniedError  `json:"denied,omitempty"`

	Narrowed *job.NarrowedError `json:"narrowed,omitempty"`
}

// Codes of failures.
const (
	codeNotFound    = "not_found"
	codeCompleted   = "completed"
	codeNotComplete = "not_complete"
	codeInvalid     = "invalid"
	codeField       = "field"
	codeHost        = "host"
	codeDenied      = "denied"
	codeNarrowed    = "narrowed"
	codeStopped     = "stopped"
	codeGone        = "gone"
	codeNoRoute     = "no_route"
	codeTooLarge    = "too_large"
	codeInternal    = "internal"
	codeUnavailable = "unavailable"
)

// encodeError returns the code and HTTP status of an engine's error.
func encodeError(err error) (int, failure) {
	f := failure{Text: err.Error()}
	var (
		notComplete *job.NotCompleteError
		invalid     *job.InvalidError
		field       *job.FieldError
		host        *job.HostError
		denied      *job.DeniedError
		narrowed    *job.NarrowedError
		large       *http.MaxBytesError
	)
	switch {
	case errors.As(err, &large):
		f.Code, f.Text = codeTooLarge, fmt.Sprintf("the request is larger than %d bytes", large.Limit)
		return http.StatusRequestEntityTooLarge, f
	case errors.Is(err, job.ErrNotFound):
		f.Code = codeNotFound
		return http.StatusNotFound, f
	case errors.Is(err, job.ErrCompleted):
		f.Code = codeCompleted
		return http.StatusConflict, f
	case errors.As(err, &notComplete):
		f.Code, f.Status = codeNotComplete, notComplete.Status
		return http.StatusConflict, f
	case errors.As(err, &invalid):
		f.Code, f.Fields = codeInvalid, invalid.Fields
		return http.StatusBadRequest, f
	case errors.As(err, &field):
		f.Code, f.Fields = codeField, []*job.FieldError{field}
		return http.StatusBadRequest, f
	case errors.As(err, &host):
		f.Code, f.Host = codeHost, host
		return http.StatusBadGateway, f
	case errors.As(err, &denied):
		f.Code, f.Denied = codeDenied, denied
		return http.StatusForbidden, f
	case errors.As(err, &narrowed):
		f.Code, f.Narrowed = codeNarrowed, narrowed
		return http.StatusForbidden, f
	case job.Own(err):
		f.Code, f.Text = codeUnavailable, "the engine cannot do this at the moment, try again: "+f.Text
		return http.StatusServiceUnavailable, f
	case errors.Is(err, ErrNoEngine):
		f.Code = codeGone
		return http.StatusServiceUnavailable, f
	case errors.Is(err, ErrStopped):
		f.Code = codeStopped
		return http.StatusServiceUnavailable, f
	default:
		f.Code = codeInternal
		return http.StatusInternalServerError, f
	}
}

// decodeError returns the engine's error with its original type.
func (f failure) decodeError() error {
	switch {
	case f.Code == codeNotFound:
		return job.ErrNotFound
	case f.Code == codeCompleted:
		return job.ErrCompleted
	case f.Code == codeStopped:
		return ErrStopped
	case f.Code == codeGone:
		return ErrNoEngine
	case f.Code == codeNotComplete:
		return &job.NotCompleteError{Status: f.Status}
	case f.Code == codeInvalid:
		return &job.InvalidError{Fields: f.Fields}
	case f.Code == codeField && len(f.Fields) == 1:
		return f.Fields[0]
	case f.Code == codeHost && f.Host != nil:
		return f.Host
	case f.Code == codeDenied && f.Denied != nil:
		return f.Denied
	case f.Code == codeUnavailable:
		return &job.OwnFault{Err: errors.New(f.Text)}
	case f.Code == codeNarrowed && f.Narrowed != nil:
		return f.Narrowed
	default:
		return fmt.Errorf("engine: %s", f.Text)
	}
}
