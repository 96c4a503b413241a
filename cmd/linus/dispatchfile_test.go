package main

import (
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"linus/internal/job"
	"linus/internal/vm"
)

// Lines are quoted as in a shell, run nothing, and say where they are wrong.
func TestDispatchFile_Lines(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       []dispatchLine
		err        string
	}{
		{"arguments", "# ours\n\n  claude --name 'a b' --label team=web # the web's\ngithub \"--map=x=y\"\n", []dispatchLine{{3, []string{"claude", "--name", "a b", "--label", "team=web"}}, {4, []string{"github", "--map=x=y"}}}, ""},
		{"quotes in a word, and escapes", `a"b 'c"'d "e'\ f "\"g\\\h\$" '' x#y \'` + "\ti", []dispatchLine{{1, []string{"ab 'cd \"e f", `"g\\h$`, "", "x#y", "'", "i"}}}, ""},
		{"a variable", `claude "$HOME"`, nil, "line 1"},
		{"a second command", "claude; id", nil, "line 1"},
		{"a command in a word", "claude --name $(id)", nil, "line 1"},
		{"an open quote", "\nclaude 'x", nil, "line 2"},
		{"too long", strings.Repeat("#", 64<<10+1), nil, "larger than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "file")
			if err := os.WriteFile(path, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := readDispatchFile(path)
			if !reflect.DeepEqual(got, tt.want) || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// A line that asks for help ends at once: it fails as others do, for it would be run again for ever.
func TestDispatchFile_WhatIsNoDispatcher(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"github", "--help"}, {"github", "-h"}} {
		a := &app{stderr: io.Discard}
		err := a.dispatcher(t.Context(), own{}, args)
		if err == nil || !strings.Contains(err.Error(), "is not a dispatcher") || exitCode(err) != 2 {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// A shape has the command's options and its own, which count more, and is refused by what is wrong.
func TestDispatch_Shapes(t *testing.T) {
	t.Parallel()
	shapes := func(args ...string) (all []job.Manifest, labels []string, err error) {
		var f dispatchFlags
		a, cmd := &app{}, &cobra.Command{Use: "github"}
		f.register(a, cmd, 4, "jobs")
		f.registerMap(cmd)
		if err := cmd.ParseFlags(args); err != nil {
			t.Fatal(err)
		}
		of, err := f.shapes(cmd, a)
		for _, s := range of {
			all, labels = append(all, s.Manifest), append(labels, s.Label)
		}
		return all, labels, err
	}
	all, labels, err := shapes("--memory", "2G", "--volume", "a:/a", "--label", "team=web", "--artifact", "log/**", "--map", "big=memory=16G,cpu=8,volume=b:/b,label=size=big,artifact=/tmp/core", "--map", "other=", "--map", "third=volume=c:/c")
	if err != nil || !reflect.DeepEqual(labels, []string{"big", "other", "third"}) {
		t.Fatalf("%q, %v", labels, err)
	}
	a, b, c := vm.Mount{Name: "a", Path: "/a"}, vm.Mount{Name: "b", Path: "/b"}, vm.Mount{Name: "c", Path: "/c"}
	if m := all[0]; m.Resources.Memory != "16G" || m.Resources.CPU != 8 || !reflect.DeepEqual(m.Volumes, []vm.Mount{a, b}) || !reflect.DeepEqual(m.Labels, map[string]string{"team": "web", "size": "big"}) || !reflect.DeepEqual(m.Artifacts, []string{"log/**", "/tmp/core"}) {
		t.Errorf("%+v", m)
	}
	if m := all[1]; m.Resources.Memory != "2G" || !reflect.DeepEqual(m.Volumes, []vm.Mount{a}) || len(m.Labels) != 1 {
		t.Errorf("%+v", m)
	}
	if m := all[2]; !reflect.DeepEqual(m.Volumes, []vm.Mount{a, c}) {
		t.Errorf("%+v", m)
	}
	file := filepath.Join(t.TempDir(), "shapes")
	if err := os.WriteFile(file, []byte("# ours\n\n  docker=disk=40G  \nbig=memory=1G"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, labels, err = shapes("--map-file", file, "--map", "big=memory=16G")
	if err != nil || !reflect.DeepEqual(labels, []string{"big", "docker", "big"}) || all[0].Resources.Memory != "16G" || all[1].Resources.Disk != "40G" {
		t.Errorf("%q, %+v, %v", labels, all, err)
	}
	if err := os.WriteFile(file, []byte("# none\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "has no LABEL=SHAPE", file + "x": "no such file", filepath.Dir(file): "--map-file"} {
		if _, _, err := shapes("--map-file", path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for text, want := range map[string]string{"big": "LABEL=SHAPE", "=memory=1G": "LABEL=SHAPE", "big=memori=1G": "memori=1G", "big=memory": "not a job option", "big=cpu=many": "cpu"} {
		if _, _, err := shapes("--map", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
