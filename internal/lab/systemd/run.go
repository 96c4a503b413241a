package systemd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"linus/internal/lab/sys"
)

// run is systemd-run. It returns when the unit is started, with --wait when it
// has ended, then with the exit code of its main process.
func (m Manager) run(args []string) (int, error) {
	s, wait, err := parseRun(args)
	if err != nil {
		return 1, err
	}
	if err := os.MkdirAll(m.path("units"), 0o755); err != nil {
		return 1, err
	}
	reports, err := m.load(s, false)
	if err != nil {
		return 1, fmt.Errorf("Failed to start transient %s unit: %w", strings.TrimPrefix(filepath.Ext(s.Name), "."), err)
	}
	defer reports.Close()
	if !wait {
		return 0, nil
	}
	end := state{Result: "lost"} // the machine went down
	lines := bufio.NewScanner(reports)
	for lines.Scan() {
		if err := json.Unmarshal(lines.Bytes(), &end); err != nil {
			return 1, err
		}
	}
	switch {
	case end.Result == "success":
		return 0, nil
	case end.Result == "exit-code" && end.Status > 0:
		return end.Status, nil
	case end.Result == "signal" || end.Result == "core-dump":
		return 255, nil
	}
	return 1, nil
}

// load takes the unit's name and starts its supervisor. It returns once the unit
// runs, with what the supervisor reports from then on: its state at the end.
// One that is known is a service whose timer starts it, or a unit that has a file.
func (m Manager) load(s spec, known bool) (reports *os.File, err error) {
	unlock, err := m.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := m.checkFree(s.Name, known); err != nil {
		return nil, err
	}
	u := m.unit(s.Name)
	if err := os.RemoveAll(u.dir); err != nil {
		return nil, err
	}
	if err := os.Mkdir(u.dir, 0o755); err != nil {
		return nil, err
	}
	reports, err = m.startSupervisor(u, s)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(u.dir))
	}
	return reports, nil
}

func (m Manager) checkFree(name string, known bool) error {
	if known {
		if _, alive := m.unit(name).supervisor(); alive {
			return fmt.Errorf("Unit %s is active.", name)
		}
		return nil
	}
	taken := []string{name}
	if service, isTimer := strings.CutSuffix(name, ".timer"); isTimer {
		taken = append(taken, service+".service")
	}
	for _, name := range taken {
		if m.loaded(name) {
			return fmt.Errorf("Unit %s was already loaded or has a fragment file.", name)
		}
	}
	return nil
}

// startSupervisor runs the unit's process. It waits until it is recorded and
// goes away when that does not happen: a systemd-run that is killed in between
// leaves nothing that nobody knows of.
func (m Manager) startSupervisor(u unit, s spec) (reports *os.File, err error) {
	if err := sys.WriteJSON(filepath.Join(u.dir, "spec.json"), s, 0o600); err != nil {
		return nil, err
	}
	reports, report, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() {
		report.Close()
		if err != nil {
			reports.Close()
		}
	}()
	journal, err := m.openJournal()
	if err != nil {
		return nil, err
	}
	defer journal.Close()
	cmd := exec.Command(m.Binary, supervisorVerb, u.dir) //nolint:noctx // it outlives the command that starts it
	cmd.Env = m.environment()
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = journal, journal
	cmd.ExtraFiles = []*os.File{report}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	goOn, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err = cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = cmd.Wait() }() // reaps it when it ends before we do
	report.Close()
	defer goOn.Close()
	if err = sys.WritePidFile(filepath.Join(u.dir, "pid"), cmd.Process.Pid); err != nil {
		return nil, err
	}
	if _, err = goOn.Write([]byte("go\n")); err != nil {
		return nil, err
	}
	// The first line says that it runs.
	if _, err = readLine(reports); err != nil {
		return nil, fmt.Errorf("the unit's supervisor has gone: %w", err)
	}
	return reports, nil
}

func (m Manager) openJournal() (*os.File, error) {
	return os.OpenFile(m.path("journal"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// readLine reads one line and no byte more.
func readLine(f *os.File) (string, error) {
	var line []byte
	for one := make([]byte, 1); ; {
		if _, err := f.Read(one); err != nil {
			return "", err
		}
		if one[0] == '\n' {
			return string(line), nil
		}
		line = append(line, one[0])
	}
}
