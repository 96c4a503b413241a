// Package forge is the Actions of Forgejo and of Gitea as queues: each waiting job that asks only for the
// queue's labels gets a runner for one job in its own VM. It uses the forges' REST APIs, and trusts no answer.
//
// Forgejo 15 lists waiting jobs with a handle, by which a runner takes exactly that job
// (routers/api/v1/shared/runners.go, modules/structs/action.go). Gitea 1.24 has runners for one job, and
// announces jobs by webhook; 1.25 lists jobs as well (routers/api/v1/shared/action.go and runners.go,
// routers/api/actions/runner/runner.go). Gitea gives a job to any runner with its labels: a session is
// one runner for one job, and there are as many sessions as waiting jobs.
package forge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"linus/internal/dispatch"
	"linus/internal/job"
	"linus/internal/lazyregexp"
)

// Kind is the software of a forge.
type Kind string

// The kinds.
const (
	Forgejo Kind = "forgejo"
	Gitea   Kind = "gitea"
)

// ways are the differences between the kinds.
type ways struct {
	jobs     string // path of the list of waiting jobs, below the scope
	paged    bool   // the list has pages
	list     string // field of the answer with the list; empty: the answer is the list
	runners  string // the same for the list of runners
	waits    string // status of a waiting job
	needs    string // required version, for errors
	register func(q *Queue, ctx context.Context, s dispatch.Session) (registered, error)
	secret   func(q *Queue, s dispatch.Session, handle string, r registered) ([]byte, error)
	task     string
}

func (k Kind) ways() ways {
	if k == Gitea {
		return ways{
			jobs: "/actions/jobs?status=queued", paged: true, list: "jobs", runners: "runners", waits: "queued", needs: "Gitea 1.24 or later",
			register: (*Queue).registerAtGitea, secret: (*Queue).registration, task: giteaTask,
		}
	}
	return ways{
		jobs: "/actions/runners/jobs", waits: "waiting", needs: "Forgejo 15 or later",
		register: (*Queue).registerAtForgejo, secret: (*Queue).lines, task: forgejoTask,
	}
}

// Options say which jobs are served, and how.
type Options struct {
	Kind  Kind
	URL   string // of the forge
	Token string // of its API; no VM gets it

	// Exactly one of these says whose jobs are served and where runners are registered: a repository as
	// owner/name, an organization, or the whole forge, which takes an administrator's token.
	Repository   string
	Organization string
	Instance     bool

	// Labels are what jobs may ask for: a job is served if all its labels are among them.
	Labels []string
	// Idle is how long a runner waits for its job, which another runner may have taken; 0: 10 minutes.
	Idle time.Duration
	// HookSecret signs Gitea's webhooks; empty: there are none.
	HookSecret string

	Log *slog.Logger
}

// Queue is the waiting jobs of a forge, as a dispatch.Queue.
type Queue struct {
	Options
	ways

	api     *api
	scope   string // path in the API
	checked bool   // whether runners may be registered
	listed  bool   // the forge lists jobs
	seen    bool   // the forge has listed jobs: a later 404 does not mean that it cannot

	mu   sync.Mutex
	made map[string]string // IDs of the jobs that runners were made for, by runner name: Gitea's runners take any

	told  map[string]told  // jobs announced by webhook, for a forge that does not list jobs
	ids   map[string]int64 // of registered runners, by name
	woken chan struct{}
}

var (
	_ dispatch.Queue     = (*Queue)(nil)
	_ dispatch.Hooked    = hooked{}
	_ dispatch.Continued = hooked{}
)

