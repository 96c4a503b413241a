package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const readme, readmeFiles = "../../README.md", "../../testdata/readme"

// sessions are the README's under "What can I do with it", by title.
func sessions(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## What can I do with it\n")
	if !found {
		t.Fatal("README has no section \"What can I do with it\"")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	list := map[string]string{}
	for _, part := range strings.Split(section, "\n### ")[1:] {
		title, rest, _ := strings.Cut(part, "\n")
		_, block, found := strings.Cut(rest, "```console\n")
		block, _, closed := strings.Cut(block, "\n```")
		if !found || !closed {
			t.Fatalf("%q has no session", title)
		}
		list[title] = block + "\n"
	}
	return list
}

// TestReadme_SessionsAreTrue runs each session as it stands on the lab and
// compares what it shows with what is written.
func TestReadme_SessionsAreTrue(t *testing.T) {
	h := newHost(t, "process", "LINUS_SECRET_ANTHROPIC_API_KEY=sk-of-a-stand-in")
	installInTemplate(t, h, "claude")
	scripts := t.TempDir()
	for title, session := range sessions(t) {
		name := regexp.MustCompile(`[^a-z]+`).ReplaceAllString(strings.ToLower(title), "-")
		text := fmt.Sprintf("# %s\nsession\n-- session --\n%s", title, session)
		if err := os.WriteFile(filepath.Join(scripts, name+".txtar"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: scripts,
		Setup: func(e *testscript.Env) error {
			return os.CopyFS(e.WorkDir, os.DirFS(readmeFiles))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"session": func(ts *testscript.TestScript, _ bool, _ []string) { h.session(ts) },
		},
	})
}

// installInTemplate puts a program where clones of the lab's template have it.
func installInTemplate(t *testing.T, h *host, name string) {
	t.Helper()
	disks, err := filepath.Glob(filepath.Join(h.dir, "storage", "*", "base-9000-disk-0"))
	if err != nil || len(disks) != 1 {
		t.Fatalf("disks of the template: %v, %v", disks, err)
	}
	program, err := os.ReadFile(filepath.Join(readmeFiles, name))
	dir := filepath.Join(disks[0]+".d", "usr", "local", "bin")
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// session types a session's commands into one shell. Its transcript must be
// the session: … stands for anything in a line, and alone for any lines.
func (h *host) session(ts *testscript.TestScript) {
	written := ts.ReadFile("session")
	var script, want strings.Builder
	for line := range strings.Lines(written) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isCommand:
			fmt.Fprintf(&script, "cat <<'END_OF_LINE'\n%sEND_OF_LINE\n%s", line, command)
			want.WriteString(regexp.QuoteMeta(line))
		case line == "…\n":
			want.WriteString(`(?:.*\n)*?`)
		default:
			want.WriteString(strings.ReplaceAll(regexp.QuoteMeta(line), "…", ".*?"))
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir = ts.MkAbs(".")
	shell.Env = append(slices.Clone(h.env), "PATH="+binDir+string(filepath.ListSeparator)+os.Getenv("PATH"), "HOME="+ts.MkAbs("."))
	shown, err := shell.CombinedOutput()
	if ctx.Err() != nil || err != nil && shell.ProcessState == nil {
		ts.Fatalf("the session does not end: %v\n%s", err, shown)
	}
	if !regexp.MustCompile(`^` + want.String() + `$`).Match(shown) {
		ts.Fatalf("README says:\n%s\nbut it shows:\n%s", written, shown)
	}
}
