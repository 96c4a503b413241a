package control_test

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"linus/internal/control"
	"linus/internal/job"
)

const bearer = "Bearer a-token"

// serveAPI serves e as a server does that has checked the token, over TLS.
func serveAPI(t *testing.T, e job.Engine) (*httptest.Server, control.Remote) {
	t.Helper()
	api := control.API(e, control.APIOptions{Version: "v1", Log: slog.New(slog.DiscardHandler)})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != bearer {
			control.Refuse(w, http.StatusUnauthorized, "unauthorized", "who are you?")
			return
		}
		api.ServeHTTP(w, r)
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, remote(s)
}

func remote(s *httptest.Server) control.Remote {
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	return control.Remote{URL: s.URL, Roots: roots, Token: func(context.Context) (string, error) { return strings.TrimPrefix(bearer, "Bearer "), nil }}
}

func dialRemote(t *testing.T, r control.Remote) *control.Client {
	t.Helper()
	c, err := control.DialRemote(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestAPI_HasEveryVerb(t *testing.T) {
	e := newEngine(&engine{wait: make(chan struct{})})
	e.job.Status = job.Success
	close(e.wait)
	_, r := serveAPI(t, e)
	for name, err := range every(t, dialRemote(t, r)) {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	arrived := slices.Compact(slices.Sorted(slices.Values(e.log()))) // PATCH reads a pool first
	if n := len(job.Verbs()); len(arrived) != n {
		t.Errorf("%d methods called, %d arrived: %v", n, len(arrived), arrived)
	}
}

// ask makes one request of the API and returns its status and body.
func ask(t *testing.T, s *httptest.Server, method, path, body string, change func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", bearer)
	if change != nil {
		change(req)
	}
	resp, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // read
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestAPI_RefusesWhatIsNotIts(t *testing.T) {
	e := newEngine(&engine{})
	s, _ := serveAPI(t, e)
	tests := []struct {
		name, method, path, body string
		code                     int
		says                     string
	}{
		{"stopping the process", "POST", "/api/v1/stop", "", 404, `"no_route"`},
		{"draining the process", "POST", "/api/v1/drain", "", 404, `"no_route"`},
		{"replacing the process", "POST", "/api/v1/yield", "", 404, `"no_route"`},
		{"another method", "PUT", "/api/v1/jobs/x", "", 405, "does not take PUT, only GET, DELETE"},
		{"another version", "GET", "/api/v2/jobs", "", 404, `"no_route"`},
		{"a token in the URL", "GET", "/api/v1/jobs?token=abc", "", 400, "replace this one"},
		{"an unknown field", "POST", "/api/v1/jobs", `{"manifests":{}}`, 400, "manifests"},
		{"no JSON", "POST", "/api/v1/jobs", `x`, 400, `"field":"request"`},
		{"no body", "POST", "/api/v1/jobs", "", 400, "has no body"},
		{"a key in another case", "POST", "/api/v1/jobs", `{"manifest":{"Task":"x","agent_type":"script"}}`, 400, `"field":"manifest.Task","problem":"is not a known key","remedy":"did you mean \"task\"?"`},
		{"a key given twice", "POST", "/api/v1/plan", `{"manifest":{"task":"x","task":"y","agent_type":"script"}}`, 400, `"field":"manifest.task","problem":"is given twice"`},
		{"text that is not Unicode", "POST", "/api/v1/jobs", "{\"manifest\":{\"task\":\"\xff\",\"agent_type\":\"script\"}}", 400, "not Unicode"},
		{"half of a pair", "PATCH", "/api/v1/vms/dev/file?path=/x", `{"old":"\ud800","new":""}`, 400, "not Unicode"},
		{"text after the body", "POST", "/api/v1/tokens", `{"name":"ada","role":"read"} {"role":"admin"}`, 400, "after top-level value"},
		{"another type", "POST", "/api/v1/pools", `{"name":"p","warm":"1"}`, 400, `"field":"warm","problem":"is a string, want a whole number"`},
		{"a zero that reads like the default", "POST", "/api/v1/jobs", `{"manifest":{"task":"x","agent_type":"script","timeout_seconds":0}}`, 400, `"field":"manifest.timeout_seconds","problem":"0 is out of range"`},
		{"a parameter in the body", "POST", "/api/v1/vms/dev/snapshots", `{"name":"s","vm":"dev"}`, 400, `"field":"vm","problem":"is in the body","remedy":"give it in the path"`},
		{"a body where none is read", "POST", "/api/v1/jobs/x/cancel", `{"id":"x"}`, 400, "give it in the path"},
		{"a large body where none is read", "POST", "/api/v1/jobs/x/cancel", strings.Repeat(" ", 1<<20), 413, `"too_large"`},
		{"an unknown parameter", "GET", "/api/v1/jobs?limt=5", "", 400, `"field":"limt","problem":"is not a parameter of this operation","remedy":"did you mean \"limit\"?"`},
		{"an unknown parameter that decides", "POST", "/api/v1/jobs/x/input?clos=true", "", 400, `did you mean \"close\"?`},
		{"a parameter where there are none", "POST", "/api/v1/jobs/x/cancel?force=1", "", 400, `"field":"force"`},
		{"a parameter given twice", "GET", "/api/v1/jobs?limit=5&limit=6", "", 400, `"field":"limit","problem":"is given twice"`},
		{"a query that cannot be read", "POST", "/api/v1/jobs/x/input?close=true;x=1", "", 400, "query cannot be read"},
		{"an unknown parameter of a WebSocket", "GET", "/api/v1/jobs/x/terminal?ofset=1", "", 400, `did you mean \"offset\"?`},
		{"no number", "GET", "/api/v1/jobs/x/output?stream=stdout&offset=a", "", 400, `"field":"offset","problem":"\"a\" is not a whole number","remedy":"give a whole number"`},
		{"a huge body", "POST", "/api/v1/jobs", `{"manifest":{"task":"` + strings.Repeat("a", job.MaxManifest+1<<20) + `"}}`, 413, `"too_large"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, body := ask(t, s, tt.method, tt.path, tt.body, nil)
			if code != tt.code || !strings.Contains(body, tt.says) || !strings.Contains(body, `{"type":"urn:linus:problem:`) {
				t.Errorf("%d %.300s; want %d and %s", code, body, tt.code, tt.says)
			}
		})
	}
	if log := e.log(); len(log) > 0 {
		t.Errorf("the engine was asked: %v", log)
	}
}

// A body of unknown length is bounded, too.
// A file's name is the VM's to choose: what it is offered under is nothing that is run where it lies.
func TestAPI_OffersAFileUnderAHarmlessName(t *testing.T) {
	s, _ := serveAPI(t, newEngine(&engine{}))
	for at, want := range map[string]string{"dist/a%20b.txt": "a%20b.txt", "x/.envrc": "_envrc", ".BashRC": "_BashRC", "a/.git": "_git", "..%5C.envrc": "__.envrc"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/api/v1/jobs/j1/artifacts/"+at, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", bearer)
		resp, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if got := resp.Header.Get("Content-Disposition"); got != "attachment; filename*=UTF-8''"+want {
			t.Errorf("%s is offered as %q", at, got)
		}
	}
}

func TestAPI_BoundsABodyWithoutLength(t *testing.T) {
	s, _ := serveAPI(t, newEngine(&engine{}))
	code, body := ask(t, s, "POST", "/api/v1/jobs", "", func(r *http.Request) {
		r.Body = io.NopCloser(io.LimitReader(endless{}, job.MaxManifest+1<<20))
		r.ContentLength = -1
	})
	if code != 413 {
		t.Errorf("%d %.300s", code, body)
	}
}

// A call that is cut off because its token was revoked says so, whatever the store it was
// reading from says.
func TestAPI_TellsWhyACallIsCutOff(t *testing.T) {
	ctx, revoke := context.WithCancelCause(t.Context())
	e := &cutOff{engine: newEngine(&engine{}), read: func(ctx context.Context) error {
		revoke(job.ErrUnauthorized)
		return fmt.Errorf("read counts of output: %w", ctx.Err())
	}}
	w := httptest.NewRecorder()
	control.API(e, control.APIOptions{}).ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/api/v1/jobs/x", nil))
	if w.Code != 401 || !strings.Contains(w.Body.String(), "token") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

type cutOff struct {
	*engine
	read func(ctx context.Context) error
}

func (c *cutOff) Job(ctx context.Context, _ string) (job.Job, error) { return job.Job{}, c.read(ctx) }

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// Info tells nothing of the server but its version: no paths, no settings.
func TestAPI_TellsItsVersionOnly(t *testing.T) {
	s, _ := serveAPI(t, newEngine(&engine{}))
	if code, body := ask(t, s, "GET", "/api/v1/info", "", nil); code != 200 || strings.TrimSpace(body) != `{"version":"v1"}` {
		t.Errorf("%d %s", code, body)
	}
}

func TestAPI_ClientsDoNotNameThemselves(t *testing.T) {
	for header, want := range map[string]string{"": "api", "cli": "api", "web": "api", "mcp:claude": "mcp:claude"} {
		e := newEngine(&engine{})
		s, _ := serveAPI(t, e)
		code, body := ask(t, s, "POST", "/api/v1/jobs", `{"manifest":{"task":"true","agent_type":"script"}}`, func(r *http.Request) {
			if header != "" {
				r.Header.Set("Linus-Client", header)
			}
		})
		if code != 201 || e.in.(job.Submission).Client != want {
			t.Errorf("header %q: %d %.100s, client %q; want %q", header, code, body, e.in.(job.Submission).Client, want)
		}
	}
}

func TestRemote_IsTheEngineOfTheServer(t *testing.T) {
	e := newEngine(&engine{job: job.Job{ID: "j1", Status: job.Running}, err: &job.InvalidError{Fields: []*job.FieldError{{Field: "manifest.task", Problem: "is missing", Remedy: "give one"}}}})
	_, r := serveAPI(t, e)
	c := dialRemote(t, r)
	var invalid *job.InvalidError
	if _, err := c.Submit(t.Context(), job.Submission{}); !errors.As(err, &invalid) || *invalid.Fields[0] != (job.FieldError{Field: "manifest.task", Problem: "is missing", Remedy: "give one"}) {
		t.Errorf("Submit: %v", err)
	}
	e.err = job.ErrNotFound
	if _, err := c.Job(t.Context(), "x"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("Job: %v", err)
	}
}

func TestRemote_TrustsOnlyItsServer(t *testing.T) {
	stolen := make(chan string, 10)
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { stolen <- r.Header.Get("Authorization") }))
	t.Cleanup(thief.Close)
	s, good := serveAPI(t, newEngine(&engine{}))
	sending := httptest.NewTLSServer(http.RedirectHandler(thief.URL+"/api/v1/info", http.StatusTemporaryRedirect))
	t.Cleanup(sending.Close)
	other := func(change func(*control.Remote)) control.Remote {
		r := good
		change(&r)
		return r
	}
	token := func(text string, err error) func(*control.Remote) {
		return func(r *control.Remote) { r.Token = func(context.Context) (string, error) { return text, err } }
	}
	tests := []struct {
		name string
		r    control.Remote
		says string
	}{
		{"a redirect to another host", remote(sending), "sends clients to"},
		{"a certificate nobody vouches for", other(func(r *control.Remote) { r.Roots = x509.NewCertPool() }), "unknown authority"},
		{"a certificate of another name", other(func(r *control.Remote) { r.URL = strings.Replace(s.URL, "127.0.0.1", "localhost", 1) }), "not localhost"},
		{"no encryption", other(func(r *control.Remote) { r.URL = "http://pve.example:8766" }), "not encrypted"},
		{"a password in the URL", other(func(r *control.Remote) { r.URL = strings.Replace(s.URL, "//", "//a:b@", 1) }), "not the URL"},
		{"no URL", other(func(r *control.Remote) { r.URL = "pve.example:8766" }), "not the URL"},
		{"another token", other(token("x", nil)), "who are you?"},
		{"no token", other(token("", errors.New("no token here"))), "no token here"},
		{"plain HTTP where TLS is spoken", other(func(r *control.Remote) { r.URL = strings.Replace(s.URL, "https", "http", 1) }), "with https://"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := control.DialRemote(t.Context(), tt.r)
			if err == nil {
				c.Close()
			}
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v; want %s", err, tt.says)
			}
		})
	}
	select {
	case got := <-stolen:
		t.Errorf("another server was sent %q", got)
	default:
	}
}

