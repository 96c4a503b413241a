package wholefile_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"linus/internal/wholefile"
)

func TestWholefile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, step := range []struct {
		does    string
		write   func(path string, data []byte) error
		path    string
		text    string
		refused error
		want    string
	}{
		{"create", wholefile.Create, path, "one", nil, "one"},
		{"create again", wholefile.Create, path, "two", fs.ErrExist, "one"},
		{"replace", wholefile.Replace, path, "three", nil, "three"},
		{"replace what is not there", wholefile.Replace, path + "2", "four", nil, "four"},
		{"replace a directory", wholefile.Replace, dir, "five", fs.ErrExist, ""},
	} {
		if err := step.write(step.path, []byte(step.text)); !errors.Is(err, step.refused) {
			t.Fatalf("%s: %v, want %v", step.does, err, step.refused)
		}
		if step.path == dir {
			continue
		}
		text, err := os.ReadFile(step.path)
		about, failed := os.Stat(step.path)
		if err := errors.Join(err, failed); err != nil || string(text) != step.want || about.Mode() != 0o600 {
			t.Fatalf("%s: %q, %v, %v", step.does, text, about, err)
		}
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 {
		t.Errorf("beside the files: %v, %v", left, err)
	}
}
