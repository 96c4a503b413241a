package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/job"
)

// treeVM is a VM whose archive the test has made, and which keeps what it is sent.
type treeVM struct {
	job.Files

	archive []byte
	after   error // ends the archive instead of its end
	dirs    []string

	to  job.FileRef
	got map[string]string // by name: the content, or what else it is
}

func (v *treeVM) ListFiles(_ context.Context, q job.FileList) (job.FilePage, error) {
	for _, d := range v.dirs {
		if d == q.Path {
			return job.FilePage{Type: job.FileDirectory}, nil
		}
	}
	return job.FilePage{}, &job.FieldError{Field: "path", Problem: "does not exist", Remedy: "r"}
}

func (v *treeVM) ReadTree(context.Context, job.FileRef) (io.ReadCloser, error) {
	from := io.Reader(bytes.NewReader(v.archive))
	if v.after != nil {
		from = io.MultiReader(from, errReader{v.after})
	}
	return io.NopCloser(from), nil
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

func (v *treeVM) WriteTree(_ context.Context, f job.FileRef, archive io.Reader) error {
	v.to, v.got = f, map[string]string{}
	for from := tar.NewReader(archive); ; {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		data, err := io.ReadAll(from)
		if err != nil {
			return err
		}
		v.got[h.Name] = fmt.Sprintf("%o %s", h.Mode, data)
	}
}

// packed makes an archive. A content with -> is a symbolic link, one with => a hard one.
func packed(t *testing.T, entries ...[2]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		h := &tar.Header{Typeflag: tar.TypeReg, Name: e[0], Mode: 0o640, Size: int64(len(e[1]))}
		switch {
		case strings.HasPrefix(e[1], "-> "):
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, e[1][3:], 0
		case strings.HasPrefix(e[1], "=> "):
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, e[1][3:], 0
		case e[1] == "pipe":
			h.Typeflag, h.Size = tar.TypeFifo, 0
		case strings.HasSuffix(e[0], "/"):
			h.Typeflag, h.Mode = tar.TypeDir, 0o750
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := io.WriteString(w, e[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// here lists a directory: contents of files, targets of links, "dir" for directories.
func here(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == dir {
			return err
		}
		var text []byte
		switch {
		case d.IsDir():
			text = []byte("dir")
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(name)
			if err != nil {
				return err
			}
			text = []byte("-> " + link)
		default:
			if text, err = os.ReadFile(name); err != nil {
				return err
			}
		}
		found[strings.TrimPrefix(name, dir+"/")] = string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// A VM may send any archive: nothing outside the target is written, linked to or changed.
func TestCopyThrough_AHostileArchiveStaysInside(t *testing.T) {
	dir := [2]string{"./", ""}
	for _, tt := range []struct {
		name    string
		archive [][2]string
		want    map[string]string // below the target
		err     string
	}{
		{"harmless", [][2]string{dir, {"./d/", ""}, {"./d/f", "x"}, {"./d/l", "-> ../g"}, {"./g", "y"}, {"./h", "=> ./g"}, {"./p", "pipe"}},
			map[string]string{"d": "dir", "d/f": "x", "d/l": "-> ../g", "g": "y", "h": "y"}, ""},
		{"absolute", [][2]string{dir, {"/tmp/linus-evil", "x"}}, nil, "leads out of the directory"},
		{"up", [][2]string{dir, {"./../secret", "x"}}, nil, "leads out of the directory"},
		{"up inside", [][2]string{dir, {"./a/../../secret", "x"}}, nil, "leads out of the directory"},
		{"through a link", [][2]string{dir, {"./l", "-> .."}, {"./l/secret", "x"}}, map[string]string{"l": "dir", "l/secret": "x"}, ""},
		{"through a link to a file", [][2]string{dir, {"./l", "-> ../secret"}, {"./l", "x"}}, map[string]string{"l": "x"}, ""},
		{"links that lead out", [][2]string{dir, {"./a", "-> /etc"}, {"./b", "-> ../x"}, {"./c", "-> d/../../x"}, {"./d/e", "-> ../../x"}}, map[string]string{}, ""},
		{"a link through a link", [][2]string{dir, {"./x", "-> ."}, {"./x/x/l", "-> ../.."}, {"./y", "-> x/x/../../.."}}, map[string]string{"x": "-> ."}, ""},
		{"git's own", [][2]string{dir, {"./.git/", ""}, {"./.git/hooks/", ""}, {"./.git/hooks/post-commit", "x"}, {"./f", "x"}, {"./sub/.GIT/config", "x"}, {"./.g\u200cit", "-> f"}},
			map[string]string{"f": "x"}, "3 items in the VM were not copied"},
		{"what runs where it lies", [][2]string{dir, {"./.envrc", "x"}, {"./d/.vscode/tasks.json", "x"}, {"./.htaccess", "x"}}, map[string]string{".htaccess": "x"}, "2 items in the VM were"},
		{"a hard link that leads out", [][2]string{dir, {"./h", "=> ../secret"}}, nil, "leads out of the directory"},
		{"a hard link through what is there", [][2]string{dir, {"./h", "=> out/secret"}}, nil, "escapes"},
		{"a directory that is a link there", [][2]string{dir, {"./out/secret", "x"}}, nil, "1 item in the VM was not copied"},
		{"a file that is a link there", [][2]string{dir, {"./out", "x"}}, nil, "1 item in the VM was not copied"},
		{"no archive", nil, nil, "is no archive"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			target := filepath.Join(base, "target")
			err := errors.Join(os.Mkdir(target, 0o755), os.WriteFile(filepath.Join(base, "secret"), []byte("mine"), 0o600))
			if strings.HasSuffix(tt.name, "there") || strings.HasSuffix(tt.name, "is there") {
				err = errors.Join(err, os.Symlink("..", filepath.Join(target, "out")))
			}
			if err != nil {
				t.Fatal(err)
			}
			vm := &treeVM{archive: []byte("no archive")}
			if tt.archive != nil {
				vm.archive = packed(t, tt.archive...)
			}
			a := &app{stdout: io.Discard, stderr: io.Discard}
			err = a.copyThrough(t.Context(), vm, copying{vm: "dev", sources: []string{"/"}, target: target}, false)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			if tt.want != nil {
				if diff := cmp.Diff(tt.want, here(t, target)); diff != "" {
					t.Errorf("the target (-want +got):\n%s", diff)
				}
			}
			outside := here(t, base)
			for name := range outside {
				if name == "target" || strings.HasPrefix(name, "target/") {
					delete(outside, name)
				}
			}
			if diff := cmp.Diff(map[string]string{"secret": "mine"}, outside); diff != "" {
				t.Errorf("outside (-want +got):\n%s", diff)
			}
		})
	}
}

// A sparse file's size is what the VM says: it would fill the disk with nothing sent.
func TestCopyThrough_NoSparseFiles(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := errors.Join(
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "./"}),
		w.WriteHeader(&tar.Header{Typeflag: tar.TypeGNUSparse, Name: "./f", Size: 0, Format: tar.FormatGNU}), w.Close(),
	)
	if err == nil {
		err = (&app{stderr: io.Discard}).copyThrough(t.Context(), &treeVM{archive: b.Bytes()}, copying{vm: "dev", sources: []string{"/d"}, target: filepath.Join(t.TempDir(), "t")}, false)
	}
	if err == nil || !strings.Contains(err.Error(), "sparse") {
		t.Errorf("error %v, want one about sparse files", err)
	}
}

func TestCopyThrough_NamesAreThoseOfScp(t *testing.T) {
	directory := packed(t, [2]string{"./", ""}, [2]string{"./f", "x"})
	file := packed(t, [2]string{"./f", "x"})
	for _, tt := range []struct {
		name    string
		archive []byte
		source  string
		target  string
		want    map[string]string
		err     string
	}{
		{"a directory to a new name", directory, "/srv/app", "new", map[string]string{"there": "dir", "new": "dir", "new/f": "x"}, ""},
		{"a directory into one", directory, "/srv/app", "there", map[string]string{"there": "dir", "there/app": "dir", "there/app/f": "x"}, ""},
		{"what is in a directory", directory, "/srv/app/.", "there", map[string]string{"there": "dir", "there/f": "x"}, ""},
		{"the home", directory, "", "there", map[string]string{"there": "dir", "there/f": "x"}, ""},
		{"a file to a new name", file, "/srv/f", "g", map[string]string{"there": "dir", "g": "x"}, ""},
		{"a file into a directory", file, "f", "there", map[string]string{"there": "dir", "there/f": "x"}, ""},
		{"into what is no directory", file, "f", "none/", map[string]string{"there": "dir"}, "is not a directory"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.Mkdir("there", 0o755); err != nil {
				t.Fatal(err)
			}
			err := (&app{stderr: io.Discard}).copyThrough(t.Context(), &treeVM{archive: tt.archive}, copying{vm: "dev", sources: []string{tt.source}, target: tt.target}, false)
			if tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("error %v, want %q", err, tt.err)
			}
			dir, _ := os.Getwd()
			if diff := cmp.Diff(tt.want, here(t, dir)); diff != "" {
				t.Errorf("here (-want +got):\n%s", diff)
			}
		})
	}
}

// The number is that of the lines above it, links among them.
func TestCopyThrough_CountsAllThatIsLeftOut(t *testing.T) {
	archive := [][2]string{{"./", ""}, {"./.git/", ""}, {"./.git/config", "x"}, {"./pipe", "pipe"}, {"./out", "-> /etc"}, {"./f", "x"}}
	var said bytes.Buffer
	a := &app{stdout: io.Discard, stderr: &said}
	cp := func() error {
		said.Reset()
		return a.copyThrough(t.Context(), &treeVM{archive: packed(t, archive...)}, copying{vm: "dev", sources: []string{"/"}, target: t.TempDir()}, false)
	}
	if err := cp(); err == nil || err.Error() != "3 items in the VM were not copied" || strings.Count(said.String(), "left out: ") != 3 {
		t.Errorf("%v below:\n%s", err, &said)
	}
	for i := range 10 {
		archive = append(archive, [2]string{fmt.Sprintf("./l%d", i), "-> /etc"})
	}
	if err := cp(); err == nil || err.Error() != "13 items in the VM were not copied" || strings.Count(said.String(), "left out: ") != 11 || !strings.HasSuffix(said.String(), "left out: 3 more\n") {
		t.Errorf("%v below:\n%s", err, &said)
	}
}

// An archive that ends with an error is not taken for the whole.
func TestCopyThrough_SaysWhatIsMissing(t *testing.T) {
	whole := packed(t, [2]string{"./", ""}, [2]string{"./f", "x"})
	missing := &job.FieldError{Field: "path", Problem: "was not copied completely", Remedy: "r"}
	for name, archive := range map[string][]byte{"at its end": whole, "in the middle": whole[:700], "in a header": whole[:600]} {
		err := (&app{stderr: io.Discard}).copyThrough(t.Context(), &treeVM{archive: archive, after: missing}, copying{vm: "dev", sources: []string{"/d"}, target: filepath.Join(t.TempDir(), "t")}, false)
		if !errors.Is(err, missing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What a copy has left here that was killed is named by the next, which replaces nothing of it.
func TestCopyThrough_NamesWhatAKilledOneHasLeft(t *testing.T) {
	const part = ".linus-ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	for target, archive := range map[string][]byte{"t": packed(t, [2]string{"./", ""}, [2]string{"./d/f", "x"}, [2]string{"./d/.linus-" + strings.Repeat("A", 26), "x"}), "t/d/g": packed(t, [2]string{"./f", "x"})} {
		t.Chdir(t.TempDir())
		if err := errors.Join(os.MkdirAll("t/d", 0o755), os.WriteFile("t/d/"+part, []byte("ha"), 0o600)); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		err := (&app{stderr: &said}).copyThrough(t.Context(), &treeVM{archive: archive}, copying{vm: "dev", sources: []string{"/."}, target: target}, false)
		if err != nil || strings.Count(said.String(), "a partial file") != 1 || !strings.Contains(said.String(), "t/d/"+part+" is") {
			t.Errorf("%v; said %q", err, &said)
		}
	}
}

// cutVM is lost when it has the first bytes of a file.
type cutVM struct {
	treeVM

	at  string
	err error
}

func (v *cutVM) WriteTree(_ context.Context, _ job.FileRef, archive io.Reader) error {
	for from := tar.NewReader(archive); v.at != ""; {
		h, err := from.Next()
		if err == nil && h.Name == v.at {
			_, err = io.ReadFull(from, make([]byte, 1))
			return errors.Join(err, v.err)
		} else if err != nil {
			return err
		}
	}
	return v.err
}

// Of a copy that ends in the middle, the file is named that the VM may have in part; not where it says
// itself what was wrong, or has nothing.
func TestCopyThrough_NamesWhatAVMMayHaveInPart(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "a"), []byte("x"), 0o600), os.WriteFile(filepath.Join(dir, "b"), make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	lost, told := errors.New("the engine is lost"), &job.FieldError{Field: "path", Problem: "was not copied completely", Remedy: "r"}
	for _, tt := range []struct {
		at    string
		err   error
		names string
	}{{"c/b", lost, "/srv/c/b"}, {"", lost, ""}, {"c/b", told, ""}} {
		err := (&app{stderr: io.Discard}).copyThrough(t.Context(), &cutVM{at: tt.at, err: tt.err}, copying{vm: "dev", toVM: true, sources: []string{dir}, target: "/srv/c"}, false)
		if text := fmt.Sprint(err); !errors.Is(err, tt.err) || strings.Contains(text, "in part") != (tt.names != "") || !strings.Contains(text, tt.names) {
			t.Errorf("%s: %v", tt.at, err)
		}
	}
}

func TestCopyThrough_ToAVM(t *testing.T) {
	dir := t.TempDir()
	err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "d/sub"), 0o755), os.WriteFile(filepath.Join(dir, "d/sub/f"), []byte("x"), 0o600), os.Chmod(filepath.Join(dir, "d/sub/f"), 0o640),
		os.Symlink("sub/f", filepath.Join(dir, "d/link")), os.Symlink("nowhere", filepath.Join(dir, "d/dangling")), os.WriteFile(filepath.Join(dir, "g"), []byte("y"), 0o600),
	)
	if err != nil {
		t.Fatal(err)
	}
	tree := func(top string) map[string]string {
		return map[string]string{top + "/": "755 ", top + "/sub/": "755 ", top + "/sub/f": "640 x", top + "/link": "640 x"}
	}
	both := tree("d")
	both["g"] = "600 y"
	for _, tt := range []struct {
		name    string
		sources []string
		target  string
		to      string
		want    map[string]string
		err     string
	}{
		{"into a directory", []string{"d", "g"}, "/srv", "/srv", both, ""},
		{"into the home", []string{"g"}, "", "", map[string]string{"g": "600 y"}, ""},
		{"to a new name", []string{"d"}, "/srv/app", "/srv", tree("app"), ""},
		{"a file to a new name", []string{"g"}, "h", ".", map[string]string{"h": "600 y"}, ""},
		{"several to a new name", []string{"d", "g"}, "/srv/app", "", nil, "does not exist"},
		{"what is not there", []string{"none"}, "/srv", "", nil, "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(dir)
			vm := &treeVM{dirs: []string{"/srv", ""}}
			var said bytes.Buffer
			err := (&app{stderr: &said}).copyThrough(t.Context(), vm, copying{vm: "dev", toVM: true, sources: tt.sources, target: tt.target}, false)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want %q", err, tt.err)
				}
				return
			}
			if diff := cmp.Diff(tt.want, vm.got); err != nil || diff != "" || vm.to != (job.FileRef{VM: "dev", Path: tt.to}) {
				t.Errorf("%v, to %+v (-want +got):\n%s", err, vm.to, diff)
			}
			if tt.sources[0] == "d" && !strings.Contains(said.String(), `left out: "d/dangling" is a dangling link`) {
				t.Errorf("said %q", said.String())
			}
		})
	}
}
