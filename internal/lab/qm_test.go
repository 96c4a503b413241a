package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab/state"
)

const testKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOYLOqa7hEfCr8M0s71tim2Q/+VEmbzevrbZ0je9WDki someone@example\n"

// TestTexts holds the commands to what the real ones print and how they exit.
// Every case begins with VM 100, a stopped clone of the template, and with
// foreign VM 200 and container 201.
func TestTexts(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100 --name clone-a")
	l.must(t, "qm create 101 --name no-agent --memory 512")
	for _, err := range []error{
		l.PlantVM("pve", 200, "foreign"), l.PlantContainer("pve", 201),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name     string
		line     string
		code     int
		out, err string // contained; "" with code 0: nothing on stderr
	}{
		{"config of a missing VM", "qm config 999", 2, "", "Configuration file 'nodes/pve/qemu-server/999.conf' does not exist\n"},
		{"status of a missing VM", "qm status 999", 2, "", "Configuration file 'nodes/pve/qemu-server/999.conf' does not exist\n"},
		{"status does not see containers", "qm status 201", 2, "", "Configuration file 'nodes/pve/qemu-server/201.conf' does not exist\n"},
		{"status", "qm status 100", 0, "status: stopped\n", ""},
		{"stop of a missing VM", "qm stop 999", 2, "", "unable to find configuration file for VM 999 on node 'pve'\n"},
		{"stop of a stopped VM is silent", "qm stop 100", 0, "", ""},
		{"create with a taken ID", "qm create 200 --name x", 255, "", "unable to create VM 200 - VM 200 already exists on node 'pve'\n"},
		{"create with a container's ID", "qm create 201 --name x", 255, "", "unable to create VM 201 - CT 201 already exists on node 'pve'\n"},
		{"clone to a taken ID", "qm clone 9000 200", 255, "", "unable to create VM 200: config file already exists\n"},
		{"clone to a container's ID", "qm clone 9000 201", 255, "", "close (rename) atomic file '/etc/pve/nodes/pve/qemu-server/201.conf' failed: File exists\n"},
		{"clone of a missing VM", "qm clone 998 997", 2, "", "Configuration file 'nodes/pve/qemu-server/998.conf' does not exist\n"},
		{"clone takes no tags", "qm clone 9000 110 --tags linus", 255, "", "Unknown option: tags\n400 unable to parse option\n"},
		{"linked clone takes no storage", "qm clone 9000 110 --storage local", 255, "", "parameter 'storage' not allowed for linked clones\n"},
		{"linked clone takes no format", "qm clone 9000 110 --format raw", 255, "", "parameter 'format' not allowed for linked clones\n"},
		{"unknown option", "qm create 110 --foo 1", 255, "", "Unknown option: foo\n400 unable to parse option\n"},
		{"node is no option of the command line", "qm list --node pve", 255, "", "Unknown option: node\n400 unable to parse option\n"},
		{"too few arguments", "qm clone 9000", 255, "", "400 not enough arguments\n"},
		{"too many arguments", "qm status 100 101", 255, "", "400 too many arguments\n"},
		{"name with an underscore", "qm create 110 --name a_b", 255, "", "400 Parameter verification failed.\nname: invalid format - value does not look like a valid DNS name\n"},
		{"id below 100", "qm create 99", 255, "", "400 Parameter verification failed.\nvmid: value must have a minimum value of 100\n"},
		{"memory below 16", "qm create 110 --memory 8", 255, "", "400 Parameter verification failed.\nmemory: "},
		{"cores is a number", "qm create 110 --cores two", 255, "", "cores: type check ('integer') failed - got 'two'\n"},
		{"unknown drive property", "qm create 110 --scsi0 local:1,colour=red", 255, "", "scsi0.colour: property is not defined in schema"},
		{"unknown scsihw", "qm create 110 --scsihw best", 255, "", "scsihw: value 'best' does not have a value in the enumeration"},
		{"tag with a colon", "qm set 100 --tags a:b", 255, "", "400 Parameter verification failed.\ntags: "},
		{"missing storage", "qm create 110 --scsi0 nowhere:1", 255, "", "unable to create VM 110 - storage 'nowhere' does not exist\n"},
		{"import of a missing file", "qm create 110 --scsi0 local:0,import-from=/no/such.raw", 255, "", "unable to create VM 110 - "},
		{"sshkeys takes a file", "qm set 100 --sshkeys ssh-ed25519", 2, "", "can't open 'ssh-ed25519' - No such file or directory\n"},
		{"resize with a wrong unit", "qm resize 100 scsi0 50GB", 255, "", "size: value does not match the regex pattern\n"},
		{"shrinking lies", "qm resize 100 scsi0 1G", 0, "", "shrinking disks is not supported\n"},
		{"same size is silent", "qm resize 100 scsi0 2G", 0, "", ""},
		{"resize of no disk", "qm resize 100 scsi7 50G", 255, "", "disk 'scsi7' does not exist\n"},
		{"template of a template", "qm template 9000", 255, "", "you can't convert a template to a template\n"},
		{"start of a template", "qm start 9000", 255, "", "you can't start a vm if it's a template\n"},
		{"agent not configured", "qm guest cmd 101 ping", 255, "", "No QEMU guest agent configured\n"},
		{"agent of a stopped VM", "qm guest cmd 100 ping", 255, "", "VM 100 is not running\n"},
		{"exec in a stopped VM", "qm guest exec 100 -- true", 255, "", "VM 100 is not running\n"},
		{"unknown agent command", "qm agent 100 dance", 255, "", "command: value 'dance' does not have a value in the enumeration"},
		{"unlock is silent", "qm unlock 100", 0, "", ""},
		{"snapshot of a template", "qm snapshot 9000 clean", 255, "", "you can't take a snapshot if it's a template\n"},
		{"snapshot called current", "qm snapshot 100 current", 255, "", "unable to use snapshot name 'current' (reserved name)\n"},
		{"snapshot name with a dot", "qm snapshot 100 a.b", 255, "", "snapname: invalid format - invalid configuration ID 'a.b'\n"},
		{"snapshot name of 41 characters", "qm snapshot 100 " + strings.Repeat("a", 41), 255, "", "snapname: value may only be 40 characters long\n"},
		{"rollback to no snapshot", "qm rollback 100 clean", 255, "", "snapshot 'clean' does not exist\n"},
		{"delsnapshot of no snapshot", "qm delsnapshot 100 clean", 255, "", "snapshot 'clean' does not exist\n"},
		{"reboot of a stopped VM", "qm reboot 100", 255, "", "VM 100 not running\n"},
		{"unknown path", "pvesh get /foo --output-format json", 1, "", "No 'get' handler defined for '/foo'\n"},
		{"unknown node", "pvesh get /nodes/mars/qemu --output-format json", 255, "", "hostname lookup 'mars' failed"},
		{"an answer that is no JSON", "pvesh get /nodes", 255, "", "the lab's pvesh prints JSON only: give it --output-format json\n"},
		{"missing storage's status", "pvesh get /nodes/pve/storage/x/status --output-format json", 255, "", "storage 'x' does not exist\n"},
		{"list of a missing storage", "pvesm list x", 255, "", "storage 'x' does not exist\n"},
		{"path of a volume", "pvesm path local-lvm:base-9000-disk-0", 0, "/storage/local-lvm/base-9000-disk-0\n", ""},
		{"version", "pveversion", 0, "pve-manager/9.2", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := l.run(t, tt.line)
			if got.code != tt.code {
				t.Errorf("exit code %d, want %d", got.code, tt.code)
			}
			if !strings.Contains(got.out, tt.out) || (tt.out == "" && tt.code == 0 && got.out != "") {
				t.Errorf("stdout %q, want %q", got.out, tt.out)
			}
			if !strings.Contains(got.err, tt.err) || (tt.err == "" && got.err != "") {
				t.Errorf("stderr %q, want %q", got.err, tt.err)
			}
		})
	}
	if got := l.IDsOf("pve", "qemu-server"); !cmp.Equal(got, []int{100, 101, 200, 9000}) {
		t.Errorf("VMs are %v: a refused command left one, or took one", got)
	}
}

