package capture

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"linus/internal/job"
)

// The engine takes for asked what bash, which looks for it in the VM, takes for matched.
func TestAsked_IsWhatBashMatches(t *testing.T) {
	dir := t.TempDir()
	names := []string{
		"a", "b.xml", ".c.xml", "d/e.xml", "d/.f/g", "d/.h", "d/i/j/k.xml", "d/i/j/l", "ae", "é", "aéb", "[x]", "a[b", "a-b", "a]", `c\d`, "m/n", "m/.git/o", "1", "Z", "!", "^", "a*b", "p q", "nl\nx", "d/nl\ny",
	}
	for _, name := range names {
		at := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	patterns := []string{
		"*", "**", "**/*", "**/*.xml", "d/**", "d/*", "d/**/*", "d/**/j/*", "?", "??", "a?b", "[ab]", "[!a]", "[^a]", "[a-z]", "[z-a]", "[]]", "a[]]", "[[]x]", "a[[]b", "a[b", "[a", "a[-]b", "[[:digit:]]", "[[:upper:]1]",
		"[!!]", "[!^]", "[*]", "a[*]b", "./b.xml", "d//e.xml", "d/./e.xml", `c\d`, "**.xml", "a**", "m/*/o", "*/**/o", "p q", "nl*", "d/nl?y", "none", "[a-b-e]", "[!]", "[]", "*[", "a[!-]b",
	}
	for _, pattern := range patterns {
		cmd := exec.CommandContext(t.Context(), "bash", "-c", `shopt -s nullglob globstar dotglob; IFS=; p=${1//\\/[\\\\]}; for f in ${p}; do [[ ! -f ${f} ]] || printf '%s\0' "${f}"; done`, "bash", pattern)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "LC_ALL=C.UTF-8")
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
			if name != "" {
				want[filepath.Clean(name)] = true
			}
		}
		asked, got := askedBy(job.Manifest{Artifacts: []string{pattern}}), map[string]bool{}
		for _, name := range names {
			if asked.names(name) {
				got[name] = true
			}
		}
		if pattern == "??" || strings.Contains(pattern, "[[:") {
			want["é"] = true // in a VM without UTF-8 it is two, and what is a letter is the VM's to know
		}
		if !maps.Equal(got, want) {
			t.Errorf("%q: %q, bash has %q", pattern, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
		}
	}
}

func TestAsked_OfDirectoriesAbsolutePatternsAndRepositories(t *testing.T) {
	asked := askedBy(job.Manifest{Artifacts: []string{"/srv/out/", "/var/*/x", "fix.patch"}, Repository: job.Repository{URL: "https://example.org/x"}})
	for name, want := range map[string]bool{
		"srv/out": true, "srv/out/a/.b": true, "srv/outer": false, "var/log/x": true, "var/log/x/y": false, "fix.patch": true, "fix.patchy": false, "x/fix.patch": false,
		job.BundleArtifact: true, ".git/hooks/post-commit": false, ".envrc": false,
	} {
		if asked.names(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
	if askedBy(job.Manifest{Artifacts: []string{"x"}}).names(job.BundleArtifact) {
		t.Error("a bundle, without a repository")
	}
}
