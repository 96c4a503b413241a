package systemd

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

var controlFlags = map[string]bool{
	"all": false, "plain": false, "no-legend": false, "no-pager": false, "quiet": false, "value": false, "no-block": false, "now": false, "no-reload": false,
	"property": true, "signal": true, "kill-whom": true, "kill-who": true, "state": true, "type": true,
}

var controlLetters = map[string]string{"a": "all", "q": "quiet", "p": "property", "s": "signal", "t": "type"}

type controlOptions struct {
	given      map[string]bool
	values     map[string]string
	properties []string
}

// control is systemctl.
func (m Manager) control(args []string, std Streams) (int, error) {
	o := controlOptions{given: map[string]bool{}, values: map[string]string{}}
	set := func(name, value string) error {
		o.given[name] = true
		o.values[name] = value
		if name == "property" {
			o.properties = append(o.properties, strings.Split(value, ",")...)
		}
		return nil
	}
	// Options may stand anywhere among the words.
	var words []string
	for len(args) > 0 {
		rest, err := parseFlags("systemctl", args, controlFlags, controlLetters, set)
		if err != nil {
			return 1, err
		}
		if len(rest) == 0 {
			break
		}
		words, args = append(words, rest[0]), rest[1:]
	}
	if len(words) == 0 {
		words = []string{"list-units"}
	}
	verb, names := words[0], words[1:]
	if verb == "list-units" {
		return 0, m.list(names, o, std)
	}
	if verb == "reset-failed" && len(names) == 0 {
		return 0, m.resetAll()
	}
	if verb == "daemon-reload" && len(names) == 0 {
		return 0, nil // files are read when they are asked for
	}
	verbs := map[string]func(unit, controlOptions, Streams) (int, error){
		"stop": m.stop, "kill": m.kill, "is-active": m.isActive, "is-failed": m.isFailed, "show": m.show, "reset-failed": m.resetFailed,
		"start": m.startUnit, "enable": m.enable, "disable": m.disable,
	}
	do, known := verbs[verb]
	if !known {
		return 1, fmt.Errorf("Unknown command verb %s.", verb)
	}
	if len(names) == 0 {
		return 1, errors.New("Too few arguments.")
	}
	return m.each(verb, names, func(u unit) (int, error) { return do(u, o, std) })
}

// each does something to all units named. is-active and its like succeed when
// one of them does; the others when all do.
func (m Manager) each(verb string, names []string, do func(unit) (int, error)) (int, error) {
	any := strings.HasPrefix(verb, "is-")
	worst, best := 0, 255
	var all error
	for _, name := range names {
		name, err := fullName(name)
		if err != nil {
			return 1, err
		}
		code, err := do(m.unit(name))
		all = errors.Join(all, err)
		worst, best = max(worst, code), min(best, code)
	}
	if any {
		return best, all
	}
	return worst, all
}

// status is what is shown of a unit, loaded or not.
func (m Manager) status(u unit) (state, bool) {
	s, ok := u.state()
	return s, ok || m.loaded(u.name)
}

