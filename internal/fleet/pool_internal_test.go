package fleet

import (
	"context"
	"errors"
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
	anywhere := func(string) bool { return true }
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
		if got := f.Pick(pool, tt.m, anywhere, tt.idle); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	f.pools.room.Generations = nil
	if got := f.Pick(pool, task, anywhere, []vm.VM{member(vm.MemberWarm, func(m *vm.VM) { m.Member.Generation = "" })}); got != -1 {
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

// A lease is renewed of a member that stays, not of one that was given up.
func TestRenewal_OfAMemberThatStays(t *testing.T) {
	f := New(Options{Lease: time.Hour, Log: slog.New(slog.DiscardHandler)})
	for name, tt := range map[string]struct {
		state  vm.State
		member vm.MemberState
		until  time.Duration
		want   bool
	}{
		"warm":            {vm.Created, vm.MemberWarm, 0, true},
		"warm, renewed":   {vm.Created, vm.MemberWarm, f.MemberLease(), false},
		"doomed":          {vm.Created, vm.MemberDoomed, 0, false},
		"gone":            {vm.Destroyed, vm.MemberWarm, 0, false},
		"not made as yet": {vm.Reserved, vm.MemberMaking, 0, false},
		"hibernated":      {vm.Created, vm.MemberHibernated, 0, true},
	} {
		m := vm.VM{ID: 100, State: tt.state, Kept: true, Made: vm.Made{Lifecycle: vm.Pooled}, Own: &vm.Own{}, Member: &vm.Member{Pool: "p", State: tt.member, LeaseUntil: now().Add(tt.until)}}
		if got := f.renewal(t.Context(), m); (got > 0) != tt.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}

// deaf is a guest that does not answer, and in which something happens meanwhile.
type deaf struct {
	Guest
	meanwhile func()
	forgotten *int
}

func (d deaf) Ping(context.Context, job.Job) error { d.meanwhile(); return errors.New("no answer") }
func (d deaf) Forget(job.Job)                      { *d.forgotten++ }

// A member that was given up, or is gone, while it was asked is forgotten, and not given up
// for its silence.
func TestPing_AMemberThatWasGivenUpMeanwhile(t *testing.T) {
	for name, change := range map[string]func(*vm.VM){
		"given up": func(v *vm.VM) { v.Member.State = vm.MemberDoomed },
		"gone":     func(v *vm.VM) { v.State = vm.Destroyed },
	} {
		m := vm.VM{ID: 100, Job: "a", HostKey: "key", State: vm.Created, Own: &vm.Own{}, Member: &vm.Member{Pool: "p", State: vm.MemberWarm}}
		s := &oneVM{vm: m}
		s.vm.Member = &vm.Member{Pool: "p", State: vm.MemberWarm}
		forgotten := 0
		f := New(Options{Store: s, Log: slog.New(slog.DiscardHandler), Guest: deaf{meanwhile: func() { change(&s.vm) }, forgotten: &forgotten}})
		f.ping(t.Context(), []vm.VM{m}) // without a provider: nobody asks the host for it
		if forgotten != 1 {
			t.Errorf("%s: forgotten %d times", name, forgotten)
		}
	}
}
