package job_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"linus/internal/job"
)

func TestBounded_KeepsBeginningAndEnd(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"short", "as it is: \x1b é", "as it is: \x1b é"},
		{"the most there may be", strings.Repeat("x", job.MaxText), strings.Repeat("x", job.MaxText)},
		{"invalid", "a\xffb", "a\uFFFDb"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := job.Bounded(tt.text); got != tt.want {
				t.Errorf("Bounded() = %.100q, want %.100q", got, tt.want)
			}
		})
	}
	for name, middle := range map[string]string{
		"one byte more": strings.Repeat("x", job.MaxText-7), "megabytes": strings.Repeat("x", 9<<20),
		"runes of three": strings.Repeat("漢", 2000), "invalid, longer when mended": strings.Repeat("\xffa", job.MaxText/2-8),
		"invalid and long": strings.Repeat("\xffa", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			got := job.Bounded("begin" + middle + "end")
			if len(got) > job.MaxText || len(got) < job.MaxText/2 || !utf8.ValidString(got) ||
				!strings.HasPrefix(got, "begin") || !strings.HasSuffix(got, "end") || !strings.Contains(got, " bytes cut] ") {
				t.Errorf("Bounded() = %d bytes: %.60q ... %q", len(got), got, got[max(0, len(got)-60):])
			}
			if again := job.Bounded(got); again != got {
				t.Error("bounded twice it is another")
			}
		})
	}
}
