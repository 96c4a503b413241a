// Package forgetest stands in for a Forgejo 15 and a Gitea 1.25 with waiting jobs of workflows: the parts
// of their APIs that register, list and remove runners and list jobs, and the part of the runners'
// protocol that takes and ends a job. Paths, statuses and fields are those of Forgejo's
// routers/api/v1/{admin,org,repo}/runners.go, routers/api/v1/shared/runners.go and
// modules/structs/action.go, of Gitea's routers/api/v1/shared/{action,runners}.go and
// routers/api/actions/runner/runner.go, and of runner.v1's messages as JSON.
package forgetest

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Token authorizes requests of the API.
const Token = "the-api-token-that-no-vm-has"

// Repository is the repository of all jobs.
const Repository = "acme/app"

// Server is a forge.
type Server struct {
	URL string

	gitea bool

	mu      sync.Mutex
	jobs    []*Job
	runners []*Runner
	made    int // number of runners and jobs, for their IDs
	refused []string
	broken  http.HandlerFunc // answers instead of the server; nil: the server answers
	version string           // of Gitea
}

// Job is a job of a workflow.
type Job struct {
	ID     int64
	Name   string
	Labels []string
	Status string // waiting, running, success
	By     string // the runner that has it, or had it
	Taken  int    // how often it was taken
	Said   string // by its runner, at the job's end

	stays bool // it runs until Finish
}

// Runner is a registered runner.
type Runner struct {
	ID                int64
	UUID, Token, Name string
	Labels            []string
	Ephemeral         bool
	job               *Job
}

// New starts a Forgejo or a Gitea.
func New(t testing.TB, gitea bool) *Server {
	t.Helper()
	s := &Server{gitea: gitea, version: "1.25.2"}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v1/version", func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, map[string]string{"version": s.version}) })
	for _, scope := range []string{"/repos/" + Repository, "/orgs/acme", "/admin"} {
		at := "/api/v1" + scope + "/actions/"
		mux.HandleFunc("GET "+at+"runners", s.of(s.since("1.24", s.list)))
		mux.HandleFunc("DELETE "+at+"runners/{id}", s.of(s.since("1.24", s.remove)))
		if gitea {
			mux.HandleFunc("POST "+at+"runners/registration-token", s.of(s.since("1.24", func(w http.ResponseWriter, _ *http.Request) {
				answer(w, 200, map[string]any{"token": "registers-any-number"})
			})))
			mux.HandleFunc("GET "+at+"jobs", s.of(s.since("1.25", s.giteaJobs)))
		} else {
			mux.HandleFunc("POST "+at+"runners", s.of(s.forgejoRegister))
			mux.HandleFunc("GET "+at+"runners/jobs", s.of(s.forgejoJobs))
		}
	}
	service := "POST /api/actions/runner.v1.RunnerService/"
	mux.HandleFunc(service+"Register", s.giteaRegister)
	mux.HandleFunc(service+"FetchTask", s.fetch)
	mux.HandleFunc(service+"UpdateTask", s.update)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { s.refuse(w, r, 404, "there is no such endpoint") })
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.broken != nil {
			s.broken(w, r)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Add adds a waiting job, and returns its ID.
func (s *Server) Add(name string, labels ...string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.made++
	s.jobs = append(s.jobs, &Job{ID: int64(s.made), Name: name, Labels: labels, Status: "waiting"})
	return int64(s.made)
}

// AddLong is Add for a job that runs until Finish.
func (s *Server) AddLong(name string, labels ...string) int64 {
	id := s.Add(name, labels...)
	s.change(id, func(j *Job) { j.stays = true })
	return id
}

// Finish lets a long job end.
func (s *Server) Finish(id int64) { s.change(id, func(j *Job) { j.stays = false }) }

func (s *Server) change(id int64, how func(*Job)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.ID == id {
			how(j)
		}
	}
}

// Job returns the current state of a job.
func (s *Server) Job(id int64) Job {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.ID == id {
			return *j
		}
	}
	return Job{}
}

// End ends a job without a runner, as when it is cancelled.
func (s *Server) End(id int64) { s.change(id, func(j *Job) { j.Status = "cancelled" }) }

// Runners returns the registered runners.
func (s *Server) Runners() (all []Runner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runners {
		all = append(all, *r)
	}
	return all
}

