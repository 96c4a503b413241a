package lab

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"linus/internal/lab/process"
	"linus/internal/lab/state"
)

// bothVersions runs a test against a lab of each.
func bothVersions(t *testing.T, test func(t *testing.T, l *Lab, version string)) {
	t.Helper()
	for _, version := range []string{"8.2", "9.2"} {
		t.Run(version, func(t *testing.T) {
			test(t, newLab(t, func(o *Options) { o.Version = version }), version)
		})
	}
}

// refused holds a command to what it prints and how it exits.
func (l *Lab) refused(t *testing.T, line string, code int, says string) {
	t.Helper()
	if r := l.run(t, line); r.code != code || r.err != says {
		t.Errorf("%s: exit code %d, %q; want %d, %q", line, r.code, r.err, code, says)
	}
}

func today() string { return time.Now().Format(time.DateOnly) }

func TestSuspend_KeepsTheBootUntilTheNextStart(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, version string) {
		client := l.boot(t, 100)
		boot := remote(t, client, "cat /proc/sys/kernel/random/boot_id; echo here >/run/note; setsid sleep 1000 >/dev/null 2>&1 & cat /proc/sys/kernel/random/boot_id")
		l.must(t, "qm set 100 --description linus-job=1 --tags linus")
		before := l.conf(t, 100)

		day := today()
		if got := l.must(t, "qm suspend 100 --todisk 1"); !strings.HasSuffix(got, "State saved, quitting\n") {
			t.Errorf("suspend prints %q", got)
		}
		conf := l.conf(t, 100)
		volume := "local-lvm:vm-100-state-suspend-" + day
		if conf.Get("lock") != "suspended" || conf.Get("vmstate") != volume || conf.Get("runningmachine") == "" || conf.Get("runningcpu") == "" {
			t.Errorf("config of a suspended VM:\n%s", conf)
		}
		if conf.Has("running-nets-host-mtu") != (version == "9.2") {
			t.Errorf("running-nets-host-mtu %q on %s", conf.Get("running-nets-host-mtu"), version)
		}
		if got := l.must(t, "qm status 100"); got != "status: stopped\n" {
			t.Errorf("status: %s", got)
		}
		for _, line := range []string{"pvesh get /cluster/resources --type vm --output-format json", "pvesh get /nodes/pve/qemu --output-format json"} {
			if got := l.must(t, line); !strings.Contains(got, `"lock":"suspended"`) || !strings.Contains(got, `"status":"stopped"`) {
				t.Errorf("%s: %s", line, got)
			}
		}
		if got := l.must(t, "qm config 100"); !strings.Contains(got, "lock: suspended\n") || !strings.Contains(got, "vmstate: "+volume+"\n") {
			t.Errorf("qm config: %s", got)
		}
		// Twice the memory of 1024 MB, and 500 MB.
		if got := l.must(t, "pvesm list local-lvm --vmid 100"); !strings.Contains(got, volume) || !strings.Contains(got, " 2671771648 ") {
			t.Errorf("volumes: %s", got)
		}

		for line, says := range map[string]string{
			"qm set 100 --tags other":             "VM is locked (suspended)\n",
			"qm clone 100 101 --full 1":           "VM is locked (suspended)\n",
			"qm snapshot 100 clean":               "VM is locked (suspended)\n",
			"qm resize 100 scsi0 +1G":             "VM is locked (suspended)\n",
			"qm suspend 100 --todisk 1":           "VM 100 not running\n",
			"qm guest cmd 100 ping":               "VM 100 is not running\n",
			"qm reboot 100":                       "VM 100 not running\n",
			"qm set 100 --name too":               "VM is locked (suspended)\n",
			"qm suspend 100 --statestorage local": "400 Parameter verification failed.\ntodisk: missing property - 'statestorage' requires this property\n",
		} {
			l.refused(t, line, 255, says)
		}
		for _, line := range []string{"qm stop 100", "qm shutdown 100"} {
			if got := l.must(t, line); got != "" {
				t.Errorf("%s of a suspended VM prints %q", line, got)
			}
		}

		if got, want := l.must(t, "qm start 100"), "generating cloud-init ISO\nResuming suspended VM\nactivating and using '"+volume+"' as vmstate\nResumed VM, removing state\n"; got != want {
			t.Errorf("resume prints %q, want %q", got, want)
		}
		if got := l.conf(t, 100); got.String() != before.String() {
			t.Errorf("config after the resume:\n%s\nbefore the suspend:\n%s", got, before)
		}
		if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Contains(got, "state") {
			t.Errorf("the state is still there: %s", got)
		}
		again := l.login(t, 100, process.DefaultUser)
		if got := remote(t, again, "cat /proc/sys/kernel/random/boot_id /run/note; pgrep -c sleep"); !strings.HasPrefix(got, strings.Fields(boot)[0]) || !strings.HasSuffix(got, "here\n1") {
			t.Errorf("after the resume the guest has %q, before %q", got, boot)
		}
		// It is the same connection that was open: the machine stood still.
		if got := remote(t, client, "echo on"); got != "on" {
			t.Errorf("the connection from before: %q", got)
		}
	})
}

