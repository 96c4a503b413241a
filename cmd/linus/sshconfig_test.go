package main

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"linus/internal/daemon"
	"linus/internal/job"
	"linus/internal/vm"
)

// changed runs what changes the user's files, and returns what there is afterwards.
func changed(t *testing.T, home string, change func(*app) error) (text string, err error) {
	t.Helper()
	t.Setenv("HOME", home)
	err = change(&app{stdin: strings.NewReader(""), stdout: t.Output(), stderr: t.Output()})
	data, _ := os.ReadFile(filepath.Join(home, ".ssh", "config"))
	return string(data), err
}

func install(a *app) error { return a.installHosts([]daemon.Host{}) }

// The user's own configuration is theirs: one line comes and goes, in whatever form it is.
func TestInstallHosts_ChangesOneLine(t *testing.T) {
	for name, before := range map[string]string{
		"none":                     "",
		"hosts":                    "Host a\n  User me\n",
		"without an end of line":   "Host a\n  User me",
		"of another system":        "Host a\r\n  User me\r\n",
		"with an Include of ours?": "Include ~/.ssh/linus.config.d/*\n",
		"what is no text":          "# \xff\x00\n",
	} {
		t.Run(name, func(t *testing.T) {
			home := filepath.Join(t.TempDir(), "a home")
			path := filepath.Join(home, ".ssh", "config")
			if before != "" {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(before), 0o640); err != nil {
					t.Fatal(err)
				}
			}
			want := `Include "` + filepath.Join(home, ".ssh", "linus.config") + "\"\n" + before
			for range 2 {
				if text, err := changed(t, home, install); err != nil || text != want {
					t.Errorf("%q, %v", text, err)
				}
			}
			about, err := os.Stat(path)
			if err != nil || before != "" && about.Mode() != 0o640 || before == "" && about.Mode() != 0o600 {
				t.Errorf("%v, %v", about, err)
			}
			for range 2 {
				if text, err := changed(t, home, (*app).uninstallHosts); err != nil || text != before {
					t.Errorf("%q, %v", text, err)
				}
			}
			left, _ := filepath.Glob(filepath.Join(home, ".ssh", "*linus*"))
			if more, _ := filepath.Glob(filepath.Join(home, ".ssh", ".linus*")); len(left)+len(more) > 0 {
				t.Errorf("left: %q %q", left, more)
			}
		})
	}
}

func TestInstallHosts_TwoAtOnce(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	var both sync.WaitGroup
	for range 8 {
		both.Go(func() {
			a := &app{stdin: strings.NewReader(""), stdout: t.Output(), stderr: t.Output()}
			if err := a.installHosts(nil); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	text, err := os.ReadFile(filepath.Join(home, ".ssh", "config"))
	if err != nil || string(text) != "Include "+filepath.Join(home, ".ssh", "linus.config")+"\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// What leads elsewhere, or cannot be written, stays as it is, and the user is told what to do.
func TestInstallHosts_LeavesAlone(t *testing.T) {
	for name, tt := range map[string]struct {
		make func(home string) error
		says string
	}{
		"a link": {func(home string) error {
			return os.Symlink(filepath.Join(home, "dotfiles"), filepath.Join(home, ".ssh", "config"))
		}, "linus does not write through links; its first line must be: Include /"},
		"a directory": {func(home string) error { return os.Mkdir(filepath.Join(home, ".ssh", "config"), 0o700) }, "is not a regular file"},
		"a linked directory": {func(home string) error {
			return os.Rename(filepath.Join(home, ".ssh"), filepath.Join(home, "elsewhere"))
		}, ""},
		"our own as a link": {func(home string) error {
			return os.Symlink(filepath.Join(home, "dotfiles"), filepath.Join(home, ".ssh", "linus.config"))
		}, "linus does not write through links; linus vm ssh-config prints the blocks"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			dotfiles := filepath.Join(home, "dotfiles")
			if err := os.Mkdir(filepath.Join(home, ".ssh"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(dotfiles, []byte("mine\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := tt.make(home); err != nil {
				t.Fatal(err)
			}
			if tt.says == "" {
				tt.says = "linus does not write through links"
				if err := os.Symlink("elsewhere", filepath.Join(home, ".ssh")); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := changed(t, home, install); err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v; want %s", err, tt.says)
			}
			if text, _ := os.ReadFile(dotfiles); string(text) != "mine\n" {
				t.Errorf("it was written: %q", text)
			}
		})
	}
	if _, err := changed(t, "/proc/sys", install); err == nil || !strings.Contains(err.Error(), "linus vm ssh-config prints") {
		t.Errorf("a home that cannot be written: %v", err)
	}
}

func TestWorkedIn_IsOnesOwn(t *testing.T) {
	t.Parallel()
	var mine job.VMInfo
	mine.Principal, mine.Lifecycle, mine.State, mine.User = "ada", vm.Persistent, vm.Created, "debian"
	for name, change := range map[string]func(*job.VMInfo){
		"":          func(*job.VMInfo) {},
		"another's": func(v *job.VMInfo) { v.Principal = "bob" }, "the operator's": func(v *job.VMInfo) { v.Principal = "" },
		"a job's": func(v *job.VMInfo) { v.Lifecycle = vm.Ephemeral }, "left alone": func(v *job.VMInfo) { v.State = vm.LeftAlone },
		"being made": func(v *job.VMInfo) { v.User = "" }, "a sandbox": func(v *job.VMInfo) { v.Sandbox = &vm.Sandbox{} },
	} {
		v := mine
		if change(&v); workedIn(v, "ada") != (name == "") {
			t.Errorf("one that is %q: %v", name, name != "")
		}
	}
}
