package daemon

import (
	"errors"
	"testing"

	"linus/internal/config"
	"linus/internal/job"
	"linus/internal/verbtest"
)

// Without an engine, what the state directory has is read, and nothing else is tried.
func TestPeek_EveryVerbReadsOrSaysWhatIsMissing(t *testing.T) {
	t.Setenv("LINUS_STATE_DIR", t.TempDir())
	c, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	e, done, err := Peek(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	reads := map[string]bool{
		"Job": true, "Manifest": true, "Result": true, "List": true, "Watch": true, "Output": true, "OpenArtifact": true,
		"Pools": true, "Pool": true, "HostTests": true, "Checkpoints": true, "Checkpoint": true, "Engines": true, "Dispatchers": true, "Usage": true, "Schedules": true, "Schedule": true, "Tokens": true, "Credentials": true,
	}
	for _, v := range job.Verbs() {
		_, err := v.Do(t.Context(), e, verbtest.About(v, "x"))
		var unset *config.Error
		if missing := errors.As(err, &unset); missing == reads[v.Name] {
			t.Errorf("%s: %v", v.Name, err)
		}
	}
}
