package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

const (
	jobID = "01a1fcf5-c104-77fc-a46b-1716a403d4ed"
	owner = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
)

func readAudit(t *testing.T, path string) []Record {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var records []Record
	for line := range strings.Lines(string(data)) {
		var r Record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		records = append(records, r)
	}
	return records
}

func newAudit(t *testing.T, o AuditOptions) *Audit {
	o.Path = filepath.Join(t.TempDir(), "audit.log")
	o.Log = slog.New(slog.DiscardHandler)
	return NewAudit(o)
}

func TestProvider_EveryChangeIsOnRecordBeforeAndAfter(t *testing.T) {
	fake := providertest.NewFake()
	fake.Set(providertest.Behaviour{Destroys: []error{errors.New("locked")}})
	var ended []string
	a := newAudit(t, AuditOptions{
		Submitter: func(_ context.Context, id string) job.Caller { return job.Caller{Client: "maker of " + id} },
		OnEnd:     func(r Record) { ended = append(ended, r.Action+" "+r.Result) },
	})
	p := a.Provider(fake)
	vm, err := p.Create(t.Context(), job.VMSpec{Name: "box", Job: jobID, Owner: owner, Template: providertest.FakeTemplate}, func(job.Progress) {})
	if err != nil || vm.ID == 0 {
		t.Fatalf("Create = %+v, %v", vm, err)
	}
	asked := job.WithClient(t.Context(), "cli")
	if err := p.SnapshotVM(asked, vm, "clean", false); err != nil {
		t.Fatal(err)
	}
	if err := p.StopVM(asked, vm); err != nil {
		t.Fatal(err)
	}
	if got, err := p.StartVM(asked, vm, func(job.Progress) {}); err != nil || got.ID != vm.ID {
		t.Fatalf("StartVM = %+v, %v", got, err)
	}
	if err := p.SuspendVM(asked, vm); err != nil {
		t.Fatal(err)
	}
	if got, err := p.ResumeVM(asked, vm, func(job.Progress) {}); err != nil || got.ID != vm.ID {
		t.Fatalf("ResumeVM = %+v, %v", got, err)
	}
	if at, err := p.ForkVM(asked, vm, func(job.Progress) {}); err != nil || !at.Live {
		t.Fatalf("ForkVM = %+v, %v", at, err)
	}
	if err := p.EndFork(asked, vm); err != nil {
		t.Fatal(err)
	}
	if err := p.SnapshotVM(asked, vm, "live", true); err != nil {
		t.Fatal(err)
	}
	if err := p.DeleteSnapshot(asked, vm, "live"); err != nil {
		t.Fatal(err)
	}
	if got, err := p.RevertVM(asked, vm, "clean", func(job.Progress) {}); err != nil || got.ID != vm.ID {
		t.Fatalf("RevertVM = %+v, %v", got, err)
	}
	if err := p.Destroy(t.Context(), vm); err == nil {
		t.Fatal("the error of Destroy is lost")
	}
	if err := p.Destroy(t.Context(), vm); err != nil {
		t.Fatal(err)
	}
	fake.Return(vm)
	fake.Doubt(vm.ID, true)
	refused := p.Destroy(t.Context(), vm)
	if err := p.ForgetVM(asked, vm); err != nil {
		t.Fatal(err)
	}
	fake.Vanish(vm.ID)
	fake.PlantAt(vm.ID, "database")
	foreign := p.Destroy(t.Context(), vm)
	if refused == nil || foreign == nil {
		t.Fatal("destroyed what is not proven")
	}
	if _, err := p.List(t.Context()); err != nil { // changes nothing, is not on record
		t.Fatal(err)
	}

	line := func(who, action, detail, result, text string) []Record {
		r := Record{
			Who: who, For: "maker of " + jobID, Action: action, Job: jobID, VMID: vm.ID, VMName: "box", Node: vm.Node,
			Detail: detail, Proof: &Proof{Name: "box", Job: jobID, Owner: owner}, Result: ResultBegun,
		}
		before := r
		if action == ActionCreate {
			before.VMID, before.Node = 0, ""
		}
		r.Result, r.Error = result, text
		return []Record{before, r}
	}
	var want []Record
	for _, pair := range [][]Record{
		line("engine", ActionCreate, providertest.FakeTemplate, ResultOK, ""),
		line("cli", ActionSnapshot, "clean", ResultOK, ""),
		line("cli", ActionStop, "", ResultOK, ""),
		line("cli", ActionStart, "", ResultOK, ""),
		line("cli", ActionSuspend, "", ResultOK, ""),
		line("cli", ActionResume, "", ResultOK, ""),
		line("cli", ActionFork, "", ResultOK, ""),
		line("cli", ActionEndFork, "", ResultOK, ""),
		line("cli", ActionSnapshot, "live with memory", ResultOK, ""),
		line("cli", ActionDeleteSnapshot, "live", ResultOK, ""),
		line("cli", ActionRevert, "clean", ResultOK, ""),
		line("engine", ActionDestroy, "", ResultFailed, "locked"),
		line("engine", ActionDestroy, "", ResultOK, ""),
		line("engine", ActionDestroy, "", ResultRefused, refused.Error()),
		line("cli", ActionForget, "", ResultOK, ""),
		line("engine", ActionDestroy, "", ResultForeign, foreign.Error()),
	} {
		want = append(want, pair...)
	}
	got := readAudit(t, a.o.Path)
	if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(Record{}, "Time", "Duration")); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	for _, r := range got {
		if r.Time.IsZero() {
			t.Errorf("%s %s has no time", r.Action, r.Result)
		}
	}
	if len(ended) != 16 || ended[11] != "destroy_vm failed" {
		t.Errorf("told of %v", ended)
	}
	if info, err := os.Stat(a.o.Path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestAudit_WhatTheEnginesEndCutOffIsInterrupted(t *testing.T) {
	a := newAudit(t, AuditOptions{})
	ctx, stop := context.WithCancelCause(t.Context())
	_ = a.Do(ctx, Record{Action: ActionStop}, func(*Record) error {
		stop(job.ErrDetach)
		return ctx.Err()
	})
	if got := readAudit(t, a.o.Path); len(got) != 2 || got[1].Result != ResultInterrupted {
		t.Errorf("records %+v", got)
	}
}

func TestAudit_ALogThatCannotBeWrittenStopsNothing(t *testing.T) {
	var log strings.Builder
	a := NewAudit(AuditOptions{Path: filepath.Join(t.TempDir(), "gone", "audit.log"), Log: slog.New(slog.NewTextHandler(&log, nil))})
	done := false
	if err := a.Do(t.Context(), Record{Action: ActionDestroy}, func(*Record) error { done = true; return nil }); err != nil || !done {
		t.Errorf("Do = %v, done %v", err, done)
	}
	if strings.Count(log.String(), "audit log not written") != 2 {
		t.Errorf("log: %s", log.String())
	}
}

func TestAudit_RotatesBySizeAndKeepsTheNewest(t *testing.T) {
	a := newAudit(t, AuditOptions{MaxSize: 400, Keep: 2})
	for i := range 40 {
		a.write(Record{Action: ActionStop, VMID: i})
	}
	var ids []int
	for _, name := range []string{".2", ".1", ""} {
		info, err := os.Stat(a.o.Path + name)
		if err != nil || info.Size() > 400 || info.Mode().Perm() != 0o600 {
			t.Errorf("audit.log%s: %v, %v", name, info, err)
		}
		for _, r := range readAudit(t, a.o.Path+name) {
			ids = append(ids, r.VMID)
		}
	}
	for i, id := range ids {
		if want := 40 - len(ids) + i; id != want {
			t.Fatalf("records %v: not the newest, in order", ids)
		}
	}
	if _, err := os.Stat(a.o.Path + ".3"); err == nil {
		t.Error("more files than are to be kept")
	}
}

func TestAudit_LinesOfSeveralWritersStayWhole(t *testing.T) {
	first := newAudit(t, AuditOptions{MaxSize: 10 << 10})
	second := NewAudit(AuditOptions{Path: first.o.Path, Log: first.o.Log}) // another process, which does not rename
	var writers sync.WaitGroup
	for n := range 200 {
		for _, a := range []*Audit{first, second} {
			writers.Go(func() { a.write(Record{Action: ActionStop, VMID: n, Error: strings.Repeat("<&>", 20)}) })
		}
	}
	writers.Wait()
	seen := map[int]int{}
	paths := []string{first.o.Path}
	for n := 1; n <= 9; n++ {
		paths = append(paths, fmt.Sprintf("%s.%d", first.o.Path, n))
	}
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		for _, r := range readAudit(t, path) {
			seen[r.VMID]++
		}
	}
	for n := range 200 {
		if seen[n] != 2 {
			t.Errorf("record %d was written %d times, want 2", n, seen[n])
		}
	}
}

