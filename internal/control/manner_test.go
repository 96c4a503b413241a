package control_test

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

// manners is an engine with one of each thing.
type manners struct {
	job.Engine

	submitted job.Submission
	size      job.PoolSize
	asked     bool // for its VMs
	err       error
}

func newManners() *manners {
	return &manners{Engine: job.Through(func(context.Context, *job.Verb, any) (any, error) { return nil, nil }), size: job.PoolSize{Warm: 2, Hibernated: 1, MaxAge: 3600}}
}

func (m *manners) Submit(_ context.Context, s job.Submission) (job.Job, error) {
	m.submitted = s
	return job.Job{ID: "j1", Kind: job.KindTask, Status: job.Pending, Manifest: s.Manifest, Contradicted: true, BootID: "b"}, m.err
}

func (m *manners) Watch(_ context.Context, id string, after int64) ([]job.Event, job.Job, error) {
	j := job.Job{ID: id, Status: job.Success, Outcome: &job.Outcome{Status: job.Success, Reason: job.ReasonExitStatus, Duration: 1500e6}}
	if after >= 2 {
		return nil, j, m.err
	}
	return []job.Event{{Seq: after + 1, JobID: id, Kind: job.EventProgress, Text: string(job.ListVMs)}}, j, m.err
}

func (m *manners) Job(context.Context, string) (job.Job, error) {
	return job.Job{
		Artifacts:        []job.Artifact{{Path: "report.xml"}},
		SkippedArtifacts: job.SkippedArtifacts{ArtifactsSkipped: []job.SkippedArtifact{{Path: "big.bin", Reason: "too large"}}, ArtifactsSkippedCount: 1},
	}, m.err
}

func (m *manners) VM(context.Context, string) (job.VMInfo, error) { return job.VMInfo{}, m.err }

func (m *manners) DestroyVM(_ context.Context, ref string) (job.VMInfo, error) {
	return job.VMInfo{VM: vm.VM{Name: ref, Status: vm.Destroying}}, m.err
}

func (m *manners) Pools(context.Context) ([]job.PoolInfo, error) {
	labelled := func(name string, labels map[string]string) job.PoolInfo {
		return job.PoolInfo{Pool: job.Pool{Name: name, Labels: labels}}
	}
	return []job.PoolInfo{labelled("a", nil), labelled("b", map[string]string{"team": "web"}), labelled("c", map[string]string{"team": "web", "x/y": "a&b=c"})}, nil
}

func (m *manners) VMs(context.Context) ([]job.VMInfo, error) {
	m.asked = true
	return []job.VMInfo{{VM: vm.VM{ID: 100, Name: "db", Status: vm.Running}}, {VM: vm.VM{ID: 101, Name: "web", Status: vm.Stopped}}}, m.err
}

func (m *manners) List(context.Context, job.Filter) (job.Page, error) { return job.Page{}, m.err }

func (m *manners) Tokens(context.Context) ([]job.Token, error) { return nil, m.err }

func (m *manners) Cancel(context.Context, string) error { return m.err }

func (m *manners) Pool(_ context.Context, name string) (job.PoolInfo, error) {
	return job.PoolInfo{Pool: job.Pool{Name: name, PoolSize: m.size}}, m.err
}

func (m *manners) ResizePool(_ context.Context, name string, change job.PoolChange) (job.PoolInfo, error) {
	var err error
	if m.size, err = change.Of(m.size); err != nil {
		return job.PoolInfo{}, err
	}
	return m.Pool(context.Background(), name)
}

func (m *manners) Output(_ context.Context, _, _ string, offset, limit int64) (job.Chunk, error) {
	const text = "one\ntwo\n\xff\n"
	if offset < 0 {
		offset += int64(len(text))
	}
	offset = min(offset, int64(len(text)))
	end := int64(len(text))
	if limit > 0 {
		end = min(end, offset+limit)
	}
	return job.Chunk{Data: []byte(text[offset:end]), Offset: offset, Next: end, Complete: end == int64(len(text))}, m.err
}

