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

	"linus/internal/doctest"
)

const readmeFiles = "../../testdata/readme"

// sessions are those the documents mark as such, by the title they stand under.
func sessions(t *testing.T) map[string]string {
	t.Helper()
	list := map[string]string{}
	for _, file := range doctest.Files(t) {
		parts := strings.Split(doctest.Read(t, file), "\n<!-- session -->\n")
		for i, part := range parts[1:] {
			titles := regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(parts[i], -1)
			block, opened := strings.CutPrefix(part, "```console\n")
			block, _, closed := strings.Cut(block, "\n```\n")
			if len(titles) == 0 || !opened || !closed {
				t.Fatalf("%s: after a mark there is no session, or no title above it", file)
			}
			title := titles[len(titles)-1][1]
			if list[title] != "" {
				t.Fatalf("two sessions have the title %q", title)
			}
			list[title] = block + "\n"
		}
	}
	if len(list) < 5 {
		t.Fatalf("%d sessions in the documents", len(list))
	}
	return list
}

// TestDocs_SessionsAreTrue runs each session as it stands on the lab and
// compares what it shows with what is written.
func TestDocs_SessionsAreTrue(t *testing.T) {
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
		ts.Fatalf("the document says:\n%s\nbut it shows:\n%s", written, shown)
	}
}
