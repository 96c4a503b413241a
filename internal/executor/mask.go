package executor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"linus/internal/job"
	"linus/internal/secret"
	"linus/internal/term"
)

// claudeKey is the secret a claude job gets without naming it, where there is one.
const claudeKey = "ANTHROPIC_API_KEY"

// secrets returns the secrets a job is to have.
func (e *Executor) secrets(m job.Manifest) ([]secret.Value, error) {
	resolve := e.o.Secrets
	if resolve == nil {
		resolve = secret.New(secret.Options{}).Resolve
	}
	values, err := resolve(m.Secrets)
	var fault *secret.Error
	if errors.As(err, &fault) {
		problem := strings.TrimSuffix(fault.Error(), "; "+fault.Remedy)
		return nil, &job.FieldError{Field: "manifest.secrets", Problem: problem, Remedy: fault.Remedy}
	}
	_, given := m.Env[claudeKey]
	if err != nil || m.AgentType != job.AgentClaude || given || slices.Contains(m.Secrets, claudeKey) {
		return values, err
	}
	key, err := resolve([]string{claudeKey})
	if errors.As(err, &fault) && fault.Unknown {
		return values, nil
	}
	return append(values, key...), err
}

// hasSecrets reports whether a job of this manifest may have secrets.
func hasSecrets(m job.Manifest) bool { return len(m.Secrets) > 0 || m.AgentType == job.AgentClaude }

// masker returns what hides a job's secrets, nil when it has none. The values are those
// that were sent to its VM, or, after a restart, what the source has now.
func (e *Executor) masker(j job.Job) (*secret.Masker, error) {
	if !hasSecrets(j.Manifest) {
		return nil, nil
	}
	e.mu.Lock()
	r := e.runs[j.ID]
	if r != nil && r.masker != nil {
		defer e.mu.Unlock()
		return r.masker, nil
	}
	e.mu.Unlock()
	values, err := e.secrets(j.Manifest)
	if err != nil {
		return nil, err
	}
	return e.cachePatterns(j.ID, values), nil
}

// cachePatterns keeps in mind, while somebody works on the job, what hides these
// values.
func (e *Executor) cachePatterns(id string, values []secret.Value) *secret.Masker {
	m := secret.NewMasker(values)
	e.mu.Lock()
	defer e.mu.Unlock()
	if r := e.runs[id]; r != nil {
		r.masker = m
	}
	return m
}

// update changes a job in the store, its texts fit to be shown, without secrets
// and none of them longer than people read, and tells those who watch it.
func (e *Executor) update(ctx context.Context, id string, change func(*job.Job) ([]job.Event, error)) (job.Job, error) {
	var events []job.Event
	j, err := e.o.Store.Update(ctx, id, func(j *job.Job) (_ []job.Event, err error) {
		undecided := j.Outcome == nil
		if events, err = change(j); err != nil {
			return nil, err
		}
		for i := range events {
			events[i].Text = e.shown(*j, events[i].Text)
		}
		j.Progress = e.shown(*j, j.Progress)
		if undecided && j.Outcome != nil {
			j.Outcome.Error = e.shown(*j, j.Outcome.Error)
		}
		return events, nil
	})
	if err != nil {
		return j, err
	}
	e.observe(j, events)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tell(id)
	return j, nil
}

// shown is text as it is kept for people: without what a terminal would obey,
// since guests, agents and servers wrote it or are quoted in it; then without
// the job's secrets, of which one that was broken up is whole by now; and bounded
// after that, so that none is cut in two and half of it left.
func (e *Executor) shown(j job.Job, text string) string {
	text = term.Text(text)
	if hasSecrets(j.Manifest) {
		text = e.hide(j, text)
	}
	return job.Bounded(text)
}

// hide returns text without the job's secrets.
func (e *Executor) hide(j job.Job, text string) string {
	if text == "" {
		return ""
	}
	m, err := e.masker(j)
	if err != nil {
		return "[hidden: the job's secrets are not known any more, and could be in it]"
	}
	masked, _ := m.Mask([]byte(text), true)
	return string(masked)
}

// hideNames returns what was found of artifacts with names that may be shown:
// without the job's secrets, and with '_' for what a terminal would obey. Two may
// have the same name then.
func (e *Executor) hideNames(j job.Job, found []job.FoundArtifact, skipped job.SkippedArtifacts) ([]job.FoundArtifact, job.SkippedArtifacts, error) {
	m, err := e.masker(j)
	if err != nil {
		return nil, job.SkippedArtifacts{}, fmt.Errorf("secrets could be in their names: %w", err)
	}
	hide := func(text string) string {
		masked, _ := m.Mask([]byte(text), true)
		return string(masked)
	}
	found = slices.Clone(found)
	skipped.ArtifactsSkipped = slices.Clone(skipped.ArtifactsSkipped)
	for i := range found {
		found[i].Path = term.Name(hide(found[i].Path))
	}
	for i, s := range skipped.ArtifactsSkipped {
		skipped.ArtifactsSkipped[i] = job.SkippedArtifact{Path: term.Name(hide(s.Path)), Reason: hide(term.Text(s.Reason))}
	}
	return found, skipped, nil
}

// hideError returns err with a text that may be shown.
func (e *Executor) hideError(ctx context.Context, id string, err error) error {
	if err == nil {
		return nil
	}
	j, jobErr := e.o.Store.Job(context.WithoutCancel(ctx), id)
	text := job.Bounded(err.Error())
	if jobErr == nil {
		text = e.shown(j, err.Error())
	}
	if text == err.Error() {
		return err
	}
	return &hiddenError{text, err}
}

// hiddenError is an error whose text had a secret in it, or was too long.
type hiddenError struct {
	text string
	err  error
}

func (h *hiddenError) Error() string { return h.text }
func (h *hiddenError) Unwrap() error { return h.err }
