package web

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/job"
)

const (
	pageSize  = 25
	listPause = 2 * time.Second // between reads of the list
)

type jobsView struct {
	viewer

	Rows    []job.Summary
	Filters []filterLink
	Query   jobsQuery
	Reasons []job.Reason
	Spans   []timeSpan
	Found   bool   // it is a search, or a filter
	Later   bool   // this is not the first page
	First   string // the address of the first page
	Next    string // the address of the next page, empty on the last
	Live    string // the address of the live updates
}

func (jobsView) title() string  { return "Jobs" }
func (v jobsView) goesOn() bool { return true }

type filterLink struct {
	Name, Href string
	Current    bool
	Count      string // number of jobs; empty: a search does not count
}

// timeSpan is a choice of how far back a list goes.
type timeSpan struct{ Name, Value string }

var timeSpans = []timeSpan{{"any time", ""}, {"the last hour", "1h"}, {"the last day", "24h"}, {"the last week", "168h"}, {"the last 30 days", "720h"}}

// jobsQuery holds the parameters of a list's address, as text.
type jobsQuery struct {
	Status, Reason, Client, Owner, Text string
	Since, Before                       string // a time, or how long ago
	cursor                              string
}

func readQuery(r *http.Request) jobsQuery {
	get := r.URL.Query().Get
	q := jobsQuery{get("status"), get("reason"), strings.TrimSpace(get("client")), strings.TrimSpace(get("owner")), strings.TrimSpace(get("text")), get("since"), get("before"), get("cursor")}
	if !job.Status(q.Status).Valid() {
		q.Status = ""
	}
	return q
}

func (q jobsQuery) filter() (f job.Filter, err error) {
	f = job.Filter{
		Status: job.Status(q.Status), Reason: job.Reason(q.Reason), Client: q.Client, Principal: q.Owner, Text: q.Text,
		Cursor: q.cursor, Limit: pageSize, Counts: !q.More(),
	}
	if f.Since, err = job.ParseTime("since", q.Since); err == nil {
		f.Before, err = job.ParseTime("before", q.Before)
	}
	return f, err
}

// at returns the address of the query below base, starting at a cursor.
func (q jobsQuery) at(base, cursor string) string {
	values := url.Values{}
	for _, p := range []struct{ name, value string }{
		{"status", q.Status}, {"reason", q.Reason}, {"client", q.Client}, {"owner", q.Owner}, {"text", q.Text},
		{"since", q.Since}, {"before", q.Before}, {"cursor", cursor},
	} {
		if p.value != "" {
			values.Set(p.name, p.value)
		}
	}
	if len(values) == 0 {
		return base
	}
	return base + "?" + values.Encode()
}

// More reports whether the query filters by more than the status.
func (q jobsQuery) More() bool {
	q.Status, q.cursor = "", ""
	return q != jobsQuery{}
}

// Between returns the query's time range as text, or "" if it is one of timeSpans.
func (q jobsQuery) Between() string {
	known := slices.ContainsFunc(timeSpans, func(s timeSpan) bool { return s.Value == q.Since })
	switch {
	case known && q.Before == "":
		return ""
	case q.Before == "":
		return "since " + q.Since
	case q.Since == "":
		return "before " + q.Before
	}
	return q.Since + " to " + q.Before
}

// jobsView returns the page of jobs that the request asks for.
func (p *pages) jobsView(r *http.Request) (jobsView, error) {
	q := readQuery(r)
	f, err := q.filter()
	if err != nil {
		return jobsView{}, err
	}
	page, err := p.Engine.List(r.Context(), f)
	if err != nil {
		return jobsView{}, err
	}
	v := jobsView{
		Rows: page.Jobs, Query: q, Reasons: job.Reasons, Spans: timeSpans, Found: q.Status != "" || q.More(), Later: q.cursor != "",
		First: q.at("/jobs", ""), Live: q.at("/jobs/live", q.cursor),
	}
	if page.Next != "" {
		v.Next = q.at("/jobs", page.Next)
	}
	for _, status := range append([]job.Status{""}, job.Statuses...) {
		other := q
		other.Status = string(status)
		v.Filters = append(v.Filters, filterLink{cmp.Or(string(status), "all"), other.at("/jobs", ""), other.Status == q.Status, countText(page.Counts, status)})
	}
	return v, nil
}

// countText returns how many jobs have a status, or how many there are if status is empty. It
// returns "" if the jobs were not counted.
func countText(counts map[job.Status]int, status job.Status) string {
	if counts == nil {
		return ""
	}
	n, more := 0, ""
	for of, some := range counts {
		if status == "" || of == status {
			n += some
		}
		if (status == "" || of == status) && some >= job.MostCounted {
			more = "+"
		}
	}
	return strconv.Itoa(n) + more
}

func (p *pages) jobs(w http.ResponseWriter, r *http.Request) {
	if home := p.viewer(r).Home(); home != "/jobs" { // where logins and many links lead
		http.Redirect(w, r, home, http.StatusSeeOther)
		return
	}
	v, err := p.jobsView(r)
	if err != nil {
		p.failed(w, r, err)
		return
	}
	v.viewer = p.viewer(r)
	p.render(w, r, http.StatusOK, "jobs", v)
}
