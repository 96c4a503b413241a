// Package callback is the HTTP API that job runners in VMs call: completion,
// progress, heartbeat and output. It owns routes, limits and answers; what a
// report means is its Reporter's to decide.
package callback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/mux"

	"linus/internal/job"
)

// MaxBody is the most a request may carry, in bytes.
const MaxBody = 10 << 20

// Reporter takes what runners say. Unknown job and wrong token are both
// job.ErrNotFound, so that nobody can probe for job ids.
type Reporter interface {
	Report(ctx context.Context, id, token string, r job.Report) error
	// AppendOutput answers how much of the stream is held: the offset to send next.
	AppendOutput(ctx context.Context, id, token, stream string, offset int64, data []byte) (int64, error)
}

type api struct {
	reporter Reporter
	log      *slog.Logger
}

// Handler serves the callback API. Every answer is JSON, errors too.
func Handler(reporter Reporter, log *slog.Logger) *mux.Router {
	a := &api{reporter: reporter, log: log}
	r := mux.NewRouter().SkipClean(true)
	r.Handle("/health", method(http.MethodGet, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]string{"status": "ok"})
	}))
	r.Handle("/callback/{jobId}/complete", method(http.MethodPost, a.withToken(a.complete)))
	r.Handle("/callback/{jobId}/status", method(http.MethodPost, a.withToken(a.status)))
	r.Handle("/callback/{jobId}/heartbeat", method(http.MethodPost, a.withToken(a.heartbeat)))
	r.Handle("/callback/{jobId}/output", method(http.MethodPost, a.withToken(a.output)))
	r.NotFoundHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusNotFound, "Not found", "")
	})
	return r
}

// Server is the callback API on a port of this machine.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen takes host:port; port 0 takes a free one. It fails when the port is busy.
func Listen(ctx context.Context, host string, port int, reporter Reporter, log *slog.Logger) (*Server, error) {
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listen for callbacks on %s: %w", net.JoinHostPort(host, strconv.Itoa(port)), err)
	}
	return &Server{listener: listener, http: &http.Server{
		Handler:           Handler(reporter, log),
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       60 * time.Second, // 10 MB over a slow line
		WriteTimeout:      90 * time.Second,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}}, nil
}

// Port is the port listened on.
func (s *Server) Port() int {
	addr, _ := s.listener.Addr().(*net.TCPAddr)
	return addr.Port
}

// Addr is "host:port" as this machine itself can reach it.
func (s *Server) Addr() string {
	addr, _ := s.listener.Addr().(*net.TCPAddr)
	host := addr.IP.String()
	if addr.IP.IsUnspecified() {
		host = "localhost" // by IPv4 or IPv6, whichever is listened on
	}
	return net.JoinHostPort(host, strconv.Itoa(addr.Port))
}

// Serve answers until Close; then it returns nil.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve callbacks: %w", err)
	}
	return nil
}

// Close finishes the requests under way, within ctx, and stops.
func (s *Server) Close(ctx context.Context) error { return s.http.Shutdown(ctx) }

// completion is the body of /complete. Fields a runner may send and we do not
// use (artifacts, output) are let pass: a runner must never fail to report its end.
type completion struct {
	JobID    string  `json:"job_id"`
	Status   string  `json:"status"`
	ExitCode *int    `json:"exit_code"`
	Output   string  `json:"output"`
	Duration float64 `json:"duration_seconds"`
	Error    string  `json:"error"`
	Reason   string  `json:"reason"` // exit, timeout, stopped or lost; our own runner's word
}

func (a *api) complete(w http.ResponseWriter, r *http.Request, token string, body []byte) {
	var c completion
	if !decode(w, r, body, &c) {
		return
	}
	problem := ""
	switch {
	case c.Status != "success" && c.Status != "failed":
		problem = fmt.Sprintf("status: %q is unknown; use success or failed", c.Status)
	case c.ExitCode == nil:
		problem = "exit_code: is required"
	case c.Status == "success" && *c.ExitCode != 0:
		problem = fmt.Sprintf("status: success contradicts exit_code %d", *c.ExitCode)
	case !slices.Contains([]string{"", "exit", "timeout", "stopped", "lost"}, c.Reason):
		problem = fmt.Sprintf("reason: %q is unknown; use exit, timeout, stopped or lost", c.Reason)
	case c.Duration < 0 || c.Duration > 10*job.MaxTimeout:
		problem = fmt.Sprintf("duration_seconds: %v is out of range", c.Duration)
	}
	if !matches(w, r, c.JobID, problem) {
		return
	}
	a.report(w, r, token, job.Report{
		Kind: job.ReportComplete, ExitCode: *c.ExitCode, Reason: c.Reason,
		Error: c.Error, Output: c.Output, Duration: time.Duration(c.Duration * float64(time.Second)),
	})
}

