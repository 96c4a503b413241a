//go:build unix

package control

import (
	"os"
	"path/filepath"
	"testing"
)

// The directory of a socket with a short path is where anybody may make one.
func TestOursAlone(t *testing.T) {
	made := func(mode os.FileMode) string {
		dir := filepath.Join(t.TempDir(), "dir")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	own := made(0o700)
	link, file := filepath.Join(t.TempDir(), "link"), filepath.Join(t.TempDir(), "file")
	if err := os.Symlink(own, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o700); err != nil { //nolint:gosec // a directory's mode
		t.Fatal(err)
	}
	paths := map[string]bool{own: true, made(0o755): false, made(0o770): false, made(0o701): false, made(0o777): false, link: false, file: false}
	if os.Getuid() == 0 {
		theirs := made(0o700)
		if err := os.Chown(theirs, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		paths[theirs] = false
	}
	for path, want := range paths {
		info, err := os.Lstat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := oursAlone(info); got != want {
			t.Errorf("%s, %s: %t", path, info.Mode(), got)
		}
	}
}
