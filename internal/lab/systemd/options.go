package systemd

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runOptions is a command line of systemd-run.
type runOptions struct {
	unit  spec
	name  string // without the type's suffix; "" to make one up
	quiet bool
	wait  bool
	timer bool
}

// Which of systemd-run's options take a value; the lab knows no others.
var runFlags = map[string]bool{
	"unit": true, "quiet": false, "collect": false, "wait": false, "description": true, "setenv": true, "property": true,
	"on-active": true, "on-unit-active": true, "timer-property": true, "working-directory": true, "service-type": true, "no-block": false,
}

var runLetters = map[string]string{"u": "unit", "q": "quiet", "G": "collect", "E": "setenv", "p": "property"}

func parseRun(args []string) (runOptions, error) {
	o := runOptions{unit: newSpec()}
	o.unit.Transient = true
	command, err := parseFlags("systemd-run", args, runFlags, runLetters, o.set)
	if err != nil {
		return o, err
	}
	switch {
	case len(command) == 0:
		return o, errors.New("Command line to execute required.")
	case o.timer && o.wait:
		return o, errors.New("--wait may not be combined with path, socket or timer operations.")
	case o.timer && o.unit.OnActive < 0:
		return o, errors.New("the lab's systemd-run starts a timer by --on-active= only")
	}
	// systemd-run looks the program up with its own PATH.
	program, err := findProgram(command[0], os.Getenv("PATH")) //nolint:forbidigo // the lab has a reader of its own
	if err != nil {
		return o, fmt.Errorf("Failed to find executable %s: No such file or directory", command[0])
	}
	o.unit.Argv = append([]string{program}, command[1:]...)
	if o.unit.Description == "" {
		o.unit.Description = strings.Join(o.unit.Argv, " ")
	}
	if o.name != "" {
		full, err := fullName(o.name)
		if err != nil {
			return o, err
		}
		o.name = strings.TrimSuffix(strings.TrimSuffix(full, ".service"), ".timer")
	}
	return o, nil
}

func (o *runOptions) set(name, value string) error {
	var err error
	switch name {
	case "unit":
		o.name = value
	case "quiet":
		o.quiet = true
	case "collect":
		o.unit.Collect = true
	case "wait":
		o.wait = true
	case "description":
		o.unit.Description = value
	case "setenv":
		if !strings.Contains(value, "=") {
			value += "=" + os.Getenv(value) //nolint:forbidigo // the lab has a reader of its own
		}
		o.unit.Env = append(o.unit.Env, value)
	case "working-directory":
		return o.unit.setProperty("WorkingDirectory", value)
	case "service-type":
		return o.unit.setProperty("Type", value)
	case "property", "timer-property":
		key, text, ok := strings.Cut(value, "=")
		if !ok {
			return fmt.Errorf("Not an assignment: %s", value)
		}
		if name == "timer-property" {
			o.timer = true
			if key != "AccuracySec" {
				return unknownProperty(value)
			}
			o.unit.Accuracy, err = parseSpan(text)
			return err
		}
		return o.unit.setProperty(key, text)
	case "on-active":
		o.timer = true
		o.unit.OnActive, err = parseSpan(value)
	case "on-unit-active":
		o.timer = true
		o.unit.OnUnitActive, err = parseSpan(value)
	}
	return err
}

func unknownProperty(assignment string) error {
	return fmt.Errorf("Unknown assignment: %s (the lab's systemd-run knows few properties)", assignment)
}

func (s *spec) setProperty(key, value string) error {
	var err error
	switch key {
	case "ExecStopPost":
		var line execLine
		if line, err = parseExec(value); err == nil {
			s.StopPost = append(s.StopPost, line)
		}
	case "KillMode":
		if !slices.Contains([]string{"control-group", "mixed", "process"}, value) {
			return fmt.Errorf("Failed to start transient service unit: Invalid KillMode setting: %s", value)
		}
		s.KillMode = value
	case "KillSignal":
		if s.KillSignal, err = parseSignal(value); err != nil {
			return err
		}
	case "RuntimeMaxSec":
		s.RuntimeMax, err = parseSpan(value)
	case "TimeoutStopSec":
		s.TimeoutStop, err = parseSpan(value)
	case "StandardOutput":
		s.Stdout, err = parseStream(value)
	case "StandardError":
		s.Stderr, err = parseStream(value)
	case "Description":
		s.Description = value
	case "WorkingDirectory":
		if !filepath.IsAbs(value) {
			return fmt.Errorf("WorkingDirectory= expects an absolute path: %s", value)
		}
		s.Directory = value
	case "UMask":
		var mask uint64
		mask, err = strconv.ParseUint(value, 8, 12)
		s.UMask = int(mask)
	case "IgnoreSIGPIPE":
		s.IgnorePipe, err = parseBool(value)
	case "CollectMode":
		s.Collect = value == "inactive-or-failed"
	case "Type":
		if value != "simple" && value != "exec" {
			return unknownProperty(key + "=" + value)
		}
	case "Environment":
		var words []string
		words, err = splitWords(value)
		s.Env = append(s.Env, words...)
	default:
		return unknownProperty(key + "=" + value)
	}
	return err
}

