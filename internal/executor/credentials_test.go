package executor_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"linus/internal/executor"
	"linus/internal/job"
	"linus/internal/providertest"
	"linus/internal/vm"
)

// addCredential adds one whose value is the secret KEY.
func (r *rig) addCredential(name, variable string) {
	r.t.Helper()
	n := job.NewCredential{CredentialSpec: job.CredentialSpec{Name: name, Host: "api.example", Header: "x-api-key", Env: variable, Secret: "KEY"}}
	if _, err := r.CreateCredential(r.t.Context(), n); err != nil {
		r.t.Fatal(err)
	}
}

func using(names ...string) func(*job.Manifest) {
	return func(m *job.Manifest) { m.Credentials = names }
}

// What a task gets of a credential is a placeholder, and what leads to the proxy; a claude
// job whose key it stands for does not get that.
func TestCredential_TheTaskHasAPlaceholder(t *testing.T) {
	r, _ := withSecrets(t, 2, map[string]string{"KEY": planted, "ANTHROPIC_API_KEY": planted})
	r.addCredential("claude", "ANTHROPIC_API_KEY")
	var got job.Payload
	r.behave(providertest.Behaviour{Task: func(p job.Payload) providertest.Task {
		got = p
		return providertest.Task{}
	}}, true)
	for _, egress := range []vm.Egress{vm.EgressLAN, vm.EgressInternet, vm.EgressAllow} {
		j := r.wait(r.submit(using("claude"), func(m *job.Manifest) { m.AgentType, m.Network.Egress = job.AgentClaude, egress }))
		env := got.Manifest.Env
		if j.Status != job.Success || env["ANTHROPIC_API_KEY"] != "linus-credential-claude" || !got.Trusts || len(got.Secrets) != 0 {
			t.Errorf("%s: %+v, secrets %v, %+v", egress, env, got.Secrets, j.Outcome)
		}
		if !strings.HasPrefix(env["HTTPS_PROXY"], "http://127.0.0.1:") || (env["HTTP_PROXY"] != "") != (egress == vm.EgressAllow) {
			t.Errorf("%s: %v", egress, env)
		}
	}
	// Removed before it starts, it is nothing, and still no key.
	if _, err := r.RemoveCredential(t.Context(), "claude"); err != nil {
		t.Fatal(err)
	}
	r.addCredential("claude", "OTHER")
	r.wait(r.submit(using("claude")))
	if got.Manifest.Env["OTHER"] != "linus-credential-claude" || got.Manifest.Env["ANTHROPIC_API_KEY"] != "" {
		t.Errorf("env %v", got.Manifest.Env)
	}
}

func TestCredential_RefusedBeforeAnythingIsMade(t *testing.T) {
	r, _ := withSecrets(t, 2, map[string]string{"KEY": planted})
	r.addCredential("github", "GITHUB_TOKEN")
	r.addCredential("key", "KEY")
	r.makeVM("closed", func(m *job.Manifest) { m.Network.Egress = vm.EgressNone })
	for says, change := range map[string]func(*job.Manifest){
		`manifest.credentials[0]: "claude@api.anthropic.com" is an agent's key, for that agent's jobs only`: using("claude@api.anthropic.com"),
		`manifest.credentials[0]: there is no credential "other"`:                                           using("other"),
		"manifest.credentials: credentials need a network":                                                  func(m *job.Manifest) { m.Credentials, m.Network.Egress = []string{"github"}, vm.EgressNone },
		"manifest.credentials: credentials need a network: the VM reaches no host (egress none)":            func(m *job.Manifest) { m.Credentials, m.VM = []string{"github"}, "closed" },
		`manifest.credentials[0]: both "github" and the manifest's env or secrets set GITHUB_TOKEN`: func(m *job.Manifest) {
			m.Credentials, m.Env = []string{"github"}, map[string]string{"GITHUB_TOKEN": "x"}
		},
		`manifest.credentials[0]: both "key" and the manifest's env or secrets set KEY`: func(m *job.Manifest) { m.Credentials, m.Secrets = []string{"key"}, []string{"KEY"} },
	} {
		m := job.Manifest{Task: "true", AgentType: job.AgentScript}
		change(&m)
		_, err := r.Submit(as(t, job.OperatorName, job.RoleAdmin), job.Submission{Manifest: m})
		refusal(t, err, says)
	}
	for _, names := range [][]string{{"a b"}, {"a", "a"}, make([]string, 21)} {
		if err := (job.Manifest{Task: "x", AgentType: job.AgentScript, Credentials: names}).Validate(); err == nil || !strings.Contains(err.Error(), "manifest.credentials: ") {
			t.Errorf("%q: %v", names, err)
		}
	}
}

// credentialsOf are executor.Credentials, under a name that none of its methods has.
type credentialsOf interface{ executor.Credentials }

// heldCredentials answers when it is let go.
type heldCredentials struct {
	credentialsOf
	held <-chan struct{}
	hold *atomic.Bool
}

func (c heldCredentials) Credential(ctx context.Context, name string) (job.Credential, error) {
	if c.hold.Load() {
		<-c.held
	}
	return c.credentialsOf.Credential(ctx, name)
}

// A slow read holds up whoever needs what is read, and not all that is written, an engine's
// lease among it.
func TestSecrets_NothingIsReadOfTheStoreWhileAJobIsWritten(t *testing.T) {
	r, _ := withSecrets(t, 1, map[string]string{"KEY": planted, "ANTHROPIC_API_KEY": planted})
	held, until := make(chan struct{}), make(chan struct{})
	var hold atomic.Bool
	r.stop()
	r.opts.Credentials = heldCredentials{r.opts.Credentials, held, &hold}
	r.Executor = executor.New(r.opts)
	if err := r.Start(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer close(until)
	r.addCredential("claude", "ANTHROPIC_API_KEY")
	r.behave(providertest.Behaviour{Task: task(providertest.Task{Until: until})}, false)
	r.until(r.submit(), func(j job.Job) bool { return j.Status == job.Running })
	waits := r.submit(using("claude"), func(m *job.Manifest) { m.AgentType = job.AgentClaude })
	hold.Store(true)
	cancelled, written := make(chan error, 1), make(chan error, 1)
	go func() { cancelled <- r.Cancel(context.Background(), waits) }()
	select {
	case err := <-cancelled:
		cancelled <- err
	case <-time.After(10 * time.Second):
		t.Error("the write of a job waits for a read")
	}
	go func() { written <- r.store.SetCordon(context.Background(), "pve9", true) }()
	select {
	case err := <-written:
		written <- err
	case <-time.After(10 * time.Second):
		t.Error("another write waits for a read")
	}
	hold.Store(false)
	close(held)
	if err := errors.Join(<-cancelled, <-written); err != nil {
		t.Error(err)
	}
}
