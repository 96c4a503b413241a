package fleet

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestPick_OldestWarmMemberThatFits(t *testing.T) {
	pool := job.Pool{PoolSize: job.PoolSize{MaxAge: 3600}}
	f := New(Options{})
	f.pools.room.Generations = map[job.Origin]string{pool.Origin(): "g2"}
	member := func(state vm.MemberState, change func(m *vm.VM)) vm.VM {
		m := vm.VM{
			State: vm.Created, HostKey: "key", Made: vm.Made{CreatedAt: now(), Lifecycle: vm.Pooled},
			Member: &vm.Member{State: state, Generation: "g2"}, Own: &vm.Own{},
		}
		if change != nil {
			change(&m)
		}
		return m
	}
	warm, hibernated := member(vm.MemberWarm, nil), member(vm.MemberHibernated, nil)
	task := job.Manifest{Timeout: 60}
	secret := job.Manifest{Timeout: 60, Secrets: []string{"TOKEN"}}
	noKey := member(vm.MemberWarm, func(m *vm.VM) { m.HostKey = "" })
	for name, tt := range map[string]struct {
		m    job.Manifest
		idle []vm.VM
		want int
	}{
		"the first of the warm":        {task, []vm.VM{warm, warm}, 0},
		"warm before hibernated":       {task, []vm.VM{hibernated, warm}, 1},
		"hibernated":                   {task, []vm.VM{hibernated, hibernated}, 0},
		"none":                         {task, nil, -1},
		"neither warm nor hibernated":  {task, []vm.VM{member(vm.MemberDoomed, nil), member(vm.MemberMaking, nil), member(vm.MemberClaimed, nil)}, -1},
		"another generation":           {task, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.Member.Generation = "g1" }), warm}, 1},
		"too old":                      {task, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.CreatedAt = now().Add(-time.Hour) }), warm}, 1},
		"unwanted":                     {task, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.Unwanted = true }), warm}, 1},
		"a lease shorter than the job": {task, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.Member.LeaseUntil = now().Add(50 * time.Second) }), warm}, 1},
		"a lease longer than the job":  {task, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.Member.LeaseUntil = now().Add(2 * time.Minute) }), warm}, 0},
		"no host key, secrets":         {secret, []vm.VM{noKey, warm}, 1},
		"no host key":                  {task, []vm.VM{noKey, warm}, 0},
	} {
		if got := f.Pick(pool, tt.m, tt.idle); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	f.pools.room.Generations = nil
	if got := f.Pick(pool, task, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.Member.Generation = "" })}); got != -1 {
		t.Errorf("where the generation is unknown: %d", got)
	}
}

// onePool is a store that has one pool, and nothing else.
type onePool struct {
	Store
	pool job.Pool
}

func (s *onePool) UpdatePool(_ context.Context, _ string, change func(*job.Pool) error) (job.Pool, error) {
	return s.pool, change(&s.pool)
}

// A member that is seen to have failed again, as by an engine that was stopped in the
// middle, has failed once.
func TestNoteFailure_CountsAMemberOnce(t *testing.T) {
	s := &onePool{}
	f := New(Options{Store: s, Log: slog.New(slog.DiscardHandler)})
	m := vm.VM{Job: "a", Member: &vm.Member{Pool: "p"}, Own: &vm.Own{}}
	for range 3 {
		f.noteFailure(t.Context(), m, "no space", false)
	}
	if f := s.pool.Failure; f == nil || f.Count != 1 || f.Row != 1 {
		t.Errorf("one member: %+v", f)
	}
	m.Job = "b"
	f.noteFailure(t.Context(), m, "no space", false)
	if f := s.pool.Failure; f.Count != 2 || f.Row != 2 {
		t.Errorf("another: %+v", f)
	}
}
