package systemd

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// load starts the unit's process if its name is free. It returns once the unit runs.
func (m Manager) load(u unit, taken func(name string) bool, why string) error {
	if err := os.MkdirAll(m.path("units"), 0o755); err != nil {
		return err
	}
	lock, err := m.lock()
	if err != nil {
		return err
	}
	defer lock.Close()
	if taken(u.Name) {
		return fmt.Errorf("Unit %s %s.", u.Name, why)
	}
	settings, err := json.Marshal(u)
	if err != nil {
		return err
	}
	report, reports, err := os.Pipe()
	if err != nil {
		return err
	}
	defer report.Close()
	defer reports.Close()
	journal, err := m.openJournal()
	if err != nil {
		return err
	}
	defer journal.Close()
	cmd := exec.Command(m.Binary, supervisorVerb, m.Dir) //nolint:noctx // it outlives the command that starts it
	cmd.Env = m.environment()
	cmd.Dir = "/"
	cmd.Stdin = strings.NewReader(string(settings))
	cmd.Stdout, cmd.Stderr = journal, journal
	cmd.ExtraFiles = []*os.File{reports, lock} // the name is taken until it is recorded, whoever is killed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // reaps the supervisor if it ends before this process
	reports.Close()
	if line, _ := bufio.NewReader(report).ReadString('\n'); line != "runs\n" {
		return errors.New("the unit's supervisor has gone: look at its journal, " + m.path("journal"))
	}
	return nil
}

func (m Manager) openJournal() (*os.File, error) {
	return os.OpenFile(m.path("journal"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
}

// supervisor is the process of one unit, and the parent of everything the unit starts.
type supervisor struct {
	m Manager
	u unit

	signals chan os.Signal
	stop    bool // whether it was asked to stop
	end     syscall.WaitStatus
	post    int // the process of ExecStopPost
}

// supervise reads a unit from stdin and runs it until it has ended.
func (m Manager) supervise() error {
	s := &supervisor{m: m, signals: make(chan os.Signal, 16)}
	if err := json.NewDecoder(os.Stdin).Decode(&s.u); err != nil {
		return err
	}
	// A unit does not ignore the signals that its caller's shell ignores.
	signal.Notify(s.signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	signal.Ignore(unix.SIGPIPE) // as IgnoreSIGPIPE= does
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	syscall.Umask(0o022)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	s.u.PID = os.Getpid()
	s.u.Start, _ = sys.ProcessStart(s.u.PID)
	work := s.service
	if s.u.timer() {
		work = s.timer
	}
	return errors.Join(work(), os.Remove(m.path("units", s.u.Name)))
}

// runs records the unit as active under its name, and tells the process that waits for that.
func (s *supervisor) runs(sub string) error {
	if err := s.in("active", sub); err != nil {
		return err
	}
	reports, lock := os.NewFile(3, "reports"), os.NewFile(4, "lock")
	_, _ = reports.WriteString("runs\n") // nobody may be waiting
	return errors.Join(reports.Close(), lock.Close())
}

func (s *supervisor) in(active, sub string) error {
	s.u.Active, s.u.Sub = active, sub
	return s.m.save(s.u)
}

func (s *supervisor) service() (err error) {
	if s.u.Main, err = s.start(s.u.Argv); err != nil {
		s.end = 203 << 8
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.u.Name, err)
	}
	if err := s.runs("running"); err != nil {
		return err
	}
	s.await(func() bool { return s.u.Main == 0 || s.stop }, s.u.RuntimeMax)
	if err := s.terminate(); err != nil {
		return err
	}
	if len(s.u.StopPost) > 0 {
		if err := s.in("deactivating", "stop-post"); err != nil {
			return err
		}
		if s.post, err = s.start(s.u.StopPost, "EXIT_STATUS="+endText(s.end)); err != nil {
			fmt.Fprintf(os.Stderr, "%s: ExecStopPost: %v\n", s.u.Name, err)
		}
		s.await(func() bool { return s.post == 0 }, 0)
	}
	if s.alone() { // free the name before anybody sees that the unit has ended
		return nil
	}
	// KillMode=process leaves processes behind; the name is taken until they have ended.
	if err := s.in("inactive", "dead"); err != nil {
		return err
	}
	s.await(s.alone, 0)
	return nil
}

// start runs a program in its own session.
func (s *supervisor) start(argv []string, env ...string) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	journal, err := s.m.openJournal()
	if err != nil {
		return 0, err
	}
	defer journal.Close()
	return syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: s.u.Directory, Env: append(s.m.environment(), env...),
		Files: []uintptr{null.Fd(), journal.Fd(), journal.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
}

// await reaps until come reports true, or until limit is over (0: no limit).
func (s *supervisor) await(come func() bool, limit time.Duration) (inTime bool) {
	var over <-chan time.Time
	if limit > 0 {
		over = time.After(limit)
	}
	for {
		s.reap()
		if come() {
			return true
		}
		select {
		case sig := <-s.signals:
			s.stop = s.stop || sig == unix.SIGTERM
		case <-over:
			return false
		}
	}
}

// reap reaps all children that have ended, including the unit's orphans.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil || pid <= 0:
			return
		case pid == s.u.Main:
			s.u.Main, s.end = 0, status
		case pid == s.post:
			s.post = 0
		}
	}
}

