package systemd

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
	"linus/internal/lazyregexp"
)

// unit holds the settings a unit was loaded with, and its current state.
type unit struct {
	Name        string // with its type's suffix
	Description string
	wanted      []string // targets that it is enabled for

	// Of a service. A timer has those of the service it starts.
	Argv        []string
	StopPost    []string // empty: no command
	KillMode    string   // process or mixed
	RuntimeMax  time.Duration
	TimeoutStop time.Duration
	Directory   string

	// Of a timer.
	OnActive, OnUnitActive, Accuracy time.Duration

	PID    int    // PID of its supervisor
	Start  uint64 // start time of the supervisor
	Main   int    // PID of the main process; 0: there is no main process
	Active string // active, deactivating, inactive
	Sub    string
}

// newUnit returns a unit with systemd's defaults.
func newUnit(name string) unit {
	return unit{Name: name, TimeoutStop: 90 * time.Second, Directory: "/", Accuracy: time.Minute, Active: "inactive"}
}

func (u unit) timer() bool { return strings.HasSuffix(u.Name, ".timer") }

// loaded reports whether the unit's supervisor exists. A unit whose supervisor was killed from
// outside is not loaded; systemd has no equivalent of that.
func (u unit) loaded() bool {
	start, alive := sys.ProcessStart(u.PID)
	return alive && u.PID != 0 && start == u.Start
}

func (u unit) signal(sig unix.Signal) error { return signalProcess(u.PID, u.Start, sig) }

// unit returns the current state of the named unit.
func (m Manager) unit(name string) unit {
	u := newUnit(name)
	if sys.ReadJSON(m.path("units", name), &u) != nil || !u.loaded() {
		return newUnit(name)
	}
	return u
}

func (m Manager) save(u unit) error { return sys.WriteJSON(m.path("units", u.Name), u, 0o644) }

// names returns the names of the units, sorted.
func (m Manager) names() (names []string) {
	entries, _ := os.ReadDir(m.path("units"))
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			names = append(names, entry.Name())
		}
	}
	return names
}

// taken reports whether a name is taken: a unit also counts as loaded as long as its file exists.
func (m Manager) taken(name string) bool {
	_, err := os.Stat(m.files(name))
	return err == nil || m.unit(name).loaded()
}

var unitName = lazyregexp.New(`^[A-Za-z0-9:_\\@][A-Za-z0-9:_.\\@-]{0,254}$`)

func fullName(name string) (string, error) {
	if !unitName.MatchString(name) {
		return "", fmt.Errorf("invalid unit name %q", name)
	}
	if !strings.HasSuffix(name, ".service") && !strings.HasSuffix(name, ".timer") {
		name += ".service"
	}
	return name, nil
}

// targets are the targets that a boot reaches.
var targets = []string{"multi-user.target", "timers.target"}

// read reads a unit's file and, for a timer, its service's file as well.
func (m Manager) read(name string) (unit, error) {
	u := newUnit(name)
	if base, isTimer := strings.CutSuffix(name, ".timer"); isTimer {
		service, err := m.read(base + ".service")
		if err != nil {
			return u, err
		}
		u = service
		u.Name, u.wanted = name, nil
	}
	raw, err := os.ReadFile(m.files(name))
	if err != nil {
		return u, fmt.Errorf("Unit %s not found.", name)
	}
	section := ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, "=")
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			section = line
		default:
			if err := u.set(section+key, strings.ReplaceAll(value, "%%", "%")); err != nil {
				return u, fmt.Errorf("%s: %w", m.files(name), err)
			}
		}
	}
	if len(u.Argv) == 0 || u.KillMode == "" || u.timer() && (u.OnActive == 0 || u.OnUnitActive == 0) {
		return u, fmt.Errorf("Unit %s has a bad unit file setting.", name)
	}
	return u, nil
}

// set sets a setting of a unit's file, or a property of systemd-run.
func (u *unit) set(key, value string) (err error) {
	known := true
	switch key {
	case "[Unit]Description":
		u.Description = value
	case "[Unit]After", "[Unit]Before": // the lab's host has none of those units
	case "[Service]ExecStart":
		u.Argv, err = parseCommand(value)
	case "[Service]ExecStopPost":
		u.StopPost, err = parseCommand(value)
	case "[Service]KillMode":
		u.KillMode, known = value, value == "mixed" || value == "process"
	case "[Service]OOMPolicy": // the lab never runs out of memory
		known = value == "continue"
	case "[Service]RuntimeMaxSec":
		u.RuntimeMax, err = parseSpan(value)
	case "[Service]TimeoutStopSec":
		u.TimeoutStop, err = parseSpan(value)
	case "[Service]WorkingDirectory":
		if u.Directory = value; !filepath.IsAbs(value) {
			err = fmt.Errorf("WorkingDirectory= expects an absolute path: %s", value)
		}
	case "[Timer]OnActiveSec":
		u.OnActive, err = parseSpan(value)
	case "[Timer]OnUnitActiveSec":
		u.OnUnitActive, err = parseSpan(value)
	case "[Timer]AccuracySec":
		u.Accuracy, err = parseSpan(value)
	case "[Install]WantedBy":
		u.wanted, known = append(u.wanted, value), slices.Contains(targets, value)
	default:
		known = false
	}
	if !known {
		return fmt.Errorf("the lab's systemd does not know %s=%s", key, value)
	}
	return err
}

var (
	span    = lazyregexp.New(`^([1-9][0-9]{0,8})(ms|s|d)?$`)
	command = lazyregexp.New(`^(?:"[^"\\$]*"|[^\s"'\\$]+)(?:\s+(?:"[^"\\$]*"|[^\s"'\\$]+))*$`)
)

// parseSpan reads a time span: a number and a unit, by default seconds.
func parseSpan(text string) (time.Duration, error) {
	units := map[string]time.Duration{"ms": time.Millisecond, "": time.Second, "s": time.Second, "d": 24 * time.Hour}
	parts := span.FindStringSubmatch(text)
	if parts == nil {
		return 0, fmt.Errorf("the lab's systemd does not know the time span %q", text)
	}
	number, err := strconv.Atoi(parts[1])
	return time.Duration(number) * units[parts[2]], err
}

// parseCommand reads a setting's command line: words, some in double quotes.
func parseCommand(text string) (words []string, err error) {
	if !command.MatchString(text) || text[0] != '/' {
		return nil, fmt.Errorf("the lab's systemd wants a program's absolute path, words and double quotes, with no variable and no escape, in the command %q", text)
	}
	quoted := false
	words = strings.FieldsFunc(text, func(c rune) bool {
		quoted = quoted != (c == '"')
		return !quoted && strings.ContainsRune(" \t", c)
	})
	for i := range words {
		words[i] = strings.Trim(words[i], `"`)
	}
	return words, nil
}
