// Package control connects the faces of linus on one machine (CLI, MCP server) to the engine of a
// state directory: HTTP and JSON over a unix socket that only its owner can open. It transports
// calls and errors and decides nothing.
package control

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"

	"linus/internal/field"
	"linus/internal/job"
	"linus/internal/view"
)

// Info describes a client's engine. Over the API it has only the version and the caller.
type Info struct {
	Version  string            `json:"version"`            // of the engine's binary
	PID      int               `json:"pid,omitempty"`      // of the engine
	ID       string            `json:"id,omitempty"`       // unique to this run of the engine
	Callback string            `json:"callback,omitempty"` // address for callbacks that the engine listens on
	Settings map[string]string `json:"settings,omitempty"` // effective settings; secrets hashed
	// Background is whether the engine was started because a client needed it. It may then be
	// replaced when it is idle.
	Background bool `json:"background,omitempty"`
	// Service is whether systemd runs the engine, and would start it again.
	Service bool `json:"service,omitempty"`

	Caller *Caller `json:"caller,omitempty"` // nil: the operator
}

// Caller is the principal that an engine takes a client for.
type Caller struct {
	Name     string   `json:"name"`
	Role     job.Role `json:"role"`
	Toolsets []string `json:"toolsets,omitempty"` // that its token is narrowed to
}

// Errors of calls to an engine that has ended. After ErrNoEngine, nothing has been done. After
// ErrLost, the request may or may not have been carried out.
var (
	ErrNoEngine = errors.New("no engine is running")
	ErrLost     = errors.New("the engine went away")
	ErrStopped  = errors.New("the engine was stopped")
)

// unreachable is ErrNoEngine for a server: whether its engine runs is not known.
type unreachable struct{ err error }

func (u *unreachable) Error() string {
	return "the server cannot be reached: " + u.err.Error()
}
func (u *unreachable) Unwrap() []error { return []error{ErrNoEngine, u.err} }

// maxBody bounds a request: a manifest and the fields around it.
const maxBody = job.MaxManifest + 64<<10

const (
	codeNotFound     = "not_found"
	codeCompleted    = "completed"
	codeNotComplete  = "not_complete"
	codeInvalid      = "invalid"
	codeField        = "field"
	codeConflict     = "conflict"
	codeLimit        = "limit"
	codeHost         = "host"
	codeDenied       = "denied"
	codeNarrowed     = "narrowed"
	codeStopped      = "stopped"
	codeGone         = "gone"
	codeNoRoute      = "no_route"
	codeNoMethod     = "no_method"
	codeTooLarge     = "too_large"
	codeInternal     = "internal"
	codeUnavailable  = "unavailable"
	codeUnauthorized = "unauthorized"
)

// faults are the codes and statuses for a field's faults.
var faults = map[job.Fault]struct {
	code   string
	status int
}{
	job.FaultValue:   {codeField, http.StatusBadRequest},
	job.FaultUnknown: {codeNotFound, http.StatusNotFound},
	job.FaultState:   {codeConflict, http.StatusConflict},
	job.FaultLimit:   {codeLimit, http.StatusTooManyRequests},
}

// encodeError returns the HTTP status and problem for an engine's error.
func encodeError(err error) (int, view.Problem) {
	p := view.Problem{Detail: err.Error()}
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
		p.Code, p.Detail = codeTooLarge, fmt.Sprintf("the request is larger than %d bytes", large.Limit)
		return http.StatusRequestEntityTooLarge, p
	case errors.Is(err, job.ErrNotFound):
		p.Code = codeNotFound
		return http.StatusNotFound, p
	case errors.Is(err, job.ErrCompleted):
		p.Code = codeCompleted
		return http.StatusConflict, p
	case errors.As(err, &notComplete):
		p.Code, p.JobStatus = codeNotComplete, notComplete.Status
		return http.StatusConflict, p
	case errors.As(err, &invalid):
		p.Code, p.Fields = codeInvalid, invalid.Fields
		return http.StatusBadRequest, p
	case errors.As(err, &field):
		fault := faults[field.Fault]
		p.Code, p.Fields, p.Remedy, p.Limit = fault.code, []*job.FieldError{field}, field.Remedy, field.Limit
		return fault.status, p
	case errors.As(err, &host):
		p.Code, p.Host, p.Remedy = codeHost, host, host.Remedy
		return http.StatusBadGateway, p
	case errors.As(err, &denied):
		p.Code, p.Denied = codeDenied, denied
		return http.StatusForbidden, p
	case errors.As(err, &narrowed):
		p.Code, p.Narrowed = codeNarrowed, narrowed
		return http.StatusForbidden, p
	case job.IsEngineFault(err):
		p.Code, p.Detail = codeUnavailable, "the engine cannot do this at the moment, try again: "+p.Detail
		return http.StatusServiceUnavailable, p
	case errors.Is(err, ErrNoEngine):
		p.Code = codeGone
		return http.StatusServiceUnavailable, p
	case errors.Is(err, ErrStopped):
		p.Code = codeStopped
		return http.StatusServiceUnavailable, p
	default:
		p.Code = codeInternal
		return http.StatusInternalServerError, p
	}
}

