// Package callback is the HTTP API that job runners in VMs call: completion, progress, heartbeat
// and output. It owns routes, limits and responses; its Reporter decides what a report means.
package callback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/gorilla/mux"

	"linus/internal/gate"
	"linus/internal/job"
)

// Limits of a request's body, in bytes. A runner's reports have a few hundred, its chunks of output
// 256 KiB.
const (
	MaxReport = 64 << 10
	MaxOutput = 1 << 20
)

// maxAtOnce is how many requests of one job are served at the same time: a runner sends one, or two
// while an earlier one is unfinished.
const maxAtOnce = 4

// Reporter receives what runners report. It returns job.ErrNotFound for an unknown job, a wrong
// token and a job that has ended alike, so that nobody can probe for job IDs.
type Reporter interface {
	// Authorize checks whether the token is the job's, and changes nothing. If it fails, the
	// request's body is not read.
	Authorize(ctx context.Context, id, token string) error
	Report(ctx context.Context, id, token string, r job.Report) error
	// AppendOutput returns how much of the stream has been seen: the offset to send next.
	AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error)
}

type api struct {
	reporter Reporter
	log      *slog.Logger
	bounds   bounds
	busy     gate.Counts // current requests, by job
}

// caller has presented a job's token.
type caller struct{ job, token string }

// newHandler serves the callback API. All responses are JSON, including errors.
func newHandler(reporter Reporter, log *slog.Logger, b bounds) *mux.Router {
	a := &api{reporter: reporter, log: log, bounds: b}
	r := mux.NewRouter().SkipClean(true)
	r.Handle("/health", method(http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
		respond(w, http.StatusOK, map[string]string{"status": "ok"})
	}))
	r.Handle("/callback/{jobId}/complete", method(http.MethodPost, a.withToken(MaxReport, a.report(complete))))
	r.Handle("/callback/{jobId}/status", method(http.MethodPost, a.withToken(MaxReport, a.report(status))))
	r.Handle("/callback/{jobId}/heartbeat", method(http.MethodPost, a.withToken(MaxReport, a.report(heartbeat))))
	r.Handle("/callback/{jobId}/output", method(http.MethodPost, a.withToken(MaxOutput, a.output)))
	r.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "Not found", "")
	})
	return r
}

// withToken passes requests with the job's token to h, with a body of at most limit bytes. Nothing
// of the body is read before the token is checked.
func (a *api) withToken(limit int64, h func(http.ResponseWriter, *http.Request, caller)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body := &patient{ReadCloser: r.Body, bounds: a.bounds, control: http.NewResponseController(w)}
		defer body.leave()
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		c := caller{mux.Vars(r)["jobId"], strings.TrimSpace(token)}
		if !strings.EqualFold(scheme, "Bearer") || c.token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "Unauthorized", "send Authorization: Bearer and the job's token")
			return
		}
		if err := a.reporter.Authorize(r.Context(), c.job, c.token); err != nil {
			a.refuse(w, r, err)
			return
		}
		if r.ContentLength > limit {
			tooLarge(w, limit)
			return
		}
		leave, ok := a.busy.Enter(c.job, maxAtOnce)
		if !ok {
			w.Header().Set("Retry-After", "1")
			fail(w, http.StatusServiceUnavailable, "Busy", fmt.Sprintf("%d requests of this job are under way", maxAtOnce))
			return
		}
		defer leave()
		gate.Serves(r.Context())
		r.Body = http.MaxBytesReader(w, body, limit)
		h(w, r, c)
	}
}

// refuse responds with the reporter's error.
func (a *api) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, job.ErrNotFound) {
		fail(w, http.StatusNotFound, job.ErrNotFound.Error(), "")
		return
	}
	a.log.ErrorContext(r.Context(), "callback not recorded", "job_id", mux.Vars(r)["jobId"], "err", err)
	if job.IsEngineFault(err) {
		w.Header().Set("Retry-After", "1")
		fail(w, http.StatusServiceUnavailable, "Unavailable", "the engine cannot record it at the moment; try again")
		return
	}
	fail(w, http.StatusInternalServerError, "Internal error", "try again")
}

// unread responds to a body that could not be read to its end.
func unread(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		tooLarge(w, large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		fail(w, http.StatusRequestTimeout, "Too slow", "send the body at once")
	default:
		fail(w, http.StatusBadRequest, "Invalid payload", "the body ended early")
	}
}

func tooLarge(w http.ResponseWriter, limit int64) {
	fail(w, http.StatusRequestEntityTooLarge, "Payload too large", fmt.Sprintf("the limit is %d bytes", limit))
}

func method(allowed string, h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != allowed {
			w.Header().Set("Allow", allowed)
			fail(w, http.StatusMethodNotAllowed, "Method not allowed", "use "+allowed)
			return
		}
		h(w, r)
	})
}

func fail(w http.ResponseWriter, code int, text, details string) {
	body := map[string]string{"error": text}
	if details != "" {
		body["details"] = details
	}
	respond(w, code, body)
}

func respond(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // an error means that the runner is gone: it will retry
}
