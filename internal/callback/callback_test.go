package callback_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/callback"
	"linus/internal/job"
)

const (
	jobID = "0197a1b2-0000-7000-8000-000000000001"
	token = "right"
)

// reporter knows one job and records what reaches it.
type reporter struct {
	reports []job.Report
	output  bytes.Buffer
	broken  bool
}

func (r *reporter) check(id, tok string) error {
	switch {
	case r.broken:
		return errors.New("disk full: /secret/path")
	case id != jobID || tok != token:
		return job.ErrNotFound
	}
	return nil
}

func (r *reporter) Authorize(_ context.Context, id, tok string) error { return r.check(id, tok) }

func (r *reporter) Report(_ context.Context, id, tok string, rep job.Report) error {
	if err := r.check(id, tok); err != nil {
		return err
	}
	r.reports = append(r.reports, rep)
	return nil
}

func (r *reporter) AppendOutput(_ context.Context, id, tok, _ string, offset int64, data []byte) (int64, error) {
	if err := r.check(id, tok); err != nil {
		return 0, err
	}
	if offset == int64(r.output.Len()) {
		r.output.Write(data)
	}
	return int64(r.output.Len()), nil
}

func post(t *testing.T, h http.Handler, path, auth, body string) *httptest.ResponseRecorder {
	t.Helper()
	req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	if auth != "" {
		req.Header.Set("Authorization", "Bearer "+auth)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, req)
	if ct := w.Header().Get("Content-Type"); ct != "application/json" {
		t.Errorf("%s answers Content-Type %q", path, ct)
	}
	if !json.Valid(w.Body.Bytes()) {
		t.Errorf("%s answers %q, which is not JSON", path, w.Body)
	}
	return w
}

func TestHandler_RecordsReports(t *testing.T) {
	tests := []struct {
		name, route, body string
		want              job.Report
	}{
		{
			"success", "complete", `{"job_id":"` + jobID + `","status":"success","exit_code":0,"output":"hi","artifacts":[],"duration_seconds":1.5}`,
			job.Report{Kind: job.ReportComplete, Output: "hi", Duration: 1500 * time.Millisecond},
		},
		{
			"failure", "complete", `{"status":"failed","exit_code":3,"error":"boom","artifacts":null,"duration_seconds":2}`,
			job.Report{Kind: job.ReportComplete, ExitCode: 3, Error: "boom", Duration: 2 * time.Second},
		},
		{
			"timeout", "complete", `{"status":"failed","exit_code":124,"reason":"timeout","duration_seconds":60}`,
			job.Report{Kind: job.ReportComplete, ExitCode: 124, Reason: "timeout", Duration: time.Minute},
		},
		{"lost", "complete", `{"status":"failed","exit_code":-1,"reason":"lost","duration_seconds":0}`, job.Report{Kind: job.ReportComplete, ExitCode: -1, Reason: "lost"}},
		{"progress", "status", `{"job_id":"` + jobID + `","progress":"half way"}`, job.Report{Kind: job.ReportStatus, Progress: "half way"}},
		{"heartbeat", "heartbeat", `{"job_id":"` + jobID + `"}`, job.Report{Kind: job.ReportHeartbeat}},
		{"heartbeat without body", "heartbeat", ``, job.Report{Kind: job.ReportHeartbeat}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &reporter{}
			w := post(t, callback.Handler(r, slog.New(slog.DiscardHandler)), "/callback/"+jobID+"/"+tt.route, token, tt.body)
			if w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != `{"received":true}` {
				t.Fatalf("answer %d %s", w.Code, w.Body)
			}
			if len(r.reports) != 1 || r.reports[0] != tt.want {
				t.Errorf("recorded %+v, want %+v", r.reports, tt.want)
			}
		})
	}
}