// Refused returns the requests that a correct client would not have made.
func (s *Server) Refused() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.refused)
}

// Mend ends a Break. It may only be called by Break's handler.
func (s *Server) Mend() { s.broken = nil }

// Break has with answer all requests; nil ends that.
func (s *Server) Break(with http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = with
}

// Age sets Gitea's version: 1.24 does not list jobs, and earlier versions have neither an API for runners
// nor runners for one job.
func (s *Server) Age(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
}

// Event returns the webhook about a job, signed with a secret.
func (s *Server) Event(t testing.TB, id int64, action, delivery, secret string) *http.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	at := slices.IndexFunc(s.jobs, func(j *Job) bool { return j.ID == id })
	body, _ := json.Marshal(map[string]any{"action": action, "workflow_job": s.giteaJob(s.jobs[at]), "repository": map[string]any{"full_name": Repository}})
	r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(string(body)))
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	for name, value := range map[string]string{"Content-Type": "application/json", "X-Gitea-Event": "workflow_job", "X-Gitea-Delivery": delivery, "X-Gitea-Signature": hex.EncodeToString(mac.Sum(nil))} {
		r.Header.Set(name, value)
	}
	return r
}

func (s *Server) of(handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "token "+Token {
			s.refuse(w, r, 401, "user should be signed in")
			return
		}
		handle(w, r)
	}
}

// since returns a handler for an endpoint that Gitea has since a version.
func (s *Server) since(version string, handle http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if s.gitea && s.version < version { // correct for the versions used here
			http.NotFound(w, r)
			return
		}
		handle(w, r)
	}
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, code int, why string) {
	s.refused = append(s.refused, fmt.Sprintf("%s %s: %d %s", r.Method, r.URL, code, why))
	answer(w, code, map[string]any{"message": why, "url": "swagger"})
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}

func page[T any](r *http.Request, all []T) []T {
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	if limit < 1 || limit > 50 {
		limit = 50
	}
	from := min(max(n-1, 0)*limit, len(all))
	return all[from:min(from+limit, len(all))]
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	all := []map[string]any{}
	for _, is := range s.runners {
		all = append(all, map[string]any{"id": is.ID, "name": is.Name, "status": "offline", "busy": is.job != nil, "ephemeral": is.Ephemeral})
	}
	w.Header().Set("X-Total-Count", strconv.Itoa(len(all)))
	if s.gitea {
		answer(w, 200, map[string]any{"runners": page(r, all), "total_count": len(all)})
		return
	}
	answer(w, 200, page(r, all))
}

func (s *Server) remove(w http.ResponseWriter, r *http.Request) {
	before := len(s.runners)
	s.runners = slices.DeleteFunc(s.runners, func(is *Runner) bool { return strconv.FormatInt(is.ID, 10) == r.PathValue("id") })
	if len(s.runners) == before {
		answer(w, 404, map[string]any{"message": "Runner not found"})
		return
	}
	w.WriteHeader(204)
}

func (s *Server) register(name string, labels []string, ephemeral bool) *Runner {
	s.made++
	r := &Runner{ID: int64(s.made), UUID: fmt.Sprintf("8b0f6b98-fef8-430e-bfdc-%012d", s.made), Token: fmt.Sprintf("%040x", sha256.Sum256([]byte(name)))[:40], Name: name, Labels: labels, Ephemeral: ephemeral}
	s.runners = append(s.runners, r)
	return r
}

func (s *Server) forgejoRegister(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Name      string `json:"name"`
		Ephemeral bool   `json:"ephemeral"`
	}
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.Name == "" || !o.Ephemeral {
		s.refuse(w, r, 400, "a runner for one job was to be registered")
		return
	}
	is := s.register(o.Name, nil, true)
	answer(w, 201, map[string]any{"id": is.ID, "uuid": is.UUID, "token": is.Token})
}

func (s *Server) giteaRegister(w http.ResponseWriter, r *http.Request) {
	var o struct {
		Name, Token, Version string
		Labels               []string
		Ephemeral            bool
	}
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || !s.gitea || o.Name == "" || o.Token != "registers-any-number" || r.Header.Get("Content-Type") != "application/json" {
		s.refuse(w, r, 400, "missing runner token, name")
		return
	}
	is := s.register(o.Name, o.Labels, o.Ephemeral && s.version >= "1.24")
	answer(w, 200, map[string]any{"runner": map[string]any{"id": strconv.FormatInt(is.ID, 10), "uuid": is.UUID, "token": is.Token, "name": is.Name, "labels": is.Labels, "ephemeral": is.Ephemeral}})
}