// stop returns when the unit has ended.
func (m Manager) stop(u unit, o controlOptions, _ Streams) (int, error) {
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
	for !o.given["no-block"] && u.supervised(pid) {
		if s, _ := u.state(); s.Active == "inactive" || s.Active == "failed" { // only what it left is still there
			break
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // it ends by itself
	}
	return 0, nil
}

func (m Manager) kill(u unit, o controlOptions, _ Streams) (int, error) {
	sig := int(unix.SIGTERM)
	if o.given["signal"] {
		var err error
		if sig, err = parseSignal(o.values["signal"]); err != nil {
			return 1, err
		}
	}
	if !m.loaded(u.name) {
		return 1, fmt.Errorf("Failed to kill unit %s: Unit %s not loaded.", u.name, u.name)
	}
	pid, alive := u.supervisor()
	whom := o.values["kill-whom"] + o.values["kill-who"]
	if !slices.Contains([]string{"", "all", "main"}, whom) {
		return 1, fmt.Errorf("the lab's systemctl does not know --kill-whom=%s", whom)
	}
	if whom == "main" {
		s, _ := u.state()
		if s.Main == 0 {
			return 1, fmt.Errorf("Failed to kill unit %s: No main process to kill", u.name)
		}
		start, _ := sys.ProcessStart(s.Main)
		return 0, sys.SignalProven(s.Main, unix.Signal(sig), func() bool {
			now, ok := sys.ProcessStart(s.Main)
			return ok && now == start
		})
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
	_, err := signalTree(pid, unix.Signal(sig))
	return 0, errors.Join(err, unix.Kill(pid, unix.SIGCONT))
}

func (m Manager) isActive(u unit, o controlOptions, std Streams) (int, error) {
	return m.isState("active", 3, u, o, std)
}

func (m Manager) isFailed(u unit, o controlOptions, std Streams) (int, error) {
	return m.isState("failed", 1, u, o, std)
}

// isState prints a unit's state, and returns otherwise if it is not the one asked for.
func (m Manager) isState(state string, otherwise int, u unit, o controlOptions, std Streams) (int, error) {
	s, _ := m.status(u)
	if !o.given["quiet"] {
		fmt.Fprintln(std.Out, s.Active)
	}
	if s.Active == state {
		return 0, nil
	}
	return otherwise, nil
}

// show prints properties in an order of its own, as systemctl does, not in that
// of the question.
func (m Manager) show(u unit, o controlOptions, std Streams) (int, error) {
	s, loaded := m.status(u)
	description, load := u.name, "not-found"
	if loaded {
		load = "loaded"
		of := u
		if base, ok := strings.CutSuffix(u.name, ".service"); ok {
			if _, alive := u.supervisor(); !alive && s.Active != "failed" {
				of = m.unit(base + ".timer")
			}
		}
		if loaded, err := of.spec(); err == nil {
			description = loaded.Description
		} else if file, _, err := m.fragment(u.name); err == nil {
			description = file.Description
		}
	}
	values := [][2]string{
		{"MainPID", strconv.Itoa(s.Main)}, {"Result", s.Result}, {"ExecMainPID", strconv.Itoa(s.Exec)},
		{"ExecMainCode", strconv.Itoa(s.Code)}, {"ExecMainStatus", strconv.Itoa(s.Status)}, {"Id", u.name},
		{"Description", description}, {"LoadState", load}, {"ActiveState", s.Active}, {"SubState", s.Sub},
	}
	for _, name := range o.properties {
		if !slices.ContainsFunc(values, func(v [2]string) bool { return v[0] == name }) {
			return 1, fmt.Errorf("the lab's systemctl does not know the property %s", name)
		}
	}
	for _, v := range values {
		if strings.HasSuffix(u.name, ".timer") && (strings.HasPrefix(v[0], "ExecMain") || v[0] == "MainPID") {
			continue
		}
		switch {
		case len(o.properties) > 0 && !slices.Contains(o.properties, v[0]):
		case o.given["value"]:
			fmt.Fprintln(std.Out, v[1])
		default:
			fmt.Fprintf(std.Out, "%s=%s\n", v[0], v[1])
		}
	}
	return 0, nil
}

func (m Manager) resetFailed(u unit, _ controlOptions, _ Streams) (int, error) {
	unlock, err := m.lock()
	if err != nil {
		return 1, err
	}
	defer unlock()
	if !m.loaded(u.name) {
		return 1, fmt.Errorf("Failed to reset failed state of unit %s: Unit %s not loaded.", u.name, u.name)
	}
	if s, ok := u.state(); ok && s.Active == "failed" {
		return 0, os.RemoveAll(u.dir)
	}
	return 0, nil
}

func (m Manager) resetAll() error {
	units, err := m.units()
	for _, u := range units {
		_, resetErr := m.resetFailed(u, controlOptions{}, Streams{})
		err = errors.Join(err, resetErr)
	}
	return err
}

// list prints the loaded units whose names fit one of the patterns.
func (m Manager) list(patterns []string, o controlOptions, std Streams) error {
	units, err := m.units()
	if err != nil {
		return err
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
	fits := func(name string) bool {
		return len(patterns) == 0 || slices.ContainsFunc(patterns, func(p string) bool {
			if filepath.Ext(p) == "" && !strings.ContainsAny(p, "*?[") {
				p += ".service"
			}
			ok, err := path.Match(p, name)
			return ok && err == nil
		})
	}
	tw := tabwriter.NewWriter(std.Out, 0, 8, 1, ' ', 0)
	count := 0
	for _, u := range units {
		s, loaded := m.status(u)
		if !loaded || !fits(u.name) || s.Active == "inactive" && !o.given["all"] ||
			o.given["state"] && !slices.Contains(strings.Split(o.values["state"], ","), s.Active) ||
			o.given["type"] && !strings.HasSuffix(u.name, "."+o.values["type"]) {
			continue
		}
		if count++; count == 1 && !o.given["no-legend"] {
			fmt.Fprintln(tw, "UNIT\tLOAD\tACTIVE\tSUB\tDESCRIPTION")
		}
		sp, _ := u.spec()
		fmt.Fprintf(tw, "%s\tloaded\t%s\t%s\t%s\n", u.name, s.Active, s.Sub, sp.Description)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if !o.given["no-legend"] {
		fmt.Fprintf(std.Out, "%d loaded units listed.\n", count)
	}
	return nil
}