func TestSuspend_Refusals(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, _ string) {
		l.must(t, "qm clone 9000 100")
		l.refused(t, "qm suspend 100 --todisk 1", 255, "VM 100 not running\n")
		l.refused(t, "qm suspend 999 --todisk 1", 2, "unable to find configuration file for VM 999 on node 'pve'\n")
		l.refused(t, "qm resume 100", 255, "VM 100 not running\n")
		l.must(t, "qm start 100")
		l.setFault(t, state.FaultHAManaged, "100")
		l.refused(t, "qm suspend 100 --todisk 1", 255, "Cannot suspend HA managed VM to disk\n")
		for _, line := range []string{"qm stop 100", "qm shutdown 100"} {
			if got := l.must(t, line); got != "Requesting HA stop for VM 100\n" || l.must(t, "qm status 100") != "status: running\n" {
				t.Errorf("%s of a VM of the HA manager: %q", line, got)
			}
		}
		l.setFault(t, state.FaultHAManaged, "")
		l.refused(t, "qm suspend 100 --todisk 1 --statestorage nowhere", 255, "storage 'nowhere' does not exist\n")
		conf := l.conf(t, 100)
		conf.Set("hostpci0", "0000:01:00.0")
		if err := l.WriteConf(100, conf); err != nil {
			t.Fatal(err)
		}
		l.refused(t, "qm suspend 100 --todisk 1", 255, "cannot suspend VM to disk due to passed-through PCI device(s), which lack the possibility to save/restore their internal state\n")
		if got := l.conf(t, 100); got.Has("lock") || got.Has("vmstate") {
			t.Errorf("a refused suspend left\n%s", got)
		}
	})
}

func TestSuspend_FullStorageLeavesItsLockAndTheVMRunning(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, _ string) {
		client := l.boot(t, 100)
		l.setFault(t, state.FaultStorageFull, "1")
		l.refused(t, "qm suspend 100 --todisk 1", 255, "query-savevm failed with error 'qemu_savevm_state_iterate error -28'\n")
		if conf := l.conf(t, 100); conf.Get("lock") != "suspending" || conf.Has("vmstate") || conf.Has("runningmachine") {
			t.Errorf("config after it:\n%s", conf)
		}
		if got := remote(t, client, "echo on"); got != "on" {
			t.Errorf("the guest: %q", got)
		}
		if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Contains(got, "state") {
			t.Errorf("volumes: %s", got)
		}
		l.refused(t, "qm set 100 --tags x", 255, "VM is locked (suspending)\n")
		l.refused(t, "qm stop 100", 255, "VM is locked (suspending)\n")
		l.must(t, "qm unlock 100")
		l.must(t, "qm suspend 100 --todisk 1 --statestorage local")
		if got := l.conf(t, 100).Get("vmstate"); got != "local:100/vm-100-state-suspend-"+today()+".raw" {
			t.Errorf("vmstate %q", got)
		}
		// A file has what was written, a volume of LVM what was reserved.
		var id string
		var size int64
		if _, err := fmt.Sscanf(strings.Split(l.must(t, "pvesm list local --vmid 100"), "\n")[1], "local:100/vm-100-state-suspend-"+today()+".raw raw images %d %s", &size, &id); err != nil || size == 0 || size > 1<<20 {
			t.Errorf("the state has %d bytes: %v", size, err)
		}
		l.must(t, "qm start 100")
	})
}

func TestSuspend_KilledWorkerLeavesAHalf(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	l.setFault(t, state.FaultKilledWorker, "1")
	if err := l.command(t, "qm", "suspend", "100", "--todisk", "1").Run(); err == nil {
		t.Fatal("it was to be killed")
	}
	if conf := l.conf(t, 100); conf.Get("lock") != "suspending" || !conf.Has("vmstate") {
		t.Errorf("config after it:\n%s", conf)
	}
	l.must(t, "qm unlock 100")
	l.must(t, "qm set 100 --delete vmstate")
	if conf := l.conf(t, 100); conf.Has("vmstate") || conf.Has("runningcpu") {
		t.Errorf("config after its vmstate was deleted:\n%s", conf)
	}
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Contains(got, "state") {
		t.Errorf("volumes: %s", got)
	}
}

