package executor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/secret"
	"linus/internal/vm"
)

// withKey returns the manifest of a new job with its agent's key added, if there is a key, the
// principal may name it, and neither env nor a credential replaces it. The key becomes a credential
// wherever the VM can do without it, and a secret elsewhere. The operator's jobs get the secret without
// naming it: only a token limits what may be named, and the key may be gone when the job begins.
func (e *Executor) withKey(ctx context.Context, p job.Principal, m job.Manifest) (job.Manifest, error) {
	agent, known := m.AgentType.Agent()
	if !known || p.Owner() != "" && !p.MayName(agent.Key) {
		return m, nil
	}
	key, err := e.key(ctx, m)
	if err != nil || len(key) == 0 {
		return m, err
	}
	network := m.Network
	if m.VM != "" { // Fleet.Enter's error is reported elsewhere
		kept, _ := e.o.Fleet.Enter(ctx, m.VM)
		network = kept.Network
	}
	c, can := m.KeyCredential()
	switch {
	case can && e.o.Credentials != nil && network.Mode() != vm.EgressNone && c.CheckValue(string(key[0].Reveal())) == nil:
		m.Credentials = append(slices.Clip(m.Credentials), c.Name)
	case p.Owner() != "":
		m.Secrets = append(slices.Clip(m.Secrets), agent.Key)
	}
	return m, nil
}

// key returns the key of a job's agent if the manifest does not name it; nothing for jobs without
// an agent or if there is no key.
func (e *Executor) key(ctx context.Context, m job.Manifest) ([]secret.Value, error) {
	agent, known := m.AgentType.Agent()
	_, given := m.Env[agent.Key]
	if !known || given || slices.Contains(m.Secrets, agent.Key) || e.provides(ctx, m, append(agent.Logins, agent.Key)) {
		return nil, nil
	}
	return e.ifKnown(agent.Key)
}

// ifKnown returns a secret if it exists.
func (e *Executor) ifKnown(name string) ([]secret.Value, error) {
	values, err := e.o.Secrets([]string{name})
	if fault, ok := errors.AsType[*secret.Error](err); ok && fault.Unknown {
		return nil, nil
	}
	return values, err
}

// secrets returns the secrets that a job of an owner (see Job.Principal) gets.
func (e *Executor) secrets(ctx context.Context, owner string, m job.Manifest) ([]secret.Value, error) {
	values, err := e.o.Secrets(m.Secrets)
	if fault, ok := errors.AsType[*secret.Error](err); ok {
		problem := strings.TrimSuffix(fault.Error(), "; "+fault.Remedy)
		return nil, &job.FieldError{Field: "manifest.secrets", Problem: problem, Remedy: fault.Remedy}
	}
	if err != nil || owner != "" {
		return values, err
	}
	key, err := e.key(ctx, m)
	return append(values, key...), err
}

// hidden returns the secrets to hide in a job's output: those that the job gets, and in any agent's
// job the agent's key, which its VM may have from elsewhere. It is called while a job is written,
// so it reads nothing from the store: all writes would wait for that.
func (e *Executor) hidden(m job.Manifest) ([]secret.Value, error) {
	values, err := e.o.Secrets(m.Secrets)
	agent, known := m.AgentType.Agent()
	if err != nil || !known || slices.ContainsFunc(values, func(v secret.Value) bool { return v.Name == agent.Key }) {
		return values, err
	}
	key, err := e.ifKnown(agent.Key)
	return append(values, key...), err
}
