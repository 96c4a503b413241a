package intake

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
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
