package lab

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab/process"
)

// A snapshot is cloned where its storage can; what Proxmox refuses is refused.
func TestClone_OfASnapshot(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, version string) {
		client := l.boot(t, 100)
		remote(t, client, "echo then >/home/debian/file; echo 7 >/dev/shm/count")
		l.must(t, "qm snapshot 100 before --vmstate 1")
		remote(t, client, "echo now >/home/debian/file; echo 9 >/dev/shm/count")
		l.refused(t, "qm clone 100 101 --snapname none --full 0", 255, "snapshot 'none' does not exist\n")
		l.refused(t, "qm clone 100 101 --full 0", 255, "Linked clone feature is not supported for 'local-lvm:vm-100-disk-0' (scsi0)\n")

		l.must(t, "qm clone 100 101 --snapname before --full 0 --name fork")
		l.must(t, "qm clone 100 102 --full 1 --name copy")
		if conf := l.conf(t, 101); conf.Has("vmstate") || conf.Has("runningcpu") || conf.Has("parent") || len(conf.Snapshots) != 0 || conf.MAC() == l.conf(t, 100).MAC() {
			t.Errorf("a snapshot's clone:\n%s", conf)
		}
		saved := l.conf(t, 100).Snapshots["before"]
		options := " --machine " + saved["runningmachine"] + " --force-cpu " + saved["runningcpu"]
		if version != "8.2" {
			options += " --nets-host-mtu " + saved["running-nets-host-mtu"]
		}
		l.must(t, "qm start 101 --stateuri "+saved["vmstate"]+options)
		if got := l.inside(t, 101, "hostname; cat /dev/shm/count /home/debian/file"); got != "guest-100\n7\nthen" {
			t.Errorf("what goes on from the snapshot: %q", got)
		}
		l.must(t, "qm start 102")
		if got := l.inside(t, 102, "cat /home/debian/file; ls /dev/shm"); got != "now" {
			t.Errorf("what boots from a copy: %q", got)
		}
		l.must(t, "qm delsnapshot 100 before")
		if got := l.inside(t, 101, "cat /home/debian/file"); got != "then" {
			t.Errorf("after the snapshot is gone: %q", got)
		}
		if got := remote(t, client, "cat /dev/shm/count"); got != "9" {
			t.Errorf("the VM that was copied has %q", got)
		}
		l.must(t, "qm stop 101 --skiplock 1")
		l.must(t, "qm destroy 101")

		l.must(t, "qm clone 9000 103 --full 1 --storage local --format qcow2")
		l.must(t, "qm snapshot 103 before")
		l.refused(t, "qm clone 103 104 --snapname before --full 0", 255, "Linked clone feature is not supported for a snapshot of 'local:103/vm-103-disk-0.qcow2' (scsi0)\n")
		l.must(t, "qm clone 103 104 --snapname before --full 1")
	})
}

// forkEnv are create-vm's inputs for a fork of a VM.
func (l *Lab) forkEnv(t *testing.T, n, of int, from string, live bool) []string {
	return append(l.vmEnv(t, n), "VM_FORK="+from, fmt.Sprintf("VM_FORK_JOB=%08d-2222-4333-8444-555555555555", of), "VM_FORK_LIVE="+strconv.FormatBool(live),
		"VM_CPU=7", "VM_TEMPLATE=gone") // which do not count
}

// Copies go on from one number, each as itself; the VM goes on from its own. Where the storage
// cannot, they boot.
func TestFork_ByTheHostsScripts(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, _ string) {
		id := value(t, l.script(t, "create-vm", l.vmEnv(t, 1)...), "VM_ID")
		of, _ := strconv.Atoi(id)
		client := l.login(t, of, process.DefaultUser)
		remote(t, client, "echo 41 >/dev/shm/count; chmod 666 /dev/shm/count; echo then >file")
		power := append(l.vmEnv(t, 1), "VM_ID="+id, "STORAGE_RESERVE=0")
		told := l.script(t, "power-vm", append(power, "ACTION=fork")...)
		if way, why := value(t, told, "FORK"), value(t, told, "FORK_WHY"); way != "live" || !strings.Contains(why, "local-lvm") {
			t.Fatalf("it is copied %s: %s", way, why)
		}
		if ms, err := strconv.Atoi(value(t, told, "FORK_PAUSE")); err != nil || ms > 10_000 {
			t.Errorf("it stood still for %d ms, %v", ms, err)
		}
		remote(t, client, "echo 99 >/dev/shm/count; echo now >file")

		seen := map[string]bool{remote(t, client, "cat /etc/machine-id"): true}
		for n := 2; n <= 3; n++ {
			began := time.Now()
			forked := l.script(t, "create-vm", l.forkEnv(t, n, 1, id, true)...)
			t.Logf("forked in %s", time.Since(began))
			if got := value(t, forked, "VM_SOURCE"); got != "forked" {
				t.Errorf("source %s", got)
			}
			vm, _ := strconv.Atoi(value(t, forked, "VM_ID"))
			conf := l.conf(t, vm)
			if strings.Contains(conf.Get("description"), "egress") || strings.Contains(conf.Get("net0"), "link_down") || conf.Get("cores") != "1" {
				t.Errorf("its config:\n%s", conf)
			}
			client := l.login(t, vm, process.DefaultUser)
			if got, want := remote(t, client, "hostname; cat /dev/shm/count file"), fmt.Sprintf("vm-%d\n41\nthen", n); got != want {
				t.Errorf("it goes on with %q, want %q", got, want)
			}
			for _, of := range []string{"cat /etc/machine-id", "cat /etc/ssh/ssh_host_ed25519_key.pub | cut -d' ' -f2", "cat /sys/class/net/eth0/address", "cat /var/lib/cloud/data/instance-id"} {
				if got := remote(t, client, of); seen[got] || got == "" {
					t.Errorf("%s: %s, as another VM", of, got)
				} else {
					seen[got] = true
				}
			}
		}
		for range 2 { // the second finds none
			l.script(t, "power-vm", append(power, "ACTION=unfork")...)
		}
		if conf := l.conf(t, of); len(conf.Snapshots) != 0 || conf.Has("lock") {
			t.Errorf("the VM afterwards:\n%s", conf)
		}
		if got := remote(t, client, "cat /dev/shm/count file"); got != "99\nnow" {
			t.Errorf("the VM goes on with %q", got)
		}
		copied := l.script(t, "create-vm", l.forkEnv(t, 4, 1, id, false)...)
		vm, _ := strconv.Atoi(value(t, copied, "VM_ID"))
		client = l.login(t, vm, process.DefaultUser)
		if got := remote(t, client, "hostname; cat file; ls /dev/shm"); got != "vm-4\nnow" {
			t.Errorf("a copy that boots has %q", got)
		}
		if got := remote(t, client, "cat /etc/machine-id"); seen[got] {
			t.Error("a copy that boots has another's machine ID")
		}
	})
}
