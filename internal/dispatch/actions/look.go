package actions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/dispatch"
)

// Bounds of one look.
const (
	maxRepositoryPages = 2 // of the organization's repositories, most recently pushed first
	maxRunPages        = 5 // of a repository's runs in one state
	maxJobPages        = 5 // of a run's jobs; GitHub makes at most 256 from a matrix
	maxWaiting         = 2000
	maxNoted           = 1000
	maxNotedTries      = 3
)

const (
	lookPause   = 10 * time.Second
	hookedPause = 5 * time.Minute
	lookTime    = 20 * time.Second // for one call; the dispatcher waits for a minute
)

const (
	queued = "queued" // the status of jobs that wait for a runner
	again  = "-again" // suffix of the ID of a job whose runner has taken another job
)

// workflowJob is the answer of GET /repos/{owner}/{repo}/actions/jobs/{job_id}, and part of webhooks.
type workflowJob struct {
	ID       int64     `json:"id"`
	Run      int64     `json:"run_id"`
	Status   string    `json:"status"`
	Name     string    `json:"name"`
	Workflow string    `json:"workflow_name"`
	URL      string    `json:"html_url"`
	Labels   []string  `json:"labels"`
	Created  time.Time `json:"created_at"`
	Runner   string    `json:"runner_name"`
}

// workflowRun is the answer of GET /repos/{owner}/{repo}/actions/runs/{run_id}.
type workflowRun struct {
	ID   int64       `json:"id"`
	URL  string      `json:"html_url"`
	Of   *repository `json:"repository"`
	Head *repository `json:"head_repository"` // null: it was deleted
}

type repository struct {
	Name     string `json:"full_name"`
	Archived bool   `json:"archived"`
}

// fork reports whether the run's code may come from another repository than its own. The event that
// started the run does not tell: workflow_run runs in the base repository, but may build the fork's code.
func (r workflowRun) fork() bool {
	return r.Of == nil || r.Head == nil || !strings.EqualFold(r.Of.Name, r.Head.Name)
}

// waiting is a waiting job and the ID of its run.
type waiting struct {
	dispatch.Work
	run int64
}

// noted is a run that a webhook has announced.
type noted struct {
	repository string
	run        int64
}

// Waiting returns the waiting jobs known from the latest looks. All repositories are looked at from time
// to time; in between, only the runs that webhooks have announced.
func (q *Queue) Waiting(ctx context.Context) ([]dispatch.Work, error) {
	if !q.checked {
		if err := q.check(ctx); err != nil {
			return nil, err
		}
		q.checked = true
	}
	err := q.lookAtNoted(ctx)
	if err == nil && (q.at > 0 || time.Since(q.looked) >= q.Look) {
		err = q.lookAtAll(ctx)
	}
	if err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var works []dispatch.Work
	for _, w := range q.waiting {
		works = append(works, w.Work)
	}
	slices.SortFunc(works, func(a, b dispatch.Work) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID)) })
	return works, nil
}

// lookAtAll looks at one repository after the other, from where the previous call stopped, for at most lookTime.
func (q *Queue) lookAtAll(ctx context.Context) error {
	if q.at == 0 {
		if err := q.api.spare(); err != nil {
			return err
		}
		if q.list = q.Repositories; len(q.list) == 0 {
			var err error
			if q.list, err = q.seenRepositories(ctx); err != nil {
				return err
			}
		}
	}
	for end := time.Now().Add(lookTime); q.at < len(q.list) && time.Now().Before(end); {
		r := q.list[q.at]
		q.at++ // first: a repository that fails must not block the others
		found := map[int64]waiting{}
		err := q.lookAt(ctx, r, found)
		if c := dispatch.Code(err); q.Organization != "" && (c == http.StatusNotFound || c == http.StatusForbidden) && (q.some || q.at < len(q.list)) {
			q.once("unseen "+r, "a repository's workflows are not looked at: the key does not see them, or it has no Actions", "repository", r, "err", err)
			continue
		}
		q.some = q.some || err == nil
		q.replace(found, func(w waiting) bool { return err == nil && w.Of == r })
		if err != nil {
			return q.unseen(r, err)
		}
	}
	if q.at >= len(q.list) {
		q.api.turn()
		q.at, q.looked = 0, time.Now()
	}
	return nil
}