// call makes a request of the API, with headers as name: value lines.
func call(t *testing.T, e job.Engine, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	s, _ := serveAPI(t, e)
	var got *http.Response
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", bearer)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	got, err = s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close() //nolint:errcheck // read
	var text strings.Builder
	if _, err := bufio.NewReader(got.Body).WriteTo(&text); err != nil {
		t.Fatal(err)
	}
	return got, text.String()
}

func TestAPI_StatusesAndHeaders(t *testing.T) {
	const submission = `{"manifest":{"task":"true","agent_type":"script","timeout_seconds":60,"vm_name":"x"}}`
	for _, tt := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		header, value            string
		says                     []string
		not                      string
	}{
		{"what is made has a place", "POST", "/api/v1/jobs", submission, nil, 201, "Location", "/api/v1/jobs/j1", []string{`"id":"j1"`, `"timeout_seconds":60`, `"vm_name":"x"`}, "contradicted"},
		{"a submission can wait", "POST", "/api/v1/jobs?wait_seconds=5", submission, nil, 201, "Location", "/api/v1/jobs/j1", []string{`"status":"success"`, `"duration_seconds":1.5`}, ""},
		{"but not for ever", "POST", "/api/v1/jobs?wait_seconds=51", submission, nil, 400, "", "", []string{`"field":"wait_seconds"`, "give 0 to 50"}, ""},
		{"what goes on is accepted", "DELETE", "/api/v1/vms/dev", "", nil, 202, "", "", []string{`"status":"destroying"`}, ""},
		{"so is what has no result", "POST", "/api/v1/jobs/j1/cancel", "", nil, 202, "", "", nil, ""},
		{"an empty page is a list", "GET", "/api/v1/jobs", "", nil, 200, "", "", []string{`"items":[]`}, "null"},
		{"an empty list, too", "GET", "/api/v1/tokens", "", nil, 200, "Content-Type", "application/json", []string{`{"items":[]}`}, ""},
		{"a request has an ID", "GET", "/api/v1/tokens", "", []string{"Request-Id: mine-1"}, 200, "Request-Id", "mine-1", nil, ""},
		{"a wrong method says which there are", "PUT", "/api/v1/pools/p", "{}", nil, 405, "Allow", "GET, PATCH, DELETE", []string{`"code":"no_method"`}, ""},
		{"what is edited has a tag", "GET", "/api/v1/pools/p", "", nil, 200, "Etag", `"2-1-0-3600"`, []string{`"max_age_seconds":3600`}, ""},
		{"what a change leaves out stays", "PATCH", "/api/v1/pools/p", `{"warm":3}`, []string{`If-Match: "2-1-0-3600"`}, 200, "Etag", `"3-1-0-3600"`, nil, ""},
		{"a change of what is another by now", "PATCH", "/api/v1/pools/p", `{"warm":3}`, []string{`If-Match: "1-1-0-3600"`}, 409, "", "", []string{`"code":"conflict"`, `"field":"If-Match"`}, ""},
		{"output is its bytes", "GET", "/api/v1/jobs/j1/output?stream=stdout", "", nil, 200, "Linus-Next-Offset", "10", []string{"one\ntwo\n\xff\n"}, ""},
		{"or a range of them", "GET", "/api/v1/jobs/j1/output?stream=stdout", "", []string{"Range: bytes=4-6"}, 206, "Content-Range", "bytes 4-6/*", []string{"two"}, "one"},
		{"or the last", "GET", "/api/v1/jobs/j1/output?stream=stdout", "", []string{"Range: bytes=-2"}, 206, "Content-Range", "bytes 8-9/*", []string{"\xff\n"}, "two"},
		{"or none", "GET", "/api/v1/jobs/j1/output?stream=stdout", "", []string{"Range: bytes=10-"}, 416, "Content-Range", "bytes */*", nil, ""},
		{"two ranges are none", "GET", "/api/v1/jobs/j1/output?stream=stdout", "", []string{"Range: bytes=0-1,3-4"}, 400, "", "", []string{`"field":"Range"`}, ""},
		{"of both streams, too", "GET", "/api/v1/jobs/j1/output", "", nil, 200, "Linus-Next-Offset", "10", []string{"one\ntwo"}, ""},
		{"what a job has left is listed", "GET", "/api/v1/jobs/j1/artifacts", "", nil, 200, "", "", []string{`{"items":[{"path":"report.xml"`, `"artifacts_skipped":[{"path":"big.bin"`}, ""},
		{"no age deletes no jobs", "DELETE", "/api/v1/jobs", "", nil, 400, "", "", []string{`"field":"older_than_seconds"`, "is required"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			resp, body := call(t, newManners(), tt.method, tt.path, tt.body, tt.headers...)
			if resp.StatusCode != tt.status || tt.header != "" && resp.Header.Get(tt.header) != tt.value || tt.not != "" && strings.Contains(body, tt.not) {
				t.Errorf("%d, %s: %q, %.500s", resp.StatusCode, tt.header, resp.Header.Get(tt.header), body)
			}
			for _, text := range tt.says {
				if !strings.Contains(body, text) {
					t.Errorf("%.500s does not say %s", body, text)
				}
			}
		})
	}
}

