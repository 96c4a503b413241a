package executor_test

import (
	"context"
	"errors"
	"strings"
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
	r.vms.Admit = func(has []job.Job, _ job.Manifest) error {
		if len(has) >= 2 {
			return errNoMore
		}
		return nil
	}
	r.restart()
	ctx := context.Background()
	submit := func(client, key string, kind job.Kind) (job.Job, error) {
		if kind == job.KindMake {
			return r.createVM(ctx, job.Submission{Manifest: job.Manifest{VMName: "of-" + client}, Client: client, IdempotencyKey: key})
		}
		return r.Submit(ctx, job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript}, Client: client, IdempotencyKey: key})
	}
	vm, err := submit("a", "", job.KindMake)
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

// Of jobs that are stored together each counts for the next one, and so does their parent.
func TestSubmit_AdmitsAFamilyAsAWhole(t *testing.T) {
	r := newRig(t, 4)
	r.stop()
	r.vms.Admit = func(has []job.Job, _ job.Manifest) error {
		if len(has) >= 3 {
			return errNoMore
		}
		return nil
	}
	r.restart()
	submit := func(shards int) (job.Job, error) {
		return r.Submit(context.Background(), job.Submission{Manifest: job.Manifest{Task: "x", AgentType: job.AgentScript, Shards: shards}})
	}
	if j, err := submit(3); !errors.Is(err, errNoMore) {
		t.Errorf("four jobs where three may be: %v, %v", j.Children, err)
	}
	j, err := submit(2)
	if err != nil {
		t.Fatal(err)
	}
	r.wait(j.ID)
}

// The manifest as it was submitted, its files and the kind are what a key stands for.
func TestSubmit_AKeyOfAnotherManifestIsRefused(t *testing.T) {
	r := newRig(t, 4)
	ctx := context.Background()
	plain := func() job.Submission {
		return job.Submission{IdempotencyKey: "k", Manifest: job.Manifest{
			Task: "x", AgentType: job.AgentScript, Env: map[string]string{"A": "1", "B": "2"},
			Files: []job.File{{Path: "/tmp/a", Content: "YQ=="}},
		}}
	}
	first, err := r.Submit(ctx, plain())
	if err != nil {
		t.Fatal(err)
	}
	r.wait(first.ID)
	r.stop()
	r.opts.Defaults.CPU++ // what is filled in is not what was submitted
	r.restart()
	if again, err := r.Submit(ctx, plain()); err != nil || again.ID != first.ID {
		t.Errorf("the same again: %s, %v; want job %s", again.ID, err, first.ID)
	}
	for name, change := range map[string]func(*job.Submission){
		"task":    func(s *job.Submission) { s.Manifest.Task = "y" },
		"timeout": func(s *job.Submission) { s.Manifest.Timeout = 5 },
		"value":   func(s *job.Submission) { s.Manifest.Env["B"] = "3" },
		"file":    func(s *job.Submission) { s.Manifest.Files[0].Content = "Yg==" },
	} {
		t.Run(name, func(t *testing.T) {
			s := plain()
			change(&s)
			_, err := r.Submit(ctx, s)
			refusal(t, err, "idempotency_key: was used for another submission, job "+first.ID)
		})
	}
}

// A policy is asked with who asks and every default, before secrets are looked
// up, for a plan as for a job.
func TestSubmit_AsksWhetherItIsAllowed(t *testing.T) {
	r := newRig(t, 1)
	r.stop()
	asked := 0
	r.opts.Allow = func(s job.Submission) error {
		asked++
		if s.Client != "mcp:x" || s.Manifest.Task != "" || s.Manifest.VMTemplate == "" { // nothing runs there
			t.Errorf("asked about %+v", s)
		}
		return errNoMore
	}
	r.restart()
	s := job.Submission{Client: "mcp:x", Manifest: job.Manifest{VMName: "dev", Secrets: []string{"UNKNOWN"}}}
	if _, err := r.createVM(t.Context(), s); !errors.Is(err, errNoMore) {
		t.Errorf("CreateVM() = %v", err)
	}
	if _, err := r.Plan(t.Context(), s); !errors.Is(err, errNoMore) {
		t.Errorf("Plan() = %v", err)
	}
	if jobs, err := r.List(t.Context(), job.Filter{}); asked != 2 || err != nil || len(jobs.Jobs) > 0 {
		t.Errorf("asked %d times; there are %v, %v", asked, jobs, err)
	}
}

// A kept VM that somebody else put on another network is no way onto it.
func TestSubmit_AKeptVMsNetworkIsAskedFor(t *testing.T) {
	r := newRig(t, 4)
	r.stop()
	r.opts.Allow = func(s job.Submission) error {
		if s.Client == "mcp:x" && s.Manifest.Network.Bridge == "vmbr1" {
			return errNoMore
		}
		return nil
	}
	r.restart()
	r.makeVM("dev")
	r.makeVM("lab", func(m *job.Manifest) { m.Network.Bridge = "vmbr1" })
	for _, ask := range []struct {
		client, vm string
		refused    bool
	}{{"mcp:x", "lab", true}, {"mcp:x", "dev", false}, {"cli", "lab", false}} {
		_, err := r.Submit(t.Context(), job.Submission{Client: ask.client, Manifest: job.Manifest{Task: "true", AgentType: job.AgentScript, VM: ask.vm}})
		if errors.Is(err, errNoMore) != ask.refused || (err != nil) != ask.refused {
			t.Errorf("%s in %s: %v", ask.client, ask.vm, err)
		}
	}
}

// A template that is known to lack a job's agent is refused before anything is stored, also in a plan.
func TestSubmit_RefusesATemplateWithoutTheAgent(t *testing.T) {
	r := newRig(t, 1)
	r.behave(providertest.Behaviour{Has: []string{"base", "node", "codex"}}, true)
	s := job.Submission{Client: "cli", Manifest: job.Manifest{Task: "mend it", AgentType: job.AgentClaude}}
	_, err := r.Submit(t.Context(), s)
	_, planned := r.Plan(t.Context(), s)
	for _, err := range []error{err, planned} {
		var wrong *job.FieldError
		if !errors.As(err, &wrong) || wrong.Field != "manifest.agentType" || !strings.Contains(wrong.Problem, "base, node, codex") {
			t.Errorf("%v", err)
		}
	}
	s.Manifest.AgentType = "codex"
	if _, err := r.Submit(t.Context(), s); err != nil {
		t.Error(err)
	}
}