// replace removes the waiting jobs that are gone, and adds those that were found.
func (q *Queue) replace(found map[int64]waiting, gone func(waiting) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	maps.DeleteFunc(q.waiting, func(_ int64, w waiting) bool { return gone(w) })
	for id, w := range found {
		if len(q.waiting) < maxWaiting {
			q.waiting[id] = w
		}
	}
}

// unseen adds a remedy to an error of a request about the jobs of a repository.
func (q *Queue) unseen(repository string, err error) error {
	switch dispatch.Code(err) {
	case http.StatusUnauthorized:
		return q.refused(q.scopes()[0], err)
	case http.StatusForbidden, http.StatusNotFound:
		err = fmt.Errorf("the key does not see the workflows of %s: %w; it needs the right to read Actions there", repository, err)
		if q.looked.IsZero() {
			return &dispatch.Fatal{Err: err}
		}
		return err
	}
	return fmt.Errorf("look for jobs of %s: %w", repository, err)
}

// seenRepositories returns the organization's repositories that the key sees: those of an App's
// installation; with a token, the ones pushed to last.
func (q *Queue) seenRepositories(ctx context.Context) (names []string, err error) {
	for n := 1; n <= maxRepositoryPages; n++ {
		var list []repository
		if q.Key.App != nil {
			got, failed := fetch[struct {
				Repositories []repository `json:"repositories"`
			}](ctx, q, fmt.Sprintf("/installation/repositories?per_page=%d&page=%d", perPage, n))
			list, err = got.Repositories, failed
		} else {
			list, err = fetch[[]repository](ctx, q, fmt.Sprintf("/orgs/%s/repos?sort=pushed&per_page=%d&page=%d", q.Organization, perPage, n))
		}
		if err != nil {
			return nil, q.unseen(q.Organization, err)
		}
		for _, r := range list {
			owner, _, _ := strings.Cut(r.Name, "/")
			if repositoryName.MatchString(r.Name) && strings.EqualFold(owner, q.Organization) && !r.Archived {
				names = append(names, r.Name)
			}
		}
		if len(list) < perPage {
			return names, nil
		}
	}
	q.once("many", "the organization has more repositories than are looked at: name those that matter, or use a webhook", "looked_at", len(names))
	return names, nil
}

// lookAt finds the waiting jobs of a repository. Runs in progress may have waiting jobs, too.
func (q *Queue) lookAt(ctx context.Context, repository string, found map[int64]waiting) error {
	for _, status := range []string{queued, "in_progress"} {
		for n := 1; n <= maxRunPages; n++ {
			got, err := fetch[struct {
				Runs []workflowRun `json:"workflow_runs"`
			}](ctx, q, fmt.Sprintf("/repos/%s/actions/runs?status=%s&exclude_pull_requests=true&per_page=%d&page=%d", repository, status, perPage, n))
			if err != nil {
				return err
			}
			for _, r := range got.Runs {
				if err := q.lookAtRun(ctx, repository, r, found); err != nil {
					return err
				}
			}
			if len(got.Runs) < perPage {
				break
			}
		}
	}
	return nil
}

func (q *Queue) lookAtRun(ctx context.Context, repository string, r workflowRun, found map[int64]waiting) error {
	if r.ID <= 0 {
		return nil
	}
	if r.fork() && !q.Forks {
		q.once(fmt.Sprint("fork ", r.ID), "a run of a fork is left alone (--allow-forks serves it)", "repository", repository, "url", dispatch.Line(r.URL))
		return nil
	}
	for n := 1; n <= maxJobPages; n++ {
		got, err := fetch[struct {
			Jobs []workflowJob `json:"jobs"`
		}](ctx, q, fmt.Sprintf("/repos/%s/actions/runs/%d/jobs?filter=latest&per_page=%d&page=%d", repository, r.ID, perPage, n))
		if dispatch.Code(err) == http.StatusNotFound { // the run was deleted meanwhile
			return nil
		}
		if err != nil {
			return err
		}
		for _, j := range got.Jobs {
			if j.ID > 0 && q.serves(j.Labels) {
				q.lookAtJob(j, repository, r.ID, found)
			}
		}
		if len(got.Jobs) < perPage {
			break
		}
	}
	return nil
}

