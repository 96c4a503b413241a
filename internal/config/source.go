package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"

	"linus/internal/job"
)

// envFileSetting names the env file; only the environment may set it.
const envFileSetting = "LINUS_ENV_FILE"

// Sources are where settings come from besides the environment. A flag overrides the environment,
// which overrides the env file.
type Sources struct {
	// EnvFile is the path of the env file. If it is empty, LINUS_ENV_FILE names the file; if that is
	// not set, it is DefaultEnvFile's, if it exists; if it is set but empty, there is no env file.
	EnvFile string
	Flags   []Flag // in the order given: the last flag of a name counts
}

// Flag is one setting given on the command line.
type Flag struct {
	Flag        string // as the user wrote it: --host, --set
	Name, Value string
}

// entry is a given setting, as text.
type entry struct {
	text string
	from string // for people: "environment", "flag --host", "/home/ada/.config/linus/env:3"
}

const fromEnvironment = "environment"

// DefaultEnvFile returns the default path of the env file: linus/env in $XDG_CONFIG_HOME or
// ~/.config, on Windows in %AppData%. It returns "" without a home directory.
func DefaultEnvFile() string {
	dir := os.Getenv("XDG_CONFIG_HOME")
	if !filepath.IsAbs(dir) {
		home, err := homeDir()
		dir = filepath.Join(home, ".config")
		if runtime.GOOS == "windows" {
			dir, err = os.UserConfigDir()
		}
		if err != nil {
			return ""
		}
	}
	return filepath.Join(dir, "linus", "env")
}

// collect returns the given settings, by name, and the problems with how they were given.
func (s Sources) collect(environ []string) (map[string]entry, []Problem) {
	given, problems := s.readEnvFile()
	for _, line := range environ {
		name, text, _ := strings.Cut(line, "=")
		if name != envFileSetting && isSetting(name) || strings.HasPrefix(name, secretPrefix) {
			given[name] = entry{text, fromEnvironment}
		}
	}
	problems = append(problems, misspelt(environ)...)
	for _, f := range s.Flags {
		from := "flag " + f.Flag
		switch {
		case f.Name == envFileSetting:
			problems = append(problems, Problem{f.Name, "cannot be set by " + f.Flag, "use --env-file", from})
		case isSecret(f.Name):
			problems = append(problems, Problem{
				f.Name, "is a secret, and everyone on this machine can see a command line",
				"put it into the environment or an env file of mode 0600", from,
			})
		case !isSetting(f.Name):
			problems = append(problems, unknown(f.Name, from))
		default:
			given[f.Name] = entry{f.Value, from}
		}
	}
	return given, problems
}

// envFile returns the env file to read and who named it. If path is empty, there is no file to
// read; if from is empty, the file may be missing.
func (s Sources) envFile() (path, from string) {
	named, ok := os.LookupEnv(envFileSetting)
	switch {
	case s.EnvFile != "":
		return resolved(s.EnvFile), "flag --env-file"
	case named != "":
		return resolved(named), fromEnvironment
	case ok:
		return "", ""
	}
	return DefaultEnvFile(), ""
}

// resolved is absolute, but returns path unchanged on failure, so that reading it fails.
func resolved(path string) string {
	if abs, err := absolute(path); err == nil {
		return abs
	}
	return path
}

// EnvFilePath returns the env file that is read if it exists, or "" if none is.
func (s Sources) EnvFilePath() string {
	path, _ := s.envFile()
	return path
}

// readEnvFile returns the settings of the env file, and its path as a setting.
func (s Sources) readEnvFile() (map[string]entry, []Problem) {
	given := map[string]entry{}
	path, from := s.envFile()
	if path == "" {
		return given, nil
	}
	lines, err := readEnvFile(path)
	if errors.Is(err, fs.ErrNotExist) && from == "" {
		return given, nil
	}
	if err != nil {
		return given, []Problem{{envFileSetting, err.Error(), "give the path of a file with lines NAME=value that only you can read", cmp.Or(from, "default")}}
	}
	var problems []Problem
	for _, l := range lines {
		at := fmt.Sprintf("%s:%d", path, l.Number)
		switch {
		case l.Problem != "":
			problems = append(problems, Problem{cmp.Or(l.Name, fmt.Sprintf("line %d", l.Number)), l.Problem, `write NAME=value, NAME='value' or NAME="value"`, at})
		case given[l.Name].from != "":
			problems = append(problems, Problem{l.Name, "is given twice, first at " + given[l.Name].from, "keep one of them", at})
		case l.Name == envFileSetting:
			problems = append(problems, Problem{l.Name, "cannot be set in an env file", "set it in the environment, or use --env-file", at})
		case strings.HasPrefix(l.Name, secretPrefix):
			given[l.Name] = entry{l.Value, at}
		case !isSetting(l.Name):
			problems = append(problems, unknown(l.Name, at))
		default:
			if isPath(l.Name) && l.Value != "" && !strings.HasPrefix(l.Value, "~/") && !filepath.IsAbs(l.Value) {
				// Relative to the file's directory: the file's meaning must not depend on the
				// current directory.
				l.Value = filepath.Join(filepath.Dir(path), l.Value)
			}
			given[l.Name] = entry{l.Value, at}
		}
	}
	if from != "" {
		given[envFileSetting] = entry{path, from}
	}
	return given, problems
}

// unknown returns the problem with a name that is not a setting. It suggests a setting if at most a
// third of the name was mistyped.
func unknown(name, from string) Problem {
	remedy := "linus config lists all settings"
	if near, distance := job.Nearest(name, settingNames()); distance <= len(name)/3 {
		remedy = "did you mean " + near + "? " + remedy
	}
	return Problem{name, "is not a setting", remedy, from}
}

func isSetting(name string) bool {
	_, ok := fields()[name]
	return ok
}

func isSecret(name string) bool {
	return strings.HasPrefix(name, secretPrefix) || fields()[name].Type == reflect.TypeFor[Secret]()
}

func isPath(name string) bool { return fields()[name].Tag.Get("kind") == "path" }

// fields returns the fields of all settings, by the settings' names.
var fields = sync.OnceValue(func() map[string]reflect.StructField {
	all := map[string]reflect.StructField{}
	t := reflect.TypeFor[Config]()
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("envconfig"); name != "" {
			all[name] = t.Field(i)
		}
	}
	return all
})
