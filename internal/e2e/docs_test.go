package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"linus/internal/doctest"
	"linus/internal/forgetest"
	"linus/internal/githubtest"
	"linus/internal/lab"
	"linus/internal/queuetest"
)

// What sessions find beside them: a project, and the manifests to start from.
const readmeFiles, exampleFiles = "../../testdata/readme", "../../testdata/examples"

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
	t.Parallel()
	h := newHost(t, "process", "LINUS_SECRET_ANTHROPIC_API_KEY=sk-of-a-stand-in", "LINUS_SECRET_CODEX_API_KEY=sk-of-an-environment")
	installInTemplate(t, h, "claude")
	installInTemplate(t, h, "agent")
	installInTemplate(t, h, "codex")
	place(t, h.templateDisk(t), githubRunner)
	h.template(t, 9001, "debian-12", "Debian GNU/Linux 12 (bookworm)")
	h.template(t, 9002, "ubuntu-24.04", "Ubuntu 24.04 LTS")
	h.template(t, 9003, "codex", "Debian GNU/Linux 12 (bookworm)")
	h.template(t, 9004, "runner", "Debian GNU/Linux 12 (bookworm)")
	scripts := t.TempDir()
	q := queuetest.New(t, 40*time.Second)
	q.Add("sesn_01XyZ", false, "uname -n")
	bin := t.TempDir() // its linus finds the stand-ins for the APIs of Anthropic and GitHub, and a Forgejo
	forgejo := forgetest.New(t, false)
	forgejo.Add("test", "linus")
	place(t, h.templateDisk(t), map[string]string{"home/debian/.local/bin/forgejo-runner": standInForgeRunner})
	github := githubtest.New(t)
	github.Queue(githubtest.Owner+"/web", "self-hosted")
	program := fmt.Sprintf("#!/bin/sh\ncase \"$1 $2\" in\n'dispatch claude') set -- \"$@\" --api %s ;;\n'dispatch github') set -- \"$@\" --api %s ;;\n"+
		"'dispatch forgejo') set -- \"$@\" --url %s ;;\nesac\nexec %s \"$@\"\n", q.URL, github.URL, forgejo.URL, h.linus())
	if err := os.WriteFile(filepath.Join(bin, "linus"), []byte(program), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	for _, name := range []string{"agent", "codex"} {
		place(t, bin, map[string]string{name: doctest.Read(t, filepath.Join(readmeFiles, name))})
	}
	recipe := codexRecipe(t)
	for title, session := range sessions(t) {
		if title == sandboxSession { // it has a test of its own, for which npm has to be there
			continue
		}
		name := regexp.MustCompile(`[^a-z]+`).ReplaceAllString(strings.ToLower(title), "-")
		text := fmt.Sprintf("# %s\nsession\n-- session --\n%s", title, session)
		if err := os.WriteFile(filepath.Join(scripts, name+".txtar"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	testscript.Run(t, testscript.Params{
		Dir: scripts,
		Setup: func(e *testscript.Env) error {
			home := filepath.Join(e.WorkDir, ".tmp", ".codex")
			return errors.Join(os.CopyFS(e.WorkDir, os.DirFS(readmeFiles)), os.CopyFS(e.WorkDir, os.DirFS(exampleFiles)),
				os.MkdirAll(home, 0o700), os.WriteFile(filepath.Join(home, "environments.toml"), []byte(recipe), 0o600))
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"session": func(ts *testscript.TestScript, _ bool, _ []string) { h.session(ts, bin) },
		},
	})
	if refused := q.Refused(); len(refused) > 0 {
		t.Errorf("refused: %q", refused)
	}
}

// template makes another template, of a VM that says it is of a system.
func (h *host) template(t *testing.T, id int, name, system string) {
	t.Helper()
	number := strconv.Itoa(id)
	h.qm(t, "clone", strconv.Itoa(lab.TemplateID), number, "--name", name, "--full", "1")
	h.qm(t, "start", number) // the first boot fills the disk
	h.until(t, func() bool {
		_, err := h.lab.QM(t.Context(), "agent", number, "ping")
		return err == nil
	})
	h.qm(t, "stop", number)
	found, _ := filepath.Glob(filepath.Join(h.dir, "storage", "*", "vm-"+number+"-disk-0.d", "etc", "os-release"))
	if len(found) != 1 {
		t.Fatalf("disks of template %s: %v", name, found)
	}
	if err := errors.Join(os.Remove(found[0]), os.WriteFile(found[0], fmt.Appendf(nil, "PRETTY_NAME=%q\n", system), 0o644)); err != nil {
		t.Fatal(err)
	}
	h.qm(t, "template", number)
}

// TestExamples_NotebookIsReachedThroughItsVM runs the long-lived one, on a port
// that is free: the loopback of the process lab's VMs is this machine's.
func TestExamples_NotebookIsReachedThroughItsVM(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process", "LINUS_SECRET_JUPYTER_TOKEN=open-sesame")
	installInTemplate(t, h, "jupyter-lab")
	inside, here := freePort(t), freePort(t)
	id := strings.TrimSpace(h.cli(t, "job", "submit", "-f", filepath.Join(exampleFiles, "notebook.json"), "--env", "PORT="+inside))
	h.until(t, func() bool { return strings.Contains(h.cli(t, "job", "logs", id, "--stderr"), "is running at") })

	forward := exec.CommandContext(t.Context(), filepath.Join(binDir, "linus"), "vm", "forward", "notebook", here+":"+inside)
	forward.Env, forward.Stderr = h.env, t.Output()
	out, err := forward.StdoutPipe()
	if err == nil {
		err = forward.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer forward.Wait() //nolint:errcheck // it is interrupted
	defer forward.Process.Signal(os.Interrupt)
	if lines := bufio.NewScanner(out); !lines.Scan() { // it says so when it listens
		t.Fatal("the port is not forwarded")
	}
	for token, want := range map[string]int{"open-sesame": http.StatusOK, "wrong": http.StatusForbidden} {
		resp, err := http.Get("http://127.0.0.1:" + here + "/lab?token=" + token)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("with the token %s: %s", token, resp.Status)
		}
	}

	h.cli(t, "job", "kill", id)
	if said := h.cli(t, "job", "wait", id); !strings.Contains(said, "failed, exit code 143") {
		t.Errorf("the job ended so: %s", said)
	}
	if said := h.cli(t, "vm", "show", "notebook"); !strings.Contains(said, "running") {
		t.Errorf("the VM after the job: %s", said)
	}
	h.cli(t, "vm", "destroy", "notebook", "--yes")
	h.waitGone(t)
}

// Every example is one that people find in a document, and is run: by a session,
// or by the test above.
func TestExamples_AreAllInADocumentAndRun(t *testing.T) {
	t.Parallel()
	var text, run string
	for _, file := range doctest.Files(t) {
		text += doctest.Read(t, file)
	}
	for _, session := range sessions(t) {
		run += session
	}
	files, err := os.ReadDir(exampleFiles)
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	for _, f := range files {
		if !strings.Contains(text, "| `"+f.Name()+"` |") {
			t.Errorf("%s is in no document", f.Name())
		}
		if !strings.Contains(run, "-f "+f.Name()) && f.Name() != "notebook.json" {
			t.Errorf("%s is in no session", f.Name())
		}
	}
}

// installInTemplate puts a program where clones of the lab's template have it.
func installInTemplate(t *testing.T, h *host, name string) {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(readmeFiles, name))
	if err != nil {
		t.Fatal(err)
	}
	place(t, h.templateDisk(t), map[string]string{"usr/local/bin/" + name: string(program)})
}

// session types a session's commands into one shell, which finds programs in bin first. Its
// transcript must be the session: … stands for anything in a line, and alone for any lines. ^C
// is typed when all above it is shown.
func (h *host) session(ts *testscript.TestScript, bin string) {
	written := ts.ReadFile("session")
	var script, want strings.Builder
	var before []string // what is shown before each ^C
	for line := range strings.Lines(written) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		switch {
		case isCommand:
			fmt.Fprintf(&script, "cat <<'END_OF_LINE'\n%sEND_OF_LINE\n%s", line, command)
			want.WriteString(regexp.QuoteMeta(line))
		case line == "^C\n":
			before = append(before, want.String())
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
	shell.Env = append(slices.Clone(h.env), "PATH="+strings.Join([]string{bin, binDir, os.Getenv("PATH")}, string(filepath.ListSeparator)), "HOME="+ts.MkAbs(".tmp"))
	var shown transcript
	shell.Stdout, shell.Stderr = &shown, &shown
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for its commands alone
	ts.Check(shell.Start())
	for _, text := range before {
		for all := regexp.MustCompile(`^` + text + `$`); ctx.Err() == nil && !all.MatchString(shown.String()); {
			<-time.After(50 * time.Millisecond)
		}
		_ = syscall.Kill(-shell.Process.Pid, syscall.SIGINT)
	}
	_ = shell.Wait() // what is shown counts
	if ctx.Err() != nil {
		ts.Fatalf("the session does not end:\n%s\nit shows:\n%s", written, &shown)
	}
	if !regexp.MustCompile(`^` + want.String() + `$`).MatchString(shown.String()) {
		ts.Fatalf("the document says:\n%s\nbut it shows:\n%s", written, &shown)
	}
}
