package job_test

import (
	"testing"
	"time"

	"linus/internal/job"
)

func TestParseDuration_TakesDaysAndWeeks(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90d": 90 * 24 * time.Hour, "2w": 14 * 24 * time.Hour, "1w1d": 8 * 24 * time.Hour, "1d12h": 36 * time.Hour, "90m": 90 * time.Minute, "0s": 0, "-1h": -time.Hour,
	} {
		if got, err := job.ParseDuration(text); err != nil || got != want {
			t.Errorf("%s is %s, %v; want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "soon", "2d-1h", "90", "99999999d"} {
		if got, err := job.ParseDuration(text); err == nil {
			t.Errorf("%q is %s", text, got)
		}
	}
}
