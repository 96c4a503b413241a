package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"linus/internal/job"
)

// members returns stores on one database, each of an engine that has joined.
func members(t *testing.T, n int, o Options) []*Store {
	t.Helper()
	o.Dir = t.TempDir()
	all := make([]*Store, n)
	for i := range all {
		all[i] = openStore(t, o)
		joined(t, all[i], time.Hour)
	}
	return all
}

func joined(t *testing.T, s *Store, lease time.Duration) string {
	t.Helper()
	id, err := s.Join(t.Context(), job.EngineInfo{Host: "here", PID: 7}, lease)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// evict ends an engine's lease, and has another evict it.
func evict(t *testing.T, dead, other *Store) {
	t.Helper()
	if err := dead.Renew(t.Context(), -time.Second); err != nil {
		t.Fatal(err)
	}
	if evicted, err := other.Evict(t.Context(), dead.EngineID(), false); err != nil || !evicted {
		t.Fatalf("evicted %t, %v", evicted, err)
	}
}

func takes(t *testing.T, s *Store, id string) (taken bool) {
	t.Helper()
	j, taken, err := s.Take(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if taken && j.Engine != s.EngineID() {
		t.Errorf("taken by %q, not by %q", j.Engine, s.EngineID())
	}
	return taken
}

func TestTake_OneEngineHasAJob(t *testing.T) {
	s := members(t, 2, Options{})
	j := insert(t, s[0], newJob("one"))
	var wait sync.WaitGroup
	var mu sync.Mutex
	took := map[*Store]int{}
	for i := range 20 {
		wait.Go(func() {
			if _, taken, err := s[i%2].Take(context.Background(), j.ID); err != nil {
				t.Error(err)
			} else if taken {
				mu.Lock()
				defer mu.Unlock()
				took[s[i%2]]++
			}
		})
	}
	wait.Wait()
	if len(took) != 1 {
		t.Errorf("taken by %d engines", len(took))
	}
	var owner *Store
	for owner = range took {
	}
	if took[owner] != 10 {
		t.Errorf("its engine takes its own job %d of 10 times", took[owner])
	}
	got, err := s[0].Job(t.Context(), j.ID)
	if err != nil || got.Engine != owner.EngineID() {
		t.Errorf("the job's engine is %q, %v", got.Engine, err)
	}
	update(t, owner, j.ID, func(j *job.Job) ([]job.Event, error) {
		j.Decide(job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at})
		return nil, j.Finish(at)
	})
	if got, err = s[0].Job(t.Context(), j.ID); err != nil || got.Engine != "" {
		t.Errorf("a job that is done has the engine %q, %v", got.Engine, err)
	}
	if takes(t, s[0], j.ID) || takes(t, s[1], j.ID) {
		t.Error("a job that is done was taken")
	}
}

func TestTake_AloneOnlyReads(t *testing.T) {
	s := newStore(t)
	j := insert(t, s, newJob("one"))
	got, taken, err := s.Take(t.Context(), j.ID)
	if err != nil || !taken {
		t.Fatal(taken, err)
	}
	diff(t, j, got)
	if _, _, err := s.Take(t.Context(), newJob("none").ID); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("a job that is not there: %v", err)
	}
}

func TestTake_NoMoreThanTheInstallationMay(t *testing.T) {
	s := members(t, 2, Options{MaxJobs: 2})
	var ids []string
	for range 4 {
		ids = append(ids, insert(t, s[0], newJob("one")).ID)
	}
	shares := newJob("in another's VM")
	shares.Manifest.VM = "box"
	insert(t, s[0], shares)
	if !takes(t, s[0], ids[0]) || !takes(t, s[1], ids[1]) {
		t.Fatal("the first two were not taken")
	}
	for _, engine := range s {
		if _, taken, err := engine.Take(t.Context(), ids[2]); taken || !errors.Is(err, job.ErrNoSlot) {
			t.Errorf("the third was taken: %t, %v", taken, err)
		}
	}
	if !takes(t, s[1], shares.ID) {
		t.Error("a job without a VM of its own waits for a slot")
	}
	evict(t, s[0], s[1])
	if _, taken, err := s[1].Take(t.Context(), ids[2]); taken || !errors.Is(err, job.ErrNoSlot) {
		t.Errorf("a dead engine's job lost its slot: %t, %v", taken, err)
	}
	if !takes(t, s[1], ids[0]) {
		t.Error("a job that had a slot waits for one")
	}
	update(t, s[1], ids[1], func(j *job.Job) ([]job.Event, error) {
		j.Decide(job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at})
		return nil, j.Finish(at)
	})
	if !takes(t, s[1], ids[2]) {
		t.Error("the third was not taken, though there is a slot")
	}
}

