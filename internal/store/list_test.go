package store

import (
	"encoding/base64"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func list(t *testing.T, s *Store, f job.Filter) job.Page {
	t.Helper()
	p, err := s.List(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// pages walks all pages and returns the jobs' IDs.
func pages(t *testing.T, s *Store, f job.Filter) (ids []string, count int) {
	t.Helper()
	for {
		p := list(t, s, f)
		count++
		for _, j := range p.Jobs {
			ids = append(ids, j.ID)
		}
		if p.Next == "" {
			return ids, count
		}
		f.Cursor = p.Next
	}
}

func TestList_Empty(t *testing.T) {
	p := list(t, newStore(t), job.Filter{})
	if len(p.Jobs) != 0 || p.Next != "" {
		t.Errorf("got %+v", p)
	}
}

func TestList_SummaryOfAJob(t *testing.T) {
	s := newStore(t)
	j := newJob(strings.Repeat("ü", 150))
	j.Kind, j.Client = job.KindTask, "mcp:x"
	insert(t, s, j)
	want := job.Summary{
		ID: j.ID, Kind: job.KindTask, Client: "mcp:x", Status: job.Pending, Task: strings.Repeat("ü", 100), CreatedAt: j.CreatedAt,
	}
	diff(t, job.Page{Jobs: []job.Summary{want}}, list(t, s, job.Filter{}))

	v := vm.VM{ID: 105, Name: "linus-job-1", Node: "pve2", IP: "10.0.0.5", HostKey: "ssh-ed25519 A", Job: j.ID, Owner: "o", State: vm.Created}
	change := func(f func(*job.Job)) {
		update(t, s, j.ID, func(j *job.Job) ([]job.Event, error) { f(j); return nil, nil })
	}
	change(func(j *job.Job) { j.Status, j.Phase, j.VM = job.Provisioning, "provision", &v })
	want.Status, want.Phase, want.VM = job.Provisioning, "provision", &job.SummaryVM{ID: 105, Name: "linus-job-1", Node: "pve2", State: vm.Created}
	diff(t, job.Page{Jobs: []job.Summary{want}}, list(t, s, job.Filter{}))

	// Ended, it is in its last phase until its VM is gone.
	ended := j.CreatedAt.Add(time.Minute)
	change(func(j *job.Job) { j.Status, j.Phase, j.CompletedAt = job.Failed, "destroy", ended })
	want.Status, want.Phase, want.CompletedAt = job.Failed, "destroy", ended
	diff(t, job.Page{Jobs: []job.Summary{want}}, list(t, s, job.Filter{}))
	v.State = vm.Destroyed
	change(func(j *job.Job) { j.VM = &v })
	want.Phase, want.VM.State = "", vm.Destroyed
	diff(t, job.Page{Jobs: []job.Summary{want}}, list(t, s, job.Filter{}))

	// How it ended is told as the job tells it.
	code := 3
	want.Outcome = &job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, ExitCode: &code, At: ended}
	want.Reason = job.ReasonExitStatus
	change(func(j *job.Job) { j.Outcome = want.Outcome })
	diff(t, job.Page{Jobs: []job.Summary{want}}, list(t, s, job.Filter{}))
}

func TestList_PagesNewestFirst(t *testing.T) {
	s := newStore(t)
	var all, failed []string
	for i := range 10 {
		j := newJob("echo")
		if i%3 == 0 {
			j.Status = job.Failed
			failed = append(failed, j.ID)
		}
		all = append(all, insert(t, s, j).ID)
	}
	oldest, oldestFailed := slices.Clone(all), slices.Clone(failed)
	slices.Reverse(all)
	slices.Reverse(failed)
	tests := []struct {
		name   string
		filter job.Filter
		want   []string
		pages  int
	}{
		{"default limit", job.Filter{}, all, 1},
		{"uneven pages", job.Filter{Limit: 3}, all, 4},
		{"even pages", job.Filter{Limit: 5}, all, 2},
		{"exactly one page", job.Filter{Limit: 10}, all, 1},
		{"one by one", job.Filter{Limit: 1}, all, 10},
		{"by status", job.Filter{Status: job.Failed, Limit: 3}, failed, 2},
		{"oldest first", job.Filter{Sort: "created_at", Limit: 3}, oldest, 4},
		{"oldest first, by status", job.Filter{Sort: "created_at", Status: job.Failed, Limit: 3}, oldestFailed, 2},
		{"newest first, as asked", job.Filter{Sort: "-created_at", Limit: 5}, all, 2},
		{"status that none has", job.Filter{Status: job.Timeout}, nil, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, n := pages(t, s, tt.filter)
			diff(t, tt.want, got)
			if n != tt.pages {
				t.Errorf("%d pages, want %d", n, tt.pages)
			}
		})
	}
}

func TestList_NewJobsDoNotMoveThePages(t *testing.T) {
	s := newStore(t)
	var ids []string
	for range 4 {
		ids = append(ids, insert(t, s, newJob("echo")).ID)
	}
	first := list(t, s, job.Filter{Limit: 2})
	insert(t, s, newJob("echo"))
	second := list(t, s, job.Filter{Limit: 2, Cursor: first.Next})
	if len(second.Jobs) != 2 || second.Jobs[0].ID != ids[1] || second.Jobs[1].ID != ids[0] || second.Next != "" {
		t.Errorf("second page %+v of %q", second, ids)
	}
}

func TestList_NamesWhatIsWrong(t *testing.T) {
	s := newStore(t)
	id := insert(t, s, newJob("echo")).ID
	tests := []struct {
		name   string
		filter job.Filter
		field  string
		says   string
	}{
		{"unknown status", job.Filter{Status: "done"}, "status", "pending, provisioning, running, success, failed, timeout"},
		{"negative limit", job.Filter{Limit: -1}, "limit", "1 to 200"},
		{"limit too large", job.Filter{Limit: 201}, "limit", "1 to 200"},
		{"cursor is no base64", job.Filter{Cursor: "!!"}, "cursor", "next_cursor"},
		{"cursor is a job's ID", job.Filter{Cursor: id}, "cursor", "next_cursor"},
		{"cursor without its prefix", job.Filter{Cursor: base64.RawURLEncoding.EncodeToString([]byte(id))}, "cursor", "next_cursor"},
		{"cursor with something else", job.Filter{Cursor: encodeCursor(job.Filter{}, "zzz")}, "cursor", "next_cursor"},
		{"cursor of the other order", job.Filter{Sort: "created_at", Cursor: encodeCursor(job.Filter{}, id)}, "cursor", "with the same sort"},
		{"unknown order", job.Filter{Sort: "task"}, "sort", "created_at"},
		{"cursor cut short", job.Filter{Cursor: encodeCursor(job.Filter{}, id)[:20]}, "cursor", "next_cursor"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := s.List(t.Context(), tt.filter)
			var bad *job.FieldError
			if !errors.As(err, &bad) || bad.Field != tt.field || !strings.Contains(bad.Error(), tt.says) {
				t.Errorf("got %v", err)
			}
		})
	}
	for _, limit := range []int{1, 200} {
		list(t, s, job.Filter{Limit: limit})
	}
}