func TestTexts_OfVersion8(t *testing.T) {
	l := newLab(t, func(o *Options) { o.Version = "8.2" })
	if got := l.must(t, "pveversion"); !strings.HasPrefix(got, "pve-manager/8.2") {
		t.Errorf("pveversion prints %q", got)
	}
	if got := l.must(t, "qm clone 9000 100"); strings.Contains(got, "creating a clone") {
		t.Errorf("clone prints a line of 9.x: %q", got)
	}
}

// TestCreate_InOneCall is the command line seen to work on the real thing.
func TestCreate_InOneCall(t *testing.T) {
	l := newLab(t)
	image := filepath.Join(l.Dir, "image.qcow2")
	got := l.runArgs(t, []string{
		"qm", "create", "100", "--name", "one-call", "--memory", "2048", "--cores", "2", "--cpu", "host",
		"--ostype", "l26", "--scsihw", "virtio-scsi-single", "--scsi0", "local:0,import-from=" + image + ",discard=on,iothread=1",
		"--scsi1", "local:cloudinit", "--net0", "virtio,bridge=vmbr0", "--serial0", "socket", "--vga", "serial0", "--agent", "enabled=1",
		"--ciuser", "me", "--sshkeys", "/dev/stdin", "--ipconfig0", "ip=dhcp", "--ciupgrade", "0", "--tags", "linus;Beta",
		"--description", "linus-job=1 linus-owner=2\nsecond: line",
	}, testKey)
	if got.code != 0 {
		t.Fatalf("exit code %d: %s", got.code, got.err)
	}
	conf := l.conf(t, 100)
	want := map[string]string{
		"scsi0":       "local:100/vm-100-disk-0.raw,discard=on,iothread=1,size=2G",
		"scsi1":       "local:100/vm-100-cloudinit.qcow2,media=cdrom",
		"boot":        "order=scsi0;scsi1;net0",
		"tags":        "beta;linus",
		"ciuser":      "me",
		"description": "linus-job=1 linus-owner=2\nsecond: line\n",
		"lock":        "",
	}
	for key, value := range want {
		if conf.Get(key) != value {
			t.Errorf("%s: %q, want %q", key, conf.Get(key), value)
		}
	}
	if conf.SSHKeys() != testKey {
		t.Errorf("sshkeys: %q", conf.SSHKeys())
	}
	if mac := conf.MAC(); !strings.HasPrefix(mac, "BC:24:11:") || len(mac) != 17 {
		t.Errorf("net0 has address %q", mac)
	}
	shown := l.must(t, "qm config 100")
	if !strings.Contains(shown, "description: linus-job=1 linus-owner=2%0Asecond%3A line%0A\n") {
		t.Errorf("qm config shows:\n%s", shown)
	}
}

