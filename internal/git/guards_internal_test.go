package git

import (
	"errors"
	"strings"
	"testing"

	"linus/internal/job"
)

// A submodule is on the host of what has it, for the same user, and nowhere else.
func TestSubmoduleURL(t *testing.T) {
	for _, tt := range []struct{ base, text, want string }{
		{"https://git.example/team/app.git", "./lib.git", "https://git.example/team/app.git/lib.git"},
		{"https://git.example/team/app.git", "../lib.git", "https://git.example/team/lib.git"},
		{"git@git.example:team/app.git", "../lib.git", "git@git.example:team/lib.git"},
		{"git@git.example:team/app.git", "ssh://git@git.example/lib.git", "ssh://git@git.example/lib.git"},
		{"git@git.example:team/app.git", "../../../lib.git", ""},
		{"git@git.example:team/app.git", "root@git.example:lib.git", ""},
		{"git@git.example:team/app.git", "https://git.example/lib.git", ""},
		{"https://git.example/team/app.git", "https://git.example:444/lib.git", ""},
		{"https://git.example/team/app.git", "/etc", ""},
		{"/srv/app.git", "https://git.example/lib.git", ""},
	} {
		if got, err := submoduleURL(tt.base, tt.text); got != tt.want || (err != nil) != (tt.want == "") {
			t.Errorf("%s of %s: %q, %v, want %q", tt.text, tt.base, got, err, tt.want)
		}
	}
}

// What ends a git beside the objects says nothing of the bundle, whatever it has said before.
func TestMalformed_IsWhatGitSaysOfTheObjects(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{&failure{"index-pack", "fatal: early EOF", 128}, true},
		{&failure{"index-pack", "fatal: early EOF", -1}, false}, // it was killed
		{&failure{"index-pack", "fatal: early EOF", 0}, false},
		{&failure{"index-pack", "fatal: early EOF; Out of memory, malloc failed", 128}, false},
		{&failure{"index-pack", "fatal: write error: No space left on device", 128}, false},
		{&failure{"rev-parse", "it says nothing", 1}, true},
		{&failure{"rev-parse", "it says nothing", 128}, false},
		{&failure{"rev-list", "it says nothing", 1}, false},
		{errors.New("early EOF"), false},
	} {
		malformed, is := malformed(tt.err), new(job.MalformedBundle)
		if errors.As(malformed, &is) != tt.want || !errors.Is(malformed, tt.err) && !tt.want {
			t.Errorf("%v: %v", tt.err, malformed)
		}
	}
}

func TestLastWords(t *testing.T) {
	long := strings.Repeat("ä", 500)
	for said, want := range map[string]string{
		" two\n words\x1b[31m ": "two words",
		long:                    long,
		"x" + long:              "..." + long,
		"fatal: could not read Username for 'https://git.example'": "the server requires a login, or does not accept the credential",
		"fatal: out of memory": "fatal: out of memory: it may have 256 MiB here",
	} {
		if got := lastWords(said); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}
