package daemon

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timerSlack is how late the kernel may be with an engine's timers, so that the engine wakes less
// often (prctl(2), PR_SET_TIMERSLACK; the systemd unit sets it, too). Go's runtime checks blocked
// threads every 20 us while there is work: with the kernel's 50 us of slack that takes a sixth of
// an engine's CPU time.
const timerSlack = 500 * time.Microsecond

// slackened calls start; processes that this starts have timerSlack from their first thread on, if
// the kernel allows it.
func slackened(start func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	usual, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0)
	if err == nil && unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(timerSlack), 0, 0, 0) == nil {
		defer unix.Prctl(unix.PR_SET_TIMERSLACK, uintptr(usual), 0, 0, 0) //nolint:errcheck // it was set before
	}
	return start()
}
