package executor

import (
	"errors"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/secret"
)

// claudeKey is the secret a claude job gets without naming it, if there is one.
const claudeKey = "ANTHROPIC_API_KEY"

// secrets returns the secrets a job gets.
func (e *Executor) secrets(m job.Manifest) ([]secret.Value, error) {
	values, err := e.o.Secrets(m.Secrets)
	var fault *secret.Error
	if errors.As(err, &fault) {
		problem := strings.TrimSuffix(fault.Error(), "; "+fault.Remedy)
		return nil, &job.FieldError{Field: "manifest.secrets", Problem: problem, Remedy: fault.Remedy}
	}
	_, given := m.Env[claudeKey]
	if err != nil || m.AgentType != job.AgentClaude || given || slices.Contains(m.Secrets, claudeKey) {
		return values, err
	}
	key, err := e.o.Secrets([]string{claudeKey})
	if errors.As(err, &fault) && fault.Unknown {
		return values, nil
	}
	return append(values, key...), err
}