func TestCreate_FailureLeavesNothing(t *testing.T) {
	l := newLab(t)
	l.setFault(t, state.FaultStorageLockTimeout, "1")
	r := l.run(t, "qm create 100 --scsi0 local-lvm:4")
	if r.code == 0 || !strings.Contains(r.err, "got timeout") {
		t.Errorf("got %+v, want a lock timeout", r)
	}
	if _, err := os.Stat(l.ConfPath(100)); err == nil {
		t.Error("the config is still there")
	}
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 1 {
		t.Errorf("volumes left:\n%s", got)
	}
	l.must(t, "qm create 100 --scsi0 local-lvm:4")
}

func TestCreate_RaceHasOneWinner(t *testing.T) {
	l := newLab(t)
	const racers = 8
	results := make([]result, racers)
	var wg sync.WaitGroup
	for i := range racers {
		wg.Go(func() {
			line := fmt.Sprintf("qm create 100 --name racer-%d", i)
			if i%2 == 1 {
				line = fmt.Sprintf("qm clone 9000 100 --name racer-%d", i)
			}
			results[i] = l.run(t, line)
		})
	}
	wg.Wait()
	winner := ""
	for i, r := range results {
		switch {
		case r.code == 0 && winner == "":
			winner = fmt.Sprintf("racer-%d", i)
		case r.code == 0:
			t.Errorf("racer-%d won too", i)
		case !strings.Contains(r.err, "VM 100 already exists on node 'pve'") && !strings.Contains(r.err, "unable to create VM 100: config file already exists"):
			t.Errorf("racer-%d lost with %q", i, r.err)
		}
	}
	if name := l.conf(t, 100).Get("name"); name != winner {
		t.Errorf("VM 100 is %q, the winner was %q", name, winner)
	}
}

func TestLock_WaitsAndSaysSo(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm create 100")
	held, release := make(chan struct{}), make(chan struct{})
	go func() {
		_ = l.WithLock(t.Context(), os.Stderr, "lock-100.conf", "", time.Second, func() error {
			close(held)
			<-release
			return nil
		})
	}()
	<-held
	time.AfterFunc(100*time.Millisecond, func() { close(release) })
	r := l.run(t, "qm set 100 --memory 1024")
	if r.code != 0 || r.err != "trying to acquire lock... OK\n" {
		t.Errorf("got %+v", r)
	}
}