func parseStream(value string) (string, error) {
	kind, path, file := strings.Cut(value, ":")
	if file && slices.Contains([]string{"append", "truncate", "file"}, kind) && filepath.IsAbs(path) ||
		slices.Contains([]string{"journal", "null", "inherit"}, value) {
		return value, nil
	}
	return "", unknownProperty("StandardOutput=" + value)
}

func parseBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "1", "yes", "true", "on":
		return true, nil
	case "0", "no", "false", "off":
		return false, nil
	}
	return false, fmt.Errorf("Failed to parse boolean: %s", value)
}

func parseSignal(value string) (int, error) {
	if n, err := strconv.Atoi(value); err == nil && n > 0 && n < 65 {
		return n, nil
	}
	if sig := unix.SignalNum("SIG" + strings.TrimPrefix(value, "SIG")); sig != 0 {
		return int(sig), nil
	}
	return 0, fmt.Errorf("Failed to parse signal string %s.", value)
}

// parseSpan reads a time span: numbers with units, seconds where none is given.
// No end ("infinity") is 0.
func parseSpan(text string) (time.Duration, error) {
	units := map[string]time.Duration{
		"ms": time.Millisecond, "": time.Second, "s": time.Second, "sec": time.Second, "m": time.Minute, "min": time.Minute,
		"h": time.Hour, "hr": time.Hour, "d": 24 * time.Hour, "w": 7 * 24 * time.Hour,
	}
	if text == "infinity" {
		return 0, nil
	}
	var span time.Duration
	rest := strings.TrimSpace(text)
	if rest == "" {
		return 0, fmt.Errorf("Failed to parse time span: %q", text)
	}
	for rest != "" {
		digits := len(rest) - len(strings.TrimLeft(rest, "0123456789."))
		number, err := strconv.ParseFloat(rest[:digits], 64)
		rest = strings.TrimLeft(rest[digits:], " ")
		letters := len(rest) - len(strings.TrimLeft(rest, "abcdefghijklmnopqrstuvwxyz"))
		unit, known := units[rest[:letters]]
		if err != nil || !known {
			return 0, fmt.Errorf("Failed to parse time span: %q", text)
		}
		span += time.Duration(number * float64(unit))
		rest = strings.TrimLeft(rest[letters:], " ")
	}
	return span, nil
}

// parseFlags reads options as getopt_long does up to the first other word, and
// returns what follows them.
func parseFlags(tool string, args []string, known map[string]bool, letters map[string]string, set func(name, value string) error) ([]string, error) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		switch {
		case arg == "--":
			return args, nil
		case strings.HasPrefix(arg, "--"):
			name, value, given := strings.Cut(arg[2:], "=")
			takes, ok := known[name]
			if !ok {
				return nil, fmt.Errorf("%s: unrecognized option '--%s'", tool, name)
			}
			if given && !takes {
				return nil, fmt.Errorf("%s: option '--%s' doesn't allow an argument", tool, name)
			}
			if takes && !given {
				if len(args) == 0 {
					return nil, fmt.Errorf("%s: option '--%s' requires an argument", tool, name)
				}
				value, args = args[0], args[1:]
			}
			if err := set(name, value); err != nil {
				return nil, err
			}
		case strings.HasPrefix(arg, "-") && arg != "-":
			for rest := arg[1:]; rest != ""; {
				name, ok := letters[rest[:1]]
				if !ok {
					return nil, fmt.Errorf("%s: invalid option -- '%s'", tool, rest[:1])
				}
				rest = rest[1:]
				value := ""
				if known[name] {
					if value, rest = rest, ""; value == "" {
						if len(args) == 0 {
							return nil, fmt.Errorf("%s: option requires an argument -- '%s'", tool, arg[1:])
						}
						value, args = args[0], args[1:]
					}
				}
				if err := set(name, value); err != nil {
					return nil, err
				}
			}
		default:
			return append([]string{arg}, args...), nil
		}
	}
	return nil, nil
}
