// Package control is how the faces of linus on one machine (CLI, MCP server)
// speak with the engine of a state directory: HTTP and JSON over a unix socket
// only its owner can open. It carries calls and errors and decides nothing.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"linus/internal/job"
)

// Engine is what the socket offers, on both ends. The methods are the
// executor's; errors of package job arrive as what they were.
type Engine interface {
	Submit(ctx context.Context, s job.Submission) (job.Job, error)
	Plan(ctx context.Context, s job.Submission) ([]string, error)
	Job(ctx context.Context, id string) (job.Job, error)
	Result(ctx context.Context, id string) (job.Result, error)
	Cancel(ctx context.Context, id string) error
	Kill(ctx context.Context, id, signal string) (job.Killed, error)
	List(ctx context.Context, f job.Filter) (job.Page, error)
	Cleanup(ctx context.Context, olderThan time.Duration) (int, error)
	Output(ctx context.Context, id, stream string, offset, limit int64) (job.Chunk, error)
	Input(ctx context.Context, id string, data []byte, closed bool) error
	OpenArtifact(ctx context.Context, id, path string) (io.ReadCloser, job.Artifact, error)
	VMs(ctx context.Context) ([]job.VMInfo, error)
	VM(ctx context.Context, ref string) (job.VMInfo, error)
	StartVM(ctx context.Context, ref string) (job.VMInfo, error)
	StopVM(ctx context.Context, ref string) (job.VMInfo, error)
	DestroyVM(ctx context.Context, ref string) (job.VMInfo, error)
	ForgetVM(ctx context.Context, ref string) (job.VMInfo, error)
	SnapshotVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error)
	RevertVM(ctx context.Context, ref, snapshot string) (job.VMInfo, error)
	CheckHost(ctx context.Context) (job.HostReport, error)
	// Watch returns the events after the given number as soon as there are
	// any or the job is done, else none when ctx ends.
	Watch(ctx context.Context, id string, after int64) ([]job.Event, job.Job, error)
}

// Info tells a client whom it has reached.
type Info struct {
	Version  string            `json:"version"`  // of the engine's binary
	PID      int               `json:"pid"`      // of the engine
	Callback string            `json:"callback"` // address listened on for callbacks
	Settings map[string]string `json:"settings"` // effective settings; secrets hashed
}

// What can become of an engine. After ErrNoEngine nothing has been sent; after
// ErrLost a request may or may not have been done.
var (
	ErrNoEngine = errors.New("no engine is running")
	ErrLost     = errors.New("the engine went away")
	ErrStopped  = errors.New("the engine was stopped")
)

// maxBody bounds a request: a manifest, and what is about it.
const maxBody = job.MaxManifest + 64<<10

type input struct {
	Data   []byte `json:"data,omitempty"`
	Closed bool   `json:"closed,omitempty"`
}

type watched struct {
	Events []job.Event `json:"events"`
	Job    job.Job     `json:"job"`
}

// failure is an error on the wire: a code, the text, and the fields of the
// type it came from.
type failure struct {
	Code   string            `json:"code"`
	Text   string            `json:"text"`
	Status job.Status        `json:"status,omitempty"`
	Fields []*job.FieldError `json:"fields,omitempty"`
	Host   *job.HostError    `json:"host,omitempty"`
}

// The codes of failures.
const (
	codeNotFound    = "not_found"
	codeCompleted   = "completed"
	codeNotComplete = "not_complete"
	codeInvalid     = "invalid"
	codeField       = "field"
	codeHost        = "host"
	codeStopped     = "stopped"
	codeInternal    = "internal"
)

// encodeError picks code and HTTP status for an engine's error.
func encodeError(err error) (int, failure) {
	f := failure{Text: err.Error()}
	var (
		notComplete *job.NotCompleteError
		invalid     *job.InvalidError
		field       *job.FieldError
		host        *job.HostError
	)
	switch {
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
	case errors.Is(err, ErrStopped):
		f.Code = codeStopped
		return http.StatusServiceUnavailable, f
	default:
		f.Code = codeInternal
		return http.StatusInternalServerError, f
	}
}

// decodeError is the error the engine answered, as it was.
func (f failure) decodeError() error {
	switch {
	case f.Code == codeNotFound:
		return job.ErrNotFound
	case f.Code == codeCompleted:
		return job.ErrCompleted
	case f.Code == codeStopped:
		return ErrStopped
	case f.Code == codeNotComplete:
		return &job.NotCompleteError{Status: f.Status}
	case f.Code == codeInvalid:
		return &job.InvalidError{Fields: f.Fields}
	case f.Code == codeField && len(f.Fields) == 1:
		return f.Fields[0]
	case f.Code == codeHost && f.Host != nil:
		return f.Host
	default:
		return fmt.Errorf("engine: %s", f.Text)
	}
}
