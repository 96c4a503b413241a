// Package githubtest stands in for GitHub Actions, as far as runners see it: the REST API of
// repositories, organizations and Apps, webhooks, and the service that runners take jobs from. It speaks
// the API as docs.github.com/rest describes it in version 2022-11-28 (the pages "Workflow runs",
// "Workflow jobs", "Self-hosted runners", "Self-hosted runner groups", "GitHub Apps", "Best practices for
// using the REST API", and "Webhook events and payloads"), and refuses what those pages say is refused.
// The runners' protocol is not published: here runners POST to /runner/take and /runner/done, which
// answers "goes on" while Stay keeps the job running.
package githubtest

import (
	"cmp"
	"context"
	"crypto/hmac"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Names and keys of everything in the service.
const (
	Owner        = "acme"
	Token        = "ghp_the-token-that-no-vm-has"
	App          = 4711
	Installation = 42
	GroupName    = "builders"
	Group        = 7 // its ID; 1 is the default group, 2 is GitHub's own
)

// GitHub is the service. Set its fields before the first request.
type GitHub struct {
	URL    string         // of the API
	AppKey *rsa.PublicKey // of the App

	// Intercept may answer a request instead of the service.
	Intercept func(w http.ResponseWriter, r *http.Request) bool

	mu       sync.Mutex
	hook     string        // where webhooks go
	secret   string        // that signs them
	changed  chan struct{} // closed at each change
	next     int64
	runs     []*run
	runners  []*Runner
	tokens   []string // of installations
	refused  []string
	requests []string
	hooks    sync.WaitGroup
}

type run struct {
	id   int64
	of   string // owner/name
	fork bool
	at   time.Time
	jobs []*Job
}

// Job is a job of a workflow.
type Job struct {
	ID       int64
	Status   string // queued, in_progress, completed
	Labels   []string
	Runner   string // its name
	Attempts int    // how often it was given to a runner
	Said     string // by its runner, at the job's end

	stays bool
}

// Runner is a just-in-time runner.
type Runner struct {
	ID      int64
	Name    string
	Scope   string // repos/owner/name or orgs/name
	Labels  []string
	Online  bool
	Busy    bool
	secret  string
	removed bool
}

// New starts the service.
func New(t testing.TB) *GitHub {
	t.Helper()
	g := &GitHub{changed: make(chan struct{}), next: 1000}
	server := httptest.NewServer(g.handler())
	t.Cleanup(func() {
		g.hooks.Wait()
		server.CloseClientConnections()
		server.Close()
	})
	g.URL = server.URL
	return g
}

func (g *GitHub) handler() http.Handler {
	api := http.NewServeMux()
	for _, scope := range []string{"repos/{owner}/{repo}", "orgs/{owner}"} {
		api.HandleFunc("GET /"+scope+"/actions/runners", g.listRunners)
		api.HandleFunc("POST /"+scope+"/actions/runners/generate-jitconfig", g.generate)
		api.HandleFunc("DELETE /"+scope+"/actions/runners/{id}", g.remove)
		api.HandleFunc("GET /"+scope+"/installation", g.installation)
	}
	api.HandleFunc("GET /orgs/{owner}/actions/runner-groups", g.groups)
	api.HandleFunc("GET /orgs/{owner}/repos", g.repositories)
	api.HandleFunc("GET /installation/repositories", g.repositories)
	api.HandleFunc("POST /app/installations/{id}/access_tokens", g.token)
	api.HandleFunc("GET /repos/{owner}/{repo}/actions/runs", g.listRuns)
	api.HandleFunc("GET /repos/{owner}/{repo}/actions/runs/{id}", g.showRun)
	api.HandleFunc("GET /repos/{owner}/{repo}/actions/runs/{id}/jobs", g.listJobs)
	api.HandleFunc("GET /repos/{owner}/{repo}/actions/jobs/{id}", g.showJob)
	api.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) { g.fail(w, r, http.StatusNotFound, "Not Found") })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/runner/take":
			g.take(w, r)
			return
		case "/runner/done":
			g.done(w, r)
			return
		}
		if g.Intercept != nil && g.Intercept(w, r) {
			return
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.requests = append(g.requests, r.Method+" "+r.URL.Path)
		if r.Header.Get("X-GitHub-Api-Version") != "2022-11-28" || r.Header.Get("Accept") != "application/vnd.github+json" || r.UserAgent() == "" {
			g.fail(w, r, http.StatusBadRequest, "the version, the media type or the agent is missing")
			return
		}
		if !g.known(r) {
			g.fail(w, r, http.StatusUnauthorized, "Bad credentials")
			return
		}
		api.ServeHTTP(w, r)
	})
}

