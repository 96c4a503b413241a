package job_test

import (
	"errors"
	"strings"
	"testing"

	"linus/internal/job"
)

// What a queue of others says is bounded and printable before it is stored.
func TestSession_Check(t *testing.T) {
	t.Parallel()
	well := func() job.Session {
		return job.Session{Kind: "github", Queue: "o/r", Dispatcher: "here", Name: "linus-1", Work: job.Work{ID: "1", Labels: []string{"linux"}, Of: "o/r", Title: "build", URL: "https://example.com/1"}}
	}
	for _, tt := range []struct {
		name, field string
		with        func(s *job.Session)
	}{
		{"well", "", func(*job.Session) {}},
		{"no kind", "session.kind", func(s *job.Session) { s.Kind = "" }},
		{"a queue's name of two lines", "session.queue", func(s *job.Session) { s.Queue = "a\nb" }},
		{"no work", "session.work.id", func(s *job.Session) { s.Work.ID = "" }},
		{"an ID that no label can have", "session.work.id", func(s *job.Session) { s.Work.ID = strings.Repeat("x", 64) }},
		{"too many labels", "session.work.labels", func(s *job.Session) { s.Work.Labels = make([]string, 51) }},
		{"a URL of a script", "session.work.url", func(s *job.Session) { s.Work.URL = "javascript:alert(1)" }},
		{"a title with an escape", "session.work.title", func(s *job.Session) { s.Work.Title = "\x1b[2J" }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := well()
			tt.with(&s)
			err := job.Submission{Session: &s, Principal: job.Operator()}.CheckSession()
			bad, is := errors.AsType[*job.FieldError](err)
			if tt.field == "" && err != nil || tt.field != "" && (!is || bad.Field != tt.field) {
				t.Errorf("it is refused with %v", err)
			}
			w := s.Work.Presentable()
			w.ID, w.Labels = "1", nil
			if err := w.Check(); err != nil {
				t.Errorf("presentable, it is refused: %v", err)
			}
		})
	}
	s := well()
	narrow := job.Principal{Name: "a", Role: job.RoleRun, Toolsets: []string{"exec"}}
	if err := (job.Submission{Session: &s, Principal: narrow}).CheckSession(); !errors.Is(err, job.ErrNotAllowed) {
		t.Errorf("a token for exec alone: %v", err)
	}
	if err := (job.Submission{Principal: narrow}).CheckSession(); err != nil {
		t.Errorf("no session: %v", err)
	}
	if err := (job.Submission{Session: &s}).CheckVM(); err == nil {
		t.Error("a VM that stays is no session")
	}
}