// What is under way goes on, and what has only its VM to lose is ended, though there are more jobs
// than may be since the limit became less.
func TestTake_OnlyTheNextJobWaitsForASlot(t *testing.T) {
	s := members(t, 2, Options{MaxJobs: 3})
	ids := map[string]string{}
	for _, name := range []string{"own", "running", "other", "decided"} {
		ids[name] = insert(t, s[0], newJob(name)).ID
	}
	for _, name := range []string{"own", "running", "other"} {
		if !takes(t, s[map[string]int{"own": 1}[name]], ids[name]) {
			t.Fatalf("%s was not taken", name)
		}
	}
	update(t, s[0], ids["running"], func(j *job.Job) ([]job.Event, error) { return nil, j.Become(job.Provisioning) })
	update(t, s[0], ids["decided"], func(j *job.Job) ([]job.Event, error) {
		j.Decide(job.Outcome{Status: job.Failed, Reason: job.ReasonCancelled, At: at})
		return nil, nil
	})
	evict(t, s[0], s[1])
	s[1].maxJobs = 1
	for _, name := range []string{"own", "running", "decided"} {
		if !takes(t, s[1], ids[name]) {
			t.Errorf("the job %s waits for a slot", name)
		}
	}
	if _, _, err := s[1].Take(t.Context(), ids["other"]); !errors.Is(err, job.ErrNoSlot) {
		t.Errorf("a job that has not begun: %v", err)
	}
	s[1].maxJobs = 3 // own, running and other: the one that is decided has no slot
	if !takes(t, s[1], ids["other"]) {
		t.Error("a job without a task to run has a slot")
	}
}

func begin(j *job.Job) (job.Record, error) { return job.Record{}, j.Become(job.Provisioning) }

func TestBury_FreesJobsAndLocksAndStopsEveryWrite(t *testing.T) {
	s := members(t, 2, Options{})
	dead, other := s[0], s[1]
	held := insert(t, dead, newJob("held"))
	foreign := insert(t, other, newJob("another's"))
	takes(t, dead, held.ID)
	updateWith(t, dead, held.ID, begin)
	lock := func(s *Store, loose bool) bool {
		t.Helper()
		taken, _, err := s.Lock(t.Context(), "a lock", "held", loose)
		if err != nil {
			t.Fatal(err)
		}
		return taken
	}
	for range 2 { // the second time it has it already
		if !lock(dead, false) {
			t.Fatal("it does not get the lock")
		}
	}
	if what, err := other.Locked(t.Context(), "a lock"); what != "held" || err != nil {
		t.Errorf("locked for %q, %v", what, err)
	}
	if evicted, err := other.Evict(t.Context(), dead.EngineID(), false); evicted || err != nil {
		t.Fatalf("evicted with a lease: %t, %v", evicted, err)
	}
	if takes(t, other, held.ID) || lock(other, true) {
		t.Fatal("what an engine has was taken from it")
	}
	evict(t, dead, other)
	if !takes(t, other, held.ID) || !lock(other, false) {
		t.Error("what a dead engine had is not free")
	}

	ctx := t.Context()
	for name, write := range map[string]func() error{
		"update of the job it had": func() error { _, err := dead.Update(ctx, held.ID, begin); return err },
		"update of another job":    func() error { _, err := dead.Update(ctx, foreign.ID, begin); return err },
		"insert":                   func() error { _, _, err := dead.Insert(ctx, newJob("new"), "", job.Limits{}); return err },
		"token":                    func() error { _, err := dead.Update(ctx, held.ID, newToken("mine")); return err },
		"pool":                     func() error { _, err := dead.InsertPool(ctx, job.Pool{Name: "p"}); return err },
		"seal":                     func() error { _, err := sealOutput(ctx, dead, held.ID, job.Stdout, 0, nil); return err },
		"take":                     func() error { _, _, err := dead.Take(ctx, foreign.ID); return err },
		"lock":                     func() error { _, _, err := dead.Lock(ctx, "another", "held", false); return err },
		"renewal":                  func() error { return dead.Renew(ctx, time.Hour) },
	} {
		if err := write(); !errors.Is(err, job.ErrDetach) {
			t.Errorf("%s by a dead engine: %v", name, err)
		}
	}
	if err := dead.Unlock(ctx, "a lock"); err != nil || lock(dead2(t, dead), false) {
		t.Errorf("a dead engine has unlocked another's lock: %v", err)
	}
	if id := dead.EngineID(); takes(t, dead, held.ID) || !takes(t, dead, foreign.ID) || id == "" {
		t.Error("it does not work again as a new engine")
	}
}