var (
	ownerName = lazyregexp.New(`^[A-Za-z0-9_.-]{1,100}$`)
	labelName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$`)
	safeText  = lazyregexp.New(`^[A-Za-z0-9_.:-]{1,200}$`) // handles, identities and tokens
)

const (
	defaultIdle = 10 * time.Minute
	perPage     = 50 // the default maximum of the APIs
	fewest      = 10 // a shorter page is the last
	againSuffix = "-again"
	maxPages    = 20
	maxTold     = 1000
	toldTime    = 24 * time.Hour // Gitea gives up a job that nobody takes after this time
)

// New returns a queue. It is a dispatch.Hooked if there is a secret for webhooks.
func New(o Options) (dispatch.Queue, error) {
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("%q is not the URL of a forge: give one such as https://forge.example.com", o.URL)
	}
	q := &Queue{
		Options: o, ways: o.Kind.ways(), api: newAPI(strings.TrimSuffix(o.URL, "/"), o.Token), listed: true,
		told: map[string]told{}, ids: map[string]int64{}, made: map[string]string{}, woken: make(chan struct{}, 1),
	}
	owner, name, _ := strings.Cut(o.Repository, "/")
	given := 0
	for _, is := range []bool{o.Repository != "", o.Organization != "", o.Instance} {
		if is {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, errors.New("give one of: a repository, as owner/name, an organization, or the whole instance")
	case o.Repository != "" && (!ownerName.MatchString(owner) || !ownerName.MatchString(name)):
		return nil, fmt.Errorf("%q is not a repository: give owner/name", o.Repository)
	case o.Repository != "":
		q.scope = "/repos/" + owner + "/" + name
	case o.Organization != "" && !ownerName.MatchString(o.Organization):
		return nil, fmt.Errorf("%q is not an organization's name", o.Organization)
	case o.Organization != "":
		q.scope = "/orgs/" + o.Organization
	default:
		q.scope = "/admin"
	}
	if len(o.Labels) == 0 || len(o.Labels) > 50 {
		return nil, fmt.Errorf("%d labels: give 1 to 50 that jobs ask for by runs-on", len(o.Labels))
	}
	for _, l := range o.Labels {
		if !labelName.MatchString(l) {
			return nil, fmt.Errorf("%q is not a label: use letters, digits and _.-", l)
		}
	}
	if o.Token == "" {
		return nil, errors.New("there is no token for the forge's API")
	}
	if q.Idle <= 0 {
		q.Idle = defaultIdle
	}
	if o.HookSecret == "" {
		return q, nil
	}
	if o.Kind != Gitea {
		return nil, fmt.Errorf("%s has no webhook for waiting jobs: it is polled instead; leave the secret out", o.Kind)
	}
	return hooked{q}, nil
}

// told is work that a webhook has announced.
type told struct {
	dispatch.Work
	at time.Time
}

// forgeJob is a job in a forge's answers: Forgejo's ActionRunJob or Gitea's ActionWorkflowJob.
type forgeJob struct {
	ID         int64     `json:"id"`
	Name       string    `json:"name"`
	URL        string    `json:"html_url"`
	Status     string    `json:"status"`
	Handle     string    `json:"handle"`      // Forgejo's
	RunsOn     []string  `json:"runs_on"`     // Forgejo's
	Attempt    int64     `json:"attempt"`     // Forgejo's
	Labels     []string  `json:"labels"`      // Gitea's
	RunAttempt int64     `json:"run_attempt"` // Gitea's
	Runner     string    `json:"runner_name"` // Gitea's
	Created    time.Time `json:"created_at"`  // Gitea's
}

// work returns a job as work; false: the job is not for this queue. Each attempt is separate work.
func (q *Queue) work(j forgeJob) (dispatch.Work, bool) {
	labels := append(j.RunsOn, j.Labels...)
	ours := j.ID > 0 && len(labels) > 0 && !slices.ContainsFunc(labels, func(l string) bool { return !slices.Contains(q.Labels, l) })
	w := dispatch.Work{ID: strconv.FormatInt(j.ID, 10), Labels: labels, Title: j.Name, Since: j.Created}
	if n := max(j.Attempt, j.RunAttempt); n > 1 {
		w.ID += "-" + strconv.FormatInt(n, 10)
	}
	if rest, here := strings.CutPrefix(j.URL, q.api.url+"/"); here {
		w.URL = j.URL
		if owner, rest, _ := strings.Cut(rest, "/"); ownerName.MatchString(owner) {
			if name, _, _ := strings.Cut(rest, "/"); ownerName.MatchString(name) {
				w.Of = owner + "/" + name
			}
		}
	}
	w.Of = cmp.Or(q.Repository, w.Of)
	return w, ours
}

// check tests whether the token may register runners, so that no VM is made in vain.
func (q *Queue) check(ctx context.Context) error {
	err := q.api.do(ctx, http.MethodGet, q.scope+"/actions/runners?limit=1", nil, nil)
	where := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(q.scope, "/repos/"), "/orgs/"), "/")
	switch dispatch.Code(err) {
	case http.StatusUnauthorized:
		return &dispatch.Fatal{Err: fmt.Errorf("the forge does not know the token, or no longer does: %w; give another", err)}
	case http.StatusForbidden:
		return &dispatch.Fatal{Err: fmt.Errorf("the token may not register runners for %s: %w; it needs write access to repository, organization or admin, whichever the runners are registered at, and must belong to somebody who administers that", where, err)}
	case http.StatusNotFound:
		if is := q.tooOld(ctx); is != "" {
			return &dispatch.Fatal{Err: fmt.Errorf("this Gitea is version %s, which has no runners for one job: %w; update it to 1.24, or to 1.25, which lists jobs", is, err)}
		}
		return &dispatch.Fatal{Err: fmt.Errorf("the forge has no %s with runners, or does not show it to this token: %w; look at the name and the token's rights, and whether it is %s", where, err, q.needs)}
	}
	return err
}

// tooOld returns the version of a Gitea that is older than required, and "" otherwise.
func (q *Queue) tooOld(ctx context.Context) string {
	var says struct {
		Version string `json:"version"`
	}
	var minor int
	err := q.api.do(ctx, http.MethodGet, "/version", nil, &says)
	if _, scanErr := fmt.Sscanf(says.Version, "1.%d.", &minor); q.Kind != Gitea || err != nil || scanErr != nil || minor >= 24 || !safeText.MatchString(says.Version) {
		return ""
	}
	return says.Version
}

// Waiting returns the waiting jobs whose labels are all served.
func (q *Queue) Waiting(ctx context.Context) ([]dispatch.Work, error) {
	if !q.checked {
		if err := q.check(ctx); err != nil {
			return nil, err
		}
		q.checked = true
	}
	jobs, err := q.look(ctx)
	if dispatch.Code(err) == http.StatusUnauthorized {
		q.checked = false // the next check says whether the error is permanent
	}
	if err != nil {
		return nil, err
	}
	q.seen = q.listed
	var works []dispatch.Work
	for _, j := range jobs {
		if w, ours := q.work(j); ours {
			works = append(works, w)
		}
	}
	if err := q.again(ctx, works); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.told, func(_ string, t told) bool { return q.listed || time.Since(t.at) > toldTime })
	for _, t := range q.told {
		works = append(works, t.Work)
	}
	slices.SortFunc(works, func(a, b dispatch.Work) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(len(a.ID), len(b.ID)), strings.Compare(a.ID, b.ID))
	})
	return works, nil
}

// again changes the IDs of waiting jobs whose runner has taken another job: under its own ID such a job
// has a session already, the one that serves the other job.
func (q *Queue) again(ctx context.Context, works []dispatch.Work) error {
	q.mu.Lock()
	made := maps.Clone(q.made)
	q.mu.Unlock()
	has := slices.Collect(maps.Values(made))
	if q.Kind != Gitea || !slices.ContainsFunc(works, func(w dispatch.Work) bool { return slices.Contains(has, w.ID) }) {
		return nil
	}
	robbed := map[string]int{}
	err := pages(ctx, q.api, q.scope+"/actions/jobs?status=in_progress", q.list, true, func(j forgeJob) bool {
		w, _ := q.work(j)
		if its := made[j.Runner]; its != "" && its != w.ID {
			robbed[its]++
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("look for jobs that run: %w", err)
	}
	for i, w := range works {
		if n := robbed[w.ID]; n > 0 {
			works[i].ID += againSuffix + strconv.Itoa(n)
		}
	}
	return nil
}

// look returns the waiting jobs that the forge lists, or none if only its webhooks announce jobs.
func (q *Queue) look(ctx context.Context) (jobs []forgeJob, err error) {
	if !q.listed {
		return nil, nil
	}
	err = pages(ctx, q.api, q.scope+q.jobs, q.list, q.paged, func(j forgeJob) bool {
		if j.Status == q.waits {
			jobs = append(jobs, j)
		}
		return len(jobs) < maxTold
	})
	if dispatch.Code(err) == http.StatusNotFound && q.Kind == Gitea && !q.seen {
		if q.HookSecret == "" {
			return nil, &dispatch.Fatal{Err: fmt.Errorf("this Gitea does not list jobs (1.25 does), and there is no webhook: %w; give a webhook's secret", err)}
		}
		q.Log.Warn("this Gitea does not list jobs, as 1.25 does: only jobs that its webhook reports are served, none that waited before")
		q.listed = false
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for jobs that wait: %w", err)
	}
	return jobs, nil
}

// Claim does nothing: the forge gives a job to its runner.
func (*Queue) Claim(context.Context, dispatch.Work) (bool, error) { return true, nil }

// Hold does nothing: there are no leases.
func (*Queue) Hold(context.Context, dispatch.Session, <-chan struct{}) error { return nil }

// registered is a registered runner for one job, with its credentials.
type registered struct {
	id          int64
	uuid, token string
}

// Handover registers the session's runner, which takes one job and then disappears.
func (q *Queue) Handover(ctx context.Context, s dispatch.Session) (dispatch.Handover, error) {
	handle, err := q.handle(ctx, s)
	if err != nil {
		return dispatch.Handover{}, err
	}
	r, err := q.register(q, ctx, s)
	if err == nil && (r.id <= 0 || !safeText.MatchString(r.uuid) || !safeText.MatchString(r.token)) {
		err = errors.New("the forge's answer has no runner's id, uuid and token")
	}
	if err != nil {
		return dispatch.Handover{}, fmt.Errorf("register runner %s: %w", s.Name, err)
	}
	q.mu.Lock()
	q.ids[s.Name] = r.id
	q.mu.Unlock()
	q.Continue(s)
	data, err := q.secret(q, s, handle, r)
	return dispatch.Handover{Secret: data}, err
}

// Continue records which job the session's runner was made for: Gitea may give it another job.
func (q *Queue) Continue(s dispatch.Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.made[s.Name], _, _ = strings.Cut(s.Work.ID, againSuffix)
}

// handle returns the handle by which a runner takes exactly the session's job; empty at Gitea.
func (q *Queue) handle(ctx context.Context, s dispatch.Session) (string, error) {
	if q.Kind == Gitea {
		return "", nil
	}
	jobs, err := q.look(ctx)
	if err != nil {
		return "", err
	}
	for _, j := range jobs {
		if w, _ := q.work(j); w.ID != s.Work.ID {
			continue
		}
		if !safeText.MatchString(j.Handle) {
			return "", fmt.Errorf("the forge gives job %s no handle: is it %s?", s.Work.ID, q.needs)
		}
		return j.Handle, nil
	}
	return "", fmt.Errorf("job %s is no longer waiting: %w", s.Work.ID, dispatch.ErrLost)
}

// registerAtForgejo makes RegisterRunner's request.
func (q *Queue) registerAtForgejo(ctx context.Context, s dispatch.Session) (registered, error) {
	var got struct {
		ID    int64  `json:"id"`
		UUID  string `json:"uuid"`
		Token string `json:"token"`
	}
	err := q.api.do(ctx, http.MethodPost, q.scope+"/actions/runners", map[string]any{"name": s.Name, "description": "made by linus for one job", "ephemeral": true}, &got)
	return registered{got.ID, got.UUID, got.Token}, err
}

// registerAtGitea registers a runner as the runner itself would. VMs must not get the registration token,
// because it can register any number of runners.
func (q *Queue) registerAtGitea(ctx context.Context, s dispatch.Session) (registered, error) {
	var token struct {
		Token string `json:"token"`
	}
	if err := q.api.do(ctx, http.MethodPost, q.scope+"/actions/runners/registration-token", nil, &token); err != nil {
		return registered{}, err
	}
	var got struct {
		Runner struct {
			ID        json.Number `json:"id"` // a string, like all 64-bit numbers in protobuf's JSON
			UUID      string      `json:"uuid"`
			Token     string      `json:"token"`
			Ephemeral bool        `json:"ephemeral"`
		} `json:"runner"`
	}
	err := q.api.register(ctx, map[string]any{"name": s.Name, "token": token.Token, "version": "linus", "labels": s.Work.Labels, "ephemeral": true}, &got)
	if err != nil {
		return registered{}, err
	}
	id, _ := got.Runner.ID.Int64() // 0: no runner
	if !got.Runner.Ephemeral {
		q.mu.Lock()
		q.ids[s.Name] = id
		q.mu.Unlock()
		return registered{}, errors.Join(&dispatch.Fatal{Err: errors.New("the forge would have made a runner for any number of jobs: that takes " + q.needs)}, q.Release(ctx, s, nil))
	}
	return registered{id, got.Runner.UUID, got.Runner.Token}, nil
}

// Release removes the session's runner. The forge itself does so only after a job.
func (q *Queue) Release(ctx context.Context, s dispatch.Session, o *job.Outcome) error {
	q.mu.Lock()
	id, known := q.ids[s.Name]
	delete(q.made, s.Name)
	q.mu.Unlock()
	if !known && o != nil && o.Status == job.Success {
		return nil
	}
	if !known { // registered by an earlier process, or the answer was lost, or never registered
		type runner struct {
			ID   int64  `json:"id"`
			Name string `json:"name"`
		}
		err := pages(ctx, q.api, q.scope+"/actions/runners", q.runners, true, func(r runner) bool {
			if r.Name == s.Name {
				id = r.ID
			}
			return id == 0
		})
		if err != nil {
			return fmt.Errorf("look for runner %s: %w", s.Name, err)
		}
	}
	if id != 0 {
		err := q.api.do(ctx, http.MethodDelete, fmt.Sprintf("%s/actions/runners/%d", q.scope, id), nil, nil)
		if err != nil && dispatch.Code(err) != http.StatusNotFound {
			return fmt.Errorf("remove runner %s: %w", s.Name, err)
		}
	}
	q.mu.Lock()
	delete(q.ids, s.Name)
	q.mu.Unlock()
	return nil
}
