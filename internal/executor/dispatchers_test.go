package executor_test

import (
	"errors"
	"testing"

	"linus/internal/executor"
	"linus/internal/job"
)

// A principal's dispatchers and sessions are its own: nobody else sees or drains them, and none of its
// tokens makes them that was not given the toolset for it, whatever else that may.
func TestDispatchers_BelongToTheirPrincipal(t *testing.T) {
	r := newRig(t, 1)
	e := executor.Guarded(r.Executor)
	alice := job.WithPrincipal(t.Context(), job.Principal{Name: "alice", Role: job.RoleRun, Toolsets: []string{"jobs", "files", "dispatch"}})
	bob, root := as(t, "bob", job.RoleRun), as(t, "root", job.RoleAdmin)
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
	if err := e.UndrainDispatcher(bob, "here"); err == nil {
		t.Error("another undoes it")
	}
	if err := e.UndrainDispatcher(alice, "here"); err != nil {
		t.Error(err)
	}
	if got, err := e.ReportDispatcher(alice, d); err != nil || got.Draining {
		t.Errorf("undone: %+v, %v", got, err)
	}
	d.Problem = "two\nlines"
	if _, err := e.ReportDispatcher(alice, d); err == nil {
		t.Error("what cannot be shown is taken")
	}

	s := job.Submission{Manifest: job.Manifest{AgentType: job.AgentScript, Task: "true"}, Session: &job.Session{Kind: "github", Queue: "o/r", Dispatcher: "here", Name: "n", Work: job.Work{ID: "1"}}}
	for name, hostile := range map[string]job.Principal{
		"exec alone":            {Role: job.RoleRun, Toolsets: []string{"exec"}},
		"all that tools do":     {Role: job.RoleRun, Toolsets: job.Toolsets},
		"the same, an admin's":  {Role: job.RoleAdmin, Toolsets: job.Toolsets},
		"nothing in particular": {Role: job.RoleRun},
	} {
		hostile.Name = "alice"
		ctx := job.WithPrincipal(t.Context(), hostile)
		if _, err := e.Submit(ctx, s); !errors.Is(err, job.ErrNotAllowed) {
			t.Errorf("a token of alice's for %s makes a session: %v", name, err)
		}
		if _, err := e.ReportDispatcher(ctx, job.Dispatcher{Queue: "github:o/r", Name: "here"}); !errors.Is(err, job.ErrNotAllowed) {
			t.Errorf("a token of alice's for %s says how the dispatcher is: %v", name, err)
		}
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
