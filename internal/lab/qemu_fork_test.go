package lab

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab/state"
	"linus/internal/loops"
)

// counting is a program that counts in its memory alone, and says its number when it is asked.
const counting = `setsid bash -c 'i=0; trap "echo \$i >/tmp/count" USR1; echo $$ >/tmp/counter; exec 3<> <(:); while :; do i=$((i+1)); read -rt 0.5 -u 3; done' >/dev/null 2>&1 </dev/null &`

// counted asks it.
const counted = `rm -f /tmp/count; kill -USR1 $(cat /tmp/counter); for i in $(seq 100); do [ ! -s /tmp/count ] || break; sleep 0.1; done; cat /tmp/count`

// TestQemu_ForksARunningMachine copies a real machine that counts in its memory: two copies go on
// with its number, one boots from its disk, and the machine goes on.
func TestQemu_ForksARunningMachine(t *testing.T) {
	loops.AtNightOnly(t, "TestFork_ByTheHostsScripts copies processes by the same scripts, with the same program")
	needQemu(t)
	l := newLab(t, func(o *Options) { o.Driver = state.DriverQemu })
	env := func(n int, more ...string) []string {
		return append(l.vmEnv(t, n), append([]string{"VM_CPU=2", "VM_NETWORK_TIMEOUT=900", "VM_READY_TIMEOUT=900"}, more...)...)
	}
	booted, err := l.onHost("create-vm", env(1)...)
	if err != nil {
		t.Fatal(err)
	}
	id, client := value(t, booted, "VM_ID"), l.reach(t, booted)
	number := func(of string) int {
		t.Helper()
		n, err := strconv.Atoi(strings.TrimSpace(of))
		if err != nil || n == 0 {
			t.Fatalf("it has counted %q: %v", of, err)
		}
		return n
	}
	if _, err := guestRun(client, counting); err != nil {
		t.Fatal(err)
	}
	before, err := guestRun(client, "sleep 3; "+counted)
	if err != nil {
		t.Fatal(err)
	}
	bootID, err := guestRun(client, "cat /proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	identityOf, err := askIdentity(client)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]string{}
	for name, of := range identityOf {
		seen[name+" "+of] = "the machine"
	}

	began := time.Now()
	told, err := l.onHost("power-vm", env(1, "VM_ID="+id, "ACTION=fork", "STORAGE_RESERVE=0")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs for the snapshot, %s; it stood still for %s ms", time.Since(began).Seconds(), value(t, told, "FORK"), value(t, told, "FORK_PAUSE"))
	answers := make([]string, 2)
	var both sync.WaitGroup
	for n := range answers {
		both.Go(func() {
			began := time.Now()
			answer, err := l.onHost("create-vm", env(n+2, "VM_FORK="+id, "VM_FORK_JOB=00000001-2222-4333-8444-555555555555", "VM_FORK_LIVE=true")...)
			if err != nil {
				t.Error(err)
				return
			}
			t.Logf("%6.1fs from clone to ready, from its memory, side by side", time.Since(began).Seconds())
			answers[n] = answer
		})
	}
	both.Wait()
	if t.Failed() {
		t.FailNow()
	}
	if _, err := l.onHost("power-vm", env(1, "VM_ID="+id, "ACTION=unfork")...); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	copied, err := l.onHost("create-vm", env(4, "VM_FORK="+id, "VM_FORK_JOB=00000001-2222-4333-8444-555555555555")...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs from clone to ready, from its disk", time.Since(began).Seconds())

	for n, answer := range append(answers, copied) {
		client := l.reach(t, answer)
		is, err := askIdentity(client)
		if err != nil {
			t.Fatal(err)
		}
		for name, of := range is {
			if other, taken := seen[name+" "+of]; taken {
				t.Errorf("copy %d: %s %q, as %s", n, name, of, other)
			}
			seen[name+" "+of] = fmt.Sprintf("copy %d", n)
		}
		if want := fmt.Sprintf("vm-%d", n+2); is["host name"] != want {
			t.Errorf("host name %s, want %s", is["host name"], want)
		}
		boot, err := guestRun(client, "cat /proc/sys/kernel/random/boot_id")
		if live := n < len(answers); err != nil || (boot == bootID) != live {
			t.Errorf("copy %d: boot %s, the machine's %s, %v", n, boot, bootID, err)
		} else if live {
			out, err := guestRun(client, counted)
			if err != nil || number(out) <= number(before) {
				t.Errorf("copy %d has counted %q, the machine %q before: %v", n, out, before, err)
			}
			t.Logf("copy %d has counted %s, the machine %s before", n, strings.TrimSpace(out), strings.TrimSpace(before))
		}
	}
	after, err := guestRun(client, counted)
	if err != nil || number(after) <= number(before) {
		t.Errorf("the machine has counted %q, and %q before: %v", after, before, err)
	}
}
