package embed

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

func TestNames_HasTheScriptsOfHostAndGuest(t *testing.T) {
	names := Names()
	for _, want := range []string{"check-host", "create-vm", "destroy-vm", "list-vms", "tool-server", "job-runner", "bootstrap"} {
		if !slices.Contains(names, want) {
			t.Errorf("%s is not in %v", want, names)
		}
	}
}

func TestScript_IsSelfContained(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f, err := Script(name)
			if err != nil {
				t.Fatal(err)
			}
			interpreter, check := "#!/usr/bin/env bash\n", exec.CommandContext(t.Context(), "bash", "-n")
			if f.Ext == ".pl" {
				interpreter, check = "#!/usr/bin/perl\n", exec.CommandContext(t.Context(), "sh", "-c", "perl -c 2>&1 | grep -v 'syntax OK$' || :")
			}
			if !bytes.HasPrefix(f.Body, []byte(interpreter)) || bytes.Count(f.Body, []byte("#!/")) != 1 {
				t.Error("wants one shebang, on the first line")
			}
			for line := range strings.Lines(string(f.Body)) {
				if sourceLike.MatchString(line) {
					t.Errorf("still sources: %s", line)
				}
			}
			check.Stdin = bytes.NewReader(f.Body)
			if said, err := check.CombinedOutput(); err != nil || len(said) > 0 {
				t.Errorf("%v: %v: %s", check.Args, err, said)
			}
			sum := sha256.Sum256(f.Body)
			if f.Name != name || f.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("name %q, hash %s", f.Name, f.SHA256)
			}
			again, err := Script(name)
			if err != nil || again.SHA256 != f.SHA256 {
				t.Errorf("the hash is not stable: %s, %v", again.SHA256, err)
			}
		})
	}
}

// Sourced functions of a bundle must be the same as those of the script where
// it lies: nothing lost, nothing added.
func TestScript_DefinesWhatTheSourceDefines(t *testing.T) {
	dirs := map[string]string{"job-runner": "guest", "bootstrap": "guest", "run-tree": "guest"}
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			f, err := Script(name)
			if err != nil {
				t.Fatal(err)
			}
			if f.Ext != ".sh" {
				return
			}
			dir := dirs[name]
			if dir == "" {
				dir = "proxmox"
			}
			functions := func(script, arg string) string {
				out, err := exec.CommandContext(t.Context(), "bash", "-c", script, "_", arg).CombinedOutput()
				if err != nil {
					t.Fatalf("%v: %s", err, out)
				}
				return string(out)
			}
			whole := functions(`source "$1"; declare -F`, "../scripts/"+dir+"/"+name+".sh")
			file := t.TempDir() + "/bundle.sh"
			if err := os.WriteFile(file, f.Body, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := functions(`source "$1"; declare -F`, file); got != whole {
				t.Errorf("the bundle defines\n%s\nthe script\n%s", got, whole)
			}
		})
	}
}

func TestScript_RefusesUnknownNames(t *testing.T) {
	for _, name := range []string{"", "nope", "../lib/log", "lib/log", "/etc/passwd", "create-vm.sh"} {
		if _, err := Script(name); !errors.Is(err, ErrUnknownScript) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestBundle(t *testing.T) {
	const (
		here   = `source "$(dirname -- "${BASH_SOURCE[0]}")/../lib/`
		beside = `source "${BASH_SOURCE[0]%/*}/`
	)
	files := fstest.MapFS{
		"lib/a.sh":    {Data: []byte("#!/bin/bash\n# shellcheck shell=bash\n# shellcheck disable=SC2154\na() { :; }")},
		"lib/b.sh":    {Data: []byte(beside + "a.sh\"\nb() { a; }\n")},
		"lib/deep.sh": {Data: []byte("source ./a.sh\n")},
		"lib/far.sh":  {Data: []byte(here + "a.sh\"\n")},
		"lib/odd.sh":  {Data: []byte(beside + "even.sh\"\n")},
		"lib/even.sh": {Data: []byte(beside + "odd.sh\"\n")},
	}
	tests := []struct{ name, in, want, wantErr string }{
		{name: "nothing to inline", in: "#!/bin/bash\nx=1", want: "#!/bin/bash\nx=1\n"},
		{name: "in place, without its shebang", in: "#!/bin/bash\n" + here + "a.sh\"\nb\n", want: "#!/bin/bash\n# lib/a.sh\na() { :; }\nb\n"},
		{name: "the word in a text is no source line", in: "echo source of it\n", want: "echo source of it\n"},
		{name: "missing library file", in: here + "none.sh\"\n", wantErr: "inline lib/none.sh"},
		{name: "another form", in: "source ../lib/a.sh\n", wantErr: "cannot inline"},
		{name: "dot form", in: "  . lib/a.sh\n", wantErr: "cannot inline"},
		{name: "out of the tree", in: here + "../../x.sh\"\n", wantErr: "cannot inline"},
		{name: "a library file that sources another, which is taken once", in: here + "b.sh\"\n" + here + "a.sh\"\nb\n", want: "# lib/b.sh\n# lib/a.sh\na() { :; }\nb() { a; }\nb\n"},
		{name: "another form in a library file", in: here + "deep.sh\"\n", wantErr: "inline lib/deep.sh: cannot inline"},
		{name: "an entry point's form in a library file", in: here + "far.sh\"\n", wantErr: "inline lib/far.sh: cannot inline"},
		{name: "a circle", in: here + "odd.sh\"\n", wantErr: "lib/odd.sh: it sources itself"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := bundle(files, tt.in)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("got %v, want %q", err, tt.wantErr)
				}
				return
			}
			if err != nil || string(got) != tt.want {
				t.Errorf("got %q, %v, want %q", got, err, tt.want)
			}
		})
	}
}

// A job asks for scripts several times, and putting one together takes milliseconds.
func TestScript_IsPutTogetherOnce(t *testing.T) {
	first, err := Script("create-vm")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Script("create-vm"); err != nil || &again.Body[0] != &first.Body[0] {
		t.Errorf("put together again: %v", err)
	}
}
