package worktree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// write makes files below a directory: name, content, name, content.
func write(t *testing.T, dir string, files ...string) {
	t.Helper()
	for pair := range slices.Chunk(files, 2) {
		at := filepath.Join(dir, pair[0])
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, []byte(pair[1]), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

func run(t *testing.T, dir string, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null",
		"GIT_AUTHOR_NAME=t", "GIT_AUTHOR_EMAIL=t@example", "GIT_COMMITTER_NAME=t", "GIT_COMMITTER_EMAIL=t@example")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", argv, err, out)
	}
}

func find(t *testing.T, dir string) Tree {
	t.Helper()
	tree, err := Find(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

func pack(t *testing.T, tree Tree, held []byte) Packed {
	t.Helper()
	p, err := tree.Pack(t.Context(), held)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// names lists an archive, links with what they point to.
func names(t *testing.T, archive []byte) []string {
	t.Helper()
	zip, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for r := tar.NewReader(zip); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, strings.TrimSuffix(h.Name+" -> "+h.Linkname, " -> "))
	}
}

func TestPack_IsWhatGitTracksOrDoesNotIgnore(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, ".gitignore", "out/\n*.o\n", "tracked", "1", "removed", "1", "sub/deep/new", "1", "out/x", "1", "a.o", "1", "-odd\nname", "1")
	run(t, dir, "git", "init", "-q")
	run(t, dir, "git", "add", "tracked", "removed")
	write(t, dir, "module/.gitignore", "*.o\n", "module/code", "1", "module/b.o", "1")
	run(t, filepath.Join(dir, "module"), "git", "init", "-q")
	if err := errors.Join(os.Remove(filepath.Join(dir, "removed")), os.Symlink("tracked", filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	tree := find(t, filepath.Join(dir, "sub", "deep"))
	if tree.Sub != "sub/deep" || !tree.Git || tree.Name != find(t, dir).Name {
		t.Errorf("tree = %+v", tree)
	}
	want := []string{"-odd\nname", ".gitignore", "link -> tracked", "module/.gitignore", "module/code", "sub/deep/new", "tracked"}
	if got := names(t, pack(t, tree, nil).Archive); !slices.Equal(got, want) {
		t.Errorf("packed %q, want %q", got, want)
	}
}

// git lists what is in its index, whatever is in its place.
func TestPack_WhatHasTakenADirectorysPlace(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "file/x", "1", "link/x", "1", "ignored/x", "1", "was", "1", "real/x", "1", ".gitignore", "ignored\n")
	run(t, dir, "git", "init", "-q")
	run(t, dir, "git", "add", "-f", ".")
	run(t, dir, "rm", "-r", "file", "link", "ignored", "was")
	write(t, dir, "file", "1", "was/x", "1")
	if err := errors.Join(os.Symlink("real", filepath.Join(dir, "link")), os.Symlink("real", filepath.Join(dir, "ignored"))); err != nil {
		t.Fatal(err)
	}
	want := []string{".gitignore", "file", "link -> real", "real/x", "was/x"}
	if got := names(t, pack(t, find(t, dir), nil).Archive); !slices.Equal(got, want) {
		t.Errorf("packed %q, want %q", got, want)
	}
}

func TestPack_WithoutGitIsEverything(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", "1", "b/c", "1", "d/.git/config", "another's")
	if got := names(t, pack(t, find(t, dir), nil).Archive); !slices.Equal(got, []string{"a", "b/c"}) {
		t.Errorf("packed %q", got)
	}
	if find(t, dir).Name == find(t, filepath.Join(dir, "b")).Name {
		t.Error("two directories have one name")
	}
}

func TestFind_RefusesWhatIsNoProject(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, dir := range []string{home, "/"} {
		if tree, err := Find(t.Context(), dir); err == nil {
			t.Errorf("%s is %+v", dir, tree)
		}
	}
	write(t, home, "project/x", "1")
	find(t, filepath.Join(home, "project"))
}

// A repository that git refuses is not sent whole instead, with all that it ignores.
func TestFind_DoesNotGoOnWithoutGit(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, ".git", "rubbish", "secret", "1")
	if tree, err := Find(t.Context(), dir); err == nil {
		t.Errorf("found %+v", tree)
	}
}

