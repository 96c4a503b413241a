package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// linus run, as the most usual user has it: with an authorised ~/.ssh/id_ed25519, no agent
// and nothing set but the host. A client that dies loses nothing, and what it began leaves
// nothing behind.
func TestRun_SendsATreeAndTakesBackWhatHasChanged(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process")
	home, dir := t.TempDir(), t.TempDir()
	key := ""
	h.env = slices.DeleteFunc(h.env, func(line string) bool {
		path, is := strings.CutPrefix(line, "PROXMOX_SSH_KEY_PATH=")
		if is {
			key = path
		}
		return is || strings.HasPrefix(line, "SSH_AUTH_SOCK=")
	})
	h.env = append(h.env, "HOME="+home)
	data, err := os.ReadFile(key)
	if err == nil {
		err = errors.Join(os.Mkdir(filepath.Join(home, ".ssh"), 0o700), os.WriteFile(filepath.Join(home, ".ssh", "id_ed25519"), data, 0o600))
	}
	write := func(name, text string) {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	write("one", "1\n")
	write("two", "2\n")
	if err != nil {
		t.Fatal(err)
	}
	linus := func(code int, args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), h.linus(), args...)
		var out, said bytes.Buffer
		cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr = h.env, dir, &out, &said
		if err := cmd.Run(); cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
			t.Fatalf("linus %q: %v\n%s%s", args, err, out.String(), said.String())
		}
		return out.String(), said.String()
	}
	read := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(dir, name))
		return string(data)
	}

	// In a VM that stays: only what has changed is sent, and what was built stays there.
	linus(0, "vm", "create", "dev")
	if out, said := linus(0, "vm", "ssh", "dev", "--", "echo", "in"); out != "in\n" || said != "" {
		t.Errorf("vm ssh: %q, %q", out, said)
	}
	_, said := linus(3, "run", "--vm", "dev", "--apply", "--", "sh", "-c", "echo built >out; echo theirs >two; exit 3")
	if !strings.Contains(said, ": 2 of 2 files") || !strings.Contains(said, "the command failed") || read("two") != "2\n" {
		t.Errorf("first run: %s; two is %q", said, read("two"))
	}
	write("one", "1, changed\n")
	out, said := linus(0, "run", "--vm", "dev", "--", "cat", "one", "two", "out")
	if out != "1, changed\n2\nbuilt\n" || !strings.Contains(said, ": 1 of 2 files") {
		t.Errorf("second run: %q, %s", out, said)
	}

	if _, said = linus(1, "run", "--vm", "dev", "--pull", "none", "--pull", "out", "--", "true"); !strings.Contains(said, "not pulled: none: there is no such file") || read("out") != "built\n" {
		t.Errorf("pulled: %s; out is %q", said, read("out"))
	}
	_ = os.Remove(filepath.Join(dir, "out"))
	// As root, in the same tree, and then again not.
	out, said = linus(0, "run", "--vm", "dev", "--sudo", "--diff", "--", "sh", "-c", "id -u; umask 077; echo root >two; echo root >new")
	if !strings.HasPrefix(out, "0\n") || !strings.Contains(out, "+root\n") {
		t.Errorf("as root: %s%s", out, said)
	}
	if out, said = linus(0, "run", "--vm", "dev", "--", "cat", "two", "new"); out != "2\nroot\n" {
		t.Errorf("after that: %q, %s", out, said)
	}

	// A client that is killed: the run goes on, and another one takes its changes.
	cmd := exec.CommandContext(t.Context(), h.linus(), "run", "--", "sh", "-c", "echo more >>one; rm two; echo new >three; echo started; cat")
	cmd.Env, cmd.Dir = h.env, dir
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close() //nolint:errcheck // the client is gone
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "started\n" {
		t.Fatalf("the run said %q", line)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	list, _ := linus(0, "job", "list", "--status", "running")
	id := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindString(list)
	linus(0, "job", "input", id, "--close")
	out, said = linus(0, "run", "--job", id, "--diff")
	if !strings.Contains(out, "-2\n") || !strings.Contains(out, "+more\n") || !strings.Contains(out, "+++ b/three\n") {
		t.Errorf("the changes: %s%s", out, said)
	}
	write("two", "mine\n")
	_, said = linus(1, "run", "--job", id, "--apply")
	if !strings.Contains(said, "nothing is applied") || !strings.Contains(said, "two: has changed here") || read("one") != "1, changed\n" || read("three") != "" || read("two") != "mine\n" {
		t.Errorf("applied: %s; one %q, two %q, three %q", said, read("one"), read("two"), read("three"))
	}
	write("two", "2\n")
	_, said = linus(0, "run", "--job", id, "--apply")
	kept := regexp.MustCompile(`what was replaced or removed is in (\S+) `).FindStringSubmatch(said)
	if !strings.Contains(said, "applied: one\napplied: three (new)\napplied: two (removed)\n") || read("one") != "1, changed\nmore\n" || read("three") != "new\n" || read("two") != "" || kept == nil {
		t.Fatalf("applied: %s; one %q, two %q, three %q", said, read("one"), read("two"), read("three"))
	}
	for name, want := range map[string]string{"one": "1, changed\n", "two": "2\n"} {
		if data, err := os.ReadFile(filepath.Join(kept[1], name)); err != nil || string(data) != want {
			t.Errorf("kept of %s: %q, %v", name, data, err)
		}
	}
	// What people are shown is what was typed and asked for.
	list, _ = linus(0, "job", "list")
	status, _ := linus(0, "job", "status", id)
	artifacts, said := linus(0, "job", "artifacts", id)
	if !strings.Contains(list, "sh -c 'echo more >>one; rm two; echo new") || strings.Contains(list+status, "linus-run") || artifacts != "" || !strings.Contains(said, "no artifacts") {
		t.Errorf("shown:\n%s%s%s%s", list, status, artifacts, said)
	}

	// Renamed and swapped directories, one that becomes a file, in a kept VM.
	write("three", "here\n")
	for _, d := range []string{"a", "b", "c"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		write(d+"/f", d)
	}
	_, said = linus(0, "run", "--vm", "dev", "--apply", "--", "sh", "-c", "mv a t; mv b a; mv t b; rm -r c; mv three c")
	if read("a/f") != "b" || read("b/f") != "a" || read("c") != "here\n" || read("three") != "" || !regexp.MustCompile(`(?m)^job [0-9a-f-]{36}$`).MatchString(said) {
		t.Errorf("applied: %s; %q %q %q", said, read("a/f"), read("b/f"), read("c"))
	}
	if _, said = linus(127, "run", "--vm", "dev", "--", "no-such-command"); !strings.Contains(said, "no-such-command") || strings.Contains(said, "/run:") {
		t.Errorf("without a command: %s", said)
	}
	_, said = linus(2, "run", "--job", id, "--apply", "--repo", "x")
	if !strings.Contains(said, "--repo") {
		t.Errorf("said %s", said)
	}
	linus(0, "vm", "destroy", "dev", "--yes")
	h.waitGone(t)
}