func TestLockedVM_IsRefused(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm create 100 --lock backup")
	for _, line := range []string{"qm set 100 --memory 64", "qm start 100", "qm destroy 100", "qm clone 100 101", "qm template 100"} {
		if r := l.run(t, line); r.code == 0 || r.err != "VM is locked (backup)\n" {
			t.Errorf("%s: %+v", line, r)
		}
	}
	l.must(t, "qm unlock 100")
	l.must(t, "qm destroy 100")
}

func TestClone_OfTemplateIsLinked(t *testing.T) {
	for _, st := range []string{"local", "local-lvm"} {
		t.Run(st, func(t *testing.T) {
			l := newLab(t, func(o *Options) { o.Storage = st })
			l.must(t, "qm clone 9000 100 --name linked --description d")
			template, clone := l.conf(t, 9000), l.conf(t, 100)
			want := map[string]string{
				"local":     "local:9000/base-9000-disk-0.raw/100/vm-100-disk-0.qcow2,discard=on,iothread=1,size=2G",
				"local-lvm": "local-lvm:vm-100-disk-0,discard=on,iothread=1,size=2G",
			}[st]
			if got := clone.Get("scsi0"); got != want {
				t.Errorf("scsi0: %s, want %s", got, want)
			}
			if clone.IsTemplate() || clone.MAC() == template.MAC() || clone.Get("smbios1") == template.Get("smbios1") {
				t.Error("the clone is still the template in something")
			}
			r := l.run(t, "qm destroy 9000")
			if st == "local" && (r.code == 0 || !strings.Contains(r.err, "base volume 'local:9000/base-9000-disk-0.raw' is still in use by linked cloned")) {
				t.Errorf("destroying a base in use: %+v", r)
			}
			if st == "local-lvm" && r.code != 0 {
				t.Errorf("a thin pool's base can be destroyed: %+v", r)
			}
			l.must(t, "qm destroy 100 --purge 1 --destroy-unreferenced-disks 1")
			if got := l.must(t, "pvesm list "+st+" --vmid 100"); strings.Count(got, "\n") != 1 {
				t.Errorf("volumes left:\n%s", got)
			}
		})
	}
}

// Protection set on a template is its clones', too.
func TestClone_OfAProtectedTemplateIsProtected(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm set 9000 --protection 1")
	l.must(t, "qm clone 9000 100")
	if r := l.run(t, "qm destroy 100"); r.code == 0 || r.err != "can't remove VM 100 - protection mode enabled\n" {
		t.Errorf("destroyed: %+v", r)
	}
	l.must(t, "qm set 100 --protection 0")
	l.must(t, "qm destroy 100")
}

func TestDisk_NumberSkipsAStaleVolume(t *testing.T) {
	l := newLab(t)
	if err := l.Driver.CreateDisk(t.Context(), l.Path("storage", "local-lvm", "vm-100-disk-0"), "raw", 1<<30); err != nil {
		t.Fatal(err)
	}
	l.must(t, "qm clone 9000 100")
	if got := l.conf(t, 100).Get("scsi0"); !strings.HasPrefix(got, "local-lvm:vm-100-disk-1,") {
		t.Errorf("scsi0: %s", got)
	}
	l.must(t, "qm destroy 100")
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); !strings.Contains(got, "vm-100-disk-0") {
		t.Error("destroy took a volume the config does not name")
	}
	l.must(t, "pvesm free local-lvm:vm-100-disk-0")
}