// What is suspended goes with its VM, and may be given up.
func TestSuspend_DestroyAndDelete(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	l.must(t, "qm suspend 100 --todisk 1")
	l.must(t, "qm destroy 100 --purge 1 --destroy-unreferenced-disks 1")
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 1 {
		t.Errorf("volumes left: %s", got)
	}
	l.boot(t, 101)
	l.must(t, "qm suspend 101 --todisk 1")
	l.must(t, "qm set 101 --delete vmstate")
	if conf := l.conf(t, 101); conf.Has("lock") || conf.Has("vmstate") || conf.Has("runningmachine") {
		t.Errorf("config without its state:\n%s", conf)
	}
	if got := l.must(t, "qm start 101"); strings.Contains(got, "Resum") {
		t.Errorf("start prints %q", got)
	}
}

// The lab's end takes a suspended guest with it: newLab checks that.
func TestSuspend_GoesWithTheLab(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	l.must(t, "qm suspend 100 --todisk 1")
}

func TestSuspend_WithoutDiskPauses(t *testing.T) {
	l := newLab(t)
	client := l.boot(t, 100)
	l.must(t, "qm suspend 100")
	if conf := l.conf(t, 100); conf.Has("lock") || conf.Has("vmstate") {
		t.Errorf("config of a paused VM:\n%s", conf)
	}
	if got := l.must(t, "qm status 100 --verbose 1"); !strings.Contains(got, "qmpstatus: paused\n") || !strings.Contains(got, "\nstatus: running\n") {
		t.Errorf("status: %s", got)
	}
	l.refused(t, "qm shutdown 100", 255, "VM is paused - cannot shutdown\n")
	l.refused(t, "qm start 100", 255, "VM 100 already running\n")
	l.must(t, "qm resume 100")
	l.must(t, "qm resume 100")
	if got := remote(t, client, "echo on"); got != "on" {
		t.Errorf("the guest: %q", got)
	}
	l.must(t, "qm suspend 100")
	l.must(t, "qm shutdown 100 --forceStop 1")
	if got := l.must(t, "qm status 100"); got != "status: stopped\n" {
		t.Errorf("status: %s", got)
	}
}

func TestSnapshot_WithMemoryComesBackRunning(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, _ string) {
		client := l.boot(t, 100)
		remote(t, client, "echo first >/opt/file; sync")
		got := l.must(t, "qm snapshot 100 live --vmstate 1")
		if !strings.HasPrefix(got, "saving VM state and RAM using storage 'local-lvm'\n") || !strings.Contains(got, "completed saving the VM state in ") || !strings.Contains(got, "snapshotting 'drive-scsi0' (local-lvm:vm-100-disk-0)\n") {
			t.Errorf("snapshot prints %q", got)
		}
		conf := l.conf(t, 100)
		if snapshot := conf.Snapshots["live"]; conf.Has("vmstate") || conf.Has("lock") || snapshot["vmstate"] != "local-lvm:vm-100-state-live" || snapshot["runningcpu"] == "" {
			t.Errorf("config:\n%s", conf)
		}
		if got := l.must(t, "pvesh get /nodes/pve/qemu/100/snapshot --output-format json"); !strings.Contains(got, `"vmstate":1`) {
			t.Errorf("the API: %s", got)
		}
		remote(t, client, "echo second >/opt/file; sync")
		l.must(t, "qm rollback 100 live")
		if got := l.must(t, "qm status 100"); got != "status: running\n" {
			t.Errorf("after the rollback: %s", got)
		}
		if conf := l.conf(t, 100); conf.Has("vmstate") || conf.Has("lock") || conf.Has("runningcpu") || conf.Has("runningmachine") || conf.Has("running-nets-host-mtu") || conf.Get("parent") != "live" {
			t.Errorf("config after the rollback:\n%s", conf)
		}
		client = l.login(t, 100, process.DefaultUser)
		if got := remote(t, client, "cat /opt/file"); got != "first" {
			t.Errorf("the file: %q", got)
		}
		l.must(t, "qm stop 100")
		l.must(t, "qm snapshot 100 off --vmstate 1")
		if snapshot := l.conf(t, 100).Snapshots["off"]; snapshot["vmstate"] != "" {
			t.Errorf("a snapshot of a VM that is off has the memory %s", snapshot["vmstate"])
		}
		l.must(t, "qm delsnapshot 100 live")
		if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Contains(got, "state") {
			t.Errorf("volumes: %s", got)
		}
	})
}
