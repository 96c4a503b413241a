package systemd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"linus/internal/lab/sys"

	"golang.org/x/sys/unix"
)

// supervisor is the process of one unit, and the parent of all that it starts.
type supervisor struct {
	m       Manager
	unit    unit
	spec    spec
	state   state
	reports *os.File // to systemd-run: a line when it runs, its state at the end

	signals chan os.Signal
	stop    bool  // asked to
	control int   // the process waited for beside the main one: of ExecStopPost
	posted  state // how the last of ExecStopPost ended
}

// supervise plays the unit in a directory until it has ended.
func supervise(dir string) int {
	s, err := newSupervisor(dir)
	if err == nil && s != nil {
		err = s.run()
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(dir), err)
		return 1
	}
	return 0
}

func newSupervisor(dir string) (*supervisor, error) {
	s := &supervisor{
		unit: unit{name: filepath.Base(dir), dir: dir}, reports: os.NewFile(3, "reports"),
		signals: make(chan os.Signal, 16),
	}
	syscall.CloseOnExec(3)
	if line, err := readLine(os.Stdin); err != nil || line != "go" {
		return nil, nil //nolint:nilnil // whoever began the unit has gone: it was never loaded
	}
	binary, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.m = Manager{Dir: filepath.Dir(filepath.Dir(dir)), Binary: binary}
	if s.spec, err = s.unit.spec(); err != nil {
		return nil, err
	}
	// What a caller's shell ignores is not ignored in a unit.
	signal.Notify(s.signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM)
	signal.Ignore(unix.SIGPIPE) // as IgnoreSIGPIPE= has it
	return s, nil
}

func (s *supervisor) run() error {
	if strings.HasSuffix(s.unit.name, ".timer") {
		return s.runTimer()
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	syscall.Umask(0o022)
	return s.runService()
}

func (s *supervisor) runService() error {
	s.state = state{Active: "active", Sub: "running", Result: "success"}
	main, err := s.start(s.spec.Argv, nil)
	if err == nil {
		s.state.Main = main
	}
	if err := s.show(); err != nil {
		return err
	}
	fmt.Fprintln(s.reports, "runs")
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", s.unit.name, err)
		s.state.Code, s.state.Status, s.state.Result = 1, 203, "exit-code"
	} else {
		s.await(func() bool { return s.state.Main == 0 || s.stop }, s.spec.RuntimeMax)
		if s.state.Main != 0 && !s.stop {
			s.result("timeout")
		}
	}
	if err := s.terminate("stop-sigterm", "stop-sigkill"); err != nil {
		return err
	}
	if err := s.stopPost(); err != nil {
		return err
	}
	return s.unload()
}

// result is the first that was not a success.
func (s *supervisor) result(r string) {
	if s.state.Result == "success" {
		s.state.Result = r
	}
}

func (s *supervisor) show() error { return s.unit.setState(s.state) }

func (s *supervisor) in(active, sub string) error {
	s.state.Active, s.state.Sub = active, sub
	return s.show()
}

// start runs a program in a session of its own.
func (s *supervisor) start(argv, env []string) (int, error) {
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
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: s.spec.Directory, Env: append(s.m.environment(), env...),
		Files: []uintptr{null.Fd(), journal.Fd(), journal.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", argv[0], err)
	}
	return pid, nil
}

// await reaps until what is waited for has come, or the time is over (0: never).
func (s *supervisor) await(come func() bool, limit time.Duration) (inTime bool) {
	var over <-chan time.Time
	if limit > 0 {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		over = timer.C
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

// reap takes all children that have ended, orphans of the unit among them.
func (s *supervisor) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		switch pid {
		case s.state.Main:
			s.state.Main = 0
			s.state.Code, s.state.Status = endOf(status)
			s.result(resultOf(s.state))
		case s.control:
			s.control = 0
			s.posted.Code, s.posted.Status = endOf(status)
		}
	}
}

func endOf(status syscall.WaitStatus) (code, value int) {
	switch {
	case status.Exited():
		return 1, status.ExitStatus()
	case status.CoreDump():
		return 3, int(status.Signal())
	}
	return 2, int(status.Signal())
}

// resultOf tells what systemd makes of an end: these signals are a clean one.
func resultOf(s state) string {
	switch sig := unix.Signal(s.Status); {
	case s.Code == 1 && s.Status == 0, s.Code == 2 && (sig == unix.SIGTERM || sig == unix.SIGHUP || sig == unix.SIGINT || sig == unix.SIGPIPE):
		return "success"
	case s.Code == 1:
		return "exit-code"
	case s.Code == 3:
		return "core-dump"
	}
	return "signal"
}

