package executor

import (
	"context"
	"errors"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/secret"
)

// claudeKey is the secret a claude job gets without naming it, if there is one, its
// principal may name it, and no credential stands for it.
const claudeKey = "ANTHROPIC_API_KEY"

// withKey returns the manifest of a new job with claudeKey named in it, if the job is to
// get that. The operator's jobs get it without: only a token says what may be named, and
// it may be gone when the job begins.
func (e *Executor) withKey(ctx context.Context, p job.Principal, m job.Manifest) (job.Manifest, error) {
	if p.Owner() == "" || !p.MayName(claudeKey) {
		return m, nil
	}
	key, err := e.key(ctx, m)
	if len(key) > 0 {
		m.Secrets = append(slices.Clip(m.Secrets), claudeKey)
	}
	return m, err
}

// key returns claudeKey for a claude job that does not name it; nothing for others, and
// where there is none.
func (e *Executor) key(ctx context.Context, m job.Manifest) ([]secret.Value, error) {
	_, given := m.Env[claudeKey]
	if m.AgentType != job.AgentClaude || given || slices.Contains(m.Secrets, claudeKey) || e.provides(ctx, m, claudeKey) {
		return nil, nil
	}
	key, err := e.o.Secrets([]string{claudeKey})
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
// claudeKey in any claude job's.
func (e *Executor) hidden(m job.Manifest) ([]secret.Value, error) {
	return e.secrets(context.Background(), "", m)
}
