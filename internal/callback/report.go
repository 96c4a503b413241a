package callback

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"time"

	"linus/internal/job"
)

// report handles a report. read decodes it from the body, and returns the job ID in the body, if
// any.
func (a *api) report(read func(body []byte) (id string, r job.Report, problem string)) func(http.ResponseWriter, *http.Request, caller) {
	return func(w http.ResponseWriter, r *http.Request, c caller) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			unread(w, err)
			return
		}
		media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
		id, report, problem := read(body)
		switch {
		case len(body) > 0 && media != "" && media != "application/json":
			problem = fmt.Sprintf("Content-Type %s; send application/json", media)
		case problem == "" && id != "" && id != c.job:
			problem = "job_id: does not match the job in the path"
		}
		if problem != "" {
			fail(w, http.StatusBadRequest, "Invalid payload", problem)
			return
		}
		if err := a.reporter.Report(r.Context(), c.job, c.token, report); err != nil {
			a.refuse(w, r, err)
			return
		}
		respond(w, http.StatusOK, map[string]bool{"received": true})
	}
}

// complete decodes the body of /complete. It ignores fields that a runner may send and linus does
// not use (artifacts): a runner must always be able to report its end.
func complete(body []byte) (id string, r job.Report, problem string) {
	var c struct {
		JobID    string  `json:"job_id"`
		Status   string  `json:"status"`
		ExitCode *int    `json:"exit_code"`
		Output   string  `json:"output"`
		Duration float64 `json:"duration_seconds"`
		Error    string  `json:"error"`
		Reason   string  `json:"reason"` // exit, timeout, stopped or lost; only linus's own runner sends it
	}
	if err := json.Unmarshal(body, &c); err != nil {
		return "", r, err.Error()
	}
	switch {
	case c.Status != "success" && c.Status != "failed":
		return "", r, fmt.Sprintf("status: %q is unknown; use success or failed", c.Status)
	case c.ExitCode == nil:
		return "", r, "exit_code: is required"
	case !slices.Contains([]string{"", "exit", "timeout", "stopped", "lost"}, c.Reason):
		return "", r, fmt.Sprintf("reason: %q is unknown; use exit, timeout, stopped or lost", c.Reason)
	case (*c.ExitCode < 0 || *c.ExitCode > 255) && (c.Reason != "lost" || *c.ExitCode != -1): // a lost task has none
		return "", r, fmt.Sprintf("exit_code: %d is out of range; give 0 to 255", *c.ExitCode)
	case c.Status == "success" && *c.ExitCode != 0:
		return "", r, fmt.Sprintf("status: success contradicts exit_code %d", *c.ExitCode)
	case c.Duration < 0 || c.Duration > 10*job.MaxTimeout:
		return "", r, fmt.Sprintf("duration_seconds: %v is out of range", c.Duration)
	}
	return c.JobID, job.Report{
		Kind: job.ReportComplete, ExitCode: *c.ExitCode, Reason: c.Reason,
		Error: c.Error, Output: c.Output, Duration: time.Duration(c.Duration * float64(time.Second)),
	}, ""
}

func status(body []byte) (id string, r job.Report, problem string) {
	var s struct {
		JobID    string `json:"job_id"`
		Progress string `json:"progress"`
		Output   string `json:"output"`
	}
	if err := json.Unmarshal(body, &s); err != nil {
		return "", r, err.Error()
	}
	return s.JobID, job.Report{Kind: job.ReportStatus, Progress: s.Progress, Output: s.Output}, ""
}

// heartbeat decodes the body of /heartbeat, which may be empty.
func heartbeat(body []byte) (id string, r job.Report, problem string) {
	var h struct {
		JobID string `json:"job_id"`
	}
	if len(body) > 0 {
		if err := json.Unmarshal(body, &h); err != nil {
			return "", r, err.Error()
		}
	}
	return h.JobID, job.Report{Kind: job.ReportHeartbeat}, ""
}

// outputPiece is how much of a body of output is kept in memory, besides what could be the
// beginning of a secret.
const outputPiece = 64 << 10

// output stores a body of output piece by piece as it arrives. The pieces of an interrupted body
// are kept, and the response has the offset to continue at.
func (a *api) output(w http.ResponseWriter, r *http.Request, c caller) {
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
	var data []byte // read but not yet stored; it starts at offset
	for {
		fresh, readErr := readPiece(r.Body)
		if readErr != nil && !errors.Is(readErr, io.EOF) {
			unread(w, readErr)
			return
		}
		data = append(data, fresh...)
		held, err := a.reporter.AppendOutput(r.Context(), c.job, c.token, stream, offset, data)
		if err != nil {
			a.refuse(w, r, err)
			return
		}
		if errors.Is(readErr, io.EOF) || held < offset { // or the rest would leave a gap
			respond(w, http.StatusOK, map[string]any{"received": true, "length": held})
			return
		}
		taken := min(held-offset, int64(len(data)))
		data, offset = data[taken:], offset+taken
	}
}

// readPiece reads outputPiece bytes, fewer only before an error; io.EOF is the end.
func readPiece(body io.Reader) (data []byte, err error) {
	data = make([]byte, outputPiece)
	n := 0
	for err == nil && n < len(data) {
		var read int
		read, err = body.Read(data[n:])
		n += read
	}
	return data[:n], err
}