func TestPack_SendsWhatHasChanged(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "same", "1", "changed", "1", "gone", "1", "mode", "1")
	tree := find(t, dir)
	first := pack(t, tree, nil)
	if first.Files != 4 || first.Sent != 4 || len(first.Gone) > 0 {
		t.Errorf("first: %d of %d, gone %q", first.Sent, first.Files, first.Gone)
	}
	write(t, dir, "changed", "2", "new", "1")
	if err := errors.Join(os.Remove(filepath.Join(dir, "gone")), os.Chmod(filepath.Join(dir, "mode"), 0o755)); err != nil {
		t.Fatal(err)
	}
	second := pack(t, tree, first.Index)
	if got := names(t, second.Archive); !slices.Equal(got, []string{"changed", "mode", "new"}) || string(second.Gone) != "gone\x00" {
		t.Errorf("second: %q, gone %q", got, second.Gone)
	}
	if third := pack(t, tree, second.Index); third.Sent != 0 {
		t.Errorf("third: %d sent", third.Sent)
	}
	// An index comes from a VM.
	for _, rubbish := range []string{"rubbish", "\x00\x00", "0644:x ../../etc/passwd\x00", strings.Repeat(" ", 1<<10)} {
		if p := pack(t, tree, []byte(rubbish)); p.Sent != 4 || bytes.Contains(p.Gone, []byte("..")) {
			t.Errorf("with %.20q: %d sent, gone %q", rubbish, p.Sent, p.Gone)
		}
	}
}

func TestPack_RefusesATreeThatIsTooLarge(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "small", "1", "large", "")
	if err := os.Truncate(filepath.Join(dir, "large"), MaxBytes+1); err != nil {
		t.Fatal(err)
	}
	_, err := find(t, dir).Pack(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "large (512.0 MB)") || !strings.Contains(err.Error(), "git ignore") {
		t.Errorf("err = %v", err)
	}
}

func TestClone_IsTheRepositoryAtARef(t *testing.T) {
	origin := t.TempDir()
	write(t, origin, "file", "1")
	run(t, origin, "git", "init", "-q", "-b", "main")
	run(t, origin, "git", "add", ".")
	run(t, origin, "git", "commit", "-q", "-m", "1")
	run(t, origin, "git", "tag", "v1")
	write(t, origin, "file", "2")
	run(t, origin, "git", "commit", "-q", "-a", "-m", "2")
	run(t, origin, "git", "tag", "both", "v1")
	run(t, origin, "git", "branch", "both", "main")
	run(t, origin, "git", "config", "uploadpack.allowAnySHA1InWant", "true")
	first, err := git(t.Context(), origin, "", "rev-parse", "v1")
	if err != nil {
		t.Fatal(err)
	}
	one := strings.TrimSpace(string(first))
	for ref, want := range map[string]string{"": "2", "main": "2", "v1": "1", "both": "2", "refs/tags/both": "1", one: "1"} {
		into := t.TempDir()
		tree := OfRepository("file://"+origin, into)
		if err := tree.Clone(t.Context(), "file://"+origin, ref); err != nil {
			t.Fatal(err)
		}
		if data, _ := os.ReadFile(filepath.Join(into, "file")); string(data) != want || len(names(t, pack(t, tree, nil).Archive)) != 1 {
			t.Errorf("at %q: %q", ref, data)
		}
	}
	err = OfRepository(origin, t.TempDir()).Clone(t.Context(), "file://"+origin, one[:7])
	if err == nil || !strings.Contains(err.Error(), `has no branch and no tag "`+one[:7]+`"; a commit is named by all 40 digits`) {
		t.Errorf("a short hash: %v", err)
	}
	for _, wrong := range [][2]string{{"--upload-pack=touch /tmp/x", ""}, {"file://" + origin, "--all"}, {"file://" + origin, "no-such-ref"}} {
		if err := OfRepository(wrong[0], t.TempDir()).Clone(t.Context(), wrong[0], wrong[1]); err == nil {
			t.Errorf("%q was cloned", wrong)
		} else if wrong[1] != "no-such-ref" && !strings.Contains(err.Error(), "begins with -") {
			t.Errorf("%q is given to git: %v", wrong, err)
		}
	}
}

