package daemon

import (
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/windows"
)

// lockedByte is the offset of the only byte that is locked: far beyond the file's
// content, since others cannot read a locked byte.
var lockedByte = windows.Overlapped{OffsetHigh: 1}

// lockFile locks an open file for this process; ErrLocked if another has locked it.
func lockFile(f *os.File) error {
	at := lockedByte
	err := windows.LockFileEx(windows.Handle(f.Fd()), windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at)
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}

// detached makes a new process outlive this one's console.
func detached() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{CreationFlags: windows.DETACHED_PROCESS | windows.CREATE_NEW_PROCESS_GROUP}
}

// Why a port cannot be listened on.
const (
	errInUse   = windows.WSAEADDRINUSE
	errNotOurs = windows.WSAEACCES
)

// cpuTime is the CPU time that this process has used.
func cpuTime() time.Duration {
	var created, exited, kernel, user windows.Filetime
	if windows.GetProcessTimes(windows.CurrentProcess(), &created, &exited, &kernel, &user) != nil {
		return 0 // cannot happen
	}
	ticks := func(t windows.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) }
	return time.Duration(ticks(kernel)+ticks(user)) * 100 // ns each
}
