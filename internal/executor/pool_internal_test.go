package executor

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/vm"
)

func TestChoose_OldestWarmMemberThatFits(t *testing.T) {
	pool := job.Pool{PoolSize: job.PoolSize{MaxAge: 3600}}
	e := &Executor{pools: newPools()}
	e.pools.room.Generations = map[job.Origin]string{pool.Origin(): "g2"}
	member := func(state job.MemberState, change func(m *job.Job)) job.Job {
		m := job.Job{
			CreatedAt: now(), Manifest: job.Manifest{Lifecycle: vm.Pooled}, VM: &vm.VM{State: vm.Created, HostKey: "key"},
			Member: &job.Member{State: state, Generation: "g2"},
		}
		if change != nil {
			change(&m)
		}
		return m
	}
	warm, hibernated := member(job.MemberWarm, nil), member(job.MemberHibernated, nil)
	task := job.Job{Manifest: job.Manifest{Timeout: 60}}
	secret := job.Job{Manifest: job.Manifest{Timeout: 60, Secrets: []string{"TOKEN"}}}
	noKey := member(job.MemberWarm, func(m *job.Job) { m.VM.HostKey = "" })
	for name, tt := range map[string]struct {
		j    job.Job
		idle []job.Job
		want int
	}{
		"the first of the warm":        {task, []job.Job{warm, warm}, 0},
		"warm before hibernated":       {task, []job.Job{hibernated, warm}, 1},
		"hibernated":                   {task, []job.Job{hibernated, hibernated}, 0},
		"none":                         {task, nil, -1},
		"a job that has a VM":          {job.Job{VM: &vm.VM{}}, []job.Job{warm}, -1},
		"a job that is decided":        {job.Job{Outcome: &job.Outcome{}}, []job.Job{warm}, -1},
		"neither warm nor hibernated":  {task, []job.Job{member(job.MemberDoomed, nil), member(job.MemberMaking, nil), member(job.MemberClaimed, nil)}, -1},
		"another generation":           {task, []job.Job{member(job.MemberWarm, func(m *job.Job) { m.Member.Generation = "g1" }), warm}, 1},
		"too old":                      {task, []job.Job{member(job.MemberWarm, func(m *job.Job) { m.CreatedAt = now().Add(-time.Hour) }), warm}, 1},
		"unwanted":                     {task, []job.Job{member(job.MemberWarm, func(m *job.Job) { m.VM.Unwanted = true }), warm}, 1},
		"a lease shorter than the job": {task, []job.Job{member(job.MemberWarm, func(m *job.Job) { m.Member.LeaseUntil = now().Add(50 * time.Second) }), warm}, 1},
		"a lease longer than the job":  {task, []job.Job{member(job.MemberWarm, func(m *job.Job) { m.Member.LeaseUntil = now().Add(2 * time.Minute) }), warm}, 0},
		"no host key, secrets":         {secret, []job.Job{noKey, warm}, 1},
		"no host key":                  {task, []job.Job{noKey, warm}, 0},
	} {
		if got := e.choose(pool, tt.j, tt.idle); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
	e.pools.room.Generations = nil
	if got := e.choose(pool, task, []job.Job{member(job.MemberWarm, func(m *job.Job) { m.Member.Generation = "" })}); got != -1 {
		t.Errorf("where the generation is unknown: %d", got)
	}
}

// onePool is a store that has one pool, and nothing else.
type onePool struct {
	PoolStore
	pool job.Pool
}

func (s *onePool) UpdatePool(_ context.Context, _ string, change func(*job.Pool)) (job.Pool, error) {
	change(&s.pool)
	return s.pool, nil
}

// A member that is seen to have failed again, as by an engine that was stopped in the
// middle, has failed once.
func TestNoteFailure_CountsAMemberOnce(t *testing.T) {
	s := &onePool{}
	e := New(Options{Stores: Stores{Pools: s}, Log: slog.New(slog.DiscardHandler)})
	m := job.Job{ID: "a", Member: &job.Member{Pool: "p"}}
	for range 3 {
		e.noteFailure(t.Context(), m, "no space", false)
	}
	if f := s.pool.Failure; f == nil || f.Count != 1 || f.Row != 1 {
		t.Errorf("one member: %+v", f)
	}
	m.ID = "b"
	e.noteFailure(t.Context(), m, "no space", false)
	if f := s.pool.Failure; f.Count != 2 || f.Row != 2 {
		t.Errorf("another: %+v", f)
	}
}