// endText is an exit status, or a signal's name as $EXIT_STATUS has it.
func endText(s state) string {
	if s.Code == 1 {
		return strconv.Itoa(s.Status)
	}
	return strings.TrimPrefix(unix.SignalName(unix.Signal(s.Status)), "SIG")
}

// terminate ends what KillMode says of what is still there, gently first.
func (s *supervisor) terminate(gentle, hard string) error {
	whole := s.spec.KillMode != "process"
	gone := func() bool {
		if s.state.Main != 0 || s.control != 0 {
			return false
		}
		if !whole {
			return true
		}
		left, err := sys.Descendants(os.Getpid())
		s.reap() // the dead are gone only then
		return err == nil && len(left) == 0
	}
	s.reap()
	if gone() {
		return nil
	}
	all := s.spec.KillMode == "control-group"
	if all || s.state.Main != 0 || s.control != 0 {
		if err := s.in("deactivating", gentle); err != nil {
			return err
		}
		if err := s.signal(unix.SIGTERM, all); err != nil {
			return err
		}
		// With mixed, what the main process leaves behind is killed at once.
		enough := gone
		if s.spec.KillMode == "mixed" {
			enough = func() bool { return s.state.Main == 0 && s.control == 0 }
		}
		if !s.await(enough, s.spec.TimeoutStop) {
			s.result("timeout")
		}
		if gone() {
			return nil
		}
	}
	if err := s.in("deactivating", hard); err != nil {
		return err
	}
	for {
		if err := s.signal(unix.SIGKILL, whole); err != nil {
			return err
		}
		if s.await(gone, 20*time.Millisecond) {
			return nil
		}
	}
}

// signal signals the unit's main process, or all of its processes.
func (s *supervisor) signal(sig unix.Signal, all bool) error {
	send := func(sig unix.Signal) error {
		if all {
			_, err := signalTree(os.Getpid(), sig)
			return err
		}
		for _, pid := range []int{s.state.Main, s.control} {
			if pid != 0 {
				// Not reaped yet: the number is its own.
				if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
					return err
				}
			}
		}
		return nil
	}
	err := send(sig)
	if sig != unix.SIGKILL {
		err = errors.Join(err, send(unix.SIGCONT)) // as systemd does
	}
	return err
}

// stopPost runs the commands of ExecStopPost, which get its result.
func (s *supervisor) stopPost() error {
	for _, argv := range s.spec.StopPost {
		if err := s.in("deactivating", "stop-post"); err != nil {
			return err
		}
		env := []string{"SERVICE_RESULT=" + s.state.Result}
		if s.state.Code != 0 {
			env = append(env, "EXIT_CODE="+[]string{"", "exited", "killed", "dumped"}[s.state.Code], "EXIT_STATUS="+endText(s.state))
		}
		pid, err := s.start(argv, env)
		how := "exit-code"
		if err == nil {
			s.control = pid
			if !s.await(func() bool { return s.control == 0 }, s.spec.TimeoutStop) {
				s.result("timeout")
			} else {
				how = resultOf(s.posted)
			}
		} else {
			fmt.Fprintf(os.Stderr, "%s: ExecStopPost: %v\n", s.unit.name, err)
		}
		if err := s.terminate("final-sigterm", "final-sigkill"); err != nil {
			return err
		}
		if how != "success" {
			s.result(how)
			return nil
		}
	}
	return nil
}

// unload ends the unit: a failed one that has a file stays. Its name is
// taken as long as anything is left of it, which only KillMode=process leaves.
func (s *supervisor) unload() error {
	failed := s.state.Result != "success" && !s.spec.Transient
	if failed {
		s.state.Active, s.state.Sub = "failed", "failed"
	} else {
		s.state.Active, s.state.Sub = "inactive", "dead"
	}
	end, err := json.Marshal(s.state)
	if err != nil {
		return err
	}
	left, err := sys.Descendants(os.Getpid())
	if err != nil {
		return err
	}
	if len(left) > 0 {
		if err := s.show(); err != nil {
			return err
		}
		_, _ = s.reports.Write(append(end, '\n')) // nobody may be waiting
		s.await(func() bool {
			left, err := sys.Descendants(os.Getpid())
			return err == nil && len(left) == 0
		}, 0)
	}
	unlock, err := s.m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if failed {
		err = s.show()
	} else {
		err = os.RemoveAll(s.unit.dir)
	}
	if len(left) == 0 {
		_, _ = s.reports.Write(append(end, '\n'))
	}
	return err
}
