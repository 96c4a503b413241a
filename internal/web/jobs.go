package web

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"linus/internal/job"
)

const (
	pageSize  = 25
	listPause = 2 * time.Second // between reads of the list
)

type jobsView struct {
	Rows    []job.Summary
	Filters []filterLink
	Status  job.Status // only these; empty: all
	Later   bool       // this is not the first page
	First   string     // the address of the first page
	Next    string     // the address of the next page, empty on the last
	Live    string     // the address of the live updates
}

func (jobsView) title() string  { return "Jobs" }
func (v jobsView) goesOn() bool { return true }

type filterLink struct {
	Name, Href string
	Current    bool
}

func jobsFilter(r *http.Request) job.Filter {
	q := r.URL.Query()
	f := job.Filter{Status: job.Status(q.Get("status")), Cursor: q.Get("cursor"), Limit: pageSize}
	if !f.Status.Valid() {
		f.Status = ""
	}
	return f
}

func jobsPath(base string, f job.Filter, cursor string) string {
	q := url.Values{}
	if f.Status != "" {
		q.Set("status", string(f.Status))
	}
	if cursor != "" {
		q.Set("cursor", cursor)
	}
	if len(q) == 0 {
		return base
	}
	return base + "?" + q.Encode()
}

// jobsView returns a page of jobs.
func (p *pages) jobsView(ctx context.Context, f job.Filter) (jobsView, error) {
	page, err := p.Engine.List(ctx, f)
	if err != nil {
		return jobsView{}, err
	}
	v := jobsView{Rows: page.Jobs, Status: f.Status, Later: f.Cursor != "", First: jobsPath("/jobs", f, ""), Live: jobsPath("/jobs/live", f, f.Cursor)}
	if page.Next != "" {
		v.Next = jobsPath("/jobs", f, page.Next)
	}
	for _, status := range append([]job.Status{""}, job.Statuses...) {
		name := string(status)
		if status == "" {
			name = "all"
		}
		v.Filters = append(v.Filters, filterLink{name, jobsPath("/jobs", job.Filter{Status: status}, ""), status == f.Status})
	}
	return v, nil
}

func (p *pages) jobs(w http.ResponseWriter, r *http.Request) {
	v, err := p.jobsView(r.Context(), jobsFilter(r))
	if err != nil {
		p.failed(w, r, err)
		return
	}
	p.render(w, r, http.StatusOK, "jobs", v)
}

func (p *pages) jobsLive(w http.ResponseWriter, r *http.Request) {
	f := jobsFilter(r)
	p.follow(w, r, listPause, func(ctx context.Context, s *stream) (bool, error) {
		v, err := p.jobsView(ctx, f)
		if err != nil {
			return false, err
		}
		html, err := p.fragment("jobs", "list", v)
		if err != nil {
			return false, err
		}
		return true, s.part("list", html)
	})
}
