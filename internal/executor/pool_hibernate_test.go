package executor_test

import (
	"context"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// hibernated is a rig with a pool of that many hibernated members.
func hibernated(t *testing.T, members int) *rig {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Stdout: []byte("out\n")})}, true)
	if _, err := r.CreatePool(context.Background(), job.Pool{Name: "p", PoolSize: job.PoolSize{Hibernated: members}}); err != nil {
		t.Fatal(err)
	}
	r.untilPool("hibernated members", func(p job.PoolInfo) bool {
		return p.Count(vm.MemberHibernated) == members && len(p.Members) == members
	})
	return r
}

func TestPool_HibernatedMemberIsResumedForAJob(t *testing.T) {
	r := hibernated(t, 2)
	j := r.wait(r.submit())
	if j.Status != job.Success || j.VM.Source != vm.FromHibernated || j.VM.State != vm.Destroyed {
		t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
	}
	m, err := r.store.VM(context.Background(), j.VM.Job)
	if err != nil || m.IP != j.VM.IP || m.Member.Claimer != j.ID {
		t.Errorf("the pool's VM is %+v, %+v, %v", m, m.Member, err)
	}
	r.untilPool("refill", func(p job.PoolInfo) bool { return p.Count(vm.MemberHibernated) == 2 })
	r.removePool()
	r.noLeaks()
}

// A member that cannot be resumed, or comes back as somebody else, is not used.
func TestPool_HibernatedMemberThatDoesNotComeBack(t *testing.T) {
	broken := &job.HostError{Op: "resume VM", Class: job.HostVM, Text: "the state could not be loaded"}
	for name, b := range map[string]providertest.Behaviour{
		"fails":        {Powers: []error{broken}},
		"another key":  {Reach: func(v vm.VM) vm.VM { v.HostKey = "ssh-ed25519 AAAAother"; return v }},
		"not over SSH": {Pings: []error{broken}},
	} {
		t.Run(name, func(t *testing.T) {
			r := hibernated(t, 1)
			id := ""
			reach := b.Reach
			if reach != nil {
				b.Reach = func(v vm.VM) vm.VM {
					if j, err := r.store.Job(context.Background(), id); err == nil && j.VM != nil && j.VM.Job == v.Job && v.Job != id {
						return reach(v)
					}
					return v
				}
			}
			b = paused(b)
			b.Task = task(providertest.Task{Stdout: []byte("out\n")})
			r.stop() // with it ends the pool's own look at the member when it was still warm
			r.behave(b, true)
			r.restart()
			r.tended()
			id = r.submit()
			if j := r.wait(id); j.Status != job.Success || j.VM.Source != vm.Cold {
				t.Errorf("%+v, VM %+v", j.Outcome, j.VM)
			}
			if said := strings.Join(r.warnings(id, "did not answer and is not used"), ""); name == "another key" && !strings.Contains(said, "it came back with another SSH host key than it was suspended with") {
				t.Errorf("it says %q", said)
			}
			r.removePool()
			r.noLeaks()
		})
	}
}