// What git tells a hook or an alias of a repository, and what people set for one, is not told to git
// in another; how a server is reached is.
func TestGit_HasNoVariableOfAnotherRepository(t *testing.T) {
	origin, other, dir, into := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	write(t, origin, "file", "1")
	write(t, other, "theirs", "1")
	write(t, dir, "mine", "1", "module/code", "1")
	for _, at := range []string{origin, other, dir, filepath.Join(dir, "module")} {
		run(t, at, "git", "init", "-q", "-b", "main")
		run(t, at, "git", "add", ".")
		run(t, at, "git", "commit", "-q", "-m", "1")
	}
	theirs, err := os.ReadFile(filepath.Join(other, ".git", "index"))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"GIT_DIR": filepath.Join(other, ".git"), "GIT_WORK_TREE": other, "GIT_COMMON_DIR": filepath.Join(other, ".git"), "GIT_PREFIX": "x/",
		"GIT_INDEX_FILE": filepath.Join(other, ".git", "index"), "GIT_OBJECT_DIRECTORY": filepath.Join(other, ".git", "objects"),
		"GIT_CONFIG_PARAMETERS": "'core.worktree'='" + other + "'", "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.worktree", "GIT_CONFIG_VALUE_0": other,
		"GIT_LITERAL_PATHSPECS": "1", "GIT_EXEC_PATH": other, "git_trace": filepath.Join(other, "trace"),
	} {
		t.Setenv(name, value)
	}
	if got := names(t, pack(t, find(t, dir), nil).Archive); !slices.Equal(got, []string{"mine", "module/code"}) {
		t.Errorf("the tree has %q", got)
	}
	tree := OfRepository("file://"+origin, into)
	if err := tree.Clone(t.Context(), "file://"+origin, ""); err != nil {
		t.Fatal(err)
	}
	if got := names(t, pack(t, tree, nil).Archive); !slices.Equal(got, []string{"file"}) {
		t.Errorf("the clone has %q", got)
	}
	if entries, _ := os.ReadDir(other); len(entries) != 2 {
		t.Errorf("the other has %v", entries)
	}
	if now, err := os.ReadFile(filepath.Join(other, ".git", "index")); err != nil || !bytes.Equal(now, theirs) {
		t.Errorf("its index has changed, %v", err)
	}
	t.Setenv("GIT_ALLOW_PROTOCOL", "https")
	if err := tree.Clone(t.Context(), "file://"+origin, ""); err == nil || !strings.Contains(err.Error(), "transport 'file' not allowed") {
		t.Errorf("with what people say of servers: %v", err)
	}
}

// archived is an archive as a VM sends it.
func archived(t testing.TB, headers ...tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	zip := gzip.NewWriter(&b)
	w := tar.NewWriter(zip)
	for _, h := range headers {
		content := h.Uname // abused: the tests' headers have their content there
		h.Uname, h.Size = "", int64(len(content))
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		if h.Linkname != "" {
			h.Typeflag = tar.TypeSymlink
		}
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), zip.Close()); err != nil {
		t.Fatal(err)
	}
	return &b
}

// sent is what a VM sends after a command: files as they were sent, as they are now, and
// more lines of the list of changes.
func sent(t testing.TB, before, after []tar.Header, lines ...string) io.Reader {
	t.Helper()
	var index strings.Builder
	var files []tar.Header
	is := map[string]bool{}
	for _, h := range after {
		is[h.Name] = true
		lines = append(lines, "+"+h.Name)
		h.Name = "tree/" + h.Name
		files = append(files, h)
	}
	for _, h := range before {
		kind := tar.Header{Typeflag: tar.TypeReg, Mode: max(h.Mode, 0o644), Linkname: h.Linkname}
		if h.Linkname != "" {
			kind.Typeflag, kind.Mode = tar.TypeSymlink, 0o777
		}
		index.WriteString(entryOf(&kind, []byte(h.Uname)) + " " + h.Name + "\x00")
		if !is[h.Name] {
			lines = append(lines, "-"+h.Name)
		}
		h.Name = "base/" + h.Name
		files = append(files, h)
	}
	list := strings.Join(lines, "\x00") + "\x00"
	return archived(t, append([]tar.Header{{Name: "index", Uname: index.String()}, {Name: "changes", Uname: list}}, files...)...)
}

