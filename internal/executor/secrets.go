package executor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/secret"
)

// withKey returns the manifest of a new job with its agent's key named in its secrets, if
// the job is to get that: if there is one, its principal may name it, and neither its env
// nor a credential stands for it. The operator's jobs get it without being named: only a
// token says what may be named, and it may be gone when the job begins.
func (e *Executor) withKey(ctx context.Context, p job.Principal, m job.Manifest) (job.Manifest, error) {
	agent, known := m.AgentType.Agent()
	if !known || p.Owner() == "" || !p.MayName(agent.Key) {
		return m, nil
	}
	key, err := e.key(ctx, m)
	if len(key) > 0 {
		m.Secrets = append(slices.Clip(m.Secrets), agent.Key)
	}
	return m, err
}

// key returns the key of a job's agent, if the manifest does not name it; nothing for other
// jobs, and where there is none.
func (e *Executor) key(ctx context.Context, m job.Manifest) ([]secret.Value, error) {
	agent, known := m.AgentType.Agent()
	_, given := m.Env[agent.Key]
	if !known || given || slices.Contains(m.Secrets, agent.Key) || e.provides(ctx, m, agent.Key) {
		return nil, nil
	}
	key, err := e.o.Secrets([]string{agent.Key})
	if fault, ok := errors.AsType[*secret.Error](err); ok && fault.Unknown {
		return nil, nil
	}
	return key, err
}

// secrets returns the secrets that a job of an owner (as of Job.Principal) gets.
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

// hidden returns the secrets that are hidden in what a job writes: those it gets, and
// the agent's key in any agent's job.
func (e *Executor) hidden(m job.Manifest) ([]secret.Value, error) {
	return e.secrets(context.Background(), "", m)
}
