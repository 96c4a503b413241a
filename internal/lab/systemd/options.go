package systemd

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lazyregexp"
)

// parseRun reads a command line of systemd-run.
func parseRun(args []string) (s spec, wait bool, err error) {
	s = newSpec()
	s.Transient = true
	given := map[string]bool{}
	options := []string{"--quiet", "--collect", "--wait", "--unit=", "--description=", "--property=", "--on-active="}
	command, err := parseOptions("systemd-run", args, options, func(name, value string) (err error) {
		given[name] = true
		switch name {
		case "--unit=":
			s.Name, err = fullName(value)
		case "--description=":
			s.Description = value
		case "--property=":
			key, text, _ := strings.Cut(value, "=")
			err = s.setProperty(key, text)
		case "--on-active=":
			s.OnActive, err = parseSpan(value)
		}
		return err
	})
	if err != nil {
		return s, false, err
	}
	wait = given["--wait"]
	switch {
	case !given["--quiet"] || !given["--collect"] || !given["--unit="]:
		return s, false, errors.New("the lab's systemd-run needs --quiet, --collect and --unit=")
	case len(command) == 0:
		return s, false, errors.New("Command line to execute required.")
	case given["--on-active="] && wait:
		return s, false, errors.New("--wait may not be combined with path, socket or timer operations.")
	}
	// systemd-run looks the program up with its own PATH.
	program, err := exec.LookPath(command[0])
	if err != nil || !filepath.IsAbs(program) {
		return s, false, fmt.Errorf("Failed to find executable %s: No such file or directory", command[0])
	}
	s.Argv = append([]string{program}, command[1:]...)
	if s.Description == "" {
		s.Description = strings.Join(s.Argv, " ")
	}
	if given["--on-active="] {
		s.Name = strings.TrimSuffix(strings.TrimSuffix(s.Name, ".service"), ".timer") + ".timer"
	} else if strings.HasSuffix(s.Name, ".timer") {
		return s, false, errors.New("the lab's systemd-run makes a timer with --on-active= only")
	}
	return s, wait, checkVariables(s.Argv)
}

func unknownProperty(assignment string) error {
	return fmt.Errorf("the lab's systemd does not know %s", assignment)
}

func (s *spec) setProperty(key, value string) (err error) {
	switch key {
	case "ExecStopPost":
		var argv []string
		argv, err = parseExec(value)
		s.StopPost = append(s.StopPost, argv)
	case "OOMPolicy": // the lab's memory does not run out
		if value != "continue" {
			return unknownProperty(key + "=" + value)
		}
	case "KillMode":
		if value != "mixed" && value != "process" {
			return unknownProperty(key + "=" + value)
		}
		s.KillMode = value
	case "RuntimeMaxSec":
		s.RuntimeMax, err = parseSpan(value)
	case "TimeoutStopSec":
		s.TimeoutStop, err = parseSpan(value)
	case "WorkingDirectory":
		if !filepath.IsAbs(value) {
			return fmt.Errorf("WorkingDirectory= expects an absolute path: %s", value)
		}
		s.Directory = value
	default:
		return unknownProperty(key + "=" + value)
	}
	return err
}

var span = lazyregexp.New(`^([1-9][0-9]{0,8})(ms|s|d)?$`)

// parseSpan reads a time span: a number, of seconds where no unit is given.
func parseSpan(text string) (time.Duration, error) {
	units := map[string]time.Duration{"ms": time.Millisecond, "": time.Second, "s": time.Second, "d": 24 * time.Hour}
	parts := span.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("the lab's systemd does not know the time span %q", text)
	}
	number, err := strconv.Atoi(parts[1])
	return time.Duration(number) * units[parts[2]], err
}

// parseOptions reads options up to the first other word, and returns what follows
// them. Known ones end with "=" where they take a value.
func parseOptions(tool string, args, known []string, set func(name, value string) error) ([]string, error) {
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		arg := args[0]
		args = args[1:]
		if arg == "--" {
			break
		}
		name, value, given := strings.Cut(arg, "=")
		if given {
			name += "="
		}
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("the lab's %s does not know the option %s", tool, arg)
		}
		if err := set(name, value); err != nil {
			return nil, err
		}
	}
	return args, nil
}
