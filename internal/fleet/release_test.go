package fleet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// claimed returns a job that has claimed a pool's VM.
func (r *rig) claimed(s *steps) *held {
	r.t.Helper()
	r.pool(job.PoolSize{Warm: 1})
	m := r.filled(1, 0)[0]
	r.engine.set(func(e *engine) { e.follows = true }) // it does not look after pools and what is left alone
	r.pass(time.Second)
	r.change(m.Job, func(v *vm.VM) { v.Member.Become(vm.MemberClaimed, time.Now()); v.Member.Claimer = "job" })
	v := r.vm(m.Job)
	return &held{s: s, j: job.Job{ID: "job", VM: &v}}
}

// What became of a pool's VM is said as it was seen, also by the engine that goes on where one has
// died between the two rows.
func TestRelease_SaysOfAPoolsVMWhatWasSeen(t *testing.T) {
	refused := hostError(job.HostLeftAlone, "its name is not what it was")
	for name, tt := range map[string]struct {
		refused error
		between func(r *rig, v vm.VM)
		want    vm.State
		told    string
	}{
		"destroyed":             {want: vm.Destroyed},
		"left alone":            {refused: refused, want: vm.Released, told: "is left alone: its name is not what it was; "},
		"left alone, then gone": {refused: refused, between: func(r *rig, v vm.VM) { _ = r.DestroyLeftAlone(context.Background(), v.Job) }, want: vm.Destroyed},
		"left alone, then kept": {refused: refused, between: func(r *rig, v vm.VM) {
			r.change(v.Job, func(v *vm.VM) { v.State = vm.Forgotten })
		}, want: vm.Released, told: "was forgotten on request, and stays on the host"},
	} {
		for _, dies := range []bool{false, true} {
			if tt.between != nil && !dies {
				continue
			}
			t.Run(name, func(t *testing.T) {
				faulty(t, func(r *rig, s *steps) {
					r.start()
					h := r.claimed(s)
					v := *h.j.VM
					release := func() error {
						change, gone, err := r.Release(context.Background(), h.j)
						if err == nil {
							_, err = h.Update(context.Background(), change)
						}
						if err == nil && gone != (h.j.VM.State == vm.Destroyed) {
							t.Errorf("gone: %v, and the job's VM is %s", gone, h.j.VM.State)
						}
						return err
					}
					if tt.refused != nil {
						r.host.Set(providertest.Behaviour{Destroys: []error{tt.refused}})
					}
					if dies {
						s.before("UpdateJob", 1, s.crash)
						if err := release(); err == nil || h.j.VM.State != vm.Created {
							r.t.Fatalf("%v, %+v", err, h.j.VM)
						}
						r.restart(s)
						if tt.between != nil {
							tt.between(r, v)
						}
					}
					if err := release(); err != nil {
						r.t.Fatal(err)
					}
					if h.j.VM.State != tt.want || tt.told == "" && len(h.events) > 0 || tt.told != "" && (len(h.events) != 1 || !strings.Contains(h.events[0], tt.told)) {
						t.Errorf("the job's VM is %s, told %q; dies: %v", h.j.VM.State, h.events, dies)
					}
				})
			})
		}
	}
}