func TestFaults(t *testing.T) {
	tests := []struct {
		name  string
		fault state.Fault
		value string
		line  string
		code  int
		err   string
		then  func(t *testing.T, l *Lab)
	}{
		{
			"lock timeout", state.FaultLockTimeout, "1", "qm set 100 --memory 1024", 255,
			"can't lock file '/var/lock/qemu-server/lock-100.conf' - got timeout\n",
			func(t *testing.T, l *Lab) { l.must(t, "qm set 100 --memory 1024") },
		},
		{
			"ID taken by a VM", state.FaultTaken, "1", "qm clone 9000 110", 255, "unable to create VM 110: config file already exists\n",
			func(t *testing.T, l *Lab) {
				if l.conf(t, 110).Get("name") != "foreign-vm" {
					t.Error("110 is not the foreign VM")
				}
				l.must(t, "qm clone 9000 111")
			},
		},
		{"ID taken by a container", state.FaultTakenCT, "1", "qm create 110", 255, "CT 110 already exists on node 'pve'\n", nil},
		{
			"resize fails and exits 0", state.FaultResizeFails, "1", "qm resize 100 scsi0 9G", 0, "failed: exit code 5",
			func(t *testing.T, l *Lab) {
				if got := l.conf(t, 100).Get("scsi0"); !strings.HasSuffix(got, "size=2G") {
					t.Errorf("scsi0: %s", got)
				}
			},
		},
		{
			"clone fails and exits 0", state.FaultCloneFails, "1", "qm clone 9000 110", 0, "clone failed: ",
			func(t *testing.T, l *Lab) {
				if _, err := l.LoadConf(110); err == nil {
					t.Error("there is a clone")
				}
			},
		},
		{
			"template fails and exits 0", state.FaultTemplateFails, "1", "qm template 100", 0, "failed: exit code 5",
			func(t *testing.T, l *Lab) {
				if l.conf(t, 100).IsTemplate() {
					t.Error("it is a template")
				}
			},
		},
		{
			"storage full", state.FaultStorageFull, "1", "qm create 110 --scsi0 local-lvm:0,import-from=/etc/hostname", 255,
			"unable to create VM 110 - copy failed: command '/usr/bin/qemu-img convert -p -n -f qcow2 -O raw /etc/hostname zeroinit:local-lvm:vm-110-disk-0' failed: exit code 1\n",
			func(t *testing.T, l *Lab) {
				if got := l.must(t, "pvesm list local-lvm --vmid 110"); strings.Count(got, "\n") != 1 {
					t.Errorf("volumes:\n%s", got)
				}
			},
		},
		{
			"storage full in a copy", state.FaultStorageFull, "1", "qm clone 100 110 --full 1", 255,
			"clone failed: copy failed: command '/usr/bin/qemu-img convert ", nothingOf110,
		},
		{
			"thin pool full", state.FaultPoolFull, "1", "qm clone 9000 110", 255,
			"clone failed: clone image 'pve/base-9000-disk-0' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.\n", nothingOf110,
		},
		{
			"thin pool full for a new disk", state.FaultPoolFull, "1", "qm create 110 --scsi0 local-lvm:1", 255,
			"unable to create VM 110 - lvcreate 'pve/vm-110-disk-0' error:   Cannot create new thin volume", nothingOf110,
		},
		{"start fails", state.FaultStartFails, "1", "qm start 100", 255, "start failed: QEMU exited with code 1\n", nil},
		{
			"destroy leaves a volume", state.FaultDestroyLeaves, "1", "qm destroy 100", 0, "Task finished with 1 warning(s)!\n",
			func(t *testing.T, l *Lab) {
				if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 2 {
					t.Errorf("volumes:\n%s", got)
				}
			},
		},
		{
			"destroy fails late", state.FaultDestroyLate, "1", "qm destroy 100", 255,
			"access permissions cleanup for VM 100 failed: cfs-lock 'file-user_cfg' error: got lock request timeout\n",
			func(t *testing.T, l *Lab) {
				if raw, err := os.ReadFile(l.ConfPath(100)); string(raw) != "lock: destroyed\n" {
					t.Errorf("the config is %q, %v", raw, err)
				}
				r := l.run(t, "qm config 100")
				if r.code != 255 || !strings.HasPrefix(r.err, "400 Result verification failed\nlock: value 'destroyed' does not have a value in the enumeration 'backup, clone, create, ") {
					t.Errorf("qm config answers %+v", r)
				}
				if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 1 {
					t.Errorf("volumes:\n%s", got)
				}
				if r := l.run(t, "qm destroy 100"); r.code != 255 || r.err != "VM is locked (destroyed)\n" {
					t.Errorf("destroyed again: %+v", r)
				}
				l.must(t, "qm unlock 100")
				l.must(t, "qm destroy 100")
			},
		},
		{"missing storage", state.FaultMissingStorage, "local-lvm", "qm set 100 --scsi3 local-lvm:1", 255, "storage 'local-lvm' does not exist\n", nil},
		{"missing bridge", state.FaultMissingBridge, "vmbr0", "qm start 100", 255, "bridge 'vmbr0' does not exist\n", nil},
		{"offline node", state.FaultMissingNode, "pve", "pvesh get /nodes/pve/qemu --output-format json", 255, "595 ", nil},
		{"missing template", state.FaultMissingTemplate, "9000", "qm clone 9000 110", 2, "Configuration file 'nodes/pve/qemu-server/9000.conf' does not exist\n", nil},
		{
			"no quorum", state.FaultNoQuorum, "1", "qm create 110", 255, "cluster not ready - no quorum?\n",
			func(t *testing.T, l *Lab) { l.must(t, "qm config 100") },
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.must(t, "qm clone 9000 100")
			l.setFault(t, tt.fault, tt.value)
			r := l.run(t, tt.line)
			if r.code != tt.code || !strings.Contains(r.err, tt.err) {
				t.Errorf("got %+v, want exit code %d and %q", r, tt.code, tt.err)
			}
			if tt.then != nil {
				tt.then(t, l)
			}
		})
	}
}

