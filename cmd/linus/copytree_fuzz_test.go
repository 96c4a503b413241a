package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whatever archive a VM sends, nothing outside the target is written or becomes reachable
// through it.
func FuzzUnpack(f *testing.F) {
	dir, file := tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755}, tar.Header{Name: "a", Typeflag: tar.TypeReg, Mode: 0o644}
	for _, entries := range [][]tar.Header{
		{dir, file}, {file}, {dir, {Name: "../x", Typeflag: tar.TypeReg}}, {dir, {Name: "/x", Typeflag: tar.TypeReg}},
		{dir, {Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/x", Typeflag: tar.TypeReg}}, {dir, {Name: "d/l", Typeflag: tar.TypeSymlink, Linkname: "../a"}, file},
		{dir, file, {Name: "b", Typeflag: tar.TypeLink, Linkname: "a"}, {Name: "c", Typeflag: tar.TypeLink, Linkname: "../secret"}},
		{dir, {Name: "d/../../x", Typeflag: tar.TypeDir}}, {dir, {Name: "p", Typeflag: tar.TypeFifo}}, {dir, {Name: "a", Typeflag: tar.TypeReg, PAXRecords: map[string]string{"GNU.sparse.size": "9"}}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range entries {
			_ = w.WriteHeader(&h) // what cannot be written is left out
		}
		_ = w.Close()
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, archive []byte) {
		base := t.TempDir()
		target := filepath.Join(base, "target")
		if err := errors.Join(os.Mkdir(target, 0o755), os.WriteFile(filepath.Join(base, "secret"), []byte("mine"), 0o600)); err != nil {
			t.Fatal(err)
		}
		a := &app{stdout: io.Discard, stderr: io.Discard}
		_ = a.copyThrough(t.Context(), &treeVM{archive: archive}, copying{vm: "dev", sources: []string{"/"}, target: target}, true)
		entries, err := os.ReadDir(base)
		kept, readErr := os.ReadFile(filepath.Join(base, "secret"))
		if err != nil || readErr != nil || len(entries) != 2 || string(kept) != "mine" {
			t.Fatalf("outside there is %v: %q, %v", entries, kept, errors.Join(err, readErr))
		}
		err = filepath.WalkDir(target, func(path string, d fs.DirEntry, err error) error {
			if strings.HasPrefix(d.Name(), ".linus-") {
				t.Errorf("%s is left", path)
			}
			if d.Type()&fs.ModeSymlink != 0 {
				if to, err := filepath.EvalSymlinks(path); err == nil && to != target && !strings.HasPrefix(to, target+"/") {
					t.Errorf("%s leads to %s", path, to)
				}
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}
