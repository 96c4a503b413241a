package systemd

import (
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// runTimer starts the service of the timer's name when its time has come: as
// late as its accuracy allows, which systemd may be, too. A timer that does not
// come again is unloaded when its service has ended.
func (s *supervisor) runTimer() error {
	if err := s.waitFor(); err != nil {
		return err
	}
	fmt.Fprintln(s.reports, "runs")
	s.reports.Close()
	service := s.spec
	service.Name = strings.TrimSuffix(s.spec.Name, ".timer") + ".service"
	u := s.m.unit(service.Name)
	for wait := s.spec.OnActive; ; {
		if s.sleep(wait + s.spec.Accuracy) {
			return s.unloadTimer()
		}
		s.state.Sub = "running"
		if err := s.show(); err != nil {
			return err
		}
		begun := time.Now()
		if reports, err := s.m.load(service, true); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", s.unit.name, err)
		} else {
			reports.Close()
		}
		for {
			if _, alive := u.supervisor(); !alive {
				break
			}
			if s.sleep(20 * time.Millisecond) {
				return s.unloadTimer()
			}
		}
		if s.spec.OnUnitActive == 0 {
			return s.unloadTimer()
		}
		if err := s.waitFor(); err != nil {
			return err
		}
		wait = max(0, s.spec.OnUnitActive-time.Since(begun))
	}
}

func (s *supervisor) waitFor() error {
	s.state = state{Active: "active", Sub: "waiting", Result: "success"}
	return s.show()
}

// sleep reports whether it was asked to stop meanwhile.
func (s *supervisor) sleep(d time.Duration) (stopped bool) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return false
		case sig := <-s.signals:
			if sig == unix.SIGTERM {
				return true
			}
		}
	}
}

func (s *supervisor) unloadTimer() error {
	unlock, err := s.m.lock()
	if err != nil {
		return err
	}
	defer unlock()
	return os.RemoveAll(s.unit.dir)
}