// An agent works on the tree: it finds the files where it starts, tells its steps and its
// answer, and what it has changed is taken back.
func TestRun_AnAgentWorksOnTheTree(t *testing.T) {
	t.Parallel()
	h := newHost(t, "process")
	place(t, h.templateDisk(t), map[string]string{"usr/local/bin/claude": `#!/bin/sh
prompt=$(cat)
printf '%s\n' '{"type":"assistant","message":{"content":[{"type":"tool_use","name":"Edit","input":{"file_path":"/x/one"}}]}}'
echo "$prompt, $*" >>one
printf '%s\n' '{"type":"result","subtype":"success","result":"'"$prompt"' is done."}'
`})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	linus := func(args ...string) (stdout, stderr string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), h.linus(), args...)
		var out, said bytes.Buffer
		cmd.Env, cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = h.env, dir, strings.NewReader("no input"), &out, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("linus %q: %v\n%s%s", args, err, out.String(), said.String())
		}
		return out.String(), said.String()
	}
	out, said := linus("run", "--agent-type", "claude", "--model", "sonnet", "--diff", "--", "add", "it")
	if !strings.HasPrefix(out, "add it is done.") || !strings.Contains(out, "+add it, --print --output-format stream-json --verbose --model sonnet\n") || !strings.Contains(said, "edits /x/one") || strings.Contains(said, "artifacts") {
		t.Errorf("it said %q, %q", out, said)
	}
	id := regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`).FindString(said)
	if out, said = linus("run", "--job", id, "--apply"); !strings.Contains(said, "applied: one") {
		t.Errorf("taken up: %q, %q", out, said)
	}
	if data, _ := os.ReadFile(filepath.Join(dir, "one")); !strings.HasPrefix(string(data), "1\nadd it, --print") {
		t.Errorf("one is %q", data)
	}
	h.waitGone(t)
}
