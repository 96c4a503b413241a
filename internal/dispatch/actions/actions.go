// Package actions is GitHub Actions as a queue. Jobs of workflows wait for self-hosted runners; each job
// gets a just-in-time runner in its own VM. The package uses GitHub's REST API (version 2022-11-28) and
// webhooks, and trusts neither.
//
// GitHub gives a job to any runner with matching labels, not to the runner that was made for it: a
// session is one runner for one job, and there are as many sessions as waiting jobs.
package actions

import (
	"context"
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

// Options say which jobs are served, and how.
type Options struct {
	API string // its URL; empty: github.com's
	Key Key

	// Organization is where runners are registered; empty: at each repository. Repositories are those
	// whose jobs are served, as owner/name; none: all of the organization's that the key sees.
	Organization string
	Repositories []string

	// Group is the runner group, by name or ID; empty: the default group.
	Group string
	// Labels are what jobs may ask for, in addition to self-hosted, linux and x64.
	Labels []string
	// Forks says whether jobs of pull requests from forks are served. Anybody may open those.
	Forks bool
	// Look is the interval at which all repositories are listed, if GitHub's rate limit permits; 0: 10
	// seconds, or 5 minutes with webhooks.
	Look time.Duration
	// Idle is how long a runner waits for its job, which another runner may have taken; 0: 10 minutes.
	Idle time.Duration

	// HookSecret signs GitHub's webhooks; empty: there are none, and jobs are polled every few seconds.
	HookSecret string

	Log *slog.Logger
}

// Queue is the jobs of an organization or of repositories, as a dispatch.Queue.
type Queue struct {
	Options

	api *api

	keyed   sync.Mutex
	bearer  string // token of the App's installation
	expires time.Time

	grouped sync.Mutex
	group   int64 // its ID; 0: not known yet

	checked bool      // whether runners may be registered
	list    []string  // the repositories of the current full look
	at      int       // index in list of the next one
	looked  time.Time // end of the previous full look
	some    bool      // the workflows of some repository could be listed
	said    map[string]bool

	mu      sync.Mutex
	waiting map[int64]waiting
	noted   map[noted]int // runs announced by webhooks, with the number of failed looks at them
	woken   chan struct{}
	runners map[string]string // IDs of the jobs that runners were made for, by runner name
	robbed  map[string]bool   // IDs of the jobs whose runner has taken another job
}

var (
	_ dispatch.Queue     = (*Queue)(nil)
	_ dispatch.Hooked    = hooked{}
	_ dispatch.Continued = hooked{}
)

var (
	repositoryName   = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}/\.?[A-Za-z0-9_-][A-Za-z0-9._-]{0,98}$`)
	organizationName = lazyregexp.New(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)
)

const (
	defaultGroup = 1 // of each organization, and the only group of a repository
	defaultIdle  = 10 * time.Minute
	maxServed    = 200 // repositories
)

// New returns a queue. It is a dispatch.Hooked if there is a secret for webhooks.
func New(o Options) (dispatch.Queue, error) {
	u, err := url.Parse(o.API)
	switch {
	case o.API != "" && (err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" || u.RawQuery != "" || u.User != nil):
		return nil, fmt.Errorf("%q is not the URL of an API: give one such as https://HOST/api/v3, or none for github.com", o.API)
	case o.Organization == "" && len(o.Repositories) == 0:
		return nil, errors.New("there is nothing to serve: give repositories, as owner/name, or an organization")
	case o.Organization != "" && !organizationName.MatchString(o.Organization):
		return nil, fmt.Errorf("%q is not an organization's name", o.Organization)
	case len(o.Repositories) > maxServed:
		return nil, fmt.Errorf("%d repositories: give at most %d", len(o.Repositories), maxServed)
	case o.Organization == "" && o.Group != "" && o.Group != strconv.Itoa(defaultGroup):
		return nil, fmt.Errorf("runner group %q: only organizations have groups of runners; give the organization, or no group", o.Group)
	case o.Key.Token == "" && o.Key.App == nil:
		return nil, errors.New("there is no key: give a token or an App's key")
	}
	owner := o.Organization
	for _, r := range o.Repositories {
		if !repositoryName.MatchString(r) {
			return nil, fmt.Errorf("%q is not a repository: give owner/name", r)
		}
		of, _, _ := strings.Cut(r, "/")
		if owner == "" {
			owner = of
		}
		if !strings.EqualFold(of, owner) && (o.Organization != "" || o.Key.App != nil) {
			return nil, fmt.Errorf("repository %s is not one of %s: an organization, or an App's installation, has one owner", r, owner)
		}
	}
	if o.Idle <= 0 {
		o.Idle = defaultIdle
	}
	if o.Look <= 0 && o.HookSecret == "" {
		o.Look = lookPause
	} else if o.Look <= 0 {
		o.Look = hookedPause // for jobs that no webhook has announced
	}
	q := &Queue{
		Options: o,
		api:     &api{url: strings.TrimSuffix(o.API, "/"), http: &http.Client{CheckRedirect: dispatch.Stay}, before: map[string]page{}, now: map[string]page{}, most: maxKept},
		waiting: map[int64]waiting{}, noted: map[noted]int{}, said: map[string]bool{}, woken: make(chan struct{}, 1),
		runners: map[string]string{}, robbed: map[string]bool{},
	}
	if o.API == "" {
		q.api.url = PublicAPI
	}
	if o.HookSecret == "" {
		return q, nil
	}
	return hooked{q}, nil
}

// scopes returns the API paths below which runners are registered.
func (q *Queue) scopes() []string {
	if q.Organization != "" {
		return []string{"/orgs/" + q.Organization}
	}
	var all []string
	for _, r := range q.Repositories {
		all = append(all, "/repos/"+r)
	}
	return all
}

// scope returns the API path below which the session's runner is registered.
func (q *Queue) scope(s dispatch.Session) (string, error) {
	switch {
	case q.Organization != "":
		return "/orgs/" + q.Organization, nil
	case !repositoryName.MatchString(s.Work.Of):
		return "", fmt.Errorf("session %s is for %q, which is not a repository", s.Name, s.Work.Of)
	}
	return "/repos/" + s.Work.Of, nil
}

// check tests whether the key may register runners, so that no VM is made in vain.
func (q *Queue) check(ctx context.Context) error {
	for _, scope := range q.scopes() {
		_, _, err := q.call(ctx, request{method: http.MethodGet, path: scope + "/actions/runners?per_page=1"}, nil)
		if err != nil {
			return q.refused(scope, err)
		}
	}
	_, err := q.groupID(ctx)
	return err
}

// refused adds a remedy to an error of a request about a scope's runners. Errors with a remedy are Fatal.
func (q *Queue) refused(scope string, err error) error {
	where := strings.TrimPrefix(strings.TrimPrefix(scope, "/repos/"), "/orgs/")
	needs := "of the repository's administration (a fine-grained token or an App: Administration, write, and Actions, read; a classic token: the scope repo)"
	if q.Organization != "" {
		needs = "of the organization's runners (a fine-grained token or an App: Self-hosted runners, write, and its repositories' Actions, read; a classic token: the scopes admin:org and repo)"
	}
	switch dispatch.Code(err) {
	case http.StatusUnauthorized:
		return &dispatch.Fatal{Err: fmt.Errorf("GitHub does not know the key, or no longer does: %w; give another", err)}
	case http.StatusForbidden:
		return &dispatch.Fatal{Err: fmt.Errorf("the key may not register runners at %s: %w; it needs the rights %s, and group %s must be one that is yours", where, err, needs, q.groupName())}
	case http.StatusNotFound:
		return &dispatch.Fatal{Err: fmt.Errorf("there is no %s, no group %s of runners there, or the key does not see it: %w; look at their names, and whether the key has the rights %s", where, q.groupName(), err, needs)}
	}
	return fmt.Errorf("runners of %s: %w", where, err)
}

func (q *Queue) groupName() string {
	if q.Group == "" {
		return "Default"
	}
	return strconv.Quote(q.Group)
}

// groupID returns the ID of the runner group: the API does not accept its name.
func (q *Queue) groupID(ctx context.Context) (int64, error) {
	q.grouped.Lock()
	defer q.grouped.Unlock()
	if id, err := strconv.ParseInt(q.Group, 10, 64); err == nil && id > 0 {
		q.group = id
	}
	if q.Group == "" {
		q.group = defaultGroup
	}
	if q.group != 0 {
		return q.group, nil
	}
	for n := 1; n <= 5; n++ {
		var got struct {
			Groups []struct {
				ID   int64  `json:"id"`
				Name string `json:"name"`
			} `json:"runner_groups"`
		}
		path := fmt.Sprintf("/orgs/%s/actions/runner-groups?per_page=%d&page=%d", q.Organization, perPage, n)
		if _, _, err := q.call(ctx, request{method: http.MethodGet, path: path}, &got); err != nil {
			return 0, q.refused("/orgs/"+q.Organization, err)
		}
		for _, g := range got.Groups {
			if strings.EqualFold(g.Name, q.Group) {
				q.group = g.ID
				return g.ID, nil
			}
		}
		if len(got.Groups) < perPage {
			break
		}
	}
	return 0, &dispatch.Fatal{Err: fmt.Errorf("organization %s has no runner group %q: look at its settings, Actions, Runner groups", q.Organization, q.Group)}
}

// Claim reports whether the job still waits: GitHub gives it to whichever runner comes first.
func (q *Queue) Claim(ctx context.Context, w dispatch.Work) (bool, error) {
	var j workflowJob
	id := strings.TrimSuffix(w.ID, again)
	_, _, err := q.call(ctx, request{method: http.MethodGet, path: "/repos/" + w.Of + "/actions/jobs/" + id}, &j)
	if err != nil && dispatch.Code(err) != http.StatusNotFound {
		return false, fmt.Errorf("look at job %s of %s: %w", w.ID, w.Of, err)
	}
	if err == nil && j.Status == queued {
		return true, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.waiting, func(_ int64, waits waiting) bool { return waits.ID == w.ID })
	return false, nil
}

// Hold does nothing: there are no leases.
func (*Queue) Hold(context.Context, dispatch.Session, <-chan struct{}) error { return nil }

// handoverTime bounds the retries of a request for a runner's configuration. The dispatcher waits for a minute.
const handoverTime = 45 * time.Second

// Handover registers the session's runner, and returns its configuration.
func (q *Queue) Handover(ctx context.Context, s dispatch.Session) (dispatch.Handover, error) {
	scope, err := q.scope(s)
	if err != nil {
		return dispatch.Handover{}, err
	}
	group, err := q.groupID(ctx)
	if err != nil {
		return dispatch.Handover{}, err
	}
	var got struct {
		Config string `json:"encoded_jit_config"`
	}
	r := request{method: http.MethodPost, path: scope + "/actions/runners/generate-jitconfig", body: map[string]any{
		"name": s.Name, "runner_group_id": group, "labels": s.Work.Labels, "work_folder": "_work",
	}}
	err = retry(ctx, handoverTime, func() error {
		_, _, err := q.call(ctx, r, &got)
		if dispatch.Code(err) == http.StatusConflict { // a previous attempt succeeded, but its answer was lost
			if err := q.remove(ctx, scope, s.Name); err != nil {
				return err
			}
			_, _, err = q.call(ctx, r, &got)
		}
		return err
	})
	switch {
	case dispatch.Code(err) == http.StatusConflict:
		return dispatch.Handover{}, fmt.Errorf("GitHub has a runner %s already that does not go away: %w", s.Name, err)
	case dispatch.Code(err) == http.StatusUnprocessableEntity:
		return dispatch.Handover{}, fmt.Errorf("GitHub accepts no runner with the labels %q in group %s: %w; look at the labels of the job (runs-on) and at the group", s.Work.Labels, q.groupName(), err)
	case err != nil:
		return dispatch.Handover{}, q.refused(scope, err)
	case got.Config == "":
		return dispatch.Handover{}, fmt.Errorf("GitHub gave runner %s no configuration", s.Name)
	}
	q.Continue(s)
	return dispatch.Handover{Secret: []byte(got.Config)}, nil
}

// Continue records which job the session's runner was made for: GitHub may give it another job.
func (q *Queue) Continue(s dispatch.Session) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.runners[s.Name] = strings.TrimSuffix(s.Work.ID, again)
}

// Release removes the session's runner, unless the session has succeeded: GitHub itself removes runners
// only after a job.
func (q *Queue) Release(ctx context.Context, s dispatch.Session, o *job.Outcome) error {
	if o == nil || o.Status != job.Success {
		scope, err := q.scope(s)
		if err == nil {
			err = q.remove(ctx, scope, s.Name)
		}
		if err != nil {
			return err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	its := q.runners[s.Name]
	delete(q.runners, s.Name)
	if !slices.Contains(slices.Collect(maps.Values(q.runners)), its) {
		delete(q.robbed, its)
	}
	return nil
}

// remove removes a runner by name, if it exists and has no job.
func (q *Queue) remove(ctx context.Context, scope, name string) error {
	var got struct {
		Count   *int `json:"total_count"`
		Runners []struct {
			ID   int64  `json:"id"`
			Name string `json:"name"`
		} `json:"runners"`
	}
	if _, _, err := q.call(ctx, request{method: http.MethodGet, path: scope + "/actions/runners?per_page=100&name=" + url.QueryEscape(name)}, &got); err != nil {
		return fmt.Errorf("look for runner %s: %w", name, err)
	}
	if got.Count == nil {
		return fmt.Errorf("look for runner %s: the answer has no runners", name) // the list may just be missing
	}
	for _, r := range got.Runners {
		if r.Name != name {
			continue
		}
		_, _, err := q.call(ctx, request{method: http.MethodDelete, path: fmt.Sprintf("%s/actions/runners/%d", scope, r.ID)}, nil)
		switch dispatch.Code(err) {
		case http.StatusNotFound:
		case http.StatusUnprocessableEntity:
			q.Log.Warn("a runner is left to GitHub, which says that it has a job", "runner", name, "err", err)
		default:
			if err != nil {
				return fmt.Errorf("remove runner %s: %w", name, err)
			}
		}
	}
	return nil
}
