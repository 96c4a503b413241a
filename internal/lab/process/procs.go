package process

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
)

// procs starts and reaps the processes of a guest. The process is init, so all orphans become its
// children: nothing else in it may wait for children.
type procs struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// newProcs starts reaping; stop ends it.
func newProcs() (p *procs, stop func()) {
	p = &procs{waiting: map[int]chan syscall.WaitStatus{}}
	died := make(chan os.Signal, 1)
	quit := make(chan struct{})
	ended := make(chan struct{})
	signal.Notify(died, syscall.SIGCHLD)
	go func() {
		defer close(ended)
		for {
			select {
			case <-quit:
				return
			case <-died:
				p.reap()
			}
		}
	}()
	return p, func() {
		signal.Stop(died)
		close(quit)
		<-ended
	}
}

func (p *procs) reap() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if done, ok := p.waiting[pid]; ok {
			done <- status
			delete(p.waiting, pid)
		}
	}
}

// program is a program that runs in a guest.
type program struct {
	pid     int
	done    <-chan syscall.WaitStatus // receives its status once
	drained sync.WaitGroup            // until all output has been read
	ours    []*os.File                // this side's ends of its files
}

// run starts a program in its own session, on the terminal if slave is set, else on pipes. Its
// input comes from in, and its output goes to out and errs.
func (p *procs) run(argv []string, dir string, env []string, master, slave *os.File, in io.Reader, out, errs io.Writer) (*program, error) {
	run, theirs := &program{ours: []*os.File{master, master}}, []*os.File{slave, slave, slave}
	if slave == nil {
		pipes, err := sys.OpenPipes(3)
		if err != nil {
			return nil, err
		}
		run.ours, theirs = []*os.File{pipes[0].W, pipes[1].R, pipes[2].R}, []*os.File{pipes[0].R, pipes[1].W, pipes[2].W}
	}
	attr := &syscall.ProcAttr{Dir: dir, Env: env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: slave != nil}}
	for _, f := range theirs {
		attr.Files = append(attr.Files, f.Fd())
	}
	err := p.start(run, argv, attr)
	for _, f := range theirs {
		f.Close()
	}
	if err != nil {
		for _, f := range run.ours {
			f.Close()
		}
		return nil, err
	}
	go func() { // ends with the input
		_, _ = io.Copy(run.ours[0], in)
		if slave == nil { // a terminal stays open when the client's input ends
			run.ours[0].Close()
		}
	}()
	for i, from := range run.ours[1:] {
		run.drained.Go(func() {
			_, _ = io.Copy([]io.Writer{out, errs}[i], from)
			from.Close()
		})
	}
	return run, nil
}

func (p *procs) start(run *program, argv []string, attr *syscall.ProcAttr) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := dropCapabilities(); err != nil {
		return err
	}
	p.mu.Lock() // the reaper must not see the process before it is registered
	defer p.mu.Unlock()
	if run.pid, err = syscall.ForkExec(argv[0], argv, attr); err != nil {
		return err
	}
	status := make(chan syscall.WaitStatus, 1)
	run.done, p.waiting[run.pid] = status, status
	return nil
}

// dropCapabilities permanently removes, from what this thread starts, the capabilities that reach
// beyond the guest: a guest shares the machine's clock and network cards.
func dropCapabilities() error {
	for _, capability := range []uintptr{unix.CAP_SYS_TIME, unix.CAP_NET_ADMIN} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return fmt.Errorf("give up capability %d: %w", capability, err)
		}
	}
	return nil
}