func nothingOf110(t *testing.T, l *Lab) {
	t.Helper()
	if got := l.must(t, "pvesm list local-lvm --vmid 110"); strings.Count(got, "\n") != 1 {
		t.Errorf("volumes:\n%s", got)
	}
	if _, err := l.LoadConf(110); err == nil {
		t.Error("there is a VM")
	}
}

// On a pool that is full the memory of a snapshot has no volume, and a clone of one none;
// of a VM that runs no copy is made.
func TestFault_FullWhileAVMRuns(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, version string) {
		l.boot(t, 100)
		before := l.conf(t, 100).String()
		l.setFault(t, state.FaultPoolFull, "1")
		l.refused(t, "qm snapshot 100 before --vmstate 1", 255, "lvcreate 'pve/vm-100-state-before' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.\n")
		if now := l.conf(t, 100).String(); now != before {
			t.Errorf("the config was\n%s\nis\n%s", before, now)
		}
		l.must(t, "qm snapshot 100 before --vmstate 1")
		l.setFault(t, state.FaultPoolFull, "1")
		l.refused(t, "qm clone 100 110 --snapname before --full 0", 255, "clone failed: clone image 'pve/snap_vm-100-disk-0_before' error:   Cannot create new thin volume, free space in thin pool pve/data reached threshold.\n")
		nothingOf110(t, l)
		cause := "No space left on device (io-status: ok)"
		if version == "8.2" {
			cause = "'mirror' has been cancelled"
		}
		l.setFault(t, state.FaultStorageFull, "1")
		l.refused(t, "qm clone 100 110 --full 1", 255, "clone failed: block job (mirror) error: drive-scsi0: "+cause+"\n")
		nothingOf110(t, l)
	})
}

func TestFault_KilledWorkerLeavesItsLock(t *testing.T) {
	l := newLab(t)
	l.setFault(t, state.FaultKilledWorker, "1")
	if err := l.command(t, "qm", "clone", "9000", "100", "--name", "half").Run(); err == nil {
		t.Fatal("the worker was not killed")
	}
	if got := l.conf(t, 100).Get("lock"); got != "clone" {
		t.Errorf("lock: %q", got)
	}
	if r := l.run(t, "qm destroy 100"); r.err != "VM is locked (clone)\n" {
		t.Errorf("destroy: %+v", r)
	}
	l.must(t, "qm unlock 100")
	l.must(t, "qm destroy 100 --destroy-unreferenced-disks 1")
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 1 {
		t.Errorf("volumes left:\n%s", got)
	}
}

func TestSet_OfARunningVMWaits(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	l.must(t, "qm start 100")
	out := l.must(t, "qm set 100 --memory 4096 --name now")
	if out != "update VM 100: -memory 4096 -name now\n" {
		t.Errorf("prints %q", out)
	}
	if got := l.must(t, "qm config 100 --current"); !strings.Contains(got, "memory: 1024\n") || !strings.Contains(got, "name: now\n") {
		t.Errorf("current config:\n%s", got)
	}
	if got := l.must(t, "qm config 100"); !strings.Contains(got, "memory: 4096\n") {
		t.Errorf("config:\n%s", got)
	}
	l.must(t, "qm reboot 100")
	if got := l.must(t, "qm config 100 --current"); !strings.Contains(got, "memory: 4096\n") {
		t.Errorf("config after a restart:\n%s", got)
	}
}