// decodeError returns the engine's error with its original type.
func decodeError(p view.Problem) error {
	for fault, of := range faults {
		if of.code == p.Code && len(p.Fields) == 1 {
			p.Fields[0].Fault = fault
			return p.Fields[0]
		}
	}
	switch {
	case p.Code == codeNotFound:
		return job.ErrNotFound
	case p.Code == codeCompleted:
		return job.ErrCompleted
	case p.Code == codeStopped:
		return ErrStopped
	case p.Code == codeGone:
		return ErrNoEngine
	case p.Code == codeNotComplete:
		return &job.NotCompleteError{Status: p.JobStatus}
	case p.Code == codeInvalid:
		return &job.InvalidError{Fields: p.Fields}
	case p.Code == codeHost && p.Host != nil:
		return p.Host
	case p.Code == codeDenied && p.Denied != nil:
		return p.Denied
	case p.Code == codeUnavailable:
		return &job.OwnFault{Err: errors.New(p.Detail)}
	case p.Code == codeNarrowed && p.Narrowed != nil:
		return p.Narrowed
	default:
		return fmt.Errorf("engine: %s", p.Detail)
	}
}

// Refuse responds to a request with a problem.
func Refuse(w http.ResponseWriter, status int, code, text string) {
	view.Problem{Code: code, Detail: text}.Send(w, status)
}

// refuse responds to a request that cannot be decoded, with the request's names of fields.
func refuse(w http.ResponseWriter, err error) {
	status, p := encodeError(err)
	p.Send(w, status)
}

// fail responds to a request with an engine's error. linus's own clients get the error unchanged,
// others get it in the API's words.
func (s shape) fail(w http.ResponseWriter, r *http.Request, err error) {
	status, p := encodeError(err)
	if status == http.StatusNotFound && len(p.Fields) == 1 && !s.inURL(p.Fields[0].Field) {
		status = http.StatusBadRequest // a name in the body
	}
	if p.Denied != nil { // as RFC 6750 says
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer error=%q, scope=%q", "insufficient_scope", p.Denied.Need.Scope()))
	}
	if !own(r) {
		p = s.public(p)
	}
	p.Send(w, status)
}

// inURL reports whether a field is part of the path.
func (s shape) inURL(name string) bool {
	return slices.ContainsFunc(s.params, func(p param) bool { return p.in == inPath && p.name == name })
}

// public returns a problem in the API's words for fields and for remedies.
func (s shape) public(p view.Problem) view.Problem {
	naming := job.Naming(func(path, value string, _ bool) string { return job.Written(view.Path(s.in, path), value, false) })
	say := func(text string) string { return publicWords(naming.In(text)) }
	p.Detail, p.Remedy = say(p.Detail), say(p.Remedy)
	fields := make([]*job.FieldError, len(p.Fields))
	lines := make([]string, len(p.Fields))
	for i, f := range p.Fields {
		name := f.Field
		if rest, ok := strings.CutPrefix(name, "pool."); ok && (s.Verb == job.VerbCreatePool.Verb || s.Verb == job.VerbResizePool.Verb) {
			name = rest
		}
		fields[i] = &job.FieldError{Field: view.Path(s.in, name), Problem: say(f.Problem), Remedy: say(f.Remedy)}
		lines[i] = fields[i].Error()
	}
	if p.Fields = fields; len(fields) > 0 {
		p.Detail = strings.Join(lines, "\n")
	}
	if p.Host != nil {
		host := *p.Host
		host.Text, host.Remedy = publicWords(host.Text), publicWords(host.Remedy)
		p.Host = &host
	}
	return p
}

// apiWords are the API's names of the actions in texts. The other actions are named as commands.
var apiWords = job.Words{
	job.ListVMs: "GET /api/v1/vms", job.ListPools: "GET /api/v1/pools", job.ShowJob: "GET /api/v1/jobs/{id}",
	job.EnterVM: "POST /api/v1/jobs with vm", job.StartVM: "POST /api/v1/vms/{vm}/start of", job.ResumeVM: "POST /api/v1/vms/{vm}/resume of", job.DestroyVM: "DELETE /api/v1/vms/{vm} of", job.ForgetVM: "POST /api/v1/vms/{vm}/forget of",
	job.ProveHost: "POST /api/v1/host/tests", job.ListVolumes: "GET /api/v1/volumes", job.BuildCheckpoint: "POST /api/v1/checkpoints", job.ListCheckpoints: "GET /api/v1/checkpoints",
}

// fieldWords replaces a manifest's field names in camel case, such as agentType, by the API's.
var fieldWords = sync.OnceValue(func() *strings.Replacer {
	var pairs []string
	for _, f := range field.All() {
		if strings.ToLower(f.Name) != f.Name {
			pairs = append(pairs, f.Name, view.Path(reflect.TypeFor[job.Manifest](), f.Name))
		}
	}
	return strings.NewReplacer(pairs...)
})

func publicWords(text string) string { return fieldWords().Replace(apiWords.In(text)) }