// Errors are problem documents in the API's words; what does not exist is 404, and what is in
// the way 409. A client of ours has the engine's own words, to put its own for them.
func cursor(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }

// Lists are found and sorted by the same parameters, where their rows have such a field, and
// paged alike.
func TestAPI_ListsAreFoundAndSorted(t *testing.T) {
	for _, tt := range []struct {
		path   string
		status int
		says   []string
		not    string
		asked  bool // the engine is
	}{
		{"/api/v1/vms?sort=-name", 200, []string{`{"items":[{"vm_id":101`}, "", true},
		{"/api/v1/vms?status=stopped&text=E", 200, []string{`"name":"web"`}, `"name":"db"`, true},
		{"/api/v1/pools?limit=2", 200, []string{`"name":"a"`, `"name":"b"`, `"next_cursor":"` + cursor("2:b") + `"`}, `"name":"c"`, false},
		{"/api/v1/pools?limit=2&cursor=" + cursor("2:b"), 200, []string{`"name":"c"`}, `next_cursor`, false},
		{"/api/v1/pools?limit=1&sort=-name&cursor=" + cursor("1:c"), 200, []string{`{"items":[{"name":"b"`, `"next_cursor":"` + cursor("2:b") + `"`}, `"name":"a"`, false},
		{"/api/v1/pools?cursor=" + cursor("1:gone"), 200, []string{`"name":"b"`, `"name":"c"`}, `"name":"a"`, false},
		{"/api/v1/pools?cursor=" + cursor("9:gone"), 200, []string{`{"items":[]}`}, "", false},
		{"/api/v1/pools?cursor=x", 400, []string{`"field":"cursor"`, `is not a cursor of this list`}, "", false},
		{"/api/v1/pools?limit=201", 400, []string{`"field":"limit"`, `give 0 to 200`}, "", false},
		{"/api/v1/vms?text=nothing", 200, []string{`{"items":[]}`}, "", true},
		{"/api/v1/pools?label=team%3Dweb", 200, []string{`"name":"b","resources":{},"labels":{"team":"web"}`, `"name":"c"`}, `"name":"a"`, false},
		{"/api/v1/pools?label=team=web&label=x/y%3Da%26b%3Dc", 200, []string{`"name":"c"`}, `"name":"b"`, false},
		{"/api/v1/pools?label=team", 400, []string{`"field":"label"`, `has no value`, `"remedy":"give KEY=VALUE, as in team=web"`}, "", false},
		{"/api/v1/pools?sort=name&sort=name", 400, []string{`"field":"sort"`, "is given twice"}, "", false},
		{"/api/v1/tokens?label=team%3Dweb", 400, []string{`"field":"label"`, `is not a parameter`}, "", false},
		{"/api/v1/vms?status=up", 400, []string{`"field":"status"`, `is unknown`, `"remedy":"use one of: provisioning, running,`}, "", false},
		{"/api/v1/vms?sort=colour", 400, []string{`"field":"sort"`, `use one of: created_at, expires_at,`}, "", false},
		{"/api/v1/vms?since=never", 400, []string{`"field":"since"`, `2026-01-02T15:04:05Z`}, "", false},
		{"/api/v1/engines?status=running", 400, []string{`"field":"status"`, `is not a parameter of this operation`}, "", false},
		{"/api/v1/tokens?role=admin", 400, []string{`"field":"role"`, `is not a parameter of this operation`}, "", false},
	} {
		e := newManners()
		resp, text := call(t, e, "GET", tt.path, "")
		if resp.StatusCode != tt.status || e.asked != tt.asked || tt.not != "" && strings.Contains(text, tt.not) {
			t.Errorf("%s: %d, asked %v: %s", tt.path, resp.StatusCode, e.asked, text)
		}
		for _, s := range tt.says {
			if !strings.Contains(text, s) {
				t.Errorf("%s does not say %s: %s", tt.path, s, text)
			}
		}
	}
}

