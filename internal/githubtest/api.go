package githubtest

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

func repository(name string) map[string]any {
	owner, short, _ := strings.Cut(name, "/")
	return map[string]any{"id": len(name), "name": short, "full_name": name, "private": true, "fork": owner != Owner, "archived": false, "owner": map[string]any{"login": owner}}
}

func (r *run) status() string {
	status := "completed"
	for i, j := range r.jobs {
		switch {
		case i == 0:
			status = j.Status
		case j.Status != status:
			return "in_progress"
		}
	}
	return status
}

func (r *run) head() string {
	if r.fork {
		return "mallory/" + r.of[strings.IndexByte(r.of, '/')+1:]
	}
	return r.of
}

func (g *GitHub) run(r *run) map[string]any {
	event := "push"
	if r.fork {
		event = "pull_request"
	}
	return map[string]any{
		"id": r.id, "name": "CI", "event": event, "status": r.status(), "conclusion": nil, "created_at": r.at.UTC().Format(time.RFC3339),
		"html_url": fmt.Sprintf("https://github.example/%s/actions/runs/%d", r.of, r.id), "repository": repository(r.of), "head_repository": repository(r.head()),
	}
}

func (g *GitHub) job(r *run, j *Job) map[string]any {
	var runner any
	if j.Runner != "" {
		runner = j.Runner
	}
	return map[string]any{
		"id": j.ID, "run_id": r.id, "status": j.Status, "conclusion": nil, "name": "build", "workflow_name": "CI", "labels": j.Labels, "runner_name": runner,
		"html_url": fmt.Sprintf("https://github.example/%s/actions/runs/%d/job/%d", r.of, r.id, j.ID), "created_at": r.at.UTC().Format(time.RFC3339),
	}
}

// paged returns the part of a list that per_page and page select.
func paged[T any](r *http.Request, all []T) []T {
	per, _ := strconv.Atoi(r.URL.Query().Get("per_page"))
	n, _ := strconv.Atoi(r.URL.Query().Get("page"))
	if per < 1 || per > 100 {
		per = 30
	}
	from := min(max(n-1, 0)*per, len(all))
	part := all[from:min(from+per, len(all))]
	if part == nil {
		part = []T{}
	}
	return part
}

func of(r *http.Request) string { return r.PathValue("owner") + "/" + r.PathValue("repo") }

func scope(r *http.Request) string {
	if r.PathValue("repo") == "" {
		return "orgs/" + r.PathValue("owner")
	}
	return "repos/" + of(r)
}

func (g *GitHub) listRuns(w http.ResponseWriter, r *http.Request) {
	all := []any{}
	for _, run := range slices.Backward(g.runs) { // newest first
		if run.of == of(r) && run.status() == r.URL.Query().Get("status") {
			all = append(all, g.run(run))
		}
	}
	answer(w, r, map[string]any{"total_count": len(all), "workflow_runs": paged(r, all)})
}

func (g *GitHub) byID(r *http.Request) *run {
	for _, run := range g.runs {
		if run.of == of(r) && strconv.FormatInt(run.id, 10) == r.PathValue("id") {
			return run
		}
	}
	return nil
}

func (g *GitHub) showRun(w http.ResponseWriter, r *http.Request) {
	if run := g.byID(r); run != nil {
		answer(w, r, g.run(run))
		return
	}
	g.fail(w, r, http.StatusNotFound, "Not Found")
}

func (g *GitHub) listJobs(w http.ResponseWriter, r *http.Request) {
	run := g.byID(r)
	if run == nil {
		g.fail(w, r, http.StatusNotFound, "Not Found")
		return
	}
	all := []any{}
	for _, j := range run.jobs {
		all = append(all, g.job(run, j))
	}
	answer(w, r, map[string]any{"total_count": len(all), "jobs": paged(r, all)})
}

func (g *GitHub) showJob(w http.ResponseWriter, r *http.Request) {
	for _, run := range g.runs {
		for _, j := range run.jobs {
			if run.of == of(r) && strconv.FormatInt(j.ID, 10) == r.PathValue("id") {
				answer(w, r, g.job(run, j))
				return
			}
		}
	}
	g.fail(w, r, http.StatusNotFound, "Not Found")
}

func (g *GitHub) repositories(w http.ResponseWriter, r *http.Request) {
	all := []any{}
	for _, run := range slices.Backward(g.runs) {
		if one := repository(run.of); !slices.ContainsFunc(all, func(a any) bool { return a.(map[string]any)["full_name"] == run.of }) {
			all = append(all, one)
		}
	}
	if strings.HasPrefix(r.URL.Path, "/orgs/") {
		answer(w, r, paged(r, all))
		return
	}
	answer(w, r, map[string]any{"total_count": len(all), "repositories": paged(r, all)})
}

func (g *GitHub) groups(w http.ResponseWriter, r *http.Request) {
	all := []any{
		map[string]any{"id": 1, "name": "Default", "default": true}, map[string]any{"id": 2, "name": "GitHub", "default": false},
		map[string]any{"id": Group, "name": GroupName, "default": false},
	}
	answer(w, r, map[string]any{"total_count": len(all), "runner_groups": paged(r, all)})
}

func (g *GitHub) installation(w http.ResponseWriter, r *http.Request) {
	answer(w, r, map[string]any{"id": Installation, "app_id": App})
}

func (g *GitHub) token(w http.ResponseWriter, r *http.Request) {
	if r.PathValue("id") != strconv.Itoa(Installation) {
		g.fail(w, r, http.StatusNotFound, "Not Found")
		return
	}
	key := "ghs_" + rand.Text()
	g.tokens = append(g.tokens, key)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"token": key, "expires_at": time.Now().Add(time.Hour).UTC().Format(time.RFC3339)})
}

