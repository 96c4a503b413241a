package intake

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestCheck(t *testing.T) {
	const out, git, runs = "leads out", "is git's own", "is run by itself"
	for name, want := range map[string]string{
		"a": "", "dist/app.tar.gz": "", "a b\n-c": "", ".htaccess": "", ".well-known/s": "", ".gitignore": "", ".github/workflows/x.yml": "",
		".config/nextest.toml": "", "Makefile": "", "git": "", "a.git": "", "a~": "", "main.go.~1~": "", "...a": "", "envrc": "", "vscode/x": "",
		"": out, ".": out, "..": out, "../x": out, "/x": out, "a/../../x": out, ".. /x": out, "... ": out, "a/.\u200b./x": out,
		".git": git, ".git/hooks/post-commit": git, "sub/.git/config": git, ".GIT/x": git, ".gIt./x": git, ".git /x": git, ".git . ./x": git, ".git::$INDEX_ALLOCATION/x": git,
		".git:x": git, "git~1": git, "GIT~1/hooks/x": git, "git~2": git, ".g\u200cit/x": git, ".gi\ufefft/x": git, "\u202e.git": git, "．git/x": git, ".ｇit": git, `.git\hooks\x`: git, `a\.GIT\x`: git,
		".envrc": runs, "sub/.ENVRC": runs, ".envrc.": runs, ".bashrc": runs, ".BaſhRC": runs, ".pro\ufb01le": runs, ".\u00dfh/rc": runs, ".ssh/authorized_keys": runs, ".vscode/tasks.json": runs,
		".husky/pre-commit": runs, ".claude/settings.json": runs, ".config/autostart/x.desktop": runs, "x/.Config/systemd/user/y": runs, "VSCODE~1/tasks.json": runs, "gi7eba~1": runs, "ENVRC~1": runs, ".v\u200dscode/x": runs,
	} {
		err := Check(name, false)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
		if forced := Check(name, true); (forced == nil) != (want == "" || want == runs) {
			t.Errorf("%q with any: %v", name, forced)
		}
		if safe := Inert(filepath.Base(name)); want != "" && want != out && Check(safe, false) != nil {
			t.Errorf("%q is saved as %q", name, safe)
		}
	}
}

// into is a directory with what a user has there.
func into(t *testing.T) (dir string, i Into) {
	t.Helper()
	dir = t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, ".git", "hooks"), 0o755), os.WriteFile(filepath.Join(dir, "there"), []byte("mine"), 0o600),
		os.Symlink(".git", filepath.Join(dir, "inside")), os.Symlink(t.TempDir(), filepath.Join(dir, "outside")), os.Symlink("there", filepath.Join(dir, "link")),
	)
	root, rootErr := os.OpenRoot(dir)
	if err = errors.Join(err, rootErr); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return dir, Into{Root: root}
}

func TestInto_WritesWhereAUserMayHaveItAndNowhereElse(t *testing.T) {
	for name, want := range map[string]string{
		"new": "", "d/new": "", "there": "already exists; --force replaces it", "link": "already exists", ".git/hooks/post-commit": "git's own", "inside/hooks/post-commit": "inside is a link here",
		"outside/x": "outside is a link here", "there/x": "there is not a directory here", ".envrc": "run by itself", "../x": "leads out",
	} {
		for how, write := range map[string]func(Into) error{
			"file": func(i Into) error {
				return i.File(name, 0o600, func(f *os.File) error { _, err := f.WriteString("theirs"); return err })
			},
			"link": func(i Into) error { return i.Link(name, "new") },
			"dir":  func(i Into) error { _, err := i.Dir(name); return err },
		} {
			dir, i := into(t)
			err, says := write(i), want
			if how == "dir" && strings.HasPrefix(want, "already") {
				says = "is not a directory here"
			}
			if (says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), says) {
				t.Errorf("%s %s: %v, want %q", how, name, err, says)
			}
			if mine, _ := os.ReadFile(filepath.Join(dir, "there")); string(mine) != "mine" {
				t.Errorf("%s %s: what was there is %q", how, name, mine)
			}
			_ = filepath.WalkDir(dir, func(at string, d fs.DirEntry, _ error) error {
				if strings.HasPrefix(d.Name(), ".linus-") || strings.Contains(at, "post-commit") {
					t.Errorf("%s %s left %s", how, name, at)
				}
				return nil
			})
		}
	}
}