// Counts are of all jobs that somebody has, whatever else is asked for, and end at a bound.
func TestList_CountsByStatus(t *testing.T) {
	s := newStore(t)
	for i, j := range []struct {
		status    job.Status
		principal string
	}{{job.Success, ""}, {job.Success, "ann"}, {job.Failed, "ann"}, {job.Running, "bob"}, {job.Pending, ""}, {job.Pending, "ann"}} {
		made := newJob("task " + strings.Repeat("x", i))
		made.Kind, made.Status, made.Principal = job.KindTask, j.status, j.principal
		insert(t, s, made)
	}
	for principal, want := range map[string]map[job.Status]int{
		"":               {job.Pending: 2, job.Provisioning: 0, job.Running: 1, job.Success: 2, job.Failed: 1, job.Timeout: 0},
		"ann":            {job.Pending: 1, job.Success: 1, job.Failed: 1},
		job.OperatorName: {job.Pending: 1, job.Success: 1},
		"nobody":         {},
	} {
		p := list(t, s, job.Filter{Principal: principal, Status: job.Failed, Text: "none of them", Counts: true})
		diff(t, want, p.Counts)
	}
	if p := list(t, s, job.Filter{}); p.Counts != nil {
		t.Errorf("counted without being asked: %v", p.Counts)
	}
}
