package intake

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestArchive_HasNothingThatMustNotBeWritten(t *testing.T) {
	var from, to bytes.Buffer
	w := tar.NewWriter(&from)
	for _, h := range []tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o755}, {Name: "./d/.htaccess", Mode: 0o4755}, {Name: ".git/", Typeflag: tar.TypeDir}, {Name: "./.git/config"}, {Name: ".envrc"},
		{Name: "../x"}, {Name: "/etc/x"}, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "h", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}, {Name: "p", Typeflag: tar.TypeFifo},
	} {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), Archive(&to, &from)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(&to); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		got = append(got, h.Name)
		if text, _ := io.ReadAll(r); h.Name == LeftOut && strings.Count(string(text), "\n") != 9 || h.Mode&^0o777 != 0 {
			t.Errorf("%+v: %s", h, text)
		}
	}
	if all := strings.Join(got, " "); all != "./ d/ d/.htaccess LEFT-OUT.txt" {
		t.Errorf("it has %s", all)
	}
	if err := Archive(io.Discard, strings.NewReader("no archive")); err == nil {
		t.Error("what is no archive passes")
	}
}

// A file with holes may be larger than all there is to send: it is left out, in each form that tar has.
func TestArchive_OfFilesWithHoles(t *testing.T) {
	for _, format := range []string{"gnu", "posix"} {
		dir := t.TempDir()
		file := filepath.Join(dir, "holes")
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<40)); err != nil {
			t.Fatal(err)
		}
		from, err := exec.CommandContext(t.Context(), "tar", "--sparse", "--format="+format, "-C", dir, "-c", "holes").Output()
		if err != nil {
			t.Fatal(err)
		}
		var to bytes.Buffer
		if err := Archive(&to, bytes.NewReader(from)); err != nil || to.Len() > 64<<10 || !strings.Contains(to.String(), `"holes" is neither a file nor a directory`) {
			t.Errorf("%s: %d bytes, %v", format, to.Len(), err)
		}
	}
}

// What is left out is listed, up to a bound; where nothing is, nothing is listed.
func TestArchive_ListsWhatItLeavesOut(t *testing.T) {
	for n, lines := range map[int]int{0: 0, mostListed: mostListed + 1, mostListed + 1: mostListed + 1} {
		var from, to bytes.Buffer
		w := tar.NewWriter(&from)
		for i := range n {
			if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("%d/.envrc", i)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), Archive(&to, &from)); err != nil {
			t.Fatal(err)
		}
		r := tar.NewReader(&to)
		_, err := r.Next()
		text, _ := io.ReadAll(r)
		if got := strings.Count(string(text), "\n"); got != lines || errors.Is(err, io.EOF) != (n == 0) {
			t.Errorf("of %d: %d lines, %v", n, got, err)
		}
	}
}