// A client goes on when the connection was cut, and when the server was away.
func TestRemote_Reconnects(t *testing.T) {
	e := newEngine(&engine{job: job.Job{ID: "j1"}})
	s, r := serveAPI(t, e)
	c := dialRemote(t, r)
	for range 3 {
		s.CloseClientConnections()
		if j, err := c.Job(t.Context(), "j1"); err != nil || j.ID != "j1" {
			t.Fatalf("Job: %v, %v", j.ID, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.Close()
	cancel()
	if _, err := c.Job(ctx, "j1"); err == nil {
		t.Error("a server that is closed answers")
	}
	if n := len(slices.DeleteFunc(e.log(), func(name string) bool { return name != "Job" })); n < 3 {
		t.Errorf("asked %d times", n)
	}
}

// unread is a body that tells when it is read, and never comes.
type unread struct {
	read  chan<- struct{}
	ended <-chan struct{}
}

func (u unread) Read([]byte) (int, error) {
	u.read <- struct{}{}
	<-u.ended
	return 0, io.ErrUnexpectedEOF
}

// What is sent costs memory: nothing is read of those who may not ask for what it is for, and
// a large one at a time of the others.
func TestAPI_BoundsWhatIsReadAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, ended := make(chan struct{}, 100), make(chan struct{})
		api := control.API(newEngine(&engine{}), control.APIOptions{})
		send := func(p job.Principal, method, path string, size int64) int {
			r := httptest.NewRequest(method, "/api/v1"+path, unread{read, ended})
			r.ContentLength = size
			w := httptest.NewRecorder()
			api.ServeHTTP(w, r.WithContext(job.WithPrincipal(t.Context(), p)))
			return w.Code
		}
		eve := job.Principal{Name: "eve", Role: job.RoleRead}
		for _, at := range []string{"POST /jobs", "PUT /vms/dev/file", "PUT /vms/dev/tree", "POST /pools"} {
			method, path, _ := strings.Cut(at, " ")
			if code := send(eve, method, path, -1); code != http.StatusForbidden || len(read) != 0 {
				t.Errorf("%s of a reader: %d, %d bodies are read", at, code, len(read))
			}
		}
		var all sync.WaitGroup
		for _, step := range []struct {
			who  string
			size int64
			n    int // requests
			want int // bodies that are read, of all so far
		}{
			{"alice", -1, 10, 1}, {"alice", 90 << 20, 1, 1}, {"bob", 90 << 20, 10, 2}, {"carol", 90 << 20, 1, 2}, {"alice", 1000, 5, 7},
		} {
			for range step.n {
				all.Go(func() { send(job.Principal{Name: step.who, Role: job.RoleRun}, http.MethodPost, "/jobs", step.size) })
			}
			synctest.Wait()
			if len(read) != step.want {
				t.Errorf("after %+v %d bodies are read", step, len(read))
			}
		}
		close(ended)
		all.Wait()
	})
}

