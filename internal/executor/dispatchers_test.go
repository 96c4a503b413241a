package executor_test

import (
	"errors"
	"testing"

	"linus/internal/executor"
	"linus/internal/job"
)

// A principal's dispatchers and sessions are its own: nobody else sees or drains them, and a token
// without the toolset of jobs makes none.
func TestDispatchers_BelongToTheirPrincipal(t *testing.T) {
	r := newRig(t, 1)
	e := executor.Guarded(r.Executor)
	alice, bob, root := as(t, "alice", job.RoleRun), as(t, "bob", job.RoleRun), as(t, "root", job.RoleAdmin)
	d := job.Dispatcher{Queue: "github:o/r", Name: "here", Principal: "bob"}
	if got, err := e.ReportDispatcher(alice, d); err != nil || got.Draining {
		t.Fatalf("%+v, %v", got, err)
	}
	if all, err := e.Dispatchers(bob); err != nil || len(all) != 0 {
		t.Errorf("another sees %+v, %v", all, err)
	}
	if all, err := e.Dispatchers(root); err != nil || len(all) != 1 || all[0].Principal != "alice" {
		t.Errorf("an admin sees %+v, %v", all, err)
	}
	if err := e.DrainDispatcher(bob, "here"); err == nil {
		t.Error("another drains it")
	}
	if err := e.DrainDispatcher(alice, "here"); err != nil {
		t.Error(err)
	}
	if got, err := e.ReportDispatcher(alice, d); err != nil || !got.Draining {
		t.Errorf("drained: %+v, %v", got, err)
	}
	d.Problem = "two\nlines"
	if _, err := e.ReportDispatcher(alice, d); err == nil {
		t.Error("what cannot be shown is taken")
	}

	s := job.Submission{Manifest: job.Manifest{AgentType: job.AgentScript, Task: "true"}, Session: &job.Session{Kind: "github", Queue: "o/r", Dispatcher: "here", Name: "n", Work: job.Work{ID: "1"}}}
	narrow := job.WithPrincipal(t.Context(), job.Principal{Name: "alice", Role: job.RoleRun, Toolsets: []string{"exec"}})
	if _, err := e.Submit(narrow, s); !errors.Is(err, job.ErrNotAllowed) {
		t.Errorf("a token for exec alone: %v", err)
	}
	j, err := e.Submit(alice, s)
	if err != nil || j.Session == nil || j.Session.Work.ID != "1" {
		t.Fatalf("%+v, %v", j.Session, err)
	}
	if _, err := e.Submit(alice, s); err == nil {
		t.Error("the work has two sessions")
	}
	if page, err := e.List(bob, job.Filter{Queue: "github", Dispatcher: "here"}); err != nil || len(page.Jobs) != 0 {
		t.Errorf("another sees %+v, %v", page.Jobs, err)
	}
	if page, err := e.List(alice, job.Filter{Queue: "github", Dispatcher: "here"}); err != nil || len(page.Jobs) != 1 || page.Jobs[0].Session == nil {
		t.Errorf("its own: %+v, %v", page.Jobs, err)
	}
}