func (g *GitHub) listRunners(w http.ResponseWriter, r *http.Request) {
	all := []any{}
	for _, one := range g.runners {
		if name := r.URL.Query().Get("name"); one.Scope == scope(r) && !one.removed && (name == "" || name == one.Name) {
			all = append(all, one.json())
		}
	}
	answer(w, r, map[string]any{"total_count": len(all), "runners": paged(r, all)})
}

func (r *Runner) json() any {
	status := "offline"
	if r.Online {
		status = "online"
	}
	return map[string]any{"id": r.ID, "name": r.Name, "os": "linux", "status": status, "busy": r.Busy, "labels": []any{}}
}

func (g *GitHub) generate(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Name   string   `json:"name"`
		Group  *int64   `json:"runner_group_id"`
		Labels []string `json:"labels"`
		Folder string   `json:"work_folder"`
	}
	err := json.NewDecoder(r.Body).Decode(&asked)
	switch {
	case err != nil || asked.Name == "" || len(asked.Name) > 64 || len(asked.Labels) < 1 || len(asked.Labels) > 100:
		g.fail(w, r, http.StatusUnprocessableEntity, "Invalid request")
		return
	case asked.Group == nil:
		g.fail(w, r, http.StatusUnprocessableEntity, "Invalid input: object is missing required key: runner_group_id")
		return
	case *asked.Group == 2:
		g.fail(w, r, http.StatusForbidden, "Resource not accessible by integration")
		return
	case *asked.Group != 1 && *asked.Group != Group:
		g.fail(w, r, http.StatusNotFound, "Not Found")
		return
	}
	for _, one := range g.runners {
		if one.Name == asked.Name && one.Scope == scope(r) && !one.removed {
			g.fail(w, r, http.StatusConflict, "Already exists - A runner with the name "+asked.Name+" already exists.")
			return
		}
	}
	one := &Runner{ID: g.id(), Name: asked.Name, Scope: scope(r), Labels: asked.Labels, secret: rand.Text()}
	g.runners = append(g.runners, one)
	g.change()
	config, _ := json.Marshal(map[string]string{"url": g.URL, "secret": one.secret}) // strings can always be encoded
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(map[string]any{"runner": one.json(), "encoded_jit_config": base64.StdEncoding.EncodeToString(config)})
}

func (g *GitHub) remove(w http.ResponseWriter, r *http.Request) {
	for _, one := range g.runners {
		if strconv.FormatInt(one.ID, 10) != r.PathValue("id") || one.Scope != scope(r) || one.removed {
			continue
		}
		if one.Busy {
			g.fail(w, r, http.StatusUnprocessableEntity, "Bad request - Runner "+strconv.Quote(one.Name)+" is still running a job")
			return
		}
		one.removed = true
		g.change()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	g.fail(w, r, http.StatusNotFound, "Not Found")
}

// The runners' side.

func (g *GitHub) runner(r *http.Request) *Runner {
	config, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	data, _ := base64.StdEncoding.DecodeString(config)
	var c map[string]string
	_ = json.Unmarshal(data, &c) // without one, no secret matches
	for _, one := range g.runners {
		if one.secret == c["secret"] && !one.removed {
			return one
		}
	}
	return nil
}

// event returns the payload of the event that started a run: "Webhook events and payloads".
func event(r *run) map[string]any {
	if !r.fork {
		return map[string]any{"ref": "refs/heads/main", "repository": repository(r.of)}
	}
	return map[string]any{"action": "opened", "repository": repository(r.of), "pull_request": map[string]any{
		"head": map[string]any{"repo": repository(r.head())}, "base": map[string]any{"repo": repository(r.of)},
	}}
}

// take waits for a job for which the runner has all labels, the oldest first. It answers with the job's
// ID, its repository and the event that started it, each on a line.
func (g *GitHub) take(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.runner(r)
	for ; one != nil && !one.removed; g.wait(r) {
		if r.Context().Err() != nil {
			one.Online = false
			return
		}
		one.Online = true
		for _, run := range g.runs {
			for _, j := range run.jobs {
				fits := one.Scope == "orgs/"+strings.Split(run.of, "/")[0] || one.Scope == "repos/"+run.of
				if j.Status == "queued" && fits && !slices.ContainsFunc(j.Labels, func(l string) bool { return !slices.Contains(one.Labels, l) }) {
					j.Status, j.Runner, one.Busy = "in_progress", one.Name, true
					j.Attempts++
					g.change()
					started := *j
					g.hooks.Go(func() { g.tell("in_progress", run, started) })
					event, _ := json.Marshal(event(run)) // strings can always be encoded
					fmt.Fprintf(w, "%d\n%s\n%s\n", j.ID, run.of, event)
					return
				}
			}
		}
	}
	w.WriteHeader(http.StatusUnauthorized)
}

func (g *GitHub) wait(r *http.Request) {
	changed := g.changed
	g.mu.Unlock()
	select {
	case <-changed:
	case <-r.Context().Done():
	}
	g.mu.Lock()
}

// done ends a runner's job and removes its registration.
func (g *GitHub) done(w http.ResponseWriter, r *http.Request) {
	said, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	g.mu.Lock()
	defer g.mu.Unlock()
	one := g.runner(r)
	if one == nil {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	for _, run := range g.runs {
		for _, j := range run.jobs {
			if j.Runner != one.Name || j.Status != "in_progress" {
				continue
			}
			if j.stays {
				fmt.Fprintln(w, "goes on")
				return
			}
			j.Status, j.Said = "completed", string(said)
			ended := *j
			g.hooks.Go(func() { g.tell("completed", run, ended) })
		}
	}
	one.removed = true
	g.change()
}
