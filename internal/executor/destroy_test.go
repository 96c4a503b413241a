package executor_test

import (
	"context"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// lateCreate is a host on which a VM is there for a while before that is told,
// and then no wish can stop it.
type lateCreate struct {
	*providertest.Fake
	made, until chan struct{}
}

func (p *lateCreate) Create(ctx context.Context, spec job.VMSpec, progress func(job.Progress)) (vm.VM, error) {
	v, err := p.Fake.Create(ctx, spec, progress)
	close(p.made)
	<-p.until
	return v, err
}

func TestDestroyVM_ThatIsMadeAtThatMoment(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	p := &lateCreate{r.fake, make(chan struct{}), make(chan struct{})}
	r.opts.Provider = p
	r.restart()
	j, err := r.createVM(context.Background(), job.Submission{Manifest: job.Manifest{VMName: "dev"}})
	if err != nil {
		t.Fatal(err)
	}
	<-p.made
	if _, err := r.DestroyVM(context.Background(), "dev"); err != nil {
		t.Fatal(err)
	}
	close(p.until)
	if j = r.wait(j.ID); j.Outcome.Reason != job.ReasonCancelled || j.VM.State != vm.Destroyed {
		t.Errorf("its job: %+v, VM %+v", j.Outcome, j.VM)
	}
	r.noLeaks()
}

// whoDestroys notes the client for whom VMs are destroyed.
type whoDestroys struct {
	*providertest.Fake
	who chan string
}

func (p *whoDestroys) Destroy(ctx context.Context, v vm.VM) error {
	p.who <- job.ClientFrom(ctx)
	return p.Fake.Destroy(ctx, v)
}

func TestDestroy_IsDoneByTheClientThatWantedIt(t *testing.T) {
	asked := job.WithClient(context.Background(), "mcp:a")
	cancel := func(r *rig, id string) error { return r.Cancel(asked, id) }
	kill := func(r *rig, id string) error { _, err := r.Kill(asked, id, ""); return err }
	destroy := func(r *rig, _ string) error {
		_, err := r.DestroyVM(job.WithClient(context.Background(), "cli"), "dev")
		return err
	}
	expire := func(r *rig, id string) error {
		_, err := r.store.Update(asked, id, func(j *job.Job) (job.Record, error) {
			j.VM.ExpiresAt = time.Now().Add(-time.Second)
			return job.Record{}, nil
		})
		return err
	}
	tests := []struct {
		name    string
		keeps   bool
		wishes  []func(*rig, string) error
		restart bool
		want    string
	}{
		{name: "a job's own end"},
		{name: "cancel", wishes: []func(*rig, string) error{cancel}, want: "mcp:a"},
		{name: "kill", wishes: []func(*rig, string) error{kill}, want: "mcp:a"},
		{name: "destroy, of a VM whose job was killed", keeps: true, wishes: []func(*rig, string) error{kill, destroy}, want: "cli"},
		{name: "ttl, of a VM whose job was killed", keeps: true, wishes: []func(*rig, string) error{kill, expire}},
		{name: "cancel before a restart", wishes: []func(*rig, string) error{cancel}, restart: true, want: "mcp:a"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, 1)
			r.stop()
			p := &whoDestroys{r.fake, make(chan string, 9)}
			r.opts.Provider = p
			r.restart()
			b := providertest.Behaviour{Task: task(providertest.Task{Until: make(chan struct{})})}
			if tt.wishes == nil {
				b.Task = nil
			}
			if tt.restart {
				b.Destroys = []error{errUnreachable}
			}
			r.behave(b, tt.wishes == nil)
			id := r.submit(func(m *job.Manifest) {
				if tt.keeps {
					m.Lifecycle, m.VMName, m.TTL = vm.Persistent, "dev", 600
				}
			})
			for i, wish := range tt.wishes {
				r.until(id, func(j job.Job) bool { return j.Status == job.Running && i == 0 || j.Done() })
				if err := wish(r, id); err != nil {
					t.Fatal(err)
				}
			}
			if tt.restart {
				<-p.who // in vain
				r.stop()
				r.restart()
			}
			if who := <-p.who; who != tt.want {
				t.Errorf("destroyed for %q, want %q", who, tt.want)
			}
		})
	}
}
