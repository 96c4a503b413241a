package worktree

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
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

func TestPack_WithoutGitIsEverything(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a", "1", "b/c", "1")
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

func changes(t *testing.T, before, after io.Reader) []Change {
	t.Helper()
	list, left, err := ReadChanges(before, after)
	if err != nil || len(left) > 0 {
		t.Fatalf("left %q, %v", left, err)
	}
	return list
}

// The patch is one that git takes, and Apply makes the same of the tree.
func TestChanges_ArePatchesThatGitTakesAndApplyMakes(t *testing.T) {
	before := []tar.Header{{Name: "edit", Uname: "a\nb\nc\n"}, {Name: "cut", Uname: "no newline"}, {Name: "remove", Uname: "x\n"}, {Name: "mode", Uname: "x\n"}, {Name: "same", Uname: "x\n"}}
	after := []tar.Header{{Name: "edit", Uname: "a\nB\nc\n"}, {Name: "cut", Uname: "no newline here"}, {Name: "mode", Uname: "x\n", Mode: 0o755}, {Name: "same", Uname: "x\n"}, {Name: "new/file", Uname: "1\n2\n"}, {Name: "new/tool", Uname: "#!\n", Mode: 0o755}}
	patched, applied := t.TempDir(), t.TempDir()
	for _, dir := range []string{patched, applied} {
		for _, h := range before {
			write(t, dir, h.Name, h.Uname)
		}
	}
	var patch []byte
	list := changes(t, archived(t, before...), archived(t, after...))
	for _, c := range list {
		patch = append(patch, c.Diff()...)
		if err := find(t, applied).Apply(c); err != nil {
			t.Errorf("%s: %v", c.Name, err)
		}
		if err := find(t, applied).Apply(c); err != nil { // once more
			t.Errorf("again, %s: %v", c.Name, err)
		}
	}
	if len(list) != 6 {
		t.Errorf("%d changes", len(list))
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
}

func TestApply_LeavesWhatHasChangedHere(t *testing.T) {
	state := func(text string) *State { return &State{Data: []byte(text)} }
	for name, c := range map[string]Change{
		"changed": {"f", state("sent"), state("new")},
		"removed": {"f", state("sent"), nil},
		"added":   {"f", nil, state("new")},
	} {
		dir := t.TempDir()
		write(t, dir, "f", "mine")
		if err := find(t, dir).Apply(c); err == nil || !strings.Contains(err.Error(), "has changed here") {
			t.Errorf("%s: %v", name, err)
		}
		if data, _ := os.ReadFile(filepath.Join(dir, "f")); string(data) != "mine" {
			t.Errorf("%s: %q", name, data)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".linus-*")); len(left) > 0 {
			t.Errorf("%s: left %q", name, left)
		}
	}
	dir := t.TempDir()
	if err := find(t, dir).Apply(Change{"f", state("sent"), state("new")}); err == nil {
		t.Error("a file that is removed here was written")
	}
}

// What comes from a VM gets nowhere but where the tree's own files are.
func TestApply_StaysInTheTree(t *testing.T) {
	outside := t.TempDir()
	dir := t.TempDir()
	write(t, dir, "dir/x", "1", ".git/config", "mine", "real/x", "1")
	if err := errors.Join(os.Symlink(outside, filepath.Join(dir, "out")), os.Symlink(".git/hooks", filepath.Join(dir, "dist")), os.Symlink("real", filepath.Join(dir, "in"))); err != nil {
		t.Fatal(err)
	}
	tree := Tree{Root: dir}
	file := &State{Data: []byte("evil"), Exec: true}
	for _, name := range []string{
		"../x", "/etc/x", "out/x", "dist/pre-commit", "in/y", "dir/x/y", ".git/hooks/pre-commit", ".GIT/hooks/x", "sub/.git/config", ".git ", ".git./x",
		".g\u200cit/x", "git~1/config", ".git::$INDEX_ALLOCATION/x", "", ".", "a\nb", "\x1b[2J", "\xff",
	} {
		if err := tree.Apply(Change{name, nil, file}); err == nil {
			t.Errorf("%q was written", name)
		}
	}
	for name, c := range map[string]Change{
		"a link":          {"l", nil, &State{Link: "/etc/passwd"}},
		"a link replaced": {"out", &State{Link: outside}, file},
		"a link removed":  {"out", &State{Link: outside}, nil},
		"over a link":     {"out", nil, file},
	} {
		if err := tree.Apply(c); err == nil {
			t.Errorf("%s was made", name)
		}
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("outside: %v", entries)
	}
	if _, err := os.Lstat(filepath.Join(dir, ".git", "hooks")); err == nil {
		t.Error(".git has hooks")
	}
	for _, name := range []string{"a", ".gitignore", ".github/x", "dir/y", "…", "git"} {
		if err := tree.Apply(Change{name, nil, file}); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestReadChanges_LeavesOutWhatHasNoPlace(t *testing.T) {
	list, left, err := ReadChanges(archived(t), archived(t, tar.Header{Name: "../x"}, tar.Header{Name: ".git/config"}, tar.Header{Name: "pipe", Typeflag: tar.TypeFifo}, tar.Header{Name: "good", Uname: "x"}))
	if err != nil || len(list) != 1 || list[0].Name != "good" || len(left) != 3 {
		t.Errorf("changes %v, left %q, %v", list, left, err)
	}
}

func TestReadArchive_IsBounded(t *testing.T) {
	most := bounds{files: 2, bytes: 10}
	file := func(name string, size int) tar.Header {
		return tar.Header{Name: name, Uname: strings.Repeat("x", size)}
	}
	for name, tt := range map[string]struct {
		archive io.Reader
		ok      bool
	}{
		"as many as may be": {archived(t, file("a", 5), file("b", 5)), true},
		"a file more":       {archived(t, file("a", 1), file("b", 1), file("c", 1)), false},
		"a byte more":       {archived(t, file("a", 5), file("b", 6)), false},
		"links only":        {archived(t, tar.Header{Name: "a", Typeflag: tar.TypeSymlink}, tar.Header{Name: "b", Typeflag: tar.TypeSymlink}, tar.Header{Name: "c", Typeflag: tar.TypeSymlink}), false},
		"what is left out":  {archived(t, file("../a", 1), file("../b", 1), file("../c", 1)), false},
		"rubbish":           {strings.NewReader("rubbish"), false},
		"nothing":           {strings.NewReader(""), false},
	} {
		if files, _, err := readArchive(tt.archive, most); (err == nil) != tt.ok {
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
	if files, _, err := readArchive(file, bounds{files: 2, bytes: 1 << 20}); err == nil {
		t.Errorf("%d files", len(files))
	}
}

func TestOurs_LeavesOutWhatGitIgnoresHere(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, ".gitignore", "*.o\n")
	run(t, dir, "git", "init", "-q")
	list := []Change{{"a.o", nil, &State{}}, {"a.c", nil, &State{}}, {"b.o", &State{}, nil}}
	var got []string
	for _, c := range find(t, dir).Ours(t.Context(), list) {
		got = append(got, c.Name)
	}
	if !slices.Equal(got, []string{"a.c", "b.o"}) {
		t.Errorf("ours: %q", got)
	}
}

func FuzzReadChanges(f *testing.F) {
	good, _ := io.ReadAll(archived(f, tar.Header{Name: "a", Uname: "x"}, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "../x"}))
	f.Add(good, []byte{})
	f.Fuzz(func(t *testing.T, before, after []byte) {
		list, _, err := ReadChanges(bytes.NewReader(before), bytes.NewReader(after))
		for _, c := range list {
			if Unsafe(c.Name) != "" || err != nil {
				t.Errorf("%q, %v", c.Name, err)
			}
			c.Diff()
		}
	})
}
