package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
)

// idOf makes the ID of a job that was submitted at a time.
func idOf(at time.Time) string {
	id := uuid.Must(uuid.NewV7())
	text := fmt.Sprintf("%012x", at.UnixMilli())
	return text[:8] + "-" + text[8:] + id.String()[13:]
}

// ended adds a job that was submitted at a time and has ended.
func ended(t *testing.T, s *Store, at time.Time, change func(*job.Job)) string {
	t.Helper()
	j := newJob("echo")
	j.ID, j.CreatedAt = idOf(at), at
	j.Status = job.Failed
	change(&j)
	return insert(t, s, j).ID
}

func because(reason job.Reason) func(*job.Job) {
	return func(j *job.Job) {
		j.Outcome = &job.Outcome{Status: job.Failed, Reason: reason}
		j.Status = reason.Statuses()[0]
		j.CompletedAt = j.CreatedAt
	}
}

func TestList_SearchesAndFilters(t *testing.T) {
	s := newStore(t)
	noon := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return noon.Add(time.Duration(minutes) * time.Minute) }
	task := func(text string) func(*job.Job) { return func(j *job.Job) { j.Manifest.Task = text } }
	ids := map[string]string{
		"lost":    ended(t, s, at(0), because(job.ReasonLost)),
		"exit":    ended(t, s, at(1), because(job.ReasonExitStatus)),
		"timeout": ended(t, s, at(2), because(job.ReasonTimeout)),
		"gemini": ended(t, s, at(3), func(j *job.Job) {
			j.Client, j.Principal, j.Manifest.Labels = "mcp:gemini", "alice", map[string]string{"team": "web", "x.y/z": `"} ü`}
		}),
		"percent": ended(t, s, at(4), task("Build 100%_done \\o/")),
		"other":   ended(t, s, at(5), task("build 100 doned")),
	}
	tests := []struct {
		name   string
		filter job.Filter
		want   string // newest first
	}{
		{"reason", job.Filter{Reason: job.ReasonLost}, "lost"},
		{"reason that several statuses have", job.Filter{Reason: job.ReasonExitStatus}, "exit"},
		{"reason of a time limit", job.Filter{Reason: job.ReasonTimeout}, "timeout"},
		{"reason that the status has not", job.Filter{Reason: job.ReasonTimeout, Status: job.Failed}, ""},
		{"client", job.Filter{Client: "mcp:gemini"}, "gemini"},
		{"label", job.Filter{Label: []string{"team=web"}}, "gemini"},
		{"labels", job.Filter{Label: []string{`x.y/z="} ü`, "team=web"}}, "gemini"},
		{"labels, not all", job.Filter{Label: []string{"team=web", "status=failed"}}, ""},
		{"client in part", job.Filter{Client: "mcp"}, ""},
		{"owner", job.Filter{Principal: "alice"}, "gemini"},
		{"owner and reason", job.Filter{Principal: "alice", Reason: job.ReasonLost}, ""},
		{"text in any case", job.Filter{Text: "BUILD"}, "other percent"},
		{"text is no pattern", job.Filter{Text: "0%_d"}, "percent"},
		{"text with a backslash", job.Filter{Text: `\o`}, "percent"},
		{"an ID", job.Filter{Text: strings.ToUpper(ids["lost"])}, "lost"},
		{"the end of an ID", job.Filter{Text: ids["exit"][24:]}, "exit"},
		{"since", job.Filter{Since: at(4)}, "other percent"},
		{"before", job.Filter{Before: at(1)}, "lost"},
		{"between", job.Filter{Since: at(1), Before: at(3), Status: job.Timeout}, "timeout"},
		{"long ago", job.Filter{Before: time.Unix(-5, 0)}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, limit := range []int{0, 1} {
				tt.filter.Limit = limit
				got, _ := pages(t, s, tt.filter)
				var want []string
				for _, name := range strings.Fields(tt.want) {
					want = append(want, ids[name])
				}
				diff(t, want, got)
			}
		})
	}
	if p := list(t, s, job.Filter{Reason: job.ReasonLost}); p.Jobs[0].Reason != job.ReasonLost {
		t.Errorf("the reason is not listed: %+v", p.Jobs[0])
	}
	if p := list(t, s, job.Filter{Client: "mcp:gemini"}); p.Jobs[0].Labels["team"] != "web" {
		t.Errorf("labels are not listed: %+v", p.Jobs[0])
	}
	for name, bad := range map[string]job.Filter{
		"label":  {Label: []string{"team"}},
		"reason": {Reason: "tired"}, "text": {Text: strings.Repeat("x", job.MaxSearch+1)}, "client": {Client: "a\x00"},
	} {
		_, err := s.List(t.Context(), bad)
		var field *job.FieldError
		if !errors.As(err, &field) || field.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A page of a search looks at a bounded number of jobs, and the next goes on there.
func TestList_ASearchIsBounded(t *testing.T) {
	s := newStore(t)
	s.searched = 1000
	first := insert(t, s, newJob("a needle")).ID
	for range 2 { // each in a transaction of its own, which has a deadline
		jobsOf(t, s, 0, 525)
	}
	second := insert(t, s, newJob("a needle")).ID
	p := list(t, s, job.Filter{Text: "needle"})
	if len(p.Jobs) != 1 || p.Jobs[0].ID != second || p.Next == "" {
		t.Fatalf("first page %+v, next %q", p.Jobs, p.Next)
	}
	got, count := pages(t, s, job.Filter{Text: "needle"})
	diff(t, []string{second, first}, got)
	if count != 2 {
		t.Errorf("%d pages", count)
	}
	err := s.transaction(t.Context(), func(tx *tx) error {
		_, err := tx.ExecContext(t.Context(), `UPDATE jobs SET principal = 'bob' WHERE client = 'other'`)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		filter job.Filter
		want   []string
		pages  int
	}{
		{"the operator's among another's", job.Filter{Principal: job.OperatorName}, []string{second, first}, 2},
		{"the oldest first", job.Filter{Text: "needle", Sort: "created_at"}, []string{first, second}, 2},
		{"a label that none has, the oldest first", job.Filter{Label: []string{"team=web"}, Sort: "created_at"}, nil, 2},
		{"the operator's of a status that few have", job.Filter{Principal: job.OperatorName, Status: job.Pending}, []string{second, first}, 1},
		{"a principal's of a status", job.Filter{Principal: "bob", Status: job.Success}, nil, 2},
		{"a principal's of a status that few have", job.Filter{Principal: "bob", Status: job.Pending}, nil, 1},
		{"a principal's of no job", job.Filter{Principal: "alice", Status: job.Failed}, nil, 1},
	} {
		got, count := pages(t, s, tt.filter)
		diff(t, tt.want, got)
		if count != tt.pages {
			t.Errorf("%s: %d pages, want %d", tt.name, count, tt.pages)
		}
	}
}

func TestReasons_HaveTheStatusesTheyEndIn(t *testing.T) {
	for _, reason := range job.Reasons {
		if len(reason.Statuses()) == 0 || !slices.ContainsFunc(reason.Statuses(), job.Status.Terminal) {
			t.Errorf("%s: %v", reason, reason.Statuses())
		}
	}
}