func TestAPI_Problems(t *testing.T) {
	unknown := &job.FieldError{Field: "vm", Problem: `"x" is not a VM of ours`, Remedy: string(job.ListVMs) + " shows them", Fault: job.FaultUnknown}
	for _, tt := range []struct {
		name         string
		err          error
		method, path string
		status       int
		code         string
		says         []string
	}{
		{"an unknown VM", unknown, "GET", "/api/v1/vms/x", 404, "not_found", []string{`"field":"vm"`, `"remedy":"GET /api/v1/vms shows them"`}},
		{"an unknown VM in the body", unknown, "POST", "/api/v1/jobs", 400, "not_found", nil},
		{"one that jobs run in", &job.FieldError{Field: "vm", Problem: "is in use", Fault: job.FaultState}, "DELETE", "/api/v1/vms/x", 409, "conflict", nil},
		{"no more jobs", &job.FieldError{Field: "manifest", Problem: "too many", Fault: job.FaultLimit}, "POST", "/api/v1/jobs", 429, "limit", nil},
		{"a field by its name here", &job.InvalidError{Fields: []*job.FieldError{{Field: "manifest.agentType", Problem: "is wrong", Remedy: "see vmTemplate"}}}, "POST", "/api/v1/jobs", 400, "invalid",
			[]string{`"field":"manifest.agent_type"`, `"remedy":"see template"`, `"detail":"manifest.agent_type: is wrong; see template"`}},
		{"no such job", job.ErrNotFound, "GET", "/api/v1/jobs/x", 404, "not_found", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newManners()
			e.err = tt.err
			body := ""
			if tt.method == "POST" {
				body = `{"manifest":{"task":"true","agent_type":"script"}}`
			}
			resp, text := call(t, e, tt.method, tt.path, body)
			var p struct {
				Type, Title, Detail, Code string
				Status                    int
				RequestID                 string `json:"request_id"`
			}
			if err := json.Unmarshal([]byte(text), &p); err != nil || resp.StatusCode != tt.status || p.Status != tt.status || p.Code != tt.code || p.Detail == "" || p.Title == "" ||
				p.Type != "urn:linus:problem:"+tt.code || p.RequestID == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%d %s %s, %v", resp.StatusCode, resp.Header.Get("Content-Type"), text, err)
			}
			for _, says := range tt.says {
				if !strings.Contains(text, says) {
					t.Errorf("%s does not say %s", text, says)
				}
			}
		})
	}
	e := newManners()
	e.err = &job.FieldError{Field: "manifest", Problem: "too many", Fault: job.FaultLimit, Limit: &job.Limit{Name: "jobs_per_hour", Most: 3, Window: time.Hour, Room: 90500 * time.Millisecond}}
	resp, _ := call(t, e, "POST", "/api/v1/jobs", `{"manifest":{"task":"true","agent_type":"script"}}`)
	for name, want := range map[string]string{"RateLimit-Policy": `"jobs_per_hour";q=3;w=3600`, "RateLimit": `"jobs_per_hour";r=0;t=91`, "Retry-After": "91"} {
		if got := resp.Header.Get(name); got != want {
			t.Errorf("%s: %s, not %s", name, got, want)
		}
	}
	e.err = unknown
	_, r := serveAPI(t, e)
	if _, err := dialRemote(t, r).VM(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), string(job.ListVMs)) {
		t.Errorf("a client of ours has %v", err)
	}
}

