package store

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
	"linus/internal/vm"
)

// insertUsed stores a job that left the queue ten seconds after it came, and ended an hour later.
func insertUsed(t *testing.T, s *Store, at time.Time, status job.Status, reason job.Reason, change func(*job.Job)) {
	t.Helper()
	j := newJob("true")
	j.CreatedAt, j.Manifest.Resources = at, vm.Resources{CPU: 4, Memory: "8G", Disk: "10G"}
	change(&j)
	insert(t, s, j)
	for _, next := range []job.Status{job.Provisioning, job.Running, status} {
		_, err := s.Update(t.Context(), j.ID, func(now *job.Job) (with job.Record, err error) {
			switch now.Status = next; next {
			case job.Provisioning:
				with.Events = []job.Event{{At: at.Add(10 * time.Second), Kind: job.EventPhaseStarted, Phase: job.PhaseProvision}}
			case status:
				now.Outcome, now.CompletedAt = &job.Outcome{Status: status, Reason: reason}, at.Add(time.Hour+10*time.Second)
			}
			return with, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// What was used stays what it was when jobs are removed, but by labels.
func TestUsage_OutlastsTheJobs(t *testing.T) {
	s := newStore(t)
	at := time.Now().UTC().Add(-2 * time.Hour)
	team := func(name string) func(*job.Job) {
		return func(j *job.Job) { j.Principal, j.Manifest.Labels = "ci", map[string]string{"team": name} }
	}
	insertUsed(t, s, at, job.Success, job.ReasonExitStatus, team("a"))
	insertUsed(t, s, at, job.Failed, job.ReasonExitStatus, team("b"))
	insertUsed(t, s, at, job.Failed, job.ReasonLost, func(j *job.Job) {
		j.Session = &job.Session{Kind: "github", Queue: "acme", Work: job.Work{Of: "acme/app"}}
	})
	insertUsed(t, s, at, job.Success, job.ReasonExitStatus, func(j *job.Job) { j.Manifest.VM = "dev" }) // which it shares
	insert(t, s, newJob("waits"))
	told := func(by, principal string) map[string]job.Usage {
		t.Helper()
		groups, err := s.Usage(t.Context(), job.UsageQuery{By: by, Principal: principal, Since: at.Add(-time.Minute)}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]job.Usage{}
		for of, used := range groups {
			all[of] = used.Told(of)
		}
		return all
	}
	before := told("", "")
	p := before[""].QueueP50
	if p < 9.4 || p > 10.6 {
		t.Errorf("half of the jobs waited %v s at most, and it were 10", p)
	}
	want := job.Usage{Jobs: 5, VMHours: 3, CPUHours: 12, GiBHours: 24, QueueP50: p, QueueP95: p, Failed: map[job.Reason]int{job.ReasonExitStatus: 1, job.ReasonLost: 1}}
	if diff := cmp.Diff(want, before[""]); diff != "" {
		t.Fatal(diff)
	}
	ci, operator, repositories := told("principal", "ci"), told("principal", job.OperatorName), told("repository", "")
	if len(ci) != 1 || ci["ci"].Jobs != 2 || len(operator) != 1 || operator[job.OperatorName].Jobs != 3 || len(repositories) != 2 || repositories["acme/app"].VMHours != 1 {
		t.Errorf("%+v, %+v, %+v", ci, operator, repositories)
	}
	if teams := told("label=team", "ci"); len(teams) != 2 || teams["b"].Failed[job.ReasonExitStatus] != 1 {
		t.Errorf("%+v", teams)
	}
	for range 2 { // the second time there is nothing left
		if _, err := s.Forget(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := s.List(t.Context(), job.Filter{}); err != nil || len(page.Jobs) != 1 {
		t.Fatalf("%d jobs are left, %v", len(page.Jobs), err)
	}
	for what, diff := range map[string]string{
		"all": cmp.Diff(before, told("", "")), "a principal's": cmp.Diff(ci, told("principal", "ci")), "repositories'": cmp.Diff(repositories, told("repository", "")),
	} {
		if diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
	if teams := told("label=team", "ci"); len(teams) != 1 || teams[""].Jobs != 2 {
		t.Errorf("of removed jobs: %+v", teams)
	}
	later, err := s.Usage(t.Context(), job.UsageQuery{Since: at.Add(48 * time.Hour)}, time.Now())
	if err != nil || len(later) != 0 {
		t.Errorf("of later days: %v, %v", later, err)
	}
}