// slow is an engine whose results take until they may.
type slow struct {
	*engine
	asked atomic.Int64
	ended chan struct{}
}

func (s *slow) Result(context.Context, string) (job.Result, error) {
	s.asked.Add(1)
	<-s.ended
	return job.Result{}, nil
}

// Large results cost memory until they are sent: each principal has so much, and takes none
// of anybody else's.
func TestAPI_BoundsLargeResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slow{engine: newEngine(&engine{}), ended: make(chan struct{})}
		api := control.API(e, control.APIOptions{})
		var all sync.WaitGroup
		for n, who := range []string{"alice", "bob", "carol", "dave"} {
			for range 5 {
				all.Go(func() {
					r := httptest.NewRequestWithContext(job.WithPrincipal(t.Context(), job.Principal{Name: who, Role: job.RoleRead}), "GET", "/api/v1/jobs/x/result", nil)
					w := httptest.NewRecorder()
					if api.ServeHTTP(w, r); w.Code != http.StatusOK {
						t.Errorf("%d %s", w.Code, w.Body)
					}
				})
			}
			synctest.Wait()
			if got := e.asked.Load(); got != int64(n+1) {
				t.Errorf("with %s's, %d are read", who, got)
			}
		}
		close(e.ended)
		all.Wait()
	})
}
