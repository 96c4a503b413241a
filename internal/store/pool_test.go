package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"linus/internal/job"
	"linus/internal/vm"
)

// member is a pool's VM in a state.
func member(t *testing.T, s *Store, pool string, state vm.MemberState) vm.VM {
	t.Helper()
	v := vm.VM{ID: 100, Job: uuid.Must(uuid.NewV7()).String(), State: vm.Created, Kept: true, Member: &vm.Member{Pool: pool, State: state}, Own: &vm.Own{}}
	if _, _, err := s.InsertVM(t.Context(), v, "", job.Limits{}); err != nil {
		t.Fatal(err)
	}
	return v
}

// firstIdle claims the oldest idle member.
func firstIdle(j *job.Job, idle []vm.VM) (int, []job.Event) {
	if len(idle) == 0 {
		return -1, nil
	}
	v := idle[0]
	j.VM = &v
	idle[0].Member.State, idle[0].Member.Claimer = vm.MemberClaimed, j.ID
	return 0, []job.Event{{Kind: job.EventProgress, Text: "claimed"}}
}

func TestPools_AreRows(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	p := job.Pool{Name: "a", VMTemplate: "x", Resources: vm.Resources{CPU: 2}, PoolSize: job.PoolSize{Warm: 3}}
	for range 2 {
		if _, err := s.InsertPool(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	if created, err := s.InsertPool(ctx, job.Pool{Name: "a"}); err != nil || created {
		t.Errorf("a second pool of the name: %v, %v", created, err)
	}
	got, err := s.UpdatePool(ctx, "a", func(p *job.Pool) error { p.Warm, p.Name = 4, "b"; return nil })
	p.Warm = 4
	if diff := cmp.Diff(p, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if all, err := s.Pools(ctx); err != nil || cmp.Diff([]job.Pool{p}, all) != "" {
		t.Errorf("%+v, %v", all, err)
	}
	refused := errors.New("no")
	if _, err := s.UpdatePool(ctx, "a", func(p *job.Pool) error { p.Warm = 9; return refused }); err != refused { //nolint:errorlint // as it is
		t.Error(err)
	}
	if all, err := s.Pools(ctx); err != nil || all[0].Warm != 4 {
		t.Errorf("a change that was refused: %+v, %v", all, err)
	}
	if _, err := s.UpdatePool(ctx, "b", func(*job.Pool) error { return nil }); !errors.Is(err, job.ErrNotFound) {
		t.Error(err)
	}
	if err := s.DeletePool(ctx, "a"); err != nil {
		t.Error(err)
	}
	if all, err := s.Pools(ctx); err != nil || len(all) > 0 {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestMembers_AreThoseNotGone(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	warm := member(t, s, "p", vm.MemberWarm)
	insert(t, s, newJob("true"))
	failed := member(t, s, "p", vm.MemberMaking)
	gone := func(v *vm.VM) ([]job.Event, error) {
		v.State = vm.Destroyed
		return nil, nil
	}
	if _, err := s.UpdateVM(ctx, failed.Job, gone); err != nil {
		t.Fatal(err)
	}
	ids := func() (ids []string) {
		all, err := s.Members(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range all {
			ids = append(ids, m.Job)
		}
		return ids
	}
	if diff := cmp.Diff([]string{warm.Job, failed.Job}, ids()); diff != "" {
		t.Errorf("one that could not be made is to be learned of: %s", diff)
	}
	if _, err := s.UpdateVM(ctx, failed.Job, func(v *vm.VM) ([]job.Event, error) {
		v.Member.State = vm.MemberDoomed
		return []job.Event{{Kind: job.EventProgress, Text: "given up"}}, nil
	}); err != nil {
		t.Fatal(err)
	}
	if told, err := s.VMEvents(ctx, failed.Job); err != nil || len(told) != 1 || told[0].Text != "given up" || told[0].At.IsZero() {
		t.Errorf("told: %v, %v", told, err)
	}
	if _, err := s.UpdateVM(ctx, failed.Job, func(v *vm.VM) ([]job.Event, error) { v.State = vm.Created; return nil, nil }); !errors.Is(err, ErrForbidden) {
		t.Error(err)
	}
	if _, err := s.UpdateVM(ctx, warm.Job, gone); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), ids()); diff != "" {
		t.Error(diff)
	}
	if page, err := s.List(ctx, job.Filter{}); err != nil || len(page.Jobs) != 1 {
		t.Errorf("listed: %+v, %v", page.Jobs, err)
	}
	if n, err := s.Forget(ctx, time.Now().Add(time.Hour)); err != nil || n != 0 {
		t.Errorf("forgotten: %d, %v; nobody was ever shown them", n, err)
	}
	if _, err := s.VM(ctx, warm.Job); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("%v: its row is there", err)
	}
}

func TestClaim_GivesAMemberToOneJob(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if _, err := s.InsertPool(ctx, job.Pool{Name: "p"}); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		member(t, s, "p", vm.MemberWarm)
		member(t, s, "other", vm.MemberWarm)
		member(t, s, "p", vm.MemberMaking)
	}
	var (
		mu    sync.Mutex
		given = map[string]int{}
		work  sync.WaitGroup
	)
	for range 30 {
		j := insert(t, s, newJob("true"))
		work.Go(func() {
			claimer, claimed, err := s.Claim(context.WithoutCancel(ctx), j.ID, "p", firstIdle)
			if err != nil {
				t.Error(err)
			}
			if !claimed {
				return
			}
			stored, err := s.VM(ctx, claimer.VM.Job)
			if err != nil || stored.Member.Claimer != j.ID {
				t.Errorf("%+v, %+v, %v", stored.Member, claimer.VM, err)
			}
			mu.Lock()
			defer mu.Unlock()
			given[stored.Job]++
		})
	}
	work.Wait()
	p, err := s.UpdatePool(ctx, "p", func(*job.Pool) error { return nil })
	if err != nil || len(given) != 5 || p.Hits != 5 || p.Misses != 25 || p.AskedAt.IsZero() {
		t.Errorf("given %v, %+v, %v", given, p, err)
	}
	for id, n := range given {
		if n != 1 {
			t.Errorf("member %s was given %d times", id, n)
		}
	}
}

// Neither half of a claim may be written without the other.
func TestClaim_IsWholeOrNotAtAll(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	m := member(t, s, "p", vm.MemberWarm)
	j := newJob("true")
	j.Status = job.Running
	insert(t, s, j)
	_, claimed, err := s.Claim(ctx, j.ID, "p", func(j *job.Job, idle []vm.VM) (int, []job.Event) {
		at, events := firstIdle(j, idle)
		j.Status = job.Pending // not allowed
		return at, events
	})
	if !errors.Is(err, ErrForbidden) || claimed {
		t.Errorf("%v, %v", claimed, err)
	}
	stored, err := s.VM(ctx, m.Job)
	claimer, err2 := s.Job(ctx, j.ID)
	if err != nil || err2 != nil || stored.Member.State != vm.MemberWarm || claimer.VM != nil {
		t.Error(fmt.Sprintf("%+v, %+v", stored.Member, claimer.VM), err, err2)
	}
}

// Of many who ask at once for VMs of which a pool has one, one gets that, and all get one.
func TestGive_GivesAMemberToOne(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if _, err := s.InsertPool(ctx, job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 1}}); err != nil {
		t.Fatal(err)
	}
	member(t, s, "p", vm.MemberWarm)
	const askers = 10
	var given atomic.Int32
	var asking sync.WaitGroup
	for n := range askers {
		asking.Go(func() {
			v := vm.VM{Job: uuid.Must(uuid.NewV7()).String(), Name: fmt.Sprint("dev", n), State: vm.Reserved, Source: vm.Cold, Kept: true, Own: &vm.Own{Client: "e2b", Sandbox: &vm.Sandbox{Env: []string{"A"}}}}
			v.Lifecycle = vm.Persistent
			got, created, _, err := s.GiveVM(ctx, v, "", job.Limits{}, []string{"p"}, func(_ string, idle []vm.VM) (int, []job.Event) {
				if len(idle) == 0 {
					return -1, nil
				}
				one := &idle[0]
				one.Name, one.Made, one.Own, one.Member, one.State, one.Source = v.Name, v.Made, v.Own, nil, vm.Intended, vm.FromPool
				return 0, nil
			})
			if err != nil || !created || got.Name != v.Name || got.Sandbox() == nil {
				t.Errorf("%+v, %v, %v", got, created, err)
			}
			if got.Source == vm.FromPool {
				given.Add(1)
			}
		})
	}
	asking.Wait()
	if all, err := s.VMs(ctx); err != nil || len(all) != askers || given.Load() != 1 {
		t.Errorf("%d VMs, %d of the pool, %v", len(all), given.Load(), err)
	}
}