func TestAPI_KeyIsAHeader(t *testing.T) {
	e := newManners()
	call(t, e, "POST", "/api/v1/jobs", `{"manifest":{"task":"true","agent_type":"script"}}`, "Idempotency-Key: a b/%41")
	if e.submitted.IdempotencyKey != "a b/%41" {
		t.Errorf("arrived as %q", e.submitted.IdempotencyKey)
	}
}

// Events and output come as server-sent events to whoever asks for them, from where it was.
func TestAPI_ServerSentEvents(t *testing.T) {
	resp, text := call(t, newManners(), "GET", "/api/v1/jobs/j1/events", "", "Accept: text/event-stream")
	want := []string{"id: 1\nevent: progress\ndata: {", `"text":"GET /api/v1/vms"`, "id: 2\n", "event: end\ndata: {", `"duration_seconds":1.5`}
	if resp.StatusCode != 200 || !strings.HasPrefix(resp.Header.Get("Content-Type"), "text/event-stream") {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %s", text, w)
		}
	}
	if _, text = call(t, newManners(), "GET", "/api/v1/jobs/j1/events", "", "Accept: text/event-stream", "Last-Event-ID: 1"); strings.Contains(text, "id: 1\n") || !strings.Contains(text, "id: 2\n") {
		t.Errorf("from the first on: %s", text)
	}
	if resp, text = call(t, newManners(), "GET", "/api/v1/jobs/j1/events", "", "Accept: text/event-stream", "Last-Event-ID: x"); resp.StatusCode != 400 {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
	_, text = call(t, newManners(), "GET", "/api/v1/jobs/j1/output?stream=stdout&offset=4", "", "Accept: text/event-stream")
	for _, w := range []string{"id: 10\nevent: output\ndata: ", `"base64":"dHdvCv8K"`, `"offset":4`, `event: end`} {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %s", text, w)
		}
	}
	e := newManners()
	e.err = job.ErrNotFound
	if resp, text = call(t, e, "GET", "/api/v1/jobs/j1/events", "", "Accept: text/event-stream"); resp.StatusCode != 404 || resp.Header.Get("Content-Type") != "application/problem+json" {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// teller is an engine that resumes a VM first.
type teller struct{ manners }

func (*teller) ListFiles(ctx context.Context, _ job.FileList) (job.FilePage, error) {
	if tell := job.Listener(ctx); tell != nil {
		tell(job.Progress{Text: "resuming VM dev (100), 50% ü\n"})
	}
	return job.FilePage{}, nil
}

// Who listens is told before the response comes, by the socket and by the API. Others get no
// informational responses: some programs take them for the response.
func TestListener_IsToldBeforeTheResponse(t *testing.T) {
	t.Parallel()
	e := &teller{}
	dir := t.TempDir()
	serve(t, dir, e, func() {})
	c := dial(t, dir)
	var heard []string
	if _, err := c.ListFiles(job.WithListener(t.Context(), func(p job.Progress) { heard = append(heard, p.Line()) }), job.FileList{VM: "dev"}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"resuming VM dev (100), 50% ü\n"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	s, _ := serveAPI(t, e)
	for asked, want := range map[string]int{"": 0, "1": 1} {
		told := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, _ textproto.MIMEHeader) error {
			if code == http.StatusProcessing {
				told++
			}
			return nil
		}})
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/api/v1/vms/dev/files", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", bearer)
		req.Header.Set("Linus-Progress", asked)
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if told != want || resp.StatusCode != http.StatusOK || resp.Header.Get("Linus-Progress") != "" {
			t.Errorf("asked %q: told %d times, then %s %v", asked, told, resp.Status, resp.Header)
		}
	}
}