func TestInto_ReplacesAndWritesAnyIfTold(t *testing.T) {
	dir, i := into(t)
	i.Replace, i.Any = true, true
	for _, name := range []string{"there", "link", ".envrc"} {
		err := i.File(name, 0o600, func(f *os.File) error { _, err := f.WriteString("theirs"); return err })
		if got, _ := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != "theirs" {
			t.Errorf("%s: %v, %q", name, err, got)
		}
		if info, err := os.Lstat(filepath.Join(dir, name)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if err := i.Link("there", strings.Repeat("x", 5000)); err == nil { // no target that a link can have
		t.Error("a link that cannot be made was made")
	}
	if got, err := os.ReadFile(filepath.Join(dir, "there")); err != nil || string(got) != "theirs" {
		t.Errorf("replaced by a link that cannot be made: %q, %v", got, err)
	}
	if err := os.Mkdir(filepath.Join(dir, "mine"), 0o700); err != nil {
		t.Fatal(err)
	}
	for does, err := range map[string]error{"a file": i.File("mine", 0o600, func(*os.File) error { return nil }), "a link": i.Link("mine", "there")} {
		if err == nil || err.Error() != "is a directory here" {
			t.Errorf("%s in place of a directory: %v", does, err)
		}
	}
	if err := i.Link("there", "new"); err != nil {
		t.Error(err)
	}
	if made, err := i.Dir("d/e"); !made || err != nil {
		t.Errorf("a new directory: %v, %v", made, err)
	}
	if made, err := i.Dir("d/e"); made || err != nil {
		t.Errorf("the same again: %v, %v", made, err)
	}
}

// What File leaves that is killed is found by its name, and nothing else.
func TestLeft(t *testing.T) {
	dir, i := into(t)
	var part string
	err := i.File("d/new", 0o600, func(f *os.File) error {
		part = "d/" + filepath.Base(f.Name())
		return errors.Join(os.WriteFile(filepath.Join(dir, "d", ".linus-mine"), nil, 0o600), os.Mkdir(filepath.Join(dir, "d", ".linus-ABCDEFGHIJKLMNOPQRSTUVWXYZ"), 0o700), os.WriteFile(filepath.Join(dir, part+"x"), nil, 0o600), os.Link(filepath.Join(dir, part), filepath.Join(dir, "kept")))
	})
	if err != nil || len(Left(i.Root, "d", false)) != 0 || !slices.Equal(Left(i.Root, "d", true), []string{"d/.linus-ABCDEFGHIJKLMNOPQRSTUVWXYZ"}) || Left(i.Root, "none", false) != nil {
		t.Errorf("%v; %q, %q", err, Left(i.Root, "d", false), Left(i.Root, "d", true))
	}
	if err := os.Rename(filepath.Join(dir, "kept"), filepath.Join(dir, part)); err != nil || !slices.Equal(Left(i.Root, "d", false), []string{part}) {
		t.Errorf("%v; %q", err, Left(i.Root, "d", false))
	}
}

// Nothing takes the place of a file that comes while another is being filled.
func TestInto_AFileThatComesMeanwhileStays(t *testing.T) {
	dir, i := into(t)
	err := i.File("new", 0o600, func(*os.File) error { return os.WriteFile(filepath.Join(dir, "new"), []byte("mine"), 0o600) })
	if mine, _ := os.ReadFile(filepath.Join(dir, "new")); err == nil || string(mine) != "mine" {
		t.Errorf("%v; the file is now %q", err, mine)
	}
}

func FuzzCheck(f *testing.F) {
	for _, name := range []string{".git/x", "a/.GIT/b", "git~1", ".g\u200cit", ".envrc", "../x", "a:b", `a\b`, ".git...", "\xff.git"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		if Check(name, false) == nil && Check(name, true) != nil {
			t.Errorf("%q may be written, but not with any", name)
		}
		if Check(name, true) == nil && strings.Contains(strings.ToLower("/"+name+"/"), "/.git/") {
			t.Errorf("%q may be written", name)
		}
	})
}