func (s *Server) forgejoJobs(w http.ResponseWriter, _ *http.Request) {
	var all []map[string]any // null if there are none
	for _, j := range slices.Backward(s.jobs) {
		if j.Status == "waiting" || j.Status == "running" {
			all = append(all, map[string]any{
				"id": j.ID, "run_id": j.ID, "attempt": 1, "handle": handle(j), "repo_id": 1, "owner_id": 1, "name": j.Name, "needs": nil, "runs_on": j.Labels, "task_id": 0, "status": j.Status,
				"html_url": fmt.Sprintf("%s/%s/actions/runs/%d/jobs/0/attempt/1", s.URL, Repository, j.ID),
			})
		}
	}
	answer(w, 200, all)
}

func handle(j *Job) string { return fmt.Sprintf("18e9cf40-c2f6-409f-b832-%012d", j.ID) }

func (s *Server) giteaJob(j *Job) map[string]any {
	status := map[string]string{"waiting": "queued", "running": "in_progress"}[j.Status]
	if status == "" {
		status = "completed"
	}
	return map[string]any{
		"id": j.ID, "run_id": j.ID, "run_attempt": 1, "name": j.Name, "labels": j.Labels, "status": status, "runner_name": j.By, "created_at": time.Unix(1e9+j.ID, 0).UTC(),
		"url": "unused", "html_url": fmt.Sprintf("%s/%s/actions/runs/%d/jobs/0", s.URL, Repository, j.ID),
	}
}

func (s *Server) giteaJobs(w http.ResponseWriter, r *http.Request) {
	all := []map[string]any{}
	for _, j := range s.jobs {
		if is := s.giteaJob(j); is["status"] == r.URL.Query().Get("status") {
			all = append(all, is)
		}
	}
	answer(w, 200, map[string]any{"jobs": page(r, all), "total_count": len(all)})
}

// runner returns the runner that made a request.
func (s *Server) runner(w http.ResponseWriter, r *http.Request) *Runner {
	at := slices.IndexFunc(s.runners, func(is *Runner) bool {
		return is.UUID == r.Header.Get("X-Runner-Uuid") && is.Token == r.Header.Get("X-Runner-Token")
	})
	if at < 0 {
		s.refuse(w, r, 401, "unregistered runner")
		return nil
	}
	return s.runners[at]
}

// fetch gives a runner a job with matching labels or, by its handle, only that job.
func (s *Server) fetch(w http.ResponseWriter, r *http.Request) {
	is := s.runner(w, r)
	if is == nil {
		return
	}
	var o struct {
		Handle string
		Labels []string // Forgejo's runner declares them
	}
	_ = json.NewDecoder(r.Body).Decode(&o) // an empty body asks for nothing
	labels := append(slices.Clone(is.Labels), o.Labels...)
	for _, j := range s.jobs {
		fits := !slices.ContainsFunc(j.Labels, func(l string) bool { return !slices.Contains(labels, l) })
		if is.job != nil || j.Status != "waiting" || !fits || o.Handle != "" && o.Handle != handle(j) {
			continue
		}
		is.job, j.Status, j.By = j, "running", is.Name
		j.Taken++
		answer(w, 200, map[string]any{"task": map[string]any{"id": strconv.FormatInt(j.ID, 10)}})
		return
	}
	answer(w, 200, map[string]any{})
}

// update ends a runner's job, and removes an ephemeral runner.
func (s *Server) update(w http.ResponseWriter, r *http.Request) {
	is := s.runner(w, r)
	if is == nil {
		return
	}
	if is.job == nil {
		s.refuse(w, r, 400, "the runner has no task")
		return
	}
	if is.job.stays {
		answer(w, 200, map[string]any{"state": "goes on"})
		return
	}
	said, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20)) // of a stand-in
	is.job.Status, is.job.Said = "success", string(said)
	s.runners = slices.DeleteFunc(s.runners, func(other *Runner) bool { return other == is && is.Ephemeral })
	answer(w, 200, map[string]any{})
}
