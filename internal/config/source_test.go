package config_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/config"
)

// envFile writes an env file and returns its path.
func envFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// values are the settings in effect that are not defaults, as NAME=value from.
func values(c config.Config) (lines []string) {
	for _, v := range c.Values() {
		if v.Given && v.Name != "LINUS_ENV_FILE" {
			lines = append(lines, v.Name+"="+v.Value+" "+v.From)
		}
	}
	return lines
}

func TestLoad_FlagsCountMoreThanTheEnvironmentAndThatMoreThanTheFile(t *testing.T) {
	clean(t)
	path := envFile(t, "PROXMOX_HOST=file\nPROXMOX_NODE=file\nPROXMOX_STORAGE=file\nVM_SSH_USER=file\nPROXMOX_SSH_PASSWORD=hunter2\n")
	t.Setenv("PROXMOX_HOST", "environment")
	t.Setenv("PROXMOX_NODE", "environment")
	t.Setenv("VM_SSH_USER", "") // set and empty hides the file's
	c, err := config.Load(config.Sources{EnvFile: path, Flags: []config.Flag{
		{Flag: "--host", Name: "PROXMOX_HOST", Value: "first"},
		{Flag: "--set", Name: "PROXMOX_HOST", Value: "flag"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"PROXMOX_HOST=flag flag --set",
		"PROXMOX_SSH_PASSWORD=[redacted] " + path + ":5",
		"PROXMOX_NODE=environment environment",
		"PROXMOX_STORAGE=file " + path + ":3",
	}
	if diff := cmp.Diff(want, values(c)); diff != "" {
		t.Error(diff)
	}
	if c.ProxmoxHost != "flag" || c.ProxmoxNode != "environment" || c.ProxmoxStorage != "file" || c.ProxmoxSSHPassword.Reveal() != "hunter2" || c.VMSSHUser != "" {
		t.Errorf("Config = %+v", c)
	}
	if c.EnvFile != path {
		t.Errorf("EnvFile = %q, want %q", c.EnvFile, path)
	}
}

func TestLoad_FindsTheEnvFile(t *testing.T) {
	tests := []struct {
		name    string
		from    string   // the EnvFile of Sources
		environ []string // LINUS_ENV_FILE, if any
		want    string
		named   string // where LINUS_ENV_FILE is from
	}{
		{"in the XDG configuration directory", "", nil, "xdg", "default"},
		{"named by the environment", "", []string{"other"}, "other", "environment"},
		{"named by a flag, whatever the environment names", "third", []string{"other"}, "third", "flag --env-file"},
		{"none where the environment says so", "", []string{""}, "", "default"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clean(t)
			dir := t.TempDir()
			t.Chdir(dir)
			t.Setenv("XDG_CONFIG_HOME", filepath.Join(dir, "config"))
			write(t, filepath.Join("config", "linus", "env"), "PROXMOX_NODE=xdg\n")
			write(t, "other", "PROXMOX_NODE=other\n")
			write(t, "third", "PROXMOX_NODE=third\n")
			for _, value := range tt.environ {
				t.Setenv("LINUS_ENV_FILE", value)
			}
			c, err := config.Load(config.Sources{EnvFile: tt.from})
			if err != nil {
				t.Fatal(err)
			}
			if c.ProxmoxNode != tt.want {
				t.Errorf("node = %q, want %q", c.ProxmoxNode, tt.want)
			}
			base := map[string]string{"xdg": "config/linus/env", "other": "other", "third": "third"}[tt.want]
			if base != "" {
				base = filepath.Join(dir, base)
			}
			for _, v := range c.Values() {
				if v.Name == "LINUS_ENV_FILE" && (v.Value != base || c.EnvFile != base || v.From != tt.named) {
					t.Errorf("LINUS_ENV_FILE = %q from %q, want %q from %q", v.Value, v.From, base, tt.named)
				}
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLoad_WrongEnvFileOrFlagIsNamedWithItsPlace(t *testing.T) {
	tests := []struct {
		name, file string
		flags      []config.Flag
		mode       os.FileMode
		want       string
	}{
		{"unknown name", "\n# x\nPROXMOX_HSOT=pve\n", nil, 0o600, "PROXMOX_HSOT: is not a setting; did you mean PROXMOX_HOST? linus config lists all settings (FILE:3)"},
		{"name of somebody else", "PATH=/bin\n", nil, 0o600, "PATH: is not a setting"},
		{"no assignment", "PROXMOX_HOST pve\n", nil, 0o600, "line 1: is not NAME=value; write NAME=value"},
		{"value out of range", "MAX_JOBS=0\n", nil, 0o600, "MAX_JOBS: \"0\" is out of range; give a whole number from 1 to 1000 (FILE:1)"},
		{"value that breaks a rule", "PROXMOX_HOST=https://pve\n", nil, 0o600, "PROXMOX_HOST: \"https://pve\" is not valid; give a host name or an IP address, without user, port or https:// (FILE:1)"},
		{"value that is no number", "MAX_JOBS=many\n", nil, 0o600, "(FILE:1)"},
		{"empty value of a setting with a default", "MAX_JOBS=\n", nil, 0o600, "MAX_JOBS: is empty; give a value, or unset it for 8 (FILE:1)"},
		{"given twice", "MAX_JOBS=1\nMAX_JOBS=2\n", nil, 0o600, "MAX_JOBS: is given twice, first at FILE:1; keep one of them (FILE:2)"},
		{"quote that does not end", "VM_NAMESERVERS=\"1.1.1.1\nMAX_JOBS=0\n", nil, 0o600, "VM_NAMESERVERS: has a quote that does not end"},
		{"the line after it still counts", "VM_NAMESERVERS=\"1.1.1.1\nMAX_JOBS=0\n", nil, 0o600, "MAX_JOBS: \"0\" is out of range"},
		{"secret that others can read", "PROXMOX_SSH_PASSWORD=hunter2\n", nil, 0o640, "contains a secret (PROXMOX_SSH_PASSWORD) and others can read it (mode 0640): chmod 600 it"},
		{"manifest's secret that others can read", "LINUS_SECRET_KEY=hunter2\n", nil, 0o604, "contains a secret (LINUS_SECRET_KEY)"},
		{"short secret", "LINUS_SECRET_KEY=abc\n", nil, 0o600, "LINUS_SECRET_KEY: is shorter than 4 bytes"},
		{"file in a file", "LINUS_ENV_FILE=/x\n", nil, 0o600, ": cannot be set in an env file"},
		{"unknown flag name", "", []config.Flag{{Flag: "--set", Name: "MAX_JOB", Value: "1"}}, 0o600, "MAX_JOB: is not a setting; did you mean MAX_JOBS? linus config lists all settings (flag --set)"},
		{"secret on the command line", "", []config.Flag{{Flag: "--set", Name: "PROXMOX_SSH_PASSWORD", Value: "hunter2"}}, 0o600, "PROXMOX_SSH_PASSWORD: is a secret"},
		{"manifest's secret on the command line", "", []config.Flag{{Flag: "--set", Name: "LINUS_SECRET_KEY", Value: "hunter2"}}, 0o600, "LINUS_SECRET_KEY: is a secret"},
		{"env file by --set", "", []config.Flag{{Flag: "--set", Name: "LINUS_ENV_FILE", Value: "x"}}, 0o600, "use --env-file"},
		{"bad value of a flag", "", []config.Flag{{Flag: "--log-level", Name: "LINUS_LOG_LEVEL", Value: "loud"}}, 0o600, "(flag --log-level)"},
		{"empty value of a flag", "", []config.Flag{{Flag: "--set", Name: "MAX_JOBS"}}, 0o600, "MAX_JOBS: is empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clean(t)
			path := envFile(t, tt.file)
			if err := os.Chmod(path, tt.mode); err != nil {
				t.Fatal(err)
			}
			_, err := config.Load(config.Sources{EnvFile: path, Flags: tt.flags})
			if err == nil {
				t.Fatal("no error")
			}
			want := strings.ReplaceAll(tt.want, "FILE", path)
			if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error\n %s\nwant in it\n %s", err, want)
			}
		})
	}
	t.Run("file that is not there", func(t *testing.T) {
		clean(t)
		_, err := config.Load(config.Sources{EnvFile: "/nowhere/env"})
		if err == nil || !strings.Contains(err.Error(), "LINUS_ENV_FILE: the env file cannot be read: open /nowhere/env") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("public file without secrets is fine", func(t *testing.T) {
		clean(t)
		path := envFile(t, "MAX_JOBS=3\nPROXMOX_SSH_PASSWORD=\n")
		if err := os.Chmod(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if c, err := config.Load(config.Sources{EnvFile: path}); err != nil || c.MaxJobs != 3 {
			t.Error(c.MaxJobs, err)
		}
	})
}

func TestLoad_UnknownNameGuessesOnlyWhatIsNear(t *testing.T) {
	for _, tt := range []struct{ name, guess string }{
		{"MAX_JOB", "MAX_JOBS"},
		{"max_jobs", "MAX_JOBS"},
		{"PROXMOX_HSOT", "PROXMOX_HOST"},
		{"PROXMOX_HOSTNAME", "PROXMOX_HOST"},
		{"HTTP_CORS_ORIGIN", "HTTP_CORS_ORIGINS"},
		{"FOO", ""},
		{"X", ""},
		{"PATH", ""},
		{"SOMETHING_ELSE", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			clean(t)
			_, err := config.Load(config.Sources{Flags: []config.Flag{{Flag: "--set", Name: tt.name, Value: "1"}}})
			want := tt.name + ": is not a setting; linus config lists all settings (flag --set)"
			if tt.guess != "" {
				want = tt.name + ": is not a setting; did you mean " + tt.guess + "? linus config lists all settings (flag --set)"
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error\n %v\nwant in it\n %s", err, want)
			}
		})
	}
}

func TestLoad_EnvFileValues(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"plain", "ALLOWED_COMMANDS=git", "git"},
		{"blank before the equals sign", "ALLOWED_COMMANDS =git", "git"},
		{"number sign that begins a word", "ALLOWED_COMMANDS=#1\n", "#1"},
		{"blanks before the value", "ALLOWED_COMMANDS=  git status \t\n", "git status"},
		{"carriage return of an editor on Windows", "ALLOWED_COMMANDS=git\r\nMAX_JOBS=1\r\n", "git"},
		{"byte order mark", "\xef\xbb\xbfALLOWED_COMMANDS=git\n", "git"},
		{"export", "export ALLOWED_COMMANDS=git\n", "git"},
		{"comment behind", "ALLOWED_COMMANDS=git # all of it\n", "git"},
		{"number sign in a word", "ALLOWED_COMMANDS=git#1\n", "git#1"},
		{"only a comment", "ALLOWED_COMMANDS=# nothing\n", ""},
		{"equals sign in the value", "ALLOWED_COMMANDS=a=b\n", "a=b"},
		{"single quotes keep all", `ALLOWED_COMMANDS='a\n"b" # $c'`, `a\n"b" # $c`},
		{"double quotes with escapes", `ALLOWED_COMMANDS="a\nb \"c\" \$d \\ \x" # e`, "a\nb \"c\" $d \\ \\x"},
		{"several lines", "ALLOWED_COMMANDS=\"git\nmake\"\nMAX_JOBS=1\n", "git\nmake"},
		{"several lines of an editor on Windows", "ALLOWED_COMMANDS='git\r\nmake'\r\n", "git\nmake"},
		{"no expansion", "ALLOWED_COMMANDS=$HOME\n", "$HOME"},
		{"quote inside of a word", "ALLOWED_COMMANDS=it's\n", "it's"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			clean(t)
			c, err := config.Load(config.Sources{EnvFile: envFile(t, tt.text)})
			if err != nil {
				t.Fatal(err)
			}
			if c.AllowedCommands != tt.want {
				t.Errorf("value %q, want %q", c.AllowedCommands, tt.want)
			}
		})
	}
}

func TestLoad_LinesOfTheEnvFileAreCountedOverLongValues(t *testing.T) {
	clean(t)
	path := envFile(t, "# one\nALLOWED_COMMANDS='git\nmake\n'\n\nMAX_JOBS=5\n")
	c, err := config.Load(config.Sources{EnvFile: path})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"MAX_JOBS=5 " + path + ":6", "ALLOWED_COMMANDS=git\nmake\n " + path + ":2"}
	if diff := cmp.Diff(want, values(c)); diff != "" {
		t.Error(diff)
	}
}

func TestLoad_PathInAnEnvFileIsOfItsDirectory(t *testing.T) {
	clean(t)
	t.Setenv("HOME", "/home/ada")
	path := envFile(t, "PROXMOX_SSH_KEY_PATH=keys/host\nPROXMOX_KNOWN_HOSTS=~/known\nLINUS_STATE_DIR=/state\n")
	c, err := config.Load(config.Sources{EnvFile: path})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Join(filepath.Dir(path), "keys", "host"), "/home/ada/known", "/state"}
	if diff := cmp.Diff(want, []string{c.ProxmoxSSHKeyPath, c.ProxmoxKnownHosts, c.StateDir}); diff != "" {
		t.Error(diff)
	}
}

// An engine started by this process must have what this process was given, from
// wherever, and nothing that its own surroundings would add.
func TestEnviron_GivesAnotherProcessTheSameSettings(t *testing.T) {
	clean(t)
	path := envFile(t, "PROXMOX_HOST=pve\nPROXMOX_SSH_PASSWORD=hunter2\nLINUS_SECRET_KEY=hunter3\nPROXMOX_SSH_KEY_PATH=key\nMAX_OUTPUT_SIZE=1MB\n")
	t.Setenv("MAX_JOBS", "5")
	t.Setenv("DEFAULT_CPU", "9")
	t.Setenv("VM_SSH_USER", "")
	t.Setenv("PROXMOX_NODE", "hidden by a flag")
	t.Setenv("PROXMOX_KNOWN_HOSTS", "known")
	c, err := config.Load(config.Sources{EnvFile: path, Flags: []config.Flag{
		{Flag: "--set", Name: "DEFAULT_CPU", Value: "4"}, {Flag: "--set", Name: "PROXMOX_NODE"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	environ := c.Environ()
	t.Chdir(t.TempDir()) // the other process may be anywhere
	for _, want := range []string{
		"PROXMOX_HOST=pve", "PROXMOX_SSH_PASSWORD=hunter2", "LINUS_SECRET_KEY=hunter3", "MAX_JOBS=5", "DEFAULT_CPU=4",
		"MAX_OUTPUT_SIZE=1MB", "PROXMOX_SSH_KEY_PATH=" + filepath.Join(filepath.Dir(path), "key"), "LINUS_ENV_FILE=", "PATH=" + os.Getenv("PATH"),
	} {
		if !slices.Contains(environ, want) {
			t.Errorf("Environ() lacks %s", want)
		}
	}
	clean(t)
	for _, name := range []string{"PROXMOX_NODE", "VM_SSH_USER", "PROXMOX_KNOWN_HOSTS"} {
		if err := os.Unsetenv(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range environ {
		name, value, _ := strings.Cut(line, "=")
		t.Setenv(name, value)
	}
	write(t, filepath.Join(os.Getenv("XDG_CONFIG_HOME"), "linus", "env"), "MAX_JOBS=7\nDEFAULT_TIMEOUT=60\n")
	other, err := config.Load(config.Sources{})
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := c.Effective(), other.Effective()
	delete(ours, "LINUS_ENV_FILE")
	delete(theirs, "LINUS_ENV_FILE")
	if diff := cmp.Diff(ours, theirs); diff != "" {
		t.Error(diff)
	}
	if diff := c.Differs(other.Effective()); len(diff) > 0 {
		t.Errorf("Differs() = %q", diff)
	}
}