// lookAtJob adds a job to found if it waits. If the runner made for it has taken another job, it gets
// another ID: under its own ID it has a session already, the one of that runner, whereas the other job
// needs no runner any more.
func (q *Queue) lookAtJob(j workflowJob, repository string, run int64, found map[int64]waiting) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id := strconv.FormatInt(j.ID, 10)
	if j.Status != queued {
		if its, ours := q.runners[j.Runner]; ours && its != id {
			q.robbed[its] = true
		}
		return
	}
	if q.robbed[id] {
		id += again
	}
	title := strings.TrimPrefix(j.Workflow+" / "+j.Name, " / ")
	w := dispatch.Work{ID: id, Labels: j.Labels, Of: repository, Title: title, URL: j.URL, Since: j.Created}
	found[j.ID] = waiting{Work: w.Presentable(), run: run} // bounded, since it stays in memory
}

// serves reports whether jobs with these labels are this queue's: all labels are known, and at least one
// is self-hosted or one of Options.Labels.
func (q *Queue) serves(labels []string) bool {
	ours := false
	for _, l := range labels {
		l = strings.ToLower(l)
		switch {
		case l == "self-hosted" || slices.ContainsFunc(q.Labels, func(served string) bool { return strings.EqualFold(l, served) }):
			ours = true
		case l != "linux" && l != "x64":
			return false
		}
	}
	return ours && len(labels) <= 50
}

func (q *Queue) lookAtNoted(ctx context.Context) error {
	q.mu.Lock()
	runs := slices.Collect(maps.Keys(q.noted))
	q.mu.Unlock()
	for _, n := range runs {
		found := map[int64]waiting{}
		var r workflowRun
		_, _, err := q.call(ctx, request{method: http.MethodGet, path: fmt.Sprintf("/repos/%s/actions/runs/%d", n.repository, n.run)}, &r)
		if err == nil {
			r.ID = n.run
			err = q.lookAtRun(ctx, n.repository, r, found)
		}
		if err != nil && q.again(n, err) {
			return q.unseen(n.repository, err)
		}
		if err != nil && dispatch.Code(err) != http.StatusNotFound {
			q.once("unseen "+n.repository, "a run that a webhook reported is not looked at: the next full look may find it", "repository", n.repository, "err", err)
		}
		q.mu.Lock()
		delete(q.noted, n)
		q.mu.Unlock()
		q.replace(found, func(w waiting) bool { return w.run == n.run })
	}
	return nil
}

// again reports whether to retry the look at a run. Retries are bounded, so that a run that always fails
// does not block the others.
func (q *Queue) again(n noted, err error) bool {
	c := dispatch.Code(err)
	if _, is := errors.AsType[*limited](err); is || c == http.StatusUnauthorized {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.noted[n]++
	return c/100 != 4 && q.noted[n] < maxNotedTries
}

// fetch reads a page, or returns it from the previous look if it has not changed.
func fetch[T any](ctx context.Context, q *Queue, path string) (is T, err error) {
	known := q.api.before[path]
	size := known.size
	etag, changed, err := q.call(ctx, request{method: http.MethodGet, path: path, etag: known.etag, size: &size}, &is)
	if err != nil {
		return is, err
	}
	if !changed {
		is, _ = known.value.(T)
	}
	before := q.api.now[path].size
	if kept := q.api.kept + size - before; etag != "" && kept <= q.api.most {
		q.api.now[path], q.api.kept = page{etag, is, size}, kept
	}
	return is, nil
}

// once logs a warning only once per key, not at each look.
func (q *Queue) once(key, text string, args ...any) {
	if q.said[key] {
		return
	}
	if len(q.said) >= maxNoted {
		clear(q.said)
	}
	q.said[key] = true
	q.Log.Warn(text, args...)
}
