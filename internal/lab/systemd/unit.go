package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"linus/internal/lab/sys"
	"linus/internal/lazyregexp"
)

// spec is what a unit was loaded with.
type spec struct {
	Name        string // with its type's suffix
	Description string
	Transient   bool // made by systemd-run, and unloaded also when it failed; else its file's

	// Of a service; a timer has those of the service it starts.
	Argv        []string
	StopPost    [][]string
	KillMode    string        // control-group, mixed, process
	RuntimeMax  time.Duration // 0: none
	TimeoutStop time.Duration
	Directory   string

	// Of a timer.
	OnActive     time.Duration
	OnUnitActive time.Duration // 0: once, which only a transient one does
	Accuracy     time.Duration
}

// state is what systemctl shows of a unit.
type state struct {
	Active string // active, activating, deactivating, failed, inactive
	Sub    string
	Main   int    // process, 0: none
	Result string // success, exit-code, signal, core-dump, timeout
	Code   int    // how it ended: 0 not yet, 1 exited, 2 killed, 3 dumped
	Status int    // its exit status or signal
}

// unit is a unit's directory.
type unit struct {
	name string
	dir  string
}

var unitName = lazyregexp.New(`^[A-Za-z0-9:_.\\@-]{1,255}$`)

// fullName is a unit's name with its suffix.
func fullName(name string) (string, error) {
	if !unitName.MatchString(name) || strings.ContainsAny(name[:1], ".-") {
		return "", fmt.Errorf("invalid unit name %q", name)
	}
	for _, suffix := range []string{".service", ".timer"} {
		if strings.HasSuffix(name, suffix) {
			return name, nil
		}
	}
	return name + ".service", nil
}

func (m Manager) unit(name string) unit { return unit{name: name, dir: m.path("units", name)} }

// units are all that are loaded, sorted by name.
func (m Manager) units() ([]unit, error) {
	entries, err := os.ReadDir(m.path("units"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var units []unit
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") {
			units = append(units, m.unit(entry.Name()))
		}
	}
	return units, nil
}

// loaded reports whether the name is taken. A service is loaded as long as a
// timer that starts it is, and a unit as long as its file is there.
func (m Manager) loaded(name string) bool {
	if m.hasFragment(name) {
		return true
	}
	u := m.unit(name)
	if s, ok := u.state(); ok && s.Active == "failed" {
		return true
	}
	if _, alive := u.supervisor(); alive {
		return true
	}
	if base, isService := strings.CutSuffix(name, ".service"); isService {
		_, alive := m.unit(base + ".timer").supervisor()
		return alive
	}
	return false
}

// state is a loaded unit's. A unit whose supervisor was killed from outside, to
// which systemd has no like, is not loaded.
func (u unit) state() (state, bool) {
	var s state
	err := sys.ReadJSON(filepath.Join(u.dir, "state.json"), &s)
	if _, alive := u.supervisor(); err != nil || !alive && s.Active != "failed" {
		return state{Active: "inactive", Sub: "dead", Result: "success"}, false
	}
	return s, true
}

func (u unit) setState(s state) error {
	return sys.WriteJSON(filepath.Join(u.dir, "state.json"), s, 0o644)
}

func (u unit) spec() (spec, error) {
	var s spec
	err := sys.ReadJSON(filepath.Join(u.dir, "spec.json"), &s)
	return s, err
}

// supervisor is the unit's process.
func (u unit) supervisor() (pid int, alive bool) {
	return sys.ReadPidFile(filepath.Join(u.dir, "pid"))
}

// supervised reports whether a process is the unit's supervisor.
func (u unit) supervised(pid int) bool {
	own, alive := u.supervisor()
	return alive && own == pid
}
