package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
	"linus/internal/lazyregexp"
)

// options are the options given to a command, with their values; "" for those that take none.
type options map[string]string

func (o options) has(name string) bool { _, given := o[name]; return given }

// parse reads options up to the first other word, and returns the rest. known lists the options:
// "=" marks those with a value, a "!" at the end those that are required.
func parse(tool string, args []string, known string, set func(name, value string) error) (rest []string, o options, err error) {
	o = options{}
	must := strings.Fields(known)
	for ; len(args) > 0 && strings.HasPrefix(args[0], "-") && args[0] != "--"; args = args[1:] {
		name, value, given := strings.Cut(args[0], "=")
		if given {
			name += "="
		}
		if !slices.Contains(strings.Fields(strings.ReplaceAll(known, "!", "")), name) {
			return nil, nil, fmt.Errorf("the lab's %s does not know the option %s", tool, args[0])
		}
		if err := set(name, value); err != nil {
			return nil, nil, err
		}
		o[name] = value
		must = slices.DeleteFunc(must, func(m string) bool { return m == name+"!" })
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if must = slices.DeleteFunc(must, func(m string) bool { return !strings.HasSuffix(m, "!") }); len(must) > 0 {
		return nil, nil, fmt.Errorf("the lab's %s needs %s", tool, strings.ReplaceAll(strings.Join(must, " "), "!", ""))
	}
	return args, o, nil
}

// variable matches what systemd itself substitutes: $NAME as a whole word, ${NAME}, and $$.
var variable = lazyregexp.New(`^\$[A-Za-z_][A-Za-z0-9_]*$|\$\{|\$\$`)

// run is systemd-run. It returns when the unit is started.
func (m Manager) run(args []string) error {
	u := newUnit("")
	argv, _, err := parse("systemd-run", args, "--quiet! --collect! --unit=! --description= --property=", func(name, value string) (err error) {
		switch name {
		case "--unit=":
			u.Name, err = fullName(value)
		case "--description=":
			u.Description = value
		case "--property=":
			key, text, _ := strings.Cut(value, "=")
			err = u.set("[Service]"+key, text)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case u.KillMode == "" || u.Argv != nil || u.timer():
		return errors.New("the lab's systemd-run needs a service's name, --property=KillMode=, and its command at the end")
	case len(argv) == 0:
		return errors.New("Command line to execute required.")
	}
	if i := slices.IndexFunc(argv, variable.MatchString); i >= 0 {
		return fmt.Errorf("the lab's systemd puts no variables in a command line: %s", argv[i])
	}
	// systemd-run looks up the program with its own PATH.
	program, err := exec.LookPath(argv[0])
	if err != nil || !filepath.IsAbs(program) {
		return fmt.Errorf("Failed to find executable %s: No such file or directory", argv[0])
	}
	u.Argv = append([]string{program}, argv[1:]...)
	if err := m.load(u, m.taken, "was already loaded or has a fragment file"); err != nil {
		return fmt.Errorf("Failed to start transient service unit: %w", err)
	}
	return nil
}

// control is systemctl. Options stand between its command and the names.
func (m Manager) control(args []string, std sys.Streams) (int, error) {
	verbs := map[string]struct {
		options string
		one     bool // takes exactly one name or pattern
		do      func(unit, options) (int, error)
	}{
		"disable":    {"--quiet! --now", false, m.disable},
		"enable":     {"--quiet! --no-reload", false, m.enable},
		"is-active":  {"--quiet", true, func(u unit, o options) (int, error) { return isActive(u, o, std) }},
		"kill":       {"--kill-whom= --signal=", true, m.kill},
		"list-units": {"--plain! --no-legend! --state=!", true, nil},
		"start":      {"", false, m.startUnit},
		"stop":       {"", false, m.stop},
	}
	if len(args) == 1 && args[0] == "daemon-reload" {
		return 0, nil // files are read each time
	}
	if len(args) == 0 || verbs[args[0]].options == "" && verbs[args[0]].do == nil {
		return 1, fmt.Errorf("the lab's systemctl does not know %q", strings.Join(args, " "))
	}
	verb, tool := verbs[args[0]], "systemctl "+args[0]
	names, o, err := parse(tool, args[1:], verb.options, func(string, string) error { return nil })
	if err != nil {
		return 1, err
	}
	if len(names) == 0 || verb.one && len(names) > 1 {
		return 1, fmt.Errorf("the lab's %s does not take %d names", tool, len(names))
	}
	if verb.do == nil {
		return 0, m.list(names[0], o["--state="], std)
	}
	worst := 0
	for _, name := range names {
		name, nameErr := fullName(name)
		if nameErr != nil {
			return 1, errors.Join(err, nameErr)
		}
		code, doErr := verb.do(m.unit(name), o)
		worst, err = max(worst, code), errors.Join(err, doErr)
	}
	return worst, err
}

// startUnit starts a unit that has a file, unless it runs.
func (m Manager) startUnit(u unit, _ options) (int, error) {
	if u.loaded() {
		return 0, nil
	}
	u, err := m.read(u.Name)
	if err != nil {
		return 5, fmt.Errorf("Failed to start %s: %w", u.Name, err)
	}
	return 0, m.start(u)
}

// start loads a unit that has a file.
func (m Manager) start(u unit) error {
	if err := m.load(u, func(name string) bool { return m.unit(name).loaded() }, "is active"); err != nil {
		return fmt.Errorf("Failed to start %s: %w", u.Name, err)
	}
	return nil
}

func (m Manager) enable(u unit, _ options) (int, error) {
	u, err := m.read(u.Name)
	if err != nil {
		return 1, fmt.Errorf("Failed to enable unit: %w", err)
	}
	for _, target := range u.wanted {
		link := m.files(target+".wants", u.Name)
		err := os.MkdirAll(filepath.Dir(link), 0o755)
		if err == nil {
			err = os.Symlink(m.files(u.Name), link)
		}
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return 1, err
		}
	}
	return 0, nil
}

func (m Manager) disable(u unit, o options) (int, error) {
	for _, target := range targets {
		if err := os.Remove(m.files(target+".wants", u.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 1, err
		}
	}
	if o.has("--now") && u.loaded() {
		return m.stop(u, o)
	}
	return 0, nil
}

// stop returns when the unit has ended.
func (m Manager) stop(u unit, _ options) (int, error) {
	if !u.loaded() {
		if !m.taken(u.Name) {
			return 5, fmt.Errorf("Failed to stop %s: Unit %s not loaded.", u.Name, u.Name)
		}
		return 0, nil
	}
	if err := u.signal(unix.SIGTERM); err != nil {
		return 1, err
	}
	for u.loaded() && m.unit(u.Name).Active != "inactive" { // afterwards only processes it left behind remain
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // it ends by itself
	}
	return 0, nil
}

func (m Manager) kill(u unit, o options) (int, error) {
	sig, whom := unix.SIGTERM, o["--kill-whom="]
	if o.has("--signal=") {
		sig = unix.SignalNum("SIG" + o["--signal="])
	}
	switch {
	case sig == 0:
		return 1, fmt.Errorf("Failed to parse signal string %s.", o["--signal="])
	case !slices.Contains([]string{"", "all", "main"}, whom):
		return 1, fmt.Errorf("the lab's systemctl does not know --kill-whom=%s", whom)
	case !u.loaded():
		return 1, fmt.Errorf("Failed to kill unit %s: Unit %s not loaded.", u.Name, u.Name)
	case u.timer() || whom == "main" && u.Main == 0:
		return 1, fmt.Errorf("Failed to kill unit %s: No process to kill", u.Name)
	case whom == "main":
		start, _ := sys.ProcessStart(u.Main)
		return 0, signalProcess(u.Main, start, sig)
	}
	// systemd does nothing else meanwhile: what the unit runs after these processes gets no signal.
	if err := u.signal(unix.SIGSTOP); err != nil {
		return 1, err
	}
	for p, there := sys.ReadProcess(u.PID); there && !p.Stopped; p, there = sys.ReadProcess(u.PID) {
		time.Sleep(time.Millisecond) //nolint:forbidigo // it is not reported
	}
	_, err := m.signalTree(u.PID, sig)
	return 0, errors.Join(err, u.signal(unix.SIGCONT))
}

func isActive(u unit, o options, std sys.Streams) (int, error) {
	if !o.has("--quiet") {
		fmt.Fprintln(std.Out, u.Active)
	}
	if u.Active != "active" {
		return 3, nil
	}
	return 0, nil
}

// list prints the active units whose names match the pattern, services first.
func (m Manager) list(pattern, state string, std sys.Streams) error {
	if state != "active" || !strings.Contains(pattern, "*") {
		return errors.New("the lab's systemctl list-units knows no state but --state=active, and patterns with * only")
	}
	names := m.names()
	slices.SortStableFunc(names, func(a, b string) int { return strings.Compare(path.Ext(a), path.Ext(b)) })
	tw := tabwriter.NewWriter(std.Out, 0, 8, 1, ' ', 0)
	for _, name := range names {
		fits, err := path.Match(pattern, name)
		if err != nil {
			return fmt.Errorf("%s: %w", pattern, err)
		}
		if u := m.unit(name); fits && u.Active == "active" {
			fmt.Fprintf(tw, "%s\tloaded\tactive\t%s\t%s\n", name, u.Sub, u.Description)
		}
	}
	return tw.Flush()
}
