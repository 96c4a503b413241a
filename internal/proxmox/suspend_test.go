package proxmox_test

import (
	"strconv"
	"strings"
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
