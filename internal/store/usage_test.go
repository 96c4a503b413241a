package store

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

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

// vmHours are the VM hours of each group as of some hours from now.
func vmHours(t *testing.T, s *Store, by string, since time.Time, hours int) map[string]float64 {
	t.Helper()
	groups, err := s.Usage(t.Context(), job.UsageQuery{By: by, Since: since}, time.Now().Add(time.Duration(hours)*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for of, used := range groups {
		u := used.Told(of)
		all[of] = math.Round(u.VMHours)
		if cpus, gib := math.Round(u.CPUHours), math.Round(u.GiBHours); math.Abs(cpus-2*u.VMHours) > 1 || math.Abs(gib-4*u.VMHours) > 1 {
			t.Errorf("%s: %v hours of 2 processors and 4 GiB are %v and %v", of, u.VMHours, cpus, gib)
		}
	}
	return all
}

// asked is a VM that somebody asks for.
func asked(team string) vm.VM {
	return vm.VM{
		ID: 100, Job: uuid.Must(uuid.NewV7()).String(), State: vm.Reserved, Kept: true, Own: &vm.Own{},
		Made: vm.Made{Lifecycle: vm.Persistent, Template: "ubuntu", Principal: "ci", Resources: vm.Resources{CPU: 2, Memory: "4G"}, Labels: map[string]string{"team": team}},
	}
}

// changed makes changes of a VM, one after the other.
func changed(t *testing.T, s *Store, id string, changes ...func(*vm.VM)) {
	t.Helper()
	for _, change := range changes {
		_, err := s.UpdateVM(t.Context(), id, func(v *vm.VM) ([]job.Event, error) {
			change(v)
			return nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func become(state vm.State) func(*vm.VM) { return func(v *vm.VM) { v.State = state } }

// VMs that no job counts are counted while they run, as far as is known.
func TestUsage_OfVMsThatStay(t *testing.T) {
	s := newStore(t)
	off := func(how vm.Status) func(*vm.VM) { return func(v *vm.VM) { v.Off = how } }
	idle := func(at time.Time) func(*vm.VM) { return func(v *vm.VM) { v.SuspendedAt = at } }
	want := map[string]float64{"a pool's that was given": 3}
	for name, is := range map[string]struct {
		hours   float64 // less than none: it is not told of
		changes []func(*vm.VM)
	}{
		"waits for a node":    {-1, nil},
		"is being made":       {3, []func(*vm.VM){become(vm.Intended)}},
		"runs":                {3, []func(*vm.VM){become(vm.Intended), become(vm.Created)}},
		"stopped":             {0, []func(*vm.VM){become(vm.Intended), become(vm.Created), off(vm.Stopped)}},
		"started again":       {3, []func(*vm.VM){become(vm.Intended), become(vm.Created), off(vm.Stopped), off("")}},
		"idle":                {0, []func(*vm.VM){become(vm.Intended), become(vm.Created), idle(time.Now())}},
		"used again":          {3, []func(*vm.VM){become(vm.Intended), become(vm.Created), idle(time.Now()), idle(time.Time{})}},
		"left alone":          {3, []func(*vm.VM){become(vm.Intended), become(vm.Created), become(vm.LeftAlone)}},
		"forgotten":           {0, []func(*vm.VM){become(vm.Intended), become(vm.LeftAlone), become(vm.Forgotten)}},
		"destroyed":           {0, []func(*vm.VM){become(vm.Intended), become(vm.Created), become(vm.Destroyed)}},
		"a checkpoint's":      {-1, []func(*vm.VM){func(v *vm.VM) { v.Checkpoint = &vm.Checkpoint{} }, become(vm.Intended)}},
		"never could be made": {-1, []func(*vm.VM){become(vm.Destroyed)}},
	} {
		v := asked(name)
		if _, _, err := s.InsertVM(t.Context(), v, "", job.Limits{}); err != nil {
			t.Fatal(err)
		}
		if changed(t, s, v.Job, is.changes...); is.hours >= 0 {
			want[name] = is.hours
		}
	}
	if _, err := s.InsertPool(t.Context(), job.Pool{Name: "p"}); err != nil {
		t.Fatal(err)
	}
	member(t, s, "p", vm.MemberWarm)
	_, _, _, err := s.GiveVM(t.Context(), asked("a pool's that was given"), "", job.Limits{}, []string{"p"}, func(_ string, idle []vm.VM) (int, []job.Event) {
		v := &idle[0]
		v.State, v.Made, v.Member = vm.Intended, asked("a pool's that was given").Made, nil
		return 0, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	since := time.Now().Add(-time.Hour)
	if diff := cmp.Diff(want, vmHours(t, s, "label=team", since, 3)); diff != "" {
		t.Error(diff)
	}
	if got := vmHours(t, s, "principal", since.Add(3*time.Hour), 3); !cmp.Equal(got, map[string]float64{"ci": 6}) {
		t.Errorf("of the last hour of three, in which six run: %v", got)
	}
}

// The VM of a job counts as the job's when that has ended, until it is gone.
func TestUsage_OfAJobsVMThatStays(t *testing.T) {
	s := newStore(t)
	var id string
	insertUsed(t, s, time.Now().UTC().Add(-2*time.Hour), job.Success, job.ReasonExitStatus, func(j *job.Job) {
		id = j.ID
		j.Manifest.Resources, j.Session = asked("").Resources, &job.Session{Kind: "github", Queue: "acme"}
		j.VM = &vm.VM{ID: 100, Job: j.ID, State: vm.Intended, Made: asked("").Made}
	})
	changed(t, s, id, become(vm.Created), func(v *vm.VM) { v.Kept = true })
	for since, want := range map[time.Duration]float64{-3 * time.Hour: 5, time.Hour: 2} { // the job took an hour, an hour ago
		if got := vmHours(t, s, "queue", time.Now().Add(since), 3); !cmp.Equal(got, map[string]float64{"acme": want}) {
			t.Errorf("from %s: %v, want %v", since, got, want)
		}
	}
	changed(t, s, id, become(vm.Destroyed))
	if got := vmHours(t, s, "queue", time.Now().Add(-3*time.Hour), 3); !cmp.Equal(got, map[string]float64{"acme": 2}) {
		t.Errorf("when it is gone: %v", got)
	}
}

// What VMs have used stays what it was when it is old, but by labels.
func TestUsage_OfVMsOutlastsThem(t *testing.T) {
	s := newStore(t)
	v, there := asked("a"), asked("a")
	for _, v := range []vm.VM{v, there} {
		if _, _, err := s.InsertVM(t.Context(), v, "", job.Limits{}); err != nil {
			t.Fatal(err)
		}
		changed(t, s, v.Job, become(vm.Intended), become(vm.Created))
	}
	changed(t, s, v.Job, become(vm.Destroyed))
	now := time.Now()
	err := s.transaction(t.Context(), func(tx *tx) error { // it was there for two days, and is gone since 12 hours
		tx.post(`UPDATE vm_runs SET began = ?, ended = ? WHERE vm_id = ?`, timeText(now.Add(-60*time.Hour)), timeText(now.Add(-12*time.Hour)), v.Job)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	since := now.Add(-90 * time.Hour)
	for range 3 {
		for by, want := range map[string]map[string]float64{"principal": {"ci": 50}, "template": {"ubuntu": 50}} {
			if got := vmHours(t, s, by, since, 2); !cmp.Equal(got, want) {
				t.Errorf("by %s: %v", by, got)
			}
		}
		if _, err := s.Forget(t.Context(), now.Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	if got := vmHours(t, s, "label=team", since, 2); !cmp.Equal(got, map[string]float64{"": 48, "a": 2}) {
		t.Errorf("by label: %v", got)
	}
	if got := vmHours(t, s, "", now.Add(13*time.Hour), 14)[""]; got != 1 {
		t.Errorf("of days after it was gone: %v", got)
	}
}

// A row that cannot be read is an error, and no run of nothing.
func TestUsage_OfARunThatCannotBeRead(t *testing.T) {
	s := newStore(t)
	if err := s.transaction(t.Context(), func(tx *tx) error {
		tx.post(`INSERT INTO vm_runs (id, vm_id, began, ended, doc) VALUES ('a', 'a', ?, ?, '{')`, timeText(time.Now()), timeText(time.Now()))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if sums, err := s.Usage(t.Context(), job.UsageQuery{}, time.Now()); err == nil {
		t.Errorf("%v", sums)
	}
}