func changes(t *testing.T, archive io.Reader) []Change {
	t.Helper()
	list, err := ReadChanges(archive)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// apply applies changes and returns where what was there is kept.
func apply(t *testing.T, dir string, list ...Change) (keep string, err error) {
	t.Helper()
	keep = filepath.Join(t.TempDir(), "kept")
	_, err = Tree{Root: dir}.Apply(list, keep, false)
	return keep, err
}

// content lists a directory: what is in it, and with what.
func content(t *testing.T, dir string) string {
	t.Helper()
	var list strings.Builder
	if err := filepath.WalkDir(dir, func(at string, d os.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		name, _ := filepath.Rel(dir, at)
		data, _ := os.ReadFile(at)
		list.WriteString(name + map[bool]string{true: "/", false: "=" + string(data)}[d.IsDir()] + "\n")
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return list.String()
}

// The patch is one that git takes, and Apply makes the same of the tree.
func TestChanges_ArePatchesThatGitTakesAndApplyMakes(t *testing.T) {
	before := []tar.Header{{Name: "edit", Uname: "a\nb\nc\n"}, {Name: "cut", Uname: "no newline"}, {Name: "remove", Uname: "x\n"}, {Name: "mode", Uname: "x\n"}, {Name: "same", Uname: "x\n"}, {Name: "d/old", Uname: "o\n"}}
	after := []tar.Header{{Name: "edit", Uname: "a\nB\nc\n"}, {Name: "cut", Uname: "no newline here"}, {Name: "mode", Uname: "x\n", Mode: 0o755}, {Name: "same", Uname: "x\n"}, {Name: "new/file", Uname: "1\n2\n"}, {Name: "new/tool", Uname: "#!\n", Mode: 0o755}, {Name: "d", Uname: "file\n"}}
	patched, applied := t.TempDir(), t.TempDir()
	for _, dir := range []string{patched, applied} {
		for _, h := range before {
			write(t, dir, h.Name, h.Uname)
		}
	}
	was := content(t, applied)
	list := changes(t, sent(t, before, after))
	var patch []byte
	for _, c := range list {
		patch = append(patch, c.Diff()...)
	}
	keep, err := apply(t, applied, list...)
	if _, again := apply(t, applied, list...); err != nil || again != nil || len(list) != 8 {
		t.Errorf("%d changes, %v, again %v", len(list), err, again)
	}
	write(t, patched, "../p.patch", string(patch))
	run(t, patched, "git", "init", "-q")
	run(t, patched, "git", "apply", "../p.patch")
	run(t, patched, "rm", "-r", ".git", "../p.patch")
	run(t, patched, "diff", "-r", patched, applied)
	for name, want := range map[string]os.FileMode{"mode": 0o755, "new/tool": 0o755, "edit": 0o644} {
		if info, err := os.Stat(filepath.Join(applied, name)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	// What was kept, put over it, is the tree before; what is new is in the way, or beside it.
	run(t, applied, "rm", "-r", "d", "new")
	run(t, applied, "cp", "-a", keep+"/.", ".")
	if is := content(t, applied); is != was {
		t.Errorf("taken back:\n%s, not\n%s", is, was)
	}
}

// What is no text, or is not here, is said to differ, and where it does alone.
func TestDiff_OfWhatIsNoText(t *testing.T) {
	zeros, others := &State{Data: []byte("a\x00")}, &State{Data: []byte("b\x00")}
	for name, tt := range map[string]struct {
		c       Change
		differs bool
	}{
		"changed":           {Change{Name: "f", Before: zeros, After: others}, true},
		"from text":         {Change{Name: "f", Before: &State{Data: []byte("a")}, After: others}, true},
		"to text":           {Change{Name: "f", Before: zeros, After: &State{Data: []byte("a")}}, true},
		"new":               {Change{Name: "f", After: others}, true},
		"removed":           {Change{Name: "f", Before: zeros}, true},
		"only its mode":     {Change{Name: "f", Before: zeros, After: &State{Data: zeros.Data, Exec: true}}, false},
		"removed, not here": {Change{Name: "f", Before: &State{sum: "x"}}, true},
	} {
		if text := string(tt.c.Diff()); strings.Contains(text, "Binary files ") != tt.differs || strings.Contains(text, "\x00") {
			t.Errorf("%s: %q", name, text)
		}
	}
}

func TestApply_IsAllOrNothing(t *testing.T) {
	state := func(text string) *State { return &State{Data: []byte(text)} }
	other := []Change{{Name: "a/b", Before: state("sent")}, {Name: "e", Before: state("sent"), After: state("new")}, {Name: "n/n", After: state("new")}}
	for name, tt := range map[string]struct {
		c    Change
		says string
	}{
		"changed":         {Change{Name: "f", Before: state("sent"), After: state("new")}, "f: has changed here"},
		"removed":         {Change{Name: "f", Before: state("sent")}, "f: has changed here"},
		"added":           {Change{Name: "f", After: state("new")}, "f: has changed here"},
		"gone here":       {Change{Name: "none", Before: state("sent"), After: state("new")}, "none: has changed here"},
		"too large":       {Change{Name: "n/large", Left: "is too large"}, "n/large: is too large"},
		"a link":          {Change{Name: "l", After: &State{Link: "f"}}, "l: is a symbolic link"},
		"a directory":     {Change{Name: "kept", After: state("new")}, "kept: is a directory here"}, // only seen when all else is done
		"two in one":      {Change{Name: "n/n/n", After: state("new")}, "file exists"},              // likewise
		"twice":           {Change{Name: "n/n", After: state("other")}, "n/n: has changed here"},    // likewise, as by somebody meanwhile
		"huge":            {Change{Name: "pipe", Before: state("sent")}, "pipe: has changed here"},
		"no regular file": {Change{Name: "pipe", After: state("new")}, "pipe: is neither"},
	} {
		dir := t.TempDir()
		write(t, dir, "f", "mine", "a/b", "sent", "e", "sent", "kept/unsent", "1")
		if tt.c.Name == "pipe" { // what nobody reads whole
			run(t, dir, map[string]string{"huge": "truncate", "no regular file": "mkfifo"}[name], map[string]string{"huge": "--size=1T", "no regular file": "--mode=600"}[name], "pipe")
			if _, err := apply(t, dir, append(other, tt.c)...); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		was := content(t, dir)
		_, err := apply(t, dir, append(other, tt.c)...)
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", name, err)
		}
		if is := content(t, dir); is != was {
			t.Errorf("%s:\n%s, not\n%s", name, is, was)
		}
	}
}

// Nothing is changed here unless what was here is kept.
func TestApply_KeepsFirst(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "f", "sent")
	if _, err := (Tree{Root: dir}).Apply([]Change{{Name: "f", Before: &State{Data: []byte("sent")}}}, filepath.Join(dir, "f", "keep"), false); err == nil || content(t, dir) != "f=sent\n" {
		t.Errorf("%v, and there is %q", err, content(t, dir))
	}
}

// What was kept of the last time stays where nothing is made.
func TestApply_ThatMakesNothingKeepsWhatWasKept(t *testing.T) {
	dir, keep := t.TempDir(), filepath.Join(t.TempDir(), "keep")
	write(t, dir, "f", "first", "d/unsent", "1")
	sent := &State{Data: []byte("first")}
	for i, list := range [][]Change{{{Name: "f", Before: sent, After: &State{Data: []byte("second")}}}, {{Name: "f", Before: &State{Data: []byte("second")}}, {Name: "d", After: sent}}} {
		if _, err := (Tree{Root: dir}).Apply(list, keep, false); (err != nil) != (i == 1) {
			t.Errorf("%d: %v", i, err)
		}
		if is := content(t, filepath.Dir(keep)); is != "keep/\nkeep/f=first\n" {
			t.Errorf("%d: kept %q", i, is)
		}
	}
}

// What somebody saves while changes are made is theirs.
func TestApply_TakesNothingThatChangesMeanwhile(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	sent := func(text string) *State { return &State{Data: []byte(text)} }
	for name, tt := range map[string]struct {
		f    string
		list []Change
	}{
		"replaced": {"mine", []Change{{Name: "e", Before: sent("sent"), After: sent("new")}, {Name: "f", Before: sent("sent"), After: sent("new")}}},
		"removed":  {"mine", []Change{{Name: "e", Before: sent("sent"), After: sent("new")}, {Name: "f", Before: sent("sent")}}},
	} {
		write(t, dir, "e", "sent", "f", tt.f)
		was := content(t, dir)
		w := swap{root: root, stage: ".stage"}
		if err := w.run(tt.list); err == nil || !strings.Contains(err.Error(), "f: has changed here since it was sent") {
			t.Errorf("%s: %v", name, err)
		}
		if err := root.RemoveAll(w.stage); err != nil || w.stuck || content(t, dir) != was {
			t.Errorf("%s: %v, stuck %t, and there is %q", name, err, w.stuck, content(t, dir))
		}
	}
	// Nor is it replaced by what was there before, which stays where it is, and is named.
	w := swap{root: root, stage: ".stage", moved: [][2]string{{"f", ".stage/old/9"}}}
	write(t, dir, ".stage/old/9", "old", "e", "other")
	err = w.run([]Change{{Name: "e", Before: sent("sent")}})
	if is := content(t, dir); !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), "what was f is in .stage/old/9") || !w.stuck || !strings.HasSuffix(is, ".stage/old/9=old\ne=other\nf=mine\n") {
		t.Errorf("%v, stuck %t, and there is %q", err, w.stuck, is)
	}
}

// What an Apply has taken away that was killed is in the tree by its name, is told of, and nothing is
// done before it is back.
func TestApply_KilledInTheMiddleIsTold(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	list := []Change{{Name: "d/f", Before: &State{Data: []byte("sent")}, After: &State{Data: []byte("new")}}, {Name: "e", Before: &State{Data: []byte("sent")}}}
	write(t, dir, "d/f", "sent", "e", "sent", ".linus-mine/old", "1", ".linus-ABCDEFGHIJKLMNOPQRSTUVWXYZ/new/0", "theirs", ".linus-ZBCDEFGHIJKLMNOPQRSTUVWXYZ/mine", "2")
	was, begun := content(t, dir), ".linus-ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if err := (Tree{Root: dir}).Unfinished(); err != nil || content(t, dir) != was { // one may be at work
		t.Errorf("%v, and there is %q", err, content(t, dir))
	}
	for _, old := range []string{begun, ".linus-ZBCDEFGHIJKLMNOPQRSTUVWXYZ"} {
		if err := os.Chtimes(filepath.Join(dir, old), time.Time{}, time.Now().Add(-2*stageTime)); err != nil {
			t.Fatal(err)
		}
	}
	is := strings.ReplaceAll(was, begun+"/\n"+begun+"/new/\n"+begun+"/new/0=theirs\n", "")
	if err := (Tree{Root: dir}).Unfinished(); err != nil || content(t, dir) != is {
		t.Errorf("%v, and there is %q", err, content(t, dir))
	}
	was = is
	w := swap{root: root, stage: ".linus-" + rand.Text()} // which Apply removes afterwards
	if err := w.run(list); err != nil {
		t.Fatal(err)
	}
	stage := filepath.Join(dir, w.stage)
	for _, err := range []error{Tree{Root: dir}.Unfinished(), func() error { _, err := apply(t, dir, Change{Name: "n", After: &State{}}); return err }()} {
		if err == nil || !strings.Contains(err.Error(), "what it had taken away is in "+stage+"/old; bring that back (cp -a "+stage+"/old/. "+dir+"), then remove "+stage) {
			t.Error(err)
		}
	}
	run(t, dir, "cp", "-a", stage+"/old/.", dir)
	run(t, dir, "rm", "-r", stage)
	if is := content(t, dir); is != was {
		t.Errorf("%q, not %q", is, was)
	}
	if _, err := apply(t, dir, list...); err != nil {
		t.Error(err)
	}
}

func TestApply_FollowsKinds(t *testing.T) {
	for name, tt := range map[string]struct{ before, after, want string }{
		"renamed":        {"d/x=1 d/e/y=2", "m/x=1 m/e/y=2", "m/\nm/e/\nm/e/y=2\nm/x=1\n"},
		"swapped":        {"a/f=A b/f=B", "a/f=B b/f=A", "a/\na/f=B\nb/\nb/f=A\n"},
		"to a file":      {"d/x=1 d/e/y=2", "d=3", "d=3\n"},
		"to a directory": {"d=3", "d/x=1 d/e/y=2", "d/\nd/e/\nd/e/y=2\nd/x=1\n"},
		"emptied":        {"d/e/x=1 f=1", "f=1", "f=1\n"},
	} {
		dir := t.TempDir()
		of := func(text string) (list []tar.Header) {
			for field := range strings.FieldsSeq(text) {
				name, data, _ := strings.Cut(field, "=")
				list = append(list, tar.Header{Name: name, Uname: data})
			}
			return list
		}
		for _, h := range of(tt.before) {
			write(t, dir, h.Name, h.Uname)
		}
		list := changes(t, sent(t, of(tt.before), of(tt.after)))
		for range 2 {
			if _, err := apply(t, dir, list...); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if is := content(t, dir); is != tt.want {
			t.Errorf("%s: %q", name, is)
		}
	}
}

// What comes from a VM gets nowhere but where the tree's own files are.
func TestApply_StaysInTheTree(t *testing.T) {
	outside := t.TempDir()
	dir := t.TempDir()
	write(t, dir, "dir/x", "1", ".git/config", "mine", "real/x", "1", "real/z", "1")
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "out")), os.Symlink(".git/hooks", filepath.Join(dir, "dist")), os.Symlink("real", filepath.Join(dir, "in"))); err != nil {
		t.Fatal(err)
	}
	file := &State{Data: []byte("evil"), Exec: true}
	for _, name := range []string{
		"../x", "/etc/x", "out/x", "dist/pre-commit", "in/y", "dir/x/y", ".git/hooks/pre-commit", ".GIT/hooks/x", "sub/.git/config", ".git ", ".git./x",
		".g\u200cit/x", "git~1/config", ".git::$INDEX_ALLOCATION/x", ".envrc", ".vscode/x", "", ".", "a\nb", "\x1b[2J", "\xff",
	} {
		if _, err := apply(t, dir, Change{Name: name, After: file}); err == nil {
			t.Errorf("%q was written", name)
		}
	}
	for name, list := range map[string][]Change{
		"a link":                {{Name: "l", After: &State{Link: "/etc/passwd"}}},
		"a link replaced":       {{Name: "out", Before: &State{Link: outside}, After: file}},
		"a link removed":        {{Name: "out", Before: &State{Link: outside}}},
		"over a link":           {{Name: "out", After: file}},
		"behind a removed link": {{Name: "out", Before: &State{Link: outside}}, {Name: "out/x", After: file}},
		"behind a link":         {{Name: "real/x", Before: &State{Data: []byte("1")}}, {Name: "in/y", After: file}},
		"behind a removed .git": {{Name: ".git", Before: file}, {Name: ".git/x", After: file}},
	} {
		if _, err := apply(t, dir, list...); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("outside: %v", entries)
	}
	if _, err := os.Lstat(filepath.Join(dir, ".git", "hooks")); err == nil {
		t.Error(".git has hooks")
	}
	for _, name := range []string{"a", ".gitignore", ".github/x", "dir/y", "é…", "git"} {
		if _, err := apply(t, dir, Change{Name: name, After: file}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	// What is run by itself may go, and be written by force.
	write(t, dir, ".bashrc", "evil")
	if _, err := apply(t, dir, Change{Name: ".bashrc", Before: &State{Data: []byte("evil")}}); err != nil {
		t.Error(err)
	}
	if _, err := (Tree{Root: dir}).Apply([]Change{{Name: ".envrc", After: file}}, t.TempDir(), true); err != nil {
		t.Error(err)
	}
	if _, err := apply(t, dir, Change{Name: ".envrc", Before: file}, Change{Name: ".envrc/x", After: file}); err == nil {
		t.Error("what is run by itself was written behind a file that is removed")
	}
	// A link that was made by hand is what it is to be.
	if _, err := apply(t, dir, Change{Name: "in", After: &State{Link: "real"}}); err != nil {
		t.Error(err)
	}
}

// Gone is what the VM lists as gone, of what was sent, and can have seen. All that cannot be
// made is said.
func TestReadChanges_TakesNothingOnTrust(t *testing.T) {
	file := func(name, text string) tar.Header { return tar.Header{Name: name, Uname: text} }
	of := func(list ...tar.Header) []tar.Header { return list }
	for name, tt := range map[string]struct {
		archive io.Reader
		want    string
	}{
		"gone":                  {sent(t, of(file("f", "1")), nil), "f:-"},
		"never sent":            {sent(t, nil, nil, "-f"), ""},
		"not listed":            {archived(t, file("index", "0644:x f\x00"), file("changes", "")), ""},
		"gone, without content": {archived(t, file("index", "0644:x f\x00"), file("changes", "-f\x00")), "f:-"},
		"behind what is unread": {sent(t, of(file("d/e/f", "1")), nil, "+d"), "d:! d/e/f:!"},
		"behind a file":         {sent(t, of(file("d/f", "1")), of(file("d", "1"))), "d:+ d/f:-"},
		"another content":       {archived(t, file("index", "0644:x f\x00"), file("changes", "+f\x00"), file("base/f", "1"), file("tree/f", "1")), "f:~"},
		"another link":          {archived(t, file("index", "2777:x f\x00"), file("changes", "-f\x00")), "f:!"},
		"a link to elsewhere":   {sent(t, of(tar.Header{Name: "l", Linkname: "a"}), of(tar.Header{Name: "l", Linkname: "b"})), "l:~"},
		"same":                  {sent(t, of(file("f", "1")), of(file("f", "1"))), ""},
		"too large":             {sent(t, nil, nil, "+f"), "f:!"},
		"no place":              {sent(t, nil, of(file("../x", ""), file(".git/config", ""), file("good", "x")), "+pipe"), "../x:! .git/config:! good:+ pipe:!"},
		"nonsense":              {archived(t, file("index", "x\x00 \x00rubbish f\x000:: f"), file("changes", "\x00+\x00-\x00f\x00*f\x00")), "f:!"},
	} {
		var got []string
		for _, c := range changes(t, tt.archive) {
			how := "~"
			switch {
			case c.Left != "":
				how = "!"
			case c.Before == nil:
				how = "+"
			case c.After == nil:
				how = "-"
			}
			got = append(got, c.Name+":"+how)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
	if list, err := readChanges(archived(t, file("index", ""), file("changes", "+a\x00+b\x00+c\x00")), bounds{files: 2, bytes: 100}); err != nil || len(list) != 2 {
		t.Errorf("of more than may be: %d, %v", len(list), err)
	}
	for _, archive := range []io.Reader{archived(t), archived(t, file("index", "")), archived(t, file("changes", ""))} {
		if _, err := ReadChanges(archive); err == nil {
			t.Error("an archive without lists was read")
		}
	}
}

func TestReadArchive_IsBounded(t *testing.T) {
	most := bounds{files: 2, bytes: 10}
	file := func(name string, size int) tar.Header {
		return tar.Header{Name: name, Uname: strings.Repeat("x", size)}
	}
	skipped := func(name string, size int) tar.Header {
		h := file(name, size)
		h.Typeflag = 'x' - 1 // of no kind that is read
		return h
	}
	for name, tt := range map[string]struct {
		archive io.Reader
		ok      bool
	}{
		"as many as may be":        {archived(t, file("a", 5), file("b", 5)), true},
		"a file more":              {archived(t, file("a", 1), file("b", 1), file("c", 1)), false},
		"a byte more":              {archived(t, file("a", 5), file("b", 6)), false},
		"links only":               {archived(t, tar.Header{Name: "a", Linkname: "x"}, tar.Header{Name: "b", Linkname: "x"}, tar.Header{Name: "c", Linkname: "x"}), false},
		"what is left out":         {archived(t, skipped("a", 1), skipped("b", 1), skipped("c", 1)), false},
		"contents of that":         {archived(t, skipped("a", 2<<20)), false},
		"contents that are enough": {archived(t, skipped("a", 1<<19)), true},
		"rubbish":                  {strings.NewReader("rubbish"), false},
		"nothing":                  {strings.NewReader(""), false},
	} {
		if files, err := readArchive(tt.archive, most); (err == nil) != tt.ok {
			t.Errorf("%s: %d files, %v", name, len(files), err)
		}
	}
}

// A sparse file has as many zeros as it says, whatever was sent of it.
func TestReadArchive_DoesNotUnfoldSparseFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "sparse", "x")
	if err := os.Truncate(filepath.Join(dir, "sparse"), 1<<40); err != nil {
		t.Skip(err)
	}
	run(t, dir, "tar", "--format=pax", "--sparse", "-czf", "a.tgz", "sparse")
	file, err := os.Open(filepath.Join(dir, "a.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // only read
	if files, err := readArchive(file, bounds{files: 2, bytes: 1 << 20}); err == nil {
		t.Errorf("%d files", len(files))
	}
}

func TestOurs_LeavesOutWhatGitIgnoresHere(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, ".gitignore", "*.o\n", "module/.gitignore", "*.x\n")
	run(t, dir, "git", "init", "-q")
	run(t, filepath.Join(dir, "module"), "git", "init", "-q")
	write(t, dir, "plain/x", "1")
	if err := errors.Join(os.Symlink("module", filepath.Join(dir, "link")), os.Symlink("plain", filepath.Join(dir, "beyond"))); err != nil {
		t.Fatal(err)
	}
	list := []Change{{Name: "a.o", After: &State{}}, {Name: "a.c", After: &State{}}, {Name: "b.o", Before: &State{}}, {Name: "large.o", Left: "is too large"}}
	for _, name := range []string{"module/a.o", "module/a.x", "module/sub/a.x", "link/a.o", "beyond/a.o", "../x", ".git/x"} {
		list = append(list, Change{Name: name, After: &State{}})
	}
	ours, err := find(t, dir).Ours(t.Context(), list)
	var got []string
	for _, c := range ours {
		got = append(got, c.Name)
	}
	if !slices.Equal(got, []string{"a.c", "b.o", "module/a.o", "link/a.o", "beyond/a.o", "../x", ".git/x"}) || err != nil {
		t.Errorf("ours: %q, %v", got, err)
	}
	if ours, err = find(t, dir).Ours(t.Context(), list[1:2]); len(ours) != 1 || err != nil {
		t.Errorf("of none that is ignored: %v, %v", ours, err)
	}
	tree := find(t, dir)
	write(t, dir, ".git/config", "[rubbish")
	if _, err := tree.Ours(t.Context(), list[1:2]); err == nil || !strings.Contains(err.Error(), "which files git ignores") {
		t.Errorf("where git fails: %v", err)
	}
}

func FuzzReadChanges(f *testing.F) {
	good, _ := io.ReadAll(sent(f, []tar.Header{{Name: "a", Uname: "x"}}, []tar.Header{{Name: "a", Uname: "y"}, {Name: "l", Linkname: "../x"}}))
	f.Add(good)
	f.Fuzz(func(t *testing.T, archive []byte) {
		list, err := ReadChanges(bytes.NewReader(archive))
		for _, c := range list {
			if c.Left == "" && Unsafe(c.Name) != "" || err != nil {
				t.Errorf("%q, %v", c.Name, err)
			}
			c.Diff()
		}
	})
}
