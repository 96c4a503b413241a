package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"linus/internal/lab/agent"
	"linus/internal/lab/qemu"
	"linus/internal/lab/state"
)

// testSuspend writes a real machine's memory to a file, once beside a snapshot of its
// disk, and brings it back: the same boot, the same processes, a clock that stood still.
func testSuspend(t *testing.T, ctx context.Context, s *state.State, vm state.VM, disk, address string, guest *ssh.Client, step func(string, ...any)) {
	t.Helper()
	driver := qemu.Driver{}
	const size = 2548 << 20
	save := func(path string, beside func() error) {
		t.Helper()
		err := errors.Join(driver.CreateDisk(ctx, path, "raw", size), driver.Pause(ctx, s, vm))
		if err == nil && !driver.Paused(ctx, s, vm) {
			err = errors.New("a paused machine is not shown as one")
		}
		if err == nil {
			err = beside()
		}
		if err == nil {
			err = driver.SaveMemory(ctx, s, vm, path, size)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := driver.DiskSize(ctx, path); err != nil || got != size {
			t.Errorf("the state has %d bytes, %v", got, err)
		}
	}
	login := func() *ssh.Client {
		t.Helper()
		var back *ssh.Client
		waitFor(t, ctx, "SSH", func() (err error) {
			back, err = dialGuest(s, address, "worker")
			return err
		})
		return back
	}
	run := func(client *ssh.Client, command string) string {
		t.Helper()
		out, err := guestRun(client, command)
		if err != nil {
			t.Fatalf("%s: %v: %s", command, err, out)
		}
		return strings.TrimSpace(out)
	}
	const look = "cat /proc/sys/kernel/random/boot_id; pgrep -c '^sleep$'; cat /var/tmp/note"
	run(guest, "setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo first >/var/tmp/note; sync")
	before := run(guest, look)

	live := s.Path("storage", "local-lvm", "vm-100-state-live")
	save(live, func() error { return driver.SnapshotDisk(ctx, s, vm, "scsi0", disk, "live") })
	if err := driver.Continue(ctx, s, vm); err != nil {
		t.Fatal(err)
	}
	step("snapshot with memory taken")
	run(guest, "echo second >/var/tmp/note; sync; pkill '^sleep$'")

	path := s.Path("storage", "local-lvm", "vm-100-state-suspend")
	off := time.Now()
	save(path, func() error { return nil })
	if err := driver.Shelve(ctx, s, vm, path); err != nil {
		t.Fatal(err)
	}
	if _, running := s.Pid(vm.ID); running {
		t.Error("a suspended machine runs")
	}
	step("suspended")
	for time.Since(off) < 10*time.Second { // how long it was off is what its clock is to show
		time.Sleep(100 * time.Millisecond)
	}
	begun := time.Now()
	if err := driver.Restore(ctx, s, vm, path); err != nil {
		t.Fatal(err)
	}
	step("restored, in %.1f s", time.Since(begun).Seconds())
	back := login()
	defer back.Close()
	step("SSH login after %.1f s", time.Since(begun).Seconds())
	var seconds int64
	if _, err := fmt.Sscan(run(back, "date +%s"), &seconds); err != nil {
		t.Fatal(err)
	}
	if behind := time.Since(time.Unix(seconds, 0)); behind < 5*time.Second {
		t.Errorf("the guest's clock is only %s behind after %s", behind, begun.Sub(off))
	}
	if got := run(back, look+"; true"); !strings.HasPrefix(got, strings.Fields(before)[0]) || !strings.HasSuffix(got, "0\nsecond") {
		t.Errorf("after the resume: %q, before the snapshot: %q", got, before)
	}
	if _, err := agent.Call(ctx, s.AgentSocket(100), "guest-ping", nil, agent.PingTimeout); err != nil {
		t.Errorf("the agent after the resume: %v", err)
	}

	if err := errors.Join(driver.Stop(ctx, s, vm), driver.RollbackDisk(ctx, disk, "live"), driver.Restore(ctx, s, vm, live)); err != nil {
		t.Fatal(err)
	}
	reverted := login()
	defer reverted.Close()
	if got := run(reverted, look); got != before {
		t.Errorf("after the rollback: %q, before the snapshot: %q", got, before)
	}
	step("rolled back to the snapshot with memory")
	if err := errors.Join(driver.DeleteDisk(ctx, live), driver.DeleteDisk(ctx, path), driver.DeleteSnapshot(ctx, s, vm, "scsi0", disk, "live")); err != nil {
		t.Error(err)
	}
}
