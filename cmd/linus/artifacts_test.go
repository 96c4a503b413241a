package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"linus/internal/intake"
	"linus/internal/job"
)

// left is an engine whose job has left files, by path.
type left struct {
	outputs
	files map[string]string
	lie   string // the sha256 it tells; empty: the true one
	race  string // a file that appears meanwhile, with the content "mine"
}

func (e left) OpenArtifact(_ context.Context, _, name string) (io.ReadCloser, job.Artifact, error) {
	sum := fmt.Sprintf("%x", sha256.Sum256([]byte(e.files[name])))
	if e.lie != "" {
		sum = e.lie
	}
	if e.race != "" {
		if err := os.WriteFile(e.race, []byte("mine"), 0o600); err != nil {
			return nil, job.Artifact{}, err
		}
	}
	about := job.Artifact{Path: name, Size: int64(len(e.files[name])), Mode: "0750", SHA256: sum}
	return io.NopCloser(strings.NewReader(e.files[name])), about, nil
}

func TestFetch(t *testing.T) {
	tests := []struct {
		name, path string
		engine     left
		force      bool
		says       string // the error; empty: fetched
	}{
		{name: "a file in directories that are not there yet", path: "dist/of/app"},
		{name: "a file with odd letters", path: "a b\n-c"},
		{name: "a path that climbs out", path: "../app", says: "leads out of the directory"},
		{name: "a path that climbs out half-way", path: "dist/../../app", says: "leads out of the directory"},
		{name: "an absolute path", path: "/tmp/app", says: "leads out of the directory"},
		{name: "a link that leads out", path: "out/app", says: "out is a link here"},
		{name: "a hook of git's", path: ".git/hooks/post-commit", force: true, says: "git's own"},
		{name: "what a shell runs", path: ".bashrc", says: "--force writes it"},
		{name: "what a shell runs, by force", path: ".bashrc", force: true},
		{name: "a file that is there", path: "there", says: "already exists; --force replaces it"},
		{name: "a file that is there, by force", path: "there", force: true},
		{name: "bytes that are not what was kept", path: "app", engine: left{lie: "00ff"}, says: "not kept; fetch it again"},
		{name: "wrong bytes do not replace a file", path: "there", force: true, engine: left{lie: "00ff"}, says: "not kept"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			base := t.TempDir()
			dir := filepath.Join(base, "into")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, "there"), []byte("mine"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(base, filepath.Join(dir, "out")); err != nil {
				t.Fatal(err)
			}
			root, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer root.Close()
			tt.engine.files = map[string]string{tt.path: "fetched"}
			err = fetch(t.Context(), tt.engine, "j", tt.path, intake.Into{Root: root, Replace: tt.force, Any: tt.force}, tt.path)
			if (tt.says == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Fatalf("got %v, want %q", err, tt.says)
			}
			if err == nil {
				got, err := os.ReadFile(filepath.Join(dir, tt.path))
				info, statErr := os.Stat(filepath.Join(dir, tt.path))
				if err != nil || statErr != nil || string(got) != "fetched" || info.Mode().Perm() != 0o750 {
					t.Errorf("%q, %v, %v", got, info, err)
				}
			}
			if mine, _ := os.ReadFile(filepath.Join(dir, "there")); err != nil && string(mine) != "mine" {
				t.Errorf("a file that was there is now %q", mine)
			}
			for _, place := range []string{base, dir, filepath.Dir(filepath.Join(dir, tt.path))} {
				entries, _ := os.ReadDir(place)
				for _, entry := range entries {
					if strings.HasPrefix(entry.Name(), ".linus-") || place == base && entry.Name() != "into" {
						t.Errorf("%s was left in %s", entry.Name(), place)
					}
				}
			}
		})
	}
}

func TestFetch_AFileThatComesMeanwhileStays(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	e := left{files: map[string]string{"app": "fetched"}, race: filepath.Join(dir, "app")}
	err = fetch(t.Context(), e, "j", "app", intake.Into{Root: root}, "app")
	if mine, _ := os.ReadFile(e.race); err == nil || string(mine) != "mine" {
		t.Errorf("%v; the file is now %q", err, mine)
	}
}

func TestChoose(t *testing.T) {
	all := []job.Artifact{{Path: "dist/a"}, {Path: "dist/b/c"}, {Path: "distant"}}
	tests := []struct {
		name  string
		paths []string
		want  string
	}{
		{"all", nil, "dist/a dist/b/c distant"},
		{"one", []string{"dist/a"}, "dist/a"},
		{"a directory", []string{"dist/"}, "dist/a dist/b/c"},
		{"one twice", []string{"dist", "dist/a"}, "dist/a dist/b/c"},
		{"everything", []string{"."}, "dist/a dist/b/c distant"},
		{"an absolute pattern's", []string{"/distant"}, "distant"},
		{"nothing of that name", []string{"dis"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			chosen, err := choose(all, tt.paths)
			var got []string
			for _, f := range chosen {
				got = append(got, f.Path)
			}
			if strings.Join(got, " ") != tt.want || (err != nil) != (tt.want == "") {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