func (a *api) status(w http.ResponseWriter, r *http.Request, token string, body []byte) {
	var s struct {
		JobID    string `json:"job_id"`
		Progress string `json:"progress"`
		Output   string `json:"output"`
	}
	if decode(w, r, body, &s) && matches(w, r, s.JobID, "") {
		a.report(w, r, token, job.Report{Kind: job.ReportStatus, Progress: s.Progress, Output: s.Output})
	}
}

func (a *api) heartbeat(w http.ResponseWriter, r *http.Request, token string, body []byte) {
	var h struct {
		JobID string `json:"job_id"`
	}
	if len(body) > 0 && !decode(w, r, body, &h) {
		return
	}
	if matches(w, r, h.JobID, "") {
		a.report(w, r, token, job.Report{Kind: job.ReportHeartbeat})
	}
}

func (a *api) output(w http.ResponseWriter, r *http.Request, token string, body []byte) {
	stream := r.URL.Query().Get("stream")
	if stream != job.Stdout && stream != job.Stderr {
		fail(w, http.StatusBadRequest, "Invalid payload", fmt.Sprintf("stream: %q is unknown; use stdout or stderr", stream))
		return
	}
	offset, err := strconv.ParseInt(r.URL.Query().Get("offset"), 10, 64)
	if err != nil || offset < 0 {
		fail(w, http.StatusBadRequest, "Invalid payload", "offset: give the number of bytes sent before")
		return
	}
	held, err := a.reporter.AppendOutput(r.Context(), mux.Vars(r)["jobId"], token, stream, offset, body)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	answer(w, http.StatusOK, map[string]any{"received": true, "length": held})
}

func (a *api) report(w http.ResponseWriter, r *http.Request, token string, report job.Report) {
	if err := a.reporter.Report(r.Context(), mux.Vars(r)["jobId"], token, report); err != nil {
		a.refuse(w, r, err)
		return
	}
	answer(w, http.StatusOK, map[string]bool{"received": true})
}

func (a *api) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, job.ErrNotFound) {
		fail(w, http.StatusNotFound, job.ErrNotFound.Error(), "")
		return
	}
	a.log.ErrorContext(r.Context(), "callback not recorded", "job_id", mux.Vars(r)["jobId"], "err", err)
	fail(w, http.StatusInternalServerError, "Internal error", "try again")
}

// withToken reads the bearer token and the bounded body for h.
func (a *api) withToken(h func(http.ResponseWriter, *http.Request, string, []byte)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "Unauthorized", "send Authorization: Bearer and the job's token")
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
		var tooLarge *http.MaxBytesError
		switch {
		case errors.As(err, &tooLarge):
			fail(w, http.StatusRequestEntityTooLarge, "Payload too large", fmt.Sprintf("the limit is %d bytes", MaxBody))
		case err != nil:
			fail(w, http.StatusBadRequest, "Invalid payload", "the body ended early")
		default:
			h(w, r, token, body)
		}
	}
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

// decode reads a JSON object, or answers 400 and is false.
func decode(w http.ResponseWriter, r *http.Request, body []byte, v any) bool {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != "" && media != "application/json" {
		fail(w, http.StatusBadRequest, "Invalid payload", fmt.Sprintf("Content-Type %s; send application/json", media))
		return false
	}
	if err := json.Unmarshal(body, v); err != nil {
		fail(w, http.StatusBadRequest, "Invalid payload", err.Error())
		return false
	}
	return true
}

// matches answers 400 and is false when there is a problem, or the body speaks
// of another job than the path.
func matches(w http.ResponseWriter, r *http.Request, jobID, problem string) bool {
	if problem == "" && jobID != "" && jobID != mux.Vars(r)["jobId"] {
		problem = "job_id: is not the job of the path"
	}
	if problem != "" {
		fail(w, http.StatusBadRequest, "Invalid payload", problem)
	}
	return problem == ""
}

func fail(w http.ResponseWriter, code int, text, details string) {
	body := map[string]string{"error": text}
	if details != "" {
		body["details"] = details
	}
	answer(w, code, body)
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body) // the runner is gone: it will ask again
}
