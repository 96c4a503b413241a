// Package systemd is a work-alike of systemd-run and systemctl, as far as the
// host scripts use them: services and timers of root's manager, transient ones and
// those of files. A form that no script uses is refused by name. A lab whose host has
// no real systemd has it on its PATH; one suite holds both to the same behaviour, and
// where the two could differ this one is the stricter.
//
// Its state is one directory, and every active unit has a process of its own,
// the supervisor, to which all that the unit starts belongs: as a subreaper it
// keeps even what has been orphaned. The package knows nothing of labs.
package systemd

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// Manager is what a host has one of: the units in a directory.
//
//	environment   what units inherit, lines NAME=value (systemd's DefaultEnvironment=)
//	journal       what units print
//	lock          held while units come and go
//	units/<name>  a loaded unit: spec.json, state.json, pid of its supervisor
type Manager struct {
	Dir    string // created if missing
	Binary string // the program that plays the supervisor, see Main
}

// Arguments of Binary: of a unit's process, of a power cut of the machine, and of its
// next boot.
const (
	supervisorVerb = "systemd-unit"
	rebootVerb     = "systemd-reboot"
	bootVerb       = "systemd-boot"
)

// Tools are the names of the commands.
func Tools() []string { return []string{"systemd-run", "systemctl"} }

// Main runs systemd-run or systemctl, as args[0] says, the supervisor of a unit
// (`pvelab systemd-unit DIR`), a power cut (`pvelab systemd-reboot`) or a boot, and returns
// the exit code; ok is false when args are something else. The manager's
// directory is that of the lab named by PVELAB_DIR.
func Main(args []string, std sys.Streams) (code int, ok bool) {
	name := filepath.Base(args[0])
	if len(args) == 3 && args[1] == supervisorVerb {
		return supervise(args[2]), true
	}
	if len(args) == 2 && (args[1] == rebootVerb || args[1] == bootVerb) {
		name = args[1]
	}
	if !slices.Contains(append(Tools(), rebootVerb, bootVerb), name) {
		return 0, false
	}
	lab := os.Getenv("PVELAB_DIR") //nolint:forbidigo // the lab has a reader of its own: it is not the product
	binary, err := os.Executable()
	if lab == "" || err != nil {
		fmt.Fprintln(std.Err, "System has not been booted with systemd as init system (PID 1). Can't operate.")
		return 1, true
	}
	// A unit inherits nothing of its caller's.
	if err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		fmt.Fprintln(std.Err, err)
		return 1, true
	}
	m := Manager{Dir: Dir(lab), Binary: binary}
	switch name {
	case "systemd-run":
		code, err = m.run(args[1:])
	case "systemctl":
		code, err = m.control(args[1:], std)
	case bootVerb:
		err = m.Boot()
	default:
		err = m.Reboot()
	}
	if err != nil {
		fmt.Fprintln(std.Err, err)
		if code == 0 {
			code = 1
		}
	}
	return code, true
}

// Dir is the manager's directory in a lab's.
func Dir(lab string) string { return filepath.Join(lab, "run", "systemd") }

// SetEnvironment makes the manager's directory and says what its units inherit,
// NAME=value each. Values are of one line.
func (m Manager) SetEnvironment(variables []string) error {
	if err := os.MkdirAll(m.path("units"), 0o755); err != nil {
		return err
	}
	return sys.WriteFile(m.path("environment"), []byte(strings.Join(variables, "\n")+"\n"), 0o644)
}

func (m Manager) environment() []string {
	variables := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	raw, err := os.ReadFile(m.path("environment"))
	if err != nil {
		return variables
	}
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSuffix(line, "\n")
		name, _, given := strings.Cut(line, "=")
		if !given {
			continue
		}
		// Of two of a name some programs read the first, and others the last.
		variables = slices.DeleteFunc(variables, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		variables = append(variables, line)
	}
	return variables
}

// Reboot takes away all units and what they started, with no notice to any of
// them, as the power does. Files stay. A manager that was never there has
// nothing to lose.
func (m Manager) Reboot() error {
	unlock, err := m.lock()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlock()
	units, err := m.units()
	if err != nil {
		return err
	}
	for _, u := range units {
		if pid, alive := u.supervisor(); alive {
			// Stopped first: it must neither see its main process end nor start
			// anything.
			if err := sys.SignalProven(pid, unix.SIGSTOP, func() bool { return u.supervised(pid) }); err != nil {
				return err
			}
			if err := killTree(pid); err != nil {
				return err
			}
			if err := sys.SignalProven(pid, unix.SIGKILL, func() bool { return u.supervised(pid) }); err != nil {
				return err
			}
		}
		if err := os.RemoveAll(u.dir); err != nil {
			return err
		}
	}
	return nil
}

func (m Manager) path(elem ...string) string {
	return filepath.Join(append([]string{m.Dir}, elem...)...)
}

// lock keeps others from loading and unloading units.
func (m Manager) lock() (unlock func(), err error) {
	f, err := os.OpenFile(m.path("lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
