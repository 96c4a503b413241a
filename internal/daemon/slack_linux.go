package daemon

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may be with an engine's timers, so that it wakes less
// often (prctl(2), PR_SET_TIMERSLACK; the unit of systemd has it, too). Go's runtime looks
// after blocked threads every 20 us while there is work: with the kernel's 50 us of slack
// that is a sixth of an engine's CPU time.
const timerSlack = 500 * time.Microsecond

// slackened calls start, and what that starts has timerSlack from its first thread on,
// where the kernel allows it.
func slackened(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	usual, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(usual), 0, 0, 0) //nolint:errcheck // it was set before
	}
	return start()
}
