package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"linus/internal/loops"
)

// make rename leaves nothing behind that names a package by the old path, on no system, and
// README says how linus is installed from then on.
func TestRename_EveryImportIsFound(t *testing.T) {
	loops.NotInCheck(t)
	t.Parallel()
	dir := copyOfTree(t)
	renameTo(t, dir, "owner-before")
	renameTo(t, dir, "ada-lovelace") // and again
	const path = "github.com/ada-lovelace/linus"
	// With all that they and their tests import: an import of the old path is an error. What other
	// systems import is looked for below.
	if out := inTree(t, dir, "go", "list", "-test", "-deps", "./..."); !strings.Contains(out, path+"/cmd/linus\n") {
		t.Errorf("there is no %s/cmd/linus", path)
	}
	left := regexp.MustCompile(`(^|[^\w./-])linus/(cmd|embed|internal|scripts)\b|/owner-before/|"linus/"`)
	for file, text := range filesOf(t, dir) {
		for i, line := range strings.Split(text, "\n") {
			// The name of the program in a request is not the module's.
			if left.MatchString(line) && !strings.Contains(line, `"User-Agent", "linus/"`) && file != "cmd/linus/rename_test.go" {
				t.Errorf("%s:%d has the old path: %s", file, i+1, line)
			}
		}
	}
	if readme := filesOf(t, dir)["README.md"]; !strings.Contains(readme, "`go install "+path+"/cmd/linus@latest`") {
		t.Error("README does not say how it is installed")
	}
	if out := inTree(t, dir, "gofmt", "-l", "cmd", "embed", "internal", "scripts"); out != "" {
		t.Errorf("not as gofmt has it: %s", out)
	}
}

// What has been renamed builds, and tests that speak of packages by their paths pass.
func TestRename_Builds(t *testing.T) {
	loops.AtNightOnly(t, "TestRename_EveryImportIsFound has the tool list all packages with what they import")
	t.Parallel()
	dir := copyOfTree(t)
	renameTo(t, dir, "ada-lovelace")
	inTree(t, dir, "go", "build", "./...")
	inTree(t, dir, "go", "vet", "./cmd/...", "./internal/e2e/...", "./internal/lab/...", "./internal/loops")
	inTree(t, dir, "go", "test", "-run", "TestImports", "./cmd/linus")
}

// A name that is none of GitHub's changes nothing.
func TestRename_RefusesWhatIsNoOwner(t *testing.T) {
	t.Parallel()
	for _, owner := range []string{"", "-ada", "ada-", "a/b", "a b", "a,b", "a.b", strings.Repeat("a", 40)} {
		if out, err := exec.Command("bash", filepath.Join(repository, "scripts", "dev", "rename.sh"), owner).CombinedOutput(); err == nil {
			t.Fatalf("%q is taken: %s", owner, out)
		}
	}
}

// copyOfTree copies what git has, or would add, into a repository of its own.
func copyOfTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range strings.Split(inTree(t, repository, "git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"), "\x00") {
		info, err := os.Lstat(filepath.Join(repository, name))
		if name == "" || err != nil || !info.Mode().IsRegular() { // removed, and not yet for git
			continue
		}
		data, err := os.ReadFile(filepath.Join(repository, name))
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, info.Mode().Perm())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	inTree(t, dir, "git", "init", "-q")
	inTree(t, dir, "git", "add", "-A")
	return dir
}

func renameTo(t *testing.T, dir, owner string) {
	t.Helper()
	inTree(t, dir, "bash", filepath.Join("scripts", "dev", "rename.sh"), owner)
}

// inTree runs a program in a directory and returns what it prints.
func inTree(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-trimpath", "CGO_ENABLED=0") // as make builds: what is built once is found again
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.String())
	}
	return string(out)
}

// filesOf returns the texts of a copy's files by their paths.
func filesOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, name := range strings.Split(inTree(t, dir, "git", "ls-files", "-z"), "\x00") {
		if data, err := os.ReadFile(filepath.Join(dir, name)); name != "" && err == nil {
			texts[name] = string(data)
		}
	}
	return texts
}