// A pool's VM that somebody is given counts among what they have asked for within an hour, however
// long ago it was made; and once, whatever key it was asked for with.
func TestGive_CountsAsItsOwners(t *testing.T) {
	s, ctx := newStore(t), t.Context()
	if _, err := s.InsertPool(ctx, job.Pool{Name: "p", PoolSize: job.PoolSize{Warm: 1}}); err != nil {
		t.Fatal(err)
	}
	old := member(t, s, "p", vm.MemberWarm)
	if _, err := s.UpdateVM(ctx, old.Job, func(*vm.VM) ([]job.Event, error) {
		return []job.Event{{Kind: job.EventStatus, Text: string(job.Success)}}, nil
	}); err != nil {
		t.Fatal(err)
	}
	later := time.Now().Add(3 * time.Hour)
	ask := func(name, key string, within job.Limits) (vm.VM, bool, []string, error) {
		v := vm.VM{Job: uuid.Must(uuid.NewV7()).String(), Name: name, State: vm.Reserved, Source: vm.Cold, Kept: true, Own: &vm.Own{Client: "cli"}}
		v.Principal, v.CreatedAt, v.Lifecycle = "ada", later, vm.Persistent
		return s.GiveVM(ctx, v, key, within, []string{"other", "p"}, func(pool string, idle []vm.VM) (int, []job.Event) {
			if len(idle) == 0 {
				return -1, nil
			}
			given := &idle[0]
			given.Name, given.Made, given.Own, given.Member, given.State, given.Source = v.Name, v.Made, v.Own, nil, vm.Intended, vm.FromPool
			return 0, []job.Event{{Kind: job.EventStatus, Text: string(job.Pending), At: later}}
		})
	}
	v, created, missed, err := ask("dev1", "k", job.Limits{PerHour: 1})
	if err != nil || !created || v.Job != old.Job || v.Name != "dev1" || cmp.Diff([]string{"other"}, missed) != "" {
		t.Fatalf("%+v, %v, %v, %v", v, created, missed, err)
	}
	if got, err := s.VM(ctx, v.Job); err != nil || got.Source != vm.FromPool || got.Principal != "ada" || got.Member != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if events, err := s.VMEvents(ctx, v.Job); err != nil || len(events) != 1 || events[0].Text != string(job.Pending) {
		t.Errorf("%+v, %v", events, err)
	}
	if again, created, _, err := ask("dev1", "k", job.Limits{PerHour: 1}); err != nil || created || again.Job != v.Job {
		t.Errorf("the same key: %+v, %v, %v", again, created, err)
	}
	var over *job.FieldError
	if _, _, _, err := ask("dev2", "", job.Limits{PerHour: 1}); !errors.As(err, &over) {
		t.Errorf("a second one within the hour: %v", err)
	}
	if _, _, _, err := ask("dev2", "", job.Limits{VMs: 1}); !errors.As(err, &over) {
		t.Errorf("a second one at a time: %v", err)
	}
	if members, err := s.Members(ctx); err != nil || len(members) > 0 {
		t.Errorf("it is a member still: %+v, %v", members, err)
	}
	if p, err := s.Pools(ctx); err != nil || p[0].Hits != 1 || p[0].Misses != 0 {
		t.Errorf("%+v, %v", p, err)
	}
}
