package executor_test

import (
	"context"
	"errors"
	"testing"

	"linus/internal/job"
	"linus/internal/providertest"
)

var errNoMore = errors.New("no more")

func TestSubmit_AdmitsByWhatTheClientHas(t *testing.T) {
	r := newRig(t, 4)
	hold := make(chan struct{})
	r.fake.Set(providertest.Behaviour{Task: task(providertest.Task{Until: hold})})
	r.makeVM("dev") // of nobody: counts for none of those below
	r.stop()
	r.opts.Admit = func(has []job.Manifest, _ job.Manifest) error {
		if len(has) >= 2 {
			return errNoMore
		}
		return nil
	}
	r.restart()
	ctx := context.Background()
	submit := func(client, key string, kind job.Kind) (job.Job, error) {
		m := job.Manifest{Task: "x", AgentType: job.AgentScript}
		if kind == job.KindVM {
			m = job.Manifest{VMName: "of-" + client}
		}
		return r.Submit(ctx, job.Submission{Manifest: m, Kind: kind, Client: client, IdempotencyKey: key})
	}
	vm, err := submit("a", "", job.KindVM)
	if err != nil {
		t.Fatal(err)
	}
	r.wait(vm.ID) // its VM stays, and counts
	first, err := submit("a", "k", job.KindTask)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := submit("a", "", job.KindTask); !errors.Is(err, errNoMore) {
		t.Errorf("a third was admitted: %v", err)
	}
	if again, err := submit("a", "k", job.KindTask); err != nil || again.ID != first.ID {
		t.Errorf("the same submit again: %v, %v; want the first job", again.ID, err)
	}
	if _, err := submit("b", "", job.KindTask); err != nil {
		t.Errorf("another client: %v", err)
	}
	close(hold)
	r.wait(first.ID)
	if _, err := submit("a", "", job.KindTask); err != nil {
		t.Errorf("after one has ended: %v", err)
	}
}