func TestSlow_CostsTime(t *testing.T) {
	l := newLab(t, func(o *Options) { o.SlowMS = 50 })
	start := time.Now()
	l.must(t, "pveversion")
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("took %s", took)
	}
}

// A template that was made of a linked clone is named alone by its own clones.
func TestClone_OfAClonesTemplate(t *testing.T) {
	l := newLab(t, func(o *Options) { o.Storage = "local" })
	l.must(t, "qm clone 9000 100")
	l.must(t, "qm template 100")
	l.must(t, "qm clone 100 101")
	for id, want := range map[int]string{
		100: "local:9000/base-9000-disk-0.raw/100/base-100-disk-0.qcow2",
		101: "local:100/base-100-disk-0.qcow2/101/vm-101-disk-0.qcow2",
	} {
		if got := state.ParseDrive(l.conf(t, id).Get("scsi0")).File; got != want {
			t.Errorf("the disk of VM %d is %s, want %s", id, got, want)
		}
	}
	l.must(t, "qm start 101")
	l.must(t, "qm stop 101")
	l.refused(t, "qm destroy 100", 255, "base volume 'local:9000/base-9000-disk-0.raw/100/base-100-disk-0.qcow2' is still in use by linked cloned\n")
	l.must(t, "qm destroy 101")
	l.must(t, "qm destroy 100")
}

// What changes while a VM runs its cloud-init drive does not know: that is noted until the drive is
// written again, and a clone takes it over.
func TestSet_NotesWhatTheCloudInitDriveStillSays(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, _ string) {
		l.boot(t, 100)
		before := l.conf(t, 100).Get("net0")
		section := "\n[special:cloudinit]\nnet0: " + before + "\n"
		l.must(t, "qm set 100 --net0 "+before+",link_down=1")
		if got := l.conf(t, 100).String(); !strings.HasSuffix(got, section) {
			t.Errorf("no section of what the drive says:\n%s", got)
		}
		if got := l.must(t, "qm config 100"); strings.Contains(got, "special") || strings.Count(got, "net0: ") != 1 {
			t.Errorf("qm config:\n%s", got)
		}
		l.must(t, "qm clone 100 101 --full 1")
		if got := l.conf(t, 101); !strings.HasSuffix(got.String(), section) || !strings.Contains(got.Get("net0"), "link_down=1") || len(got.Snapshots) != 0 {
			t.Errorf("a clone:\n%s", got)
		}
		l.must(t, "qm start 101")
		if got := l.conf(t, 101).String(); strings.Contains(got, "special") {
			t.Errorf("a start, which writes the drive, leaves:\n%s", got)
		}
		l.must(t, "qm set 100 --net0 "+before)
		if got := l.conf(t, 100); strings.Contains(got.String(), "special:cloudinit]\nnet0") {
			t.Errorf("as it was again:\n%s", got)
		}
	})
}

// What is taken goes from the boot order; what is left of that without anything is a blank.
func TestSet_TakesTheOnlyBootDisk(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm create 100 --name a --memory 16 --scsi0 local-lvm:1 --scsi1 local-lvm:1 --boot order=scsi0;scsi1")
	l.must(t, "qm set 100 --delete scsi0")
	if got := l.conf(t, 100).Get("boot"); got != "order=scsi1" {
		t.Errorf("boot: %q", got)
	}
	l.must(t, "qm set 100 --delete scsi1")
	l.must(t, "qm set 100 --description x")
	if raw, err := os.ReadFile(l.ConfPath(100)); err != nil || !strings.Contains(string(raw), "\nboot:  \n") {
		t.Errorf("without a disk:\n%s%v", raw, err)
	}
	l.must(t, "qm destroy 100")
}

// The numbers that scripts could take for something else, as they were seen.
func TestExitCodes_AsSeen(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	l.refused(t, "qm destroy 100", 25, "VM 100 is running - destroy failed\n")
	conf := l.conf(t, 100)
	conf.Set("lock", "backup")
	if err := l.WriteConf(100, conf); err != nil {
		t.Fatal(err)
	}
	l.refused(t, "qm stop 100", 255, "VM is locked (backup)\n")
	l.refused(t, "qm status 999", 2, "Configuration file 'nodes/pve/qemu-server/999.conf' does not exist\n")
}
