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

// Bounds of what is looked at, at a time.
const (
	maxRepositoryPages = 2 // of the organization's, those pushed to last
	maxRunPages        = 5 // of a repository's runs in one state
	maxJobPages        = 5 // of a run's jobs; GitHub makes no more than 256 of a matrix
	maxWaiting         = 2000
	maxNoted           = 1000
	maxNotedTries      = 3
)

const (
	lookPause   = 10 * time.Second
	hookedPause = 5 * time.Minute
	lookTime    = 20 * time.Second // at a time; the dispatcher waits for a minute
)

const (
	queued = "queued" // the status of jobs that wait for a runner
	again  = "-again" // ends the ID of a job whose runner has another one
)

// workflowJob is of GET /repos/{owner}/{repo}/actions/jobs/{job_id}, and of webhooks.
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

// workflowRun is of GET /repos/{owner}/{repo}/actions/runs/{run_id}.
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

// fork reports whether the code that the run is about may be of a repository that is not its own.
// By what event it was started tells nothing: workflow_run is the base's, and may build the fork's.
func (r workflowRun) fork() bool {
	return r.Of == nil || r.Head == nil || !strings.EqualFold(r.Of.Name, r.Head.Name)
}

// waiting is a job that waits, and its run.
type waiting struct {
	dispatch.Work
	run int64
}

// noted is a run that a webhook tells of.
type noted struct {
	repository string
	run        int64
}

// Waiting returns the jobs that wait, of what was looked at last. All is looked at from time to
// time; in between what webhooks have told of.
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

// lookAtAll looks at one repository after the other, from where it has stopped, as far as there is
// time.
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
		q.at++ // one that fails holds no other
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

// replace has what was found wait, and not what has gone.
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

// unseen is an error of requests about the jobs of a repository, with what to do.
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

// seenRepositories are those of the organization that the key sees: of an App's installation, those
// it is for; of a token, those pushed to last.
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

// lookAt finds the jobs of a repository that wait: they may be of runs that others' jobs have begun.
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

// lookAtRun finds the jobs of a run that wait.
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
		if dispatch.Code(err) == http.StatusNotFound { // it was deleted meanwhile
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

// lookAtJob finds a job that waits. If the runner that was made for it has another one, which then
// needs none, it waits under another ID: under its own it has a session, which is that runner's.
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
	found[j.ID] = waiting{Work: w.Presentable(), run: run} // it stays in memory
}

// serves reports whether jobs with these labels are this queue's: all of them are known, and one
// says that the job is for a runner like ours.
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

// lookAtNoted looks at the runs that webhooks tell of.
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
			q.once("unseen "+n.repository, "a run that a webhook tells of is not looked at: the next look at all may find it", "repository", n.repository, "err", err)
		}
		q.mu.Lock()
		delete(q.noted, n)
		q.mu.Unlock()
		q.replace(found, func(w waiting) bool { return w.run == n.run })
	}
	return nil
}

// again reports whether a run that could not be looked at is looked at again. One that always fails
// holds no other.
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

// fetch reads a page, unless it is as it was in the last look.
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

// once says something that would be said at each look.
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
