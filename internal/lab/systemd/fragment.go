package systemd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"linus/internal/lab/sys"
)

// Units that have a file (a fragment) in the host's /etc/systemd/system: services and
// timers of few settings. Such a unit is loaded as long as its file is there; what is
// enabled is started when the host boots.

// fragments is the directory of the files, the lab's /etc/systemd/system.
func (m Manager) fragments(elem ...string) string {
	return m.path(append([]string{"..", "..", "etc", "systemd", "system"}, elem...)...)
}

func (m Manager) hasFragment(name string) bool {
	_, err := os.Stat(m.fragments(name))
	return err == nil
}

// targets are those that a boot reaches.
func targets() []string { return []string{"multi-user.target", "timers.target"} }

// fragment reads a unit's file, and for a timer also its service's.
func (m Manager) fragment(name string) (spec, []string, error) {
	s, wanted := newSpec(), []string(nil)
	if base, isTimer := strings.CutSuffix(name, ".timer"); isTimer {
		service, _, err := m.fragment(base + ".service")
		if err != nil {
			return s, nil, err
		}
		s = service
	}
	s.Name = name
	raw, err := os.ReadFile(m.fragments(name))
	if err != nil {
		return s, nil, fmt.Errorf("Unit %s not found.", name)
	}
	section := ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' || line[0] == ';' {
			continue
		}
		if line[0] == '[' {
			section = line
			continue
		}
		key, value, _ := strings.Cut(line, "=")
		if err := s.setFragment(section, key, value, &wanted); err != nil {
			return s, nil, fmt.Errorf("%s: %w", m.fragments(name), err)
		}
	}
	if len(s.Argv) == 0 || strings.HasSuffix(name, ".timer") && (s.OnActive == 0 || s.OnUnitActive == 0) {
		return s, nil, fmt.Errorf("Unit %s has a bad unit file setting.", name)
	}
	return s, wanted, nil
}

func (s *spec) setFragment(section, key, value string, wanted *[]string) (err error) {
	switch section + key {
	case "[Unit]Description":
		s.Description = value
	case "[Unit]After", "[Unit]Before": // the lab's host has none of those units
	case "[Service]ExecStart":
		s.Argv, err = parseExec(strings.ReplaceAll(value, "%%", "%"))
	case "[Service]KillMode":
		err = s.setProperty(key, value)
	case "[Timer]OnActiveSec":
		s.OnActive, err = parseSpan(value)
	case "[Timer]OnUnitActiveSec":
		s.OnUnitActive, err = parseSpan(value)
	case "[Timer]AccuracySec":
		s.Accuracy, err = parseSpan(value)
	case "[Install]WantedBy":
		if !slices.Contains(targets(), value) {
			return unknownProperty(key + "=" + value)
		}
		*wanted = append(*wanted, value)
	default:
		return unknownProperty(section + " " + key + "=" + value)
	}
	return err
}

// newSpec has systemd's defaults.
func newSpec() spec {
	return spec{KillMode: "control-group", TimeoutStop: 90 * time.Second, Directory: "/", Accuracy: time.Minute}
}

// startUnit starts a unit that has a file, unless it runs.
func (m Manager) startUnit(u unit, _ controlOptions, _ sys.Streams) (int, error) {
	if _, alive := u.supervisor(); alive {
		return 0, nil
	}
	s, _, err := m.fragment(u.name)
	if err != nil {
		return 5, fmt.Errorf("Failed to start %s: %w", u.name, err)
	}
	if err := os.MkdirAll(m.path("units"), 0o755); err != nil {
		return 1, err
	}
	reports, err := m.load(s, true)
	if err != nil {
		return 1, fmt.Errorf("Failed to start %s: %w", u.name, err)
	}
	return 0, reports.Close()
}

func (m Manager) enable(u unit, _ controlOptions, _ sys.Streams) (int, error) {
	_, wanted, err := m.fragment(u.name)
	if err != nil {
		return 1, fmt.Errorf("Failed to enable unit: %w", err)
	}
	if m.transient(u.name) {
		return 1, fmt.Errorf("Failed to enable unit: Unit %s is transient or generated.", u.name)
	}
	for _, target := range wanted {
		link := m.fragments(target+".wants", u.name)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return 1, err
		}
		err := os.Symlink(m.fragments(u.name), link)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return 1, err
		}
	}
	return 0, nil
}

// transient reports whether a unit runs that did not come from its file.
func (m Manager) transient(name string) bool {
	u := m.unit(name)
	s, err := u.spec()
	_, alive := u.supervisor()
	return alive && err == nil && s.Transient
}

func (m Manager) disable(u unit, o controlOptions, std sys.Streams) (int, error) {
	for _, target := range targets() {
		link := m.fragments(target+".wants", u.name)
		err := os.Remove(link)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 1, err
		}
	}
	if o.has("--now") && m.loaded(u.name) {
		return m.stop(u, o, std)
	}
	return 0, nil
}

// Boot starts what is enabled. A unit that does not start is no fault of the machine's.
func (m Manager) Boot() error {
	for _, target := range targets() {
		entries, err := os.ReadDir(m.fragments(target + ".wants"))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		for _, entry := range entries {
			if _, err := m.startUnit(m.unit(entry.Name()), controlOptions{}, sys.Streams{}); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}
	return nil
}
