package store

import (
	"errors"
	"slices"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/pgtest"
)

// onBoth runs a test on each of the databases.
func onBoth(t *testing.T, test func(t *testing.T, s *Store)) {
	t.Run("sqlite", func(t *testing.T) { test(t, newStore(t)) })
	t.Run("postgres", func(t *testing.T) {
		test(t, openStore(t, Options{Dir: t.TempDir(), URL: pgtest.Database(t), MaxOutput: 100}))
	})
}

// A piece of work has one session that has not ended, of its principal; sessions are found by queue
// and dispatcher, and by nothing that a label says.
func TestSessions_OneForEachPieceOfWork(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		ctx := t.Context()
		session := func(queue, work string) job.Job {
			j := newJob("true")
			j.Session = &job.Session{Kind: "github", Queue: queue, Dispatcher: "here", Name: "n", Work: job.Work{ID: work, Labels: []string{"linux"}, Title: "build"}}
			return j
		}
		one := insert(t, s, session("o/r", "1"))
		_, _, err := s.Insert(ctx, session("o/r", "1"), "a key", job.Limits{})
		if bad, is := errors.AsType[*job.FieldError](err); !is || bad.Field != "session.work" || bad.Fault != job.FaultState {
			t.Errorf("a second session for the work: %v", err)
		}
		others := session("o/r", "1")
		others.Principal = "alice"
		insert(t, s, others)
		two := insert(t, s, session("o/other", "1"))
		labelled := newJob("true")
		labelled.Manifest.Labels = map[string]string{"dispatch/by": "here", "dispatch/queue": "github:o/r"}
		insert(t, s, labelled)

		found := func(f job.Filter) (ids []string) {
			page, err := s.List(ctx, f)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				if j.Session == nil || j.Session.Work.Title != "build" {
					t.Errorf("%+v", j)
				}
				ids = append(ids, j.ID)
			}
			slices.Sort(ids)
			return ids
		}
		if got := found(job.Filter{Queue: "github:o/r", Dispatcher: "here", Principal: job.OperatorName}); !slices.Equal(got, []string{one.ID}) {
			t.Errorf("of one queue: %v", got)
		}
		if got := found(job.Filter{Queue: "github"}); len(got) != 3 {
			t.Errorf("of a kind: %v", got)
		}
		if got := found(job.Filter{Queue: "git"}); len(got) != 0 {
			t.Errorf("of no kind: %v", got)
		}
		if got, err := s.Job(ctx, two.ID); err != nil || got.Session == nil || got.Session.Queue != "o/other" {
			t.Errorf("%+v, %v", got.Session, err)
		}
		update(t, s, one.ID, func(j *job.Job) ([]job.Event, error) {
			j.Status = job.Failed
			return nil, nil
		})
		insert(t, s, session("o/r", "1")) // again
	})
}

// Dispatchers are known as they say, and drain until that is undone, whoever of a name starts or ends.
func TestDispatchers_AreStored(t *testing.T) {
	onBoth(t, func(t *testing.T, s *Store) {
		ctx, started := t.Context(), time.Now().UTC().Truncate(time.Second)
		d := job.Dispatcher{Queue: "github:o/r", Name: "here", StartedAt: started, Waiting: 3, Failed: []job.Failing{{Reason: job.ReasonLost, Count: 1}}}
		report := func(want bool) {
			t.Helper()
			if drain, err := s.ReportDispatcher(ctx, d); err != nil || drain != want {
				t.Errorf("drain %t, %v", drain, err)
			}
		}
		report(false)
		alice, operator := "alice", ""
		if n, err := s.DrainDispatcher(ctx, &alice, "here", true); err != nil || n != 0 {
			t.Errorf("another's: %d, %v", n, err)
		}
		if n, err := s.DrainDispatcher(ctx, &operator, "here", true); err != nil || n != 1 {
			t.Errorf("drained %d, %v", n, err)
		}
		report(true)
		all, err := s.Dispatchers(ctx)
		if err != nil || len(all) != 1 || !all[0].Draining || all[0].Waiting != 3 || len(all[0].Failed) != 1 || time.Since(all[0].HeardAt).Abs() > time.Minute {
			t.Errorf("%+v, %v", all, err)
		}
		d.StartedAt = started.Add(time.Minute) // another of the name, or the same that starts again
		report(true)
		d.StartedAt = started
		report(true)
		d.Ended = true // the first of two
		report(false)
		d.StartedAt, d.Ended = started.Add(time.Minute), false
		report(true)
		d.Ended = true // the second
		report(false)
		if err := s.transaction(ctx, func(tx *tx) error {
			tx.post(`UPDATE dispatchers SET heard = heard - ?`, 2*forgetDispatcher)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if all, err := s.Dispatchers(ctx); err != nil || len(all) != 1 || all[0].Status() != "drained" {
			t.Errorf("%+v, %v", all, err)
		}
		d.Ended = false
		report(true)
		if n, err := s.DrainDispatcher(ctx, nil, "here", false); err != nil || n != 1 {
			t.Errorf("undone by an admin: %d, %v", n, err)
		}
		report(false)
		d.Ended = true
		report(false)
		if all, err := s.Dispatchers(ctx); err != nil || len(all) != 0 {
			t.Errorf("%+v, %v", all, err)
		}
		for range job.MaxDispatchers {
			if err := s.transaction(ctx, func(tx *tx) error {
				tx.post(`INSERT INTO dispatchers (principal, queue, name, started, heard, doc) VALUES ('', 'q', ?, '', `+s.dialect.clock()+`, '{}')`, newJob("").ID)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		d.Ended = false
		var over *job.FieldError
		if _, err := s.ReportDispatcher(ctx, d); !errors.As(err, &over) || over.Fault != job.FaultLimit {
			t.Errorf("one too many: %v", err)
		}
	})
}
