package store

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// used runs every query and every change once.
func used(t testing.TB, s *Store) {
	t.Helper()
	ctx := context.Background()
	j := newJob("echo")
	j.Client, j.Manifest.Files = "cli", []job.File{{Path: "/a", Content: "aGk="}}
	_, _, err := s.Insert(ctx, j, "key-"+j.ID, job.Limits{})
	errs := []error{err}
	note := func(_ any, err error) { errs = append(errs, err) }
	note(s.Submitted(ctx, "key-"+j.ID))
	note(s.Job(ctx, j.ID))
	note(s.Manifest(ctx, j.ID))
	note(s.Waiting(ctx))
	_, _, err = s.Queue(ctx)
	note(nil, err)
	note(s.InProgress(ctx))
	note(s.OfClient(ctx, "", "cli"))
	note(s.VMs(ctx))
	note(s.TokenHash(ctx, j.ID))
	note(s.Update(ctx, j.ID, newToken("new")))
	note(s.Events(ctx, j.ID, 0))
	for _, f := range []job.Filter{{}, {Status: job.Failed}, {Cursor: encodeCursor(job.Filter{}, j.ID)}, {Status: job.Failed, Cursor: encodeCursor(job.Filter{}, j.ID)},
		{Sort: "created_at", Status: job.Failed, Cursor: encodeCursor(job.Filter{Sort: "created_at"}, j.ID)}, {Text: "x"}, {Client: "cli", Since: at, Before: at}, {Reason: job.ReasonLost, Principal: "alice"}, {Status: job.Failed, Text: "x", Cursor: encodeCursor(job.Filter{}, j.ID)}} {
		note(s.List(ctx, f))
	}
	for _, f := range []job.Filter{{Principal: job.OperatorName}, {Principal: job.OperatorName, Status: job.Failed}, {Principal: "alice"},
		{Principal: "alice", Status: job.Failed}, {Principal: "alice", Status: job.Running}} {
		note(s.List(ctx, f))
	}
	usedPool(ctx, s, note)
	usedWebhook(ctx, s, note)
	theirs := newJob("echo")
	theirs.Principal = "alice"
	_, _, err = s.Insert(ctx, theirs, "", job.Limits{Jobs: 10, PerHour: 10, VMs: 10, MemoryMB: 100_000})
	note(s.Cordons(ctx))
	note(s.Engines(ctx))
	note(s.Locked(ctx, "x"))
	note(s.Tokens(ctx))
	note(nil, err)
	for _, stream := range []string{job.Stdout, job.Stderr} {
		note(s.AppendOutput(ctx, j.ID, stream, 0, []byte("x")))
		note(sealOutput(ctx, s, j.ID, stream, 1, nil))
	}
	note(s.Update(ctx, j.ID, func(j *job.Job) (job.Record, error) {
		j.Decide(job.Outcome{Status: job.Failed, At: at})
		return job.Record{Events: []job.Event{{Kind: job.EventDecided}}}, j.Finish(at)
	}))
	note(s.Forget(ctx, at.Add(time.Hour)))
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func usedPool(ctx context.Context, s *Store, note func(any, error)) {
	p, claimer := job.Pool{Name: "ready-" + newJob("").ID}, newJob("echo")
	member := vm.VM{Job: newJob("").ID, State: vm.Reserved, Kept: true, Member: &vm.Member{Pool: p.Name, State: vm.MemberWarm}, Own: &vm.Own{}}
	note(s.InsertPool(ctx, p))
	_, _, err := s.InsertVM(ctx, member, "", job.Limits{})
	note(nil, err)
	_, _, err = s.Insert(ctx, claimer, "", job.Limits{})
	note(nil, err)
	note(s.Pools(ctx))
	note(s.Members(ctx))
	_, _, err = s.Claim(ctx, claimer.ID, p.Name, func(*job.Job, []vm.VM) (int, []job.Event) { return -1, nil })
	note(nil, err)
	note(s.UpdateVM(ctx, member.Job, func(v *vm.VM) ([]job.Event, error) {
		v.Member.State, v.State = vm.MemberDoomed, vm.Destroyed
		return []job.Event{{Kind: job.EventProgress}}, nil
	}))
	note(s.VMEvents(ctx, member.Job))
	note(nil, s.DeletePool(ctx, p.Name))
}

func usedWebhook(ctx context.Context, s *Store, note func(any, error)) {
	j := newJob("echo")
	_, _, err := s.Insert(ctx, j, "", job.Limits{})
	note(nil, err)
	w := job.Webhook{ID: "msg-" + j.ID, JobID: j.ID, NextAt: at}
	note(s.Update(ctx, j.ID, func(j *job.Job) (job.Record, error) {
		return job.Record{Outbox: []job.Webhook{w}}, nil
	}))
	note(s.Webhooks(ctx, 10))
	note(s.TakeWebhook(ctx, w, at))
	note(nil, s.DropWebhook(ctx, w.ID))
}

// No statement reads a whole table: each has an index for what it asks, or one
// of nothing but that.
func TestStatements_UseIndexes(t *testing.T) {
	sqliteOnly(t)
	s := newStore(t)
	used(t, s)
	texts := slices.Concat(slices.Collect(maps.Keys(s.read.runner.(*prepared).byText)), slices.Collect(maps.Keys(s.write.runner.(*prepared).byText)))
	plans := 0
	for _, text := range texts {
		if !regexp.MustCompile(`^(SELECT|UPDATE|DELETE)`).MatchString(text) {
			continue
		}
		plan, err := query(t.Context(), s.read, func(row scanner) (string, error) {
			var id, parent, unused int
			var detail string
			return detail, row.Scan(&id, &parent, &unused, &detail)
		}, "EXPLAIN QUERY PLAN "+text, make([]any, strings.Count(text, "?"))...)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		plans++
		if strings.Count(text, "LIMIT ?") != strings.Count(text, atMost) {
			t.Errorf("%s\nis prepared anew each time: end it with atMost", text)
		}
		if all := strings.Join(plan, "; "); strings.Contains(text, "principal <> ''") && !strings.Contains(all, "_principal ") {
			t.Errorf("%s\nreads others' jobs: %s", text, all)
		}
		for _, step := range plan {
			ofOnly := regexp.MustCompile(`USING (COVERING )?INDEX (jobs_(waiting|begun)|vms_(there|members|gone_members))\b`).MatchString(step) ||
				regexp.MustCompile(`^SCAN (pools|tokens|meta|engines)\b`).MatchString(step) // small ones
			page := regexp.MustCompile(`ORDER BY ((jobs\.)?id DESC|next_at) LIMIT \? \+ 0$`).MatchString(text) && strings.Contains(step, "USING INDEX")
			step = strings.Replace(step, "SCAN json_each", "json_each", 1) // what the caller gave
			if strings.HasPrefix(step, "SCAN") && !ofOnly && !page || strings.Contains(step, "TEMP B-TREE") {
				t.Errorf("%s\nreads too much: %s", text, step)
			}
		}
	}
	if plans < 15 {
		t.Errorf("only %d statements were seen", plans)
	}
}

// jobsOf adds waiting jobs, and ended ones, all of one client.
func jobsOf(t testing.TB, s *Store, waiting, ended int) {
	t.Helper()
	err := s.transaction(context.Background(), func(tx *tx) error {
		for n := range waiting + ended {
			j := newJob(fmt.Sprintf("echo %d", n))
			j.ID, j.Client = uuid.Must(uuid.NewV7()).String(), "other"
			if n >= waiting {
				j.Decide(job.Outcome{Status: job.Failed, Reason: job.ReasonExitStatus, At: at})
				j.Status, j.CompletedAt = job.Failed, at
				j.VM = &vm.VM{ID: 100, Name: "vm", Job: j.ID, State: vm.Destroyed}
			}
			rows, err := newRows(j, "")
			if err == nil {
				err = rows.insert(context.Background(), tx)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What a job costs does not depend on how many others there are.
func TestCosts_DoNotGrowWithTheNumberOfJobs(t *testing.T) {
	costs := func(jobs int) map[string]counts {
		s := openCounted(t, t.TempDir())
		jobsOf(t, s, jobs, 100)
		used(t, s) // prepares the statements
		j := newJob("echo")
		j.Client = "cli"
		must := func(_ any, err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx := context.Background()
		return map[string]counts{
			"submit": during(func() { insert(t, s, j) }),
			"dispatch": during(func() {
				must(s.Job(ctx, j.ID))
				update(t, s, j.ID, func(j *job.Job) ([]job.Event, error) {
					j.Phase = job.PhaseProvision
					return []job.Event{{Kind: job.EventPhaseStarted, Phase: j.Phase}}, nil
				})
			}),
			"list":   during(func() { must(s.List(ctx, job.Filter{Limit: 20})) }),
			"begun":  during(func() { must(s.InProgress(ctx)) }),
			"VMs":    during(func() { must(s.VMs(ctx)) }),
			"client": during(func() { must(s.OfClient(ctx, "", "cli")) }),
			"forget": during(func() { must(s.Forget(ctx, at.Add(-time.Hour))) }),
		}
	}
	few, many := costs(100), costs(10000)
	for name := range few {
		if few[name] != many[name] {
			t.Errorf("%s: %+v with 100 jobs, %+v with 10000", name, few[name], many[name])
		}
	}
	for name, most := range map[string]counts{
		"submit":   {statements: 6, commits: 1},          // begin, savepoint, two rows, release, commit
		"dispatch": {statements: 8, rows: 2, commits: 1}, // read it; begin, savepoint, read, write, event, release, commit
		"list":     {statements: 1, rows: 21},            // a page and whether there is another
		"begun":    {statements: 1},
	} {
		if got := many[name]; got.statements > most.statements || got.rows > most.rows || got.commits > most.commits {
			t.Errorf("%s: %+v, want at most %+v", name, got, most)
		}
	}
}