// known reports whether a request has a valid key for its path.
func (g *GitHub) known(r *http.Request) bool {
	key, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !strings.HasPrefix(r.URL.Path, "/app/") && !strings.HasSuffix(r.URL.Path, "/installation") {
		return key == Token && g.AppKey == nil || slices.Contains(g.tokens, key)
	}
	parsed, err := jwt.ParseSigned(key, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil || g.AppKey == nil {
		return false
	}
	var c jwt.Claims
	err = parsed.Claims(g.AppKey, &c)
	return err == nil && c.Issuer == strconv.Itoa(App) && c.IssuedAt.Time().Before(time.Now()) && c.Expiry.Time().After(time.Now()) && time.Until(c.Expiry.Time()) <= 10*time.Minute
}

// Queue adds a run of a repository, with one job for each comma-separated list of labels, and returns the
// jobs' IDs.
func (g *GitHub) Queue(repository string, labels ...string) (ids []int64) {
	return g.queue(repository, false, labels)
}

// QueueFork adds a run of a pull request from a fork.
func (g *GitHub) QueueFork(repository string, labels ...string) (ids []int64) {
	return g.queue(repository, true, labels)
}

func (g *GitHub) queue(repository string, fork bool, labels []string) (ids []int64) {
	g.mu.Lock()
	r := &run{id: g.id(), of: repository, fork: fork, at: time.Now().Add(-time.Minute)}
	for _, l := range labels {
		j := &Job{ID: g.id(), Status: "queued", Labels: strings.Split(l, ",")}
		r.jobs = append(r.jobs, j)
		ids = append(ids, j.ID)
	}
	g.runs = append(g.runs, r)
	g.change()
	g.mu.Unlock()
	for _, j := range r.jobs {
		g.tell("queued", r, *j)
	}
	return ids
}

func (g *GitHub) tell(action string, r *run, j Job) {
	body, _ := json.Marshal(map[string]any{"action": action, "workflow_job": g.job(r, &j), "repository": repository(r.of), "sender": map[string]any{"login": "octocat"}})
	g.Deliver("workflow_job", fmt.Sprintf("%s-%d", action, j.ID), "", body)
}

// Tell sets the address and the secret of webhooks.
func (g *GitHub) Tell(hook, secret string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.hook, g.secret = hook, secret
}

// Deliver sends a webhook, signed with secret or, if that is empty, the right one. It returns the status
// of the answer, or 0 without an answer.
func (g *GitHub) Deliver(event, id, secret string, body []byte) int {
	g.mu.Lock()
	hook := g.hook
	secret = cmp.Or(secret, g.secret)
	g.mu.Unlock()
	if hook == "" {
		return 0
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write(body)
	r, err := http.NewRequest(http.MethodPost, hook, strings.NewReader(string(body)))
	if err != nil {
		return 0
	}
	r.Header = http.Header{
		"Content-Type": {"application/json"}, "X-Github-Event": {event}, "X-Github-Delivery": {id},
		"X-Hub-Signature-256": {"sha256=" + hex.EncodeToString(mac.Sum(nil))}, "User-Agent": {"GitHub-Hookshot/stand-in"},
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// Runner acts as a runner: it takes a matching job once there is one, or ends its job (verb take or done).
func (g *GitHub) Runner(ctx context.Context, config, verb string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, g.URL+"/runner/"+verb, nil)
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+config)
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", verb, resp.Status)
	}
	return nil
}

// Start has a foreign runner take a job.
func (g *GitHub) Start(id int64, runner string) { g.set(id, "in_progress", runner) }

// Stay keeps a job running until Let, even after its runner has ended it.
func (g *GitHub) Stay(id int64) { g.stay(id, true) }

// Let ends the effect of Stay.
func (g *GitHub) Let(id int64) { g.stay(id, false) }

func (g *GitHub) stay(id int64, stays bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, j := g.find(id)
	j.stays = stays
}

// Finish ends a job.
func (g *GitHub) Finish(id int64) { g.set(id, "completed", "") }

func (g *GitHub) set(id int64, status, runner string) {
	g.mu.Lock()
	r, j := g.find(id)
	j.Status = status
	if runner != "" {
		j.Runner = runner
	}
	g.change()
	g.mu.Unlock()
	g.tell(status, r, *j)
}

// Job returns the current state of a job.
func (g *GitHub) Job(id int64) Job {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, j := g.find(id)
	return *j
}

// Runners returns the registered runners.
func (g *GitHub) Runners() (all []Runner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runners {
		if !r.removed {
			all = append(all, *r)
		}
	}
	return all
}

// Requests returns the requests whose "METHOD /path" contains text.
func (g *GitHub) Requests(text string) (some []string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.requests {
		if strings.Contains(r, text) {
			some = append(some, r)
		}
	}
	return some
}

// Refused returns the requests that a correct client would not have made.
func (g *GitHub) Refused() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.refused)
}

// Revoke invalidates all tokens of installations.
func (g *GitHub) Revoke() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens = nil
}

func (g *GitHub) id() int64 {
	g.next++
	return g.next
}

func (g *GitHub) change() {
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *GitHub) find(id int64) (*run, *Job) {
	for _, r := range g.runs {
		for _, j := range r.jobs {
			if j.ID == id {
				return r, j
			}
		}
	}
	panic(fmt.Sprintf("githubtest: no job %d", id))
}

// fail refuses a request. It records requests that a correct client would not make.
func (g *GitHub) fail(w http.ResponseWriter, r *http.Request, code int, why string) {
	if code != http.StatusConflict && code != http.StatusUnprocessableEntity && code != http.StatusUnauthorized {
		g.refused = append(g.refused, fmt.Sprintf("%s %s: %d %s", r.Method, r.URL.Path, code, why))
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]any{"message": why, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(code)})
}

// answer answers a GET, with 304 if the client has the current answer.
func answer(w http.ResponseWriter, r *http.Request, v any) {
	body, _ := json.Marshal(v) // our maps can always be encoded
	sum := sha256.Sum256(body)
	etag := `W/"` + hex.EncodeToString(sum[:]) + `"`
	w.Header().Set("ETag", etag)
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.Header().Set("X-RateLimit-Limit", "5000")
	w.Header().Set("X-RateLimit-Remaining", "4999")
	w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(body)
}
