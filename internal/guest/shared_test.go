package guest

import (
	"errors"
	"strings"
	"testing"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

func TestReadIndex(t *testing.T) {
	sum := strings.Repeat("ab", 32)
	entry := func(fields ...string) string { return strings.Join(fields, "\x00") + "\x00" }
	good := entry("dist/a b\n", "/home/u/dist/a b\n", "3", "0644", sum)
	tests := []struct {
		name, index    string
		found, skipped int
		refused        bool
	}{
		{"nothing", "", 0, 0, false},
		{"one with blanks and newlines", good, 1, 0, false},
		{"name that is not UTF-8", good + entry("a\xff", "/a\xff", "3", "0644", sum) + good, 2, 1, false},
		{"name that leads out", entry("../a", "/a", "3", "0644", sum), 0, 1, false},
		{"absolute name", entry("/a", "/a", "3", "0644", sum), 0, 1, false},
		{"cut off", good[:len(good)-80], 0, 0, true},
		{"size in words", entry("a", "/a", "big", "0644", sum), 0, 0, true},
		{"negative size", entry("a", "/a", "-1", "0644", sum), 0, 0, true},
		{"a checksum that is none", entry("a", "/a", "1", "0644", sum+"a"), 0, 0, true},
		{"relative source", entry("a", "a", "1", "0644", sum), 0, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var skipped job.SkippedArtifacts
			found, err := readIndex([]byte(tt.index), &skipped)
			if len(found) != tt.found || skipped.ArtifactsSkippedCount != tt.skipped || (err != nil) != tt.refused {
				t.Errorf("found %+v, skipped %v, %v", found, skipped, err)
			}
		})
	}
}

func TestReadSkipped(t *testing.T) {
	lines := "LINUS_ARTIFACT_SKIPPED:nothing there matches: a: b\nLINUS_ARTIFACT_SKIPPED:odd\nLINUS_ARTIFACTS_SKIPPED:%\n"
	for count, want := range map[string]int{"70": 70, "1": 2, "-5": 2, "x": 2, "99999999999": 2} {
		res, err := result.Parse(strings.NewReader(strings.ReplaceAll(lines, "%", count)), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		got := readSkipped(res)
		if got.ArtifactsSkippedCount != want || got.ArtifactsSkipped[0] != (job.SkippedArtifact{Path: "a: b", Reason: "nothing there matches"}) || got.ArtifactsSkipped[1].Reason != "odd" {
			t.Errorf("count %s: %+v", count, got)
		}
	}
}

// A VM chooses its exit codes, and none of them is a fault of the host or of the
// way there: those are waited for.
func TestFault_AVMsExitCodeIsNeverTheHosts(t *testing.T) {
	g := &Guest{}
	for code, want := range map[int]job.HostClass{
		1: job.HostInvalid, 2: job.HostDependency, 3: job.HostVM, 4: job.HostVM, 5: job.HostVM, 6: job.HostVM, 66: job.HostVM, 143: job.HostVM, 255: job.HostVM,
	} {
		var host *job.HostError
		if err := g.fault(t.Context(), "look into", job.Job{}, result.Result{}, &remote.ExitError{Code: code}); !errors.As(err, &host) || host.Class != want {
			t.Errorf("exit code %d: %v of class %s, want %s", code, err, host.Class, want)
		}
	}
}