func TestAudit_NamesPrincipalAndToken(t *testing.T) {
	a := newAudit(t, AuditOptions{})
	ctx := job.WithPrincipal(job.WithClient(t.Context(), "api"), job.Principal{Name: "ci", Token: "9f2c", Role: job.RoleRun})
	if err := a.Do(ctx, Record{Action: ActionStop}, func(*Record) error { return nil }); err != nil {
		t.Fatal(err)
	}
	a.Observe(job.TokenChange{Token: job.Token{ID: "77", TokenSpec: job.TokenSpec{Name: "bob", Role: job.RoleRead}}, Created: true, By: job.CallerFrom(ctx)})
	for _, r := range readAudit(t, a.o.Path) {
		if r.Who != "api" || r.Principal != "ci" || r.Token != "9f2c" || r.Action == ActionCreateToken && r.Detail != "token 77 of bob, role read" {
			t.Errorf("%+v", r)
		}
	}
}

// What the engine does for a job is its principal's, by the token it was submitted with,
// unless somebody else had it done.
func TestAudit_NamesPrincipalAndTokenOfAJob(t *testing.T) {
	t.Parallel()
	a := newAudit(t, AuditOptions{Submitter: func(context.Context, string) job.Caller {
		return job.Caller{Client: "api", Principal: "ci", Token: "9f2c"}
	}})
	ended := job.WithCaller(t.Context(), job.Caller{Client: "web", Principal: "boss", Token: "77"})
	none := func(*Record) error { return nil }
	err := errors.Join(a.Do(t.Context(), Record{Action: ActionCreate, Job: jobID}, none), a.Do(ended, Record{Action: ActionDestroy, Job: jobID}, none))
	if err != nil {
		t.Fatal(err)
	}
	a.Observe(job.PoolEvent{Kind: job.PoolHit, Job: jobID})
	var got []string
	for _, r := range readAudit(t, a.o.Path) {
		if r.Result != ResultBegun {
			got = append(got, fmt.Sprintf("%s for %s: %s by %s with %s", r.Action, r.For, r.Who, r.Principal, r.Token))
		}
	}
	want := []string{
		"create_vm for api of ci: engine by ci with 9f2c",
		"destroy_vm for api of ci: web by boss with 77",
		"claim_vm for api of ci: engine by ci with 9f2c",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAudit_OneLineOfWhatDoesNotChangeTheHost(t *testing.T) {
	a := newAudit(t, AuditOptions{})
	a.Observe(job.CordonChange{Node: "pve1", Cordoned: true, By: job.Caller{Client: "cli"}})
	a.Observe(job.CordonChange{Node: "pve1"})
	a.Observe(job.Entered{VM: vm.VM{Node: "pve1"}, How: "as a sandbox", By: job.Caller{Client: "e2b"}})
	var got []string
	for _, r := range readAudit(t, a.o.Path) {
		got = append(got, strings.Join([]string{r.Who, r.Action, r.Node, r.Result}, " "))
	}
	if diff := cmp.Diff([]string{"cli cordon_node pve1 ok", "engine uncordon_node pve1 ok", "e2b enter_vm pve1 ok"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
