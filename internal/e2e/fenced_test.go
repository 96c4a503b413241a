package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/pgtest"
)

// heldTurn is the turn that operations of engines take on a host, held by the test: an
// operation whose job the database has let the engine go on with waits for it, and looks
// for the engine's fence only then.
type heldTurn struct{ dir *os.File }

func (h *host) holdTurn() (heldTurn, error) {
	path := filepath.Join(h.dir, "home/linus/scripts/operations")
	err := os.MkdirAll(path, 0o755)
	if err != nil {
		return heldTurn{}, err
	}
	dir, err := os.Open(path)
	if err == nil {
		err = syscall.Flock(int(dir.Fd()), syscall.LOCK_EX)
	}
	return heldTurn{dir}, err
}

func (t heldTurn) release() { _ = t.dir.Close() }

// waiting returns a script that waits for the turn, and the ID of the engine that asked
// for it; 0: there is none.
func (t heldTurn) waiting() (script int, engine string) {
	held, err := t.dir.Stat()
	if err != nil {
		return 0, ""
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/6")
	for _, fd := range fds {
		pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
		open, err := os.Stat(fd)
		if err != nil || !os.SameFile(open, held) || !bytes.HasPrefix([]byte(readAll(fmt.Sprintf("/proc/%d/cmdline", pid))), []byte("bash\x00")) {
			continue
		}
		for setting := range strings.SplitSeq(readAll(fmt.Sprintf("/proc/%d/environ", pid)), "\x00") {
			if of, found := strings.CutPrefix(setting, "LINUS_ENGINE="); found {
				return pid, of
			}
		}
	}
	return 0, ""
}

// exitOf returns a function that returns a process's exit status when it has ended. The
// process is another's child, so it is traced.
func exitOf(pid int) (wait func() (int, error)) {
	type end struct {
		status int
		err    error
	}
	traced, ended := make(chan error, 1), make(chan end, 1)
	go func() {
		runtime.LockOSThread() // who traces is a thread, which ends with this
		err := syscall.PtraceAttach(pid)
		traced <- err
		var status syscall.WaitStatus
		for signal := 0; err == nil; {
			if _, err = syscall.Wait4(pid, &status, syscall.WALL, nil); err != nil || status.Exited() || status.Signaled() {
				break
			}
			if signal = int(status.StopSignal()); signal == int(syscall.SIGSTOP) {
				signal = 0 // that of the attachment
			}
			err = syscall.PtraceCont(pid, signal)
		}
		ended <- end{status.ExitStatus(), err}
	}()
	if err := <-traced; err != nil {
		return func() (int, error) { return 0, err }
	}
	return func() (int, error) {
		select {
		case e := <-ended:
			return e.status, e.err
		case <-time.After(time.Minute):
			return 0, fmt.Errorf("process %d does not end", pid)
		}
	}
}

// refusedByHost is operation.sh's exit status for an engine that is fenced.
const refusedByHost = 76

// An engine is stopped when the database has let it go on with a job and its host
// operation has begun, but not yet looked for its fence. Others take its job over; then
// the host refuses the operation. The job runs once, also when the engine goes on.
func TestEngines_OneIsStoppedInsideAHostOperation(t *testing.T) {
	t.Parallel()
	h := newHost(t, lab.DriverProcess, "LINUS_DATABASE_URL="+pgtest.Database(t))
	l, c := newLedger(t), h.connect(t)
	turn, err := h.holdTurn()
	if err != nil {
		t.Fatal(err)
	}
	defer turn.release()
	w := work{n: 1, lines: 100, sleep: "1"}
	id := c.submit(script(l.task(w)))
	var operation int
	var engine string
	h.until(t, func() bool { operation, engine = turn.waiting(); return operation != 0 })
	other := h.another(t)
	exit := exitOf(operation)
	resume := stopped([]int{h.engine()})
	defer resume()
	fence := filepath.Join(h.dir, "etc/pve/priv/linus/fence-"+engine)
	other.until(t, func() bool { _, err := os.Stat(fence); return err == nil && other.logs("job adopted") })
	turn.release()
	if status, err := exit(); err != nil || status != refusedByHost {
		t.Errorf("the operation of the engine that was stopped: exit status %d, %v; want %d", status, err, refusedByHost)
	}
	resume()
	h.until(t, func() bool { return strings.Count(h.wholeLog(), "joined the engines") == 2 })
	other.connect(t).endsWhole(l, id, w)
	other.waitGone(t)
}
