//go:build unix

package daemon

import (
	"errors"
	"os"
	"syscall"
	"time"
)

// lockFile locks an open file for this process; ErrLocked if another has locked it.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return ErrLocked
	}
	return err
}

// detached makes a new process outlive this one's terminal.
func detached() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// Why a port cannot be listened on.
const (
	errInUse   = syscall.EADDRINUSE
	errNotOurs = syscall.EACCES
)

// cpuTime is the CPU time that this process has used.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0 // cannot happen
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
