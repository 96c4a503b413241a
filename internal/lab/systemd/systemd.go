// Package systemd is a work-alike of systemd-run and systemctl for the few forms that the host
// scripts use: services and timers of root's manager, transient services, and units with files. It
// refuses any other form with an error that names it. A lab whose host has no real systemd has it
// on its PATH. One test suite holds both to the same behaviour, and where they could differ, this
// one is stricter.
//
// Its state is one directory. Every active unit has its own process, the supervisor, which owns
// everything the unit starts: as a subreaper it also keeps orphans. The package knows nothing about
// labs.
package systemd

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// Manager is a host's systemd manager, with its units in a directory.
//
//	environment   what units inherit, lines NAME=value (systemd's DefaultEnvironment=)
//	journal       what units print
//	lock          held while a unit is loaded
//	units/<name>  a loaded unit, as JSON
type Manager struct {
	Dir    string // created if missing
	Binary string // the program that runs as the supervisor, see Main
}

// Arguments of Binary: for a unit's process, for a power cut of the machine, and for its next boot.
const (
	supervisorVerb = "systemd-unit"
	rebootVerb     = "systemd-reboot"
	bootVerb       = "systemd-boot"
)

// Tools returns the names of the commands.
func Tools() []string { return []string{"systemd-run", "systemctl"} }

// Main runs systemd-run or systemctl, by the name in args[0], the supervisor of a unit (`pvelab
// systemd-unit DIR`), a power cut (`pvelab systemd-reboot`) or a boot, and returns the exit code.
// ok is false if args are something else. The manager's directory is that of the lab named by
// PVELAB_DIR.
func Main(args []string, std sys.Streams) (code int, ok bool) {
	binary, err := os.Executable()
	m := Manager{Dir: Dir(os.Getenv("PVELAB_DIR")), Binary: binary} //nolint:forbidigo // the lab has a reader of its own: it is not the product
	if len(args) == 3 && args[1] == supervisorVerb {
		m.Dir = args[2]
		err = m.supervise()
		return exitCode(0, err, std), true
	}
	name := filepath.Base(args[0])
	if len(args) == 2 && (args[1] == rebootVerb || args[1] == bootVerb) {
		name = args[1]
	}
	if !slices.Contains(append(Tools(), rebootVerb, bootVerb), name) {
		return 0, false
	}
	if err != nil || !filepath.IsAbs(m.Dir) {
		return exitCode(1, errors.New("System has not been booted with systemd as init system (PID 1). Can't operate."), std), true
	}
	// A unit inherits no open files of its caller.
	if err = unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return exitCode(1, err, std), true
	}
	switch name {
	case "systemd-run":
		err = m.run(args[1:])
	case "systemctl":
		code, err = m.control(args[1:], std)
	case bootVerb:
		err = m.Boot()
	default:
		err = m.Reboot()
	}
	return exitCode(code, err, std), true
}

func exitCode(code int, err error, std sys.Streams) int {
	if err == nil {
		return code
	}
	fmt.Fprintln(std.Err, err)
	return max(1, code)
}

// Dir is the manager's directory in that of a lab.
func Dir(lab string) string { return filepath.Join(lab, "run", "systemd") }

// SetEnvironment creates the manager's directory and sets what its units inherit, as NAME=value.
// Values must not contain line breaks.
func (m Manager) SetEnvironment(variables []string) error {
	if err := os.MkdirAll(m.path("units"), 0o755); err != nil {
		return err
	}
	return sys.WriteFile(m.path("environment"), []byte(strings.Join(variables, "\n")+"\n"), 0o644)
}

func (m Manager) environment() []string {
	variables := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8"}
	raw, _ := os.ReadFile(m.path("environment"))
	for line := range strings.Lines(string(raw)) {
		name, _, given := strings.Cut(line, "=")
		if given { // of two variables with one name, some programs read the first, others the last
			variables = slices.DeleteFunc(variables, func(v string) bool { return strings.HasPrefix(v, name+"=") })
			variables = append(variables, strings.TrimSuffix(line, "\n"))
		}
	}
	return variables
}

// Reboot ends all units and what they started, without notice, as a power cut does. Files stay. It
// does nothing if the manager never existed.
func (m Manager) Reboot() error {
	lock, err := m.lock()
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	for _, name := range m.names() {
		if u := m.unit(name); u.loaded() {
			// Stopped first, it can neither see its main process end nor start anything.
			err = errors.Join(err, u.signal(unix.SIGSTOP), m.killTree(u.PID), u.signal(unix.SIGKILL))
		}
		err = errors.Join(err, os.RemoveAll(m.path("units", name)))
	}
	return err
}

// Boot starts the enabled units. A unit that fails to start does not make the boot fail.
func (m Manager) Boot() error {
	for _, target := range targets {
		entries, _ := os.ReadDir(m.files(target + ".wants"))
		for _, entry := range entries {
			if _, err := m.startUnit(m.unit(entry.Name()), nil); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	return nil
}

func (m Manager) path(elem ...string) string {
	return filepath.Join(append([]string{m.Dir}, elem...)...)
}

// files is the directory of unit files, the lab's /etc/systemd/system.
func (m Manager) files(elem ...string) string {
	return m.path(append([]string{"..", "..", "etc", "systemd", "system"}, elem...)...)
}

// lock keeps others from loading units until the file is closed.
func (m Manager) lock() (*os.File, error) {
	f, err := os.OpenFile(m.path("lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	return f, err
}

// below returns the processes of a supervisor's unit, nearest first. It leaves out those of other
// units that this one has started, although they are its descendants.
func (m Manager) below(supervisor int) ([]sys.Process, error) {
	all, err := sys.Descendants(supervisor)
	others := map[int]bool{}
	for _, name := range m.names() {
		others[m.unit(name).PID] = true
	}
	delete(others, supervisor)
	return slices.DeleteFunc(all, func(p sys.Process) bool {
		others[p.PID] = others[p.PID] || others[p.Parent]
		return others[p.PID]
	}), err
}

// signalTree sends a signal once to every process below a supervisor, including those that are
// started meanwhile, as systemd does. It returns how many there were.
func (m Manager) signalTree(supervisor int, sig unix.Signal) (int, error) {
	told := map[sys.Process]bool{}
	for {
		before := len(told)
		all, err := m.below(supervisor)
		for _, p := range all {
			p = sys.Process{PID: p.PID, Start: p.Start}
			if !told[p] {
				told[p] = true
				err = errors.Join(err, signalProcess(p.PID, p.Start, sig))
			}
		}
		if err != nil || len(told) == before {
			return len(told), err
		}
	}
}

// signalProcess signals the process with that PID and start time, if it still exists.
func signalProcess(pid int, start uint64, sig unix.Signal) error {
	return sys.SignalProven(pid, sig, func() bool {
		now, alive := sys.ProcessStart(pid)
		return alive && now == start
	})
}

// killTree kills everything below a supervisor, which need not reap, until nothing is left.
func (m Manager) killTree(supervisor int) error {
	deadline := time.Now().Add(10 * time.Second)
	for {
		left, err := m.signalTree(supervisor, unix.SIGKILL)
		if err != nil || left == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of a unit do not end", left)
		}
		time.Sleep(2 * time.Millisecond) //nolint:forbidigo // the kernel tells nobody but their parent
	}
}
