package systemd

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// controlOptions are what was given to systemctl: a value each, "" for those that take none.
type controlOptions map[string]string

// control is systemctl. Options stand between its command and the names.
func (m Manager) control(args []string, std sys.Streams) (int, error) {
	verbs := map[string]struct {
		must, may []string // options; the lab knows no others
		one       bool     // takes one name, or one pattern
		do        func(unit, controlOptions, sys.Streams) (int, error)
	}{
		"disable":    {must: []string{"--quiet"}, may: []string{"--now"}, do: m.disable},
		"enable":     {must: []string{"--quiet"}, may: []string{"--no-reload"}, do: m.enable},
		"is-active":  {may: []string{"--quiet"}, one: true, do: m.isActive},
		"kill":       {may: []string{"--kill-whom=", "--signal="}, one: true, do: m.kill},
		"list-units": {must: []string{"--plain", "--no-legend"}, may: []string{"--all", "--state="}, one: true},
		"start":      {do: m.startUnit},
		"stop":       {do: m.stop},
	}
	if len(args) == 0 {
		return 1, errors.New("the lab's systemctl wants a command")
	}
	if len(args) == 1 && args[0] == "daemon-reload" {
		return 0, nil // files are read when they are asked for
	}
	verb, known := verbs[args[0]]
	if !known {
		return 1, fmt.Errorf("the lab's systemctl does not know %s", strings.Join(args, " "))
	}
	tool, o := "systemctl "+args[0], controlOptions{}
	names, err := parseOptions(tool, args[1:], append(verb.may, verb.must...), func(name, value string) error {
		o[name] = value
		return nil
	})
	if err != nil {
		return 1, err
	}
	for _, option := range verb.must {
		if !o.has(option) {
			return 1, fmt.Errorf("the lab's %s needs %s", tool, option)
		}
	}
	if len(names) == 0 || verb.one && len(names) > 1 {
		return 1, fmt.Errorf("the lab's %s does not take %d names", tool, len(names))
	}
	if verb.do == nil {
		return m.list(names[0], o, std)
	}
	worst := 0
	for _, name := range names {
		name, nameErr := fullName(name)
		if nameErr != nil {
			return 1, errors.Join(err, nameErr)
		}
		code, doErr := verb.do(m.unit(name), o, std)
		worst, err = max(worst, code), errors.Join(err, doErr)
	}
	return worst, err
}

func (o controlOptions) has(name string) bool {
	_, given := o[name]
	return given
}

// stop returns when the unit has ended.
func (m Manager) stop(u unit, _ controlOptions, _ sys.Streams) (int, error) {
	pid, alive := u.supervisor()
	if !alive {
		if !m.loaded(u.name) {
			return 5, fmt.Errorf("Failed to stop %s: Unit %s not loaded.", u.name, u.name)
		}
		return 0, nil
	}
	if err := sys.SignalProven(pid, unix.SIGTERM, func() bool { return u.supervised(pid) }); err != nil {
		return 1, err
	}
	for u.supervised(pid) {
		if s, _ := u.state(); s.Active == "inactive" || s.Active == "failed" { // only what it left is still there
			break
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // it ends by itself
	}
	return 0, nil
}

func (m Manager) kill(u unit, o controlOptions, _ sys.Streams) (int, error) {
	sig := unix.SIGTERM
	if o.has("--signal=") {
		if sig = unix.SignalNum("SIG" + o["--signal="]); sig == 0 {
			return 1, fmt.Errorf("Failed to parse signal string %s.", o["--signal="])
		}
	}
	whom := o["--kill-whom="]
	if !slices.Contains([]string{"", "all", "main"}, whom) {
		return 1, fmt.Errorf("the lab's systemctl does not know --kill-whom=%s", whom)
	}
	if !m.loaded(u.name) {
		return 1, fmt.Errorf("Failed to kill unit %s: Unit %s not loaded.", u.name, u.name)
	}
	pid, alive := u.supervisor()
	if whom == "main" {
		s, _ := u.state()
		if s.Main == 0 {
			return 1, fmt.Errorf("Failed to kill unit %s: No main process to kill", u.name)
		}
		start, _ := sys.ProcessStart(s.Main)
		return 0, signalProcess(s.Main, start, sig)
	}
	if !alive || strings.HasSuffix(u.name, ".timer") {
		return 1, fmt.Errorf("Failed to kill unit %s: No processes to kill", u.name)
	}
	// systemd does nothing else meanwhile: what the unit runs when its processes have ended
	// is not among those that get the signal.
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		return 1, fmt.Errorf("stop the supervisor of %s: %w", u.name, err)
	}
	for p, there := sys.ReadProcess(pid); there && !p.Stopped; p, there = sys.ReadProcess(pid) {
		time.Sleep(time.Millisecond) //nolint:forbidigo // nobody is told of it
	}
	_, err := signalTree(pid, sig)
	return 0, errors.Join(err, unix.Kill(pid, unix.SIGCONT))
}

func (m Manager) isActive(u unit, o controlOptions, std sys.Streams) (int, error) {
	s, _ := u.state()
	if !o.has("--quiet") {
		fmt.Fprintln(std.Out, s.Active)
	}
	if s.Active == "active" {
		return 0, nil
	}
	return 3, nil
}

// list prints the loaded units whose names fit the pattern.
func (m Manager) list(pattern string, o controlOptions, std sys.Streams) (int, error) {
	if o.has("--state=") && o["--state="] != "active" || !strings.Contains(pattern, "*") {
		return 1, errors.New("the lab's systemctl list-units knows no state but --state=active, and patterns with * only")
	}
	units, err := m.units()
	if err != nil {
		return 1, err
	}
	for _, u := range units { // a timer's service
		if base, ok := strings.CutSuffix(u.name, ".timer"); ok {
			if service := m.unit(base + ".service"); !slices.Contains(units, service) {
				units = append(units, service)
			}
		}
	}
	slices.SortStableFunc(units, func(a, b unit) int {
		return cmp.Or(strings.Compare(path.Ext(a.name), path.Ext(b.name)), strings.Compare(a.name, b.name))
	})
	tw := tabwriter.NewWriter(std.Out, 0, 8, 1, ' ', 0)
	for _, u := range units {
		fits, err := path.Match(pattern, u.name)
		if err != nil {
			return 1, fmt.Errorf("%s: %w", pattern, err)
		}
		s, _ := u.state()
		if !fits || !m.loaded(u.name) || s.Active == "inactive" && !o.has("--all") || s.Active != "active" && o.has("--state=") {
			continue
		}
		sp, _ := u.spec()
		fmt.Fprintf(tw, "%s\tloaded\t%s\t%s\t%s\n", u.name, s.Active, s.Sub, sp.Description)
	}
	return 0, tw.Flush()
}