func TestHandler_Refuses(t *testing.T) {
	good := `{"status":"success","exit_code":0,"duration_seconds":1}`
	tests := []struct {
		name, method, path, auth, body string
		code                           int
		text                           string
	}{
		{"no token", "POST", "/callback/" + jobID + "/complete", "", good, 401, "Unauthorized"},
		{"wrong token", "POST", "/callback/" + jobID + "/complete", "wrong", good, 404, "Job not found"},
		{"unknown job", "POST", "/callback/other/complete", token, good, 404, "Job not found"},
		{"unknown route", "POST", "/callback/" + jobID + "/finish", token, good, 404, "Not found"},
		{"path outside", "POST", "/callback/../health", token, good, 404, "Not found"},
		{"wrong method", "GET", "/callback/" + jobID + "/complete", token, "", 405, "Method not allowed"},
		{"wrong method on health", "POST", "/health", "", "", 405, "Method not allowed"},
		{"not JSON", "POST", "/callback/" + jobID + "/complete", token, "hello", 400, "Invalid payload"},
		{"wrong type", "POST", "/callback/" + jobID + "/complete", token, `{"status":"success","exit_code":"0"}`, 400, "exit_code"},
		{"unknown status", "POST", "/callback/" + jobID + "/complete", token, `{"status":"done","exit_code":0}`, 400, "success or failed"},
		{"no exit code", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed"}`, 400, "exit_code"},
		{"contradiction", "POST", "/callback/" + jobID + "/complete", token, `{"status":"success","exit_code":3}`, 400, "contradicts"},
		{"another job in the body", "POST", "/callback/" + jobID + "/heartbeat", token, `{"job_id":"other"}`, 400, "job_id"},
		{"exit code of two bytes", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed","exit_code":256}`, 400, "exit_code: 256"},
		{"exit code below none", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed","exit_code":-1}`, 400, "exit_code: -1"},
		{"exit code of a timeout below none", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed","exit_code":-1,"reason":"timeout"}`, 400, "exit_code: -1"},
		{"exit code beyond all", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed","exit_code":1000000000000}`, 400, "exit_code: 1000000000000"},
		{"exit code beyond numbers", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed","exit_code":1e300}`, 400, "exit_code"},
		{"exit code of what is lost", "POST", "/callback/" + jobID + "/complete", token, `{"status":"failed","exit_code":256,"reason":"lost"}`, 400, "exit_code: 256"},
		{"report too large", "POST", "/callback/" + jobID + "/status", token, `{"progress":"` + strings.Repeat("x", callback.MaxReport) + `"}`, 413, "the limit is 65536 bytes"},
		{"output too large", "POST", "/callback/" + jobID + "/output?stream=stdout&offset=0", token, strings.Repeat("x", callback.MaxOutput+1), 413, "the limit is 1048576 bytes"},
		{"unknown stream", "POST", "/callback/" + jobID + "/output?stream=stdin&offset=0", token, "x", 400, "stream"},
		{"negative offset", "POST", "/callback/" + jobID + "/output?stream=stdout&offset=-1", token, "x", 400, "offset"},
		{"output with the wrong token", "POST", "/callback/" + jobID + "/output?stream=stdout&offset=0", "wrong", "x", 404, "Job not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &reporter{}
			req := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
			if tt.auth != "" {
				req.Header.Set("Authorization", "Bearer "+tt.auth)
			}
			w := httptest.NewRecorder()
			callback.Handler(r, slog.New(slog.DiscardHandler)).ServeHTTP(w, req)
			if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.text) || !json.Valid(w.Body.Bytes()) {
				t.Errorf("answer %d %s, want %d with %q", w.Code, w.Body, tt.code, tt.text)
			}
			if len(r.reports) != 0 || r.output.Len() != 0 {
				t.Error("a refused request had an effect")
			}
		})
	}
}

func TestHandler_UnknownJobAndWrongTokenLookAlike(t *testing.T) {
	h := callback.Handler(&reporter{}, slog.New(slog.DiscardHandler))
	unknown := post(t, h, "/callback/nobody/heartbeat", token, "")
	wrong := post(t, h, "/callback/"+jobID+"/heartbeat", "wrong", "")
	if unknown.Code != wrong.Code || unknown.Body.String() != wrong.Body.String() {
		t.Errorf("%d %s differs from %d %s", unknown.Code, unknown.Body, wrong.Code, wrong.Body)
	}
}

func TestHandler_HidesInternalErrors(t *testing.T) {
	w := post(t, callback.Handler(&reporter{broken: true}, slog.New(slog.DiscardHandler)), "/callback/"+jobID+"/heartbeat", token, "")
	if w.Code != http.StatusInternalServerError || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("answer %d %s", w.Code, w.Body)
	}
}

func TestHandler_OutputReturnsTheLengthSeen(t *testing.T) {
	r := &reporter{}
	h := callback.Handler(r, slog.New(slog.DiscardHandler))
	for _, step := range []struct {
		offset int
		data   string
		held   int
	}{{0, "ab\xff\x00", 4}, {0, "ab\xff\x00", 4}, {9, "late", 4}, {4, "c", 5}} {
		w := post(t, h, "/callback/"+jobID+"/output?stream=stdout&offset="+strconv.Itoa(step.offset), token, step.data)
		var got struct{ Length int }
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || got.Length != step.held {
			t.Errorf("offset %d: answer %s, want length %d", step.offset, w.Body, step.held)
		}
	}
	if r.output.String() != "ab\xff\x00c" {
		t.Errorf("held %q", r.output.String())
	}
}

func TestListen_BusyPortFailsAndNamesTheAddress(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	first, err := callback.Listen(t.Context(), "127.0.0.1", 0, &reporter{}, log)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- first.Serve() }()
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(first.Port()))
	if _, err := callback.Listen(t.Context(), "127.0.0.1", first.Port(), &reporter{}, log); !errors.Is(err, syscall.EADDRINUSE) || !strings.Contains(err.Error(), address) {
		t.Errorf("second Listen = %v, want address in use naming %s", err, address)
	}
	resp, err := http.Get("http://" + address + "/health")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if strings.TrimSpace(string(body)) != `{"status":"ok"}` {
		t.Errorf("health answers %s", body)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Errorf("Serve() = %v after Close, want nil", err)
	}
}
