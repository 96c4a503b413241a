package proxmox_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab"
	"linus/internal/vm"
)

// suspend shows that what ran in a VM runs on after a resume, with the clock right, and
// where the driver can copy a machine's memory, after a revert to a snapshot with it.
func suspend(t *testing.T, h *labHost, v vm.VM) vm.VM {
	p, ctx := h.provider(t, nil), t.Context()
	before, err := p.Look(ctx, v)
	if err != nil || before.BootID == "" {
		t.Fatalf("looked into the VM: %+v, %v", before, err)
	}
	newMachine(t, h, v).run(`setsid sleep 54321 >/dev/null 2>&1 </dev/null & echo first | sudo tee /run/note; sync`)
	if err := p.SnapshotVM(ctx, v, "live", true); err != nil {
		t.Fatal(err)
	}
	newMachine(t, h, v).run(`echo second | sudo tee /run/note`)

	began := time.Now()
	if err := p.SuspendVM(ctx, v); err != nil {
		t.Fatal(err)
	}
	t.Logf("suspended in %.1f s", time.Since(began).Seconds())
	off, right := 4*time.Second, 2*time.Second // how long it is off is what its clock would be behind
	if h.Config.Driver == lab.DriverQemu {
		off, right = 15*time.Second, 8*time.Second
	}
	for began = time.Now(); time.Since(began) < off; {
		time.Sleep(100 * time.Millisecond)
	}
	began = time.Now()
	v, err = p.ResumeVM(ctx, v, func(s job.Progress) { t.Logf("%.1f s: %s", time.Since(began).Seconds(), s.Step) })
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("resumed in %.1f s", time.Since(began).Seconds())
	clock := func() {
		t.Helper()
		said := newMachine(t, h, v).run(`date +%s`)
		seconds, err := strconv.ParseInt(strings.TrimSpace(said), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		if behind := time.Since(time.Unix(seconds, 0)); behind.Abs() > right {
			t.Errorf("the guest's clock is %s behind", behind)
		}
	}
	clock()
	newMachine(t, h, v).want("what ran goes on", `cat /run/note; pgrep -fc '^sleep 54321'`, "second\n1")
	if after, err := p.Look(ctx, v); err != nil || after.BootID != before.BootID {
		t.Errorf("after the resume: %+v, %v; before: %+v", after, err, before)
	}

	began = time.Now()
	v, err = p.RevertVM(ctx, v, "live", func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reverted to a snapshot with memory in %.1f s", time.Since(began).Seconds())
	clock()
	if h.Config.Driver == lab.DriverQemu {
		newMachine(t, h, v).want("what ran goes on", `cat /run/note; pgrep -fc '^sleep 54321'`, "first\n1")
		if after, err := p.Look(ctx, v); err != nil || after.BootID != before.BootID {
			t.Errorf("after the revert: %+v, %v; before: %+v", after, err, before)
		}
	}
	return v
}

// An engine ends just after it has begun to suspend a VM, which waits for the VM's lock. The next one
// starts the VM: it is not suspended after that.
func TestSuspend_OfAnEngineThatHasEndedComesNotAfterAStart(t *testing.T) {
	t.Parallel()
	h := newLab(t, lab.DriverProcess)
	first, next, spec := h.provider(t, nil), h.provider(t, nil), h.spec()
	v, err := first.Create(t.Context(), spec, func(job.Progress) {})
	if err != nil {
		t.Fatal(err)
	}
	held, err := os.OpenFile(h.Path("locks", "linus-vm-"+strconv.Itoa(v.ID)+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := syscall.Flock(int(held.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	operations := func() []string {
		t.Helper()
		all, err := filepath.Glob(filepath.Join(h.scripts, "operations", "power-*", "log"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	until := func(what string, is func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waiting for %s", what)
			}
		}
	}
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- first.SuspendVM(ctx, v) }()
	until("the suspend", func() bool { return len(operations()) == 1 })
	stop(job.ErrDetach)
	if err := <-ended; !errors.Is(err, job.ErrDetach) {
		t.Fatal(err)
	}
	suspend := filepath.Dir(operations()[0])

	go func() {
		_, err := next.StartVM(t.Context(), v, func(job.Progress) {})
		ended <- err
	}()
	until("the start", func() bool { return len(operations()) == 2 })
	if err := held.Close(); err != nil { // lets go of the lock
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var exit []byte
	until("the end of the suspend", func() bool { exit, err = os.ReadFile(filepath.Join(suspend, "exit")); return err == nil })
	if status, err := next.Status(t.Context(), v); string(exit) != "143\n" || status != vm.Running || err != nil {
		t.Errorf("the suspend ended with %q; the VM is %s, %v", exit, status, err)
	}
	h.removeAll(t, next, spec)
}
