package capture

import (
	"fmt"
	"slices"

	"linus/internal/job"
	"linus/internal/secret"
	"linus/internal/term"
)

// Hide sets the secrets to hide: those that are sent to the VM. Without a call, as after a restart,
// they are read from the source when first needed.
func (c *Capture) Hide(values []secret.Value) {
	m := secret.NewMasker(values)
	c.hiding.Lock()
	defer c.hiding.Unlock()
	c.masker = m
}

// CanHide returns an error if the job's secrets are unknown and cannot be hidden.
func (c *Capture) CanHide() error {
	_, err := c.hider()
	return err
}

// hider returns the masker of the job's secrets, or nil if the job has none.
func (c *Capture) hider() (*secret.Masker, error) {
	if _, agent := c.manifest.AgentType.Agent(); len(c.manifest.Secrets) == 0 && !agent { // the job has no secrets
		return nil, nil
	}
	c.hiding.Lock()
	defer c.hiding.Unlock()
	if c.masker == nil {
		values, err := c.o.Secrets(c.manifest)
		if err != nil {
			return nil, err
		}
		c.masker = secret.NewMasker(values)
	}
	return c.masker, nil
}

// Shown returns text as it is stored for people. It first removes terminal escapes, because the
// text may come from guests, agents and servers. Then it hides the job's secrets, which escapes can
// no longer split. It bounds the text last, so that no part of a secret remains.
func (c *Capture) Shown(text string) string { return job.Bounded(c.hide(term.Text(text))) }

// hide returns text without the job's secrets.
func (c *Capture) hide(text string) string {
	if text == "" {
		return ""
	}
	m, err := c.hider()
	if err != nil {
		return "[hidden: the job's secrets are no longer known, and could be in it]"
	}
	masked, _ := m.Mask([]byte(text), true)
	return string(masked)
}

// hideNames returns the artifacts with names that may be shown: without the job's secrets, and with
// '_' for control characters. A changed name that is already taken gets a number.
func (c *Capture) hideNames(found []job.FoundArtifact, skipped job.SkippedArtifacts) ([]job.FoundArtifact, job.SkippedArtifacts, error) {
	if err := c.CanHide(); err != nil {
		return nil, job.SkippedArtifacts{}, fmt.Errorf("secrets could be in their names: %w", err)
	}
	found = slices.Clone(found)
	skipped.ArtifactsSkipped = slices.Clone(skipped.ArtifactsSkipped)
	taken := map[string]int{}
	shown := make([]string, len(found))
	for i, f := range found {
		if shown[i] = term.Name(c.hide(f.Path)); shown[i] == f.Path {
			taken[f.Path]++
		}
	}
	for i, f := range found {
		if shown[i] == f.Path {
			continue
		}
		for found[i].Path = shown[i]; taken[found[i].Path] > 0; {
			taken[shown[i]]++
			found[i].Path = fmt.Sprintf("%s_%d", shown[i], taken[shown[i]])
		}
		taken[found[i].Path]++
	}
	for i, s := range skipped.ArtifactsSkipped {
		skipped.ArtifactsSkipped[i] = job.SkippedArtifact{Path: term.Name(c.hide(s.Path)), Reason: c.hide(term.Text(s.Reason))}
	}
	return found, skipped, nil
}

// ShownError returns err with its text as Shown returns it.
func (c *Capture) ShownError(err error) error {
	if err == nil {
		return nil
	}
	if text := c.Shown(err.Error()); text != err.Error() {
		return &shownError{text, err}
	}
	return err
}

type shownError struct {
	text string
	err  error
}

func (s *shownError) Error() string { return s.text }
func (s *shownError) Unwrap() error { return s.err }