// dead2 joins again.
func dead2(t *testing.T, s *Store) *Store {
	t.Helper()
	before := s.EngineID()
	if after := joined(t, s, time.Hour); after == before {
		t.Errorf("it has its old ID again: %s", after)
	}
	return s
}

func TestLock_ALooseOneIsFreeWithTheLease(t *testing.T) {
	s := members(t, 2, Options{})
	for _, name := range []string{"tight", "loose"} {
		if taken, _, err := s[0].Lock(t.Context(), name, "held", false); !taken || err != nil {
			t.Fatal(taken, err)
		}
	}
	if err := s[0].Renew(t.Context(), -time.Second); err != nil {
		t.Fatal(err)
	}
	if taken, holder, err := s[1].Lock(t.Context(), "tight", "mine", false); taken || holder != "held" || err != nil {
		t.Errorf("tight: %t, %q, %v", taken, holder, err)
	}
	if taken, _, err := s[1].Lock(t.Context(), "loose", "mine", true); !taken || err != nil {
		t.Errorf("loose: %t, %v", taken, err)
	}
}

func TestEngines_TheOldestThatWorksLeads(t *testing.T) {
	s := members(t, 3, Options{})
	leader := func() (at int) {
		t.Helper()
		engines, err := s[2].Engines(t.Context())
		if err != nil || len(engines) != 3 {
			t.Fatalf("%+v, %v", engines, err)
		}
		at = -1
		for i, e := range engines {
			if e.ID != s[i].EngineID() || e.Self != (i == 2) || e.Host != "here" || e.PID != 7 {
				t.Errorf("engine %d: %+v", i, e)
			}
			if e.Leads {
				at = i
			}
		}
		return at
	}
	insert(t, s[0], newJob("one"))
	if got := leader(); got != 0 {
		t.Errorf("%d leads, not the oldest", got)
	}
	if err := s[0].Renew(t.Context(), -time.Second); err != nil {
		t.Fatal(err)
	}
	if got := leader(); got != 1 {
		t.Errorf("%d leads, not the oldest that is alive", got)
	}
	if err := s[1].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := leader(); got != 2 {
		t.Errorf("%d leads, not the one that does not drain", got)
	}
	if err := s[2].Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := leader(); got != 1 {
		t.Errorf("%d leads, of those that drain", got)
	}
}

func TestLeave_FreesWhatItHad(t *testing.T) {
	s := members(t, 2, Options{})
	j := insert(t, s[0], newJob("one"))
	takes(t, s[0], j.ID)
	if err := s[0].Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !takes(t, s[1], j.ID) {
		t.Error("its job is not free")
	}
	engines, err := s[1].Engines(t.Context())
	if err != nil || len(engines) != 1 || engines[0].Jobs != 1 {
		t.Errorf("%+v, %v", engines, err)
	}
}
