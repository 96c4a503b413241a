package web

import (
	"testing"

	"linus/internal/job"
)

func TestWords_HaveEveryAction(t *testing.T) {
	for _, a := range job.Actions {
		if words[a] == "" {
			t.Errorf("there are no words for %s", a)
		}
	}
}
