package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/config"
	"linus/internal/daemon"
	"linus/internal/vm"
)

func TestCopy_OneSideIsInOneVM(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string // after the options
		err  string
	}{
		{"to a VM", []string{"x", "dev:/y"}, []string{"x", "ada@10.0.0.5:/y"}, ""},
		{"several", []string{"x", "-y", "dev:"}, []string{"x", "-y", "ada@10.0.0.5:"}, ""},
		{"from a VM", []string{"dev:a", "dev:/b c", "."}, []string{"ada@10.0.0.5:a", "ada@10.0.0.5:/b c", "."}, ""},
		{"colons and newlines behind the first", []string{"dev:/a:b\nc", "x"}, []string{"ada@10.0.0.5:/a:b\nc", "x"}, ""},
		{"a slash first makes it a path here", []string{"./a:b", "/tmp/c:d", "dev:"}, []string{"./a:b", "/tmp/c:d", "ada@10.0.0.5:"}, ""},
		{"nowhere to", []string{"dev:x"}, nil, "takes one source or more, and a destination"},
		{"no VM", []string{"x", "y"}, nil, "NAME:PATH on one side"},
		{"here and there", []string{"dev:x", "y", "."}, []string{}, "NAME:PATH on one side"},
		{"from VM to VM", []string{"dev:x", "dev:y"}, nil, "not from VM to VM"},
		{"two VMs", []string{"dev:x", "web:y", "."}, nil, "from one VM at a time"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := parseCopy((&app{}).vmCopyCommand(), tt.args)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || exitCode(err) != exitUsage {
					t.Errorf("error %v, want a usage error that says %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			argv, err := c.command(daemon.Login{Config: config.Config{StateDir: t.TempDir(), VMSSHPort: 22}, VM: vm.VM{Name: "dev", Job: "j", User: "ada", IP: "10.0.0.5"}})
			if err != nil {
				t.Fatal(err)
			}
			_, operands := cut(argv, "--")
			if diff := cmp.Diff(tt.want, operands); diff != "" || c.vm != "dev" {
				t.Errorf("VM %q, operands: %s", c.vm, diff)
			}
		})
	}
}

// cut is strings.Cut for argument lists.
func cut(argv []string, at string) (before, after []string) {
	for i, arg := range argv {
		if arg == at {
			return argv[:i], argv[i+1:]
		}
	}
	return argv, nil
}

func TestCopy_IPv6AddressIsInBrackets(t *testing.T) {
	argv, err := copying{vm: "dev", toVM: true, sources: []string{"x"}, target: "y"}.
		command(daemon.Login{Config: config.Config{StateDir: t.TempDir()}, VM: vm.VM{Name: "dev", Job: "j", User: "ada", IP: "2001:db8::5"}})
	if err != nil || argv[len(argv)-1] != "ada@[2001:db8::5]:y" {
		t.Errorf("%v, %v", argv, err)
	}
}

func TestForward_PortsAreNumbersFrom1To65535(t *testing.T) {
	for arg, want := range map[string]forward{"80": {80, 80}, "8080:80": {8080, 80}, "65535:1": {65535, 1}} {
		if got, err := parseForwards([]string{arg}); err != nil || got[0] != want {
			t.Errorf("%s: %v, %v", arg, got, err)
		}
	}
	for _, arg := range []string{"", "0", "0:80", "80:0", "65536", "80:", ":80", "a", "1:2:3", "127.0.0.1:80:80", "-1", "80\n"} {
		if got, err := parseForwards([]string{arg}); err == nil || exitCode(err) != exitUsage {
			t.Errorf("%q: %v, %v", arg, got, err)
		}
	}
}