// alone reports whether everything that the unit started has ended.
func (s *supervisor) alone() bool {
	left, err := s.m.below(s.u.PID)
	return err == nil && len(left) == 0
}

// endText returns an exit status or a signal's name, in the form of $EXIT_STATUS.
func endText(status syscall.WaitStatus) string {
	if status.Exited() {
		return strconv.Itoa(status.ExitStatus())
	}
	return strings.TrimPrefix(unix.SignalName(status.Signal()), "SIG")
}

// terminate ends the main process, gently at first; KillMode=mixed also kills what it leaves.
func (s *supervisor) terminate() error {
	gone := func() bool { return s.u.Main == 0 }
	for _, end := range []struct {
		sub   string
		sig   unix.Signal
		limit time.Duration
	}{{"stop-sigterm", unix.SIGTERM, s.u.TimeoutStop}, {"stop-sigkill", unix.SIGKILL, 0}} {
		if s.reap(); gone() {
			break
		}
		if err := s.in("deactivating", end.sub); err != nil {
			return err
		}
		// Not reaped yet, so the PID cannot be reused. As with systemd, a stopped process runs on.
		_, _ = unix.Kill(s.u.Main, end.sig), unix.Kill(s.u.Main, unix.SIGCONT)
		s.await(gone, end.limit)
	}
	for s.u.KillMode == "mixed" {
		if _, err := s.m.signalTree(s.u.PID, unix.SIGKILL); err != nil {
			return err
		}
		if s.await(s.alone, 20*time.Millisecond) {
			break
		}
	}
	return nil
}

// timer starts the service of the timer's name each time it is due. It does so as late as the
// timer's accuracy allows, as systemd may.
func (s *supervisor) timer() error {
	if err := s.runs("waiting"); err != nil {
		return err
	}
	service := s.u
	service.Name = strings.TrimSuffix(s.u.Name, ".timer") + ".service"
	stopped := func() bool { return s.stop }
	for wait := s.u.OnActive; ; {
		if s.await(stopped, wait+s.u.Accuracy) {
			return nil
		}
		begun := time.Now()
		err := errors.Join(s.in("active", "running"), s.m.start(service))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		for s.m.unit(service.Name).loaded() {
			if s.await(stopped, 20*time.Millisecond) {
				return nil
			}
		}
		if err := s.in("active", "waiting"); err != nil {
			return err
		}
		wait = max(0, s.u.OnUnitActive-time.Since(begun))
	}
}
