package process

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// procs starts and reaps the processes of a guest. Its owner is init, so every
// orphan ends up with it: nothing else in the process may wait for children.
type procs struct {
	mu      sync.Mutex
	waiting map[int]chan syscall.WaitStatus
}

// newProcs begins to reap; stop ends it.
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

// start runs a program; done gets its status once.
func (p *procs) start(argv []string, attr *syscall.ProcAttr) (pid int, done <-chan syscall.WaitStatus, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := dropCapabilities(); err != nil {
		return 0, nil, err
	}
	p.mu.Lock() // the reaper must not meet the process before it is known
	defer p.mu.Unlock()
	pid, err = syscall.ForkExec(argv[0], argv, attr)
	if err != nil {
		return 0, nil, err
	}
	status := make(chan syscall.WaitStatus, 1)
	p.waiting[pid] = status
	return pid, status, nil
}

// dropCapabilities takes from what this thread starts, for good, what reaches beyond the
// guest: a guest has the machine's clock and network cards.
func dropCapabilities() error {
	for _, capability := range []uintptr{unix.CAP_SYS_TIME, unix.CAP_NET_ADMIN} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0); err != nil {
			return fmt.Errorf("give up capability %d: %w", capability, err)
		}
	}
	return nil
}
