package lab

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab/process"
	"linus/internal/lab/state"
)

// saveAside makes what a checkpoint is of VM 100: a template, and its memory in a file,
// with which machine, processor and MTU it is to be started.
func (l *Lab) saveAside(t *testing.T) (file, options string) {
	t.Helper()
	l.boot(t, 100)
	l.must(t, "qm set 100 --net0 "+l.conf(t, 100).Get("net0")+",link_down=1")
	l.must(t, "qm suspend 100 --todisk 1")
	conf := l.conf(t, 100)
	raw, err := os.ReadFile(strings.TrimSpace(l.must(t, "pvesm path "+conf.Get("vmstate"))))
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(t.TempDir(), "state")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	l.refused(t, "qm template 100", 255, "VM is locked (suspended)\n")
	l.must(t, "qm unlock 100")
	l.must(t, "qm set 100 --delete vmstate")
	if conf := l.conf(t, 100); conf.Has("vmstate") || conf.Has("runningmachine") {
		t.Errorf("config without its state:\n%s", conf)
	}
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Contains(got, "state") {
		t.Errorf("the state's volume is still there: %s", got)
	}
	l.must(t, "qm template 100")
	options = " --machine " + conf.Get("runningmachine") + " --force-cpu " + conf.Get("runningcpu")
	if l.Config.Version != "8.2" {
		options += " --nets-host-mtu " + conf.Get("running-nets-host-mtu")
	}
	return file, options
}

func TestStartWithAState_Refusals(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, version string) {
		file, options := l.saveAside(t)
		exited := "start failed: QEMU exited with code 1\n"
		l.must(t, "qm clone 100 101 --full 0")
		l.must(t, "qm clone 100 102 --full 0")
		l.must(t, "qm set 102 --memory 2048")
		junk := filepath.Join(t.TempDir(), "junk")
		if err := os.WriteFile(junk, bytes.Repeat([]byte("x"), 10000), 0o600); err != nil {
			t.Fatal(err)
		}
		for line, says := range map[string]string{
			"qm start 101 --stateuri " + file + strings.Replace(options, "pc-i440fx-", "pc-i440fx-1", 1): exited,
			"qm start 101 --stateuri " + file + strings.Replace(options, " host,", " max,", 1):           exited,
			"qm start 101 --stateuri " + file:                      exited,
			"qm start 102 --stateuri " + file + options:            exited, // another machine
			"qm start 101 --stateuri " + junk + options:            exited,
			"qm start 101 --stateuri /nowhere" + options:           "unable to parse volume ID '/nowhere'\n",
			"qm start 101 --stateuri tcp" + options:                "no migration type set\n",
			"qm start 100 --stateuri " + file + options:            "you can't start a vm if it's a template\n",
			"qm start 101 --stateuri /" + strings.Repeat("x", 128): "400 Parameter verification failed.\nstateuri: value may only be 128 characters long\nqm start <vmid> [OPTIONS]\n",
		} {
			l.refused(t, line, 255, says)
		}
		if version == "8.2" {
			r := l.run(t, "qm start 101 --stateuri "+file+options+" --nets-host-mtu net0=1500")
			if r.code != 255 || !strings.Contains(r.err, "Unknown option: nets-host-mtu") {
				t.Errorf("--nets-host-mtu on 8.2: %d %q", r.code, r.err)
			}
		} else {
			before, _, _ := strings.Cut(options, " --nets-host-mtu")
			l.refused(t, "qm start 101 --stateuri "+file+before, 255, exited)
			l.refused(t, "qm start 101 --stateuri "+file+before+" --nets-host-mtu net0=9000", 255, exited)
		}
		conf := l.conf(t, 101)
		conf.Set("lock", "backup")
		if err := l.WriteConf(101, conf); err != nil {
			t.Fatal(err)
		}
		l.refused(t, "qm start 101 --stateuri "+file+options, 255, "VM is locked (backup)\n")
		l.must(t, "qm unlock 101")
		// The HA manager is not asked then.
		l.setFault(t, state.FaultHAManaged, "101")
		if got := l.must(t, "qm start 101 --stateuri "+file+options); strings.Contains(got, "HA") {
			t.Errorf("start prints %q", got)
		}
		l.refused(t, "qm start 101 --stateuri "+file+options, 255, "VM 101 already running\n")
		if _, err := os.Stat(file); err != nil {
			t.Errorf("the state is gone: %v", err)
		}
	})
}

// inside runs a command in a guest by its agent, which needs no network.
func (l *Lab) inside(t *testing.T, id int, command string) string {
	t.Helper()
	var answer struct {
		Code int    `json:"exitcode"`
		Out  string `json:"out-data"`
		Err  string `json:"err-data"`
	}
	r := l.runArgs(t, []string{"qm", "guest", "exec", strconv.Itoa(id), "--", "sh", "-c", command}, "")
	if err := json.Unmarshal([]byte(r.out), &answer); err != nil {
		t.Fatalf("%s: %v: %s", command, err, r.err)
	}
	if answer.Code != 0 {
		t.Fatalf("%s: exit code %d: %s%s", command, answer.Code, answer.Out, answer.Err)
	}
	return strings.TrimSpace(answer.Out)
}

func TestStartWithAState_IsTheSavedGuestUntilItIsToldOtherwise(t *testing.T) {
	l := newLab(t)
	file, options := l.saveAside(t)
	l.must(t, "qm clone 100 101 --name another --full 0")
	l.must(t, "qm set 101 --sshkeys "+l.ClientKeyPath()+".pub")
	if got := l.conf(t, 101).Get("net0"); !strings.Contains(got, "link_down=1") || strings.Contains(got, l.conf(t, 100).MAC()) {
		t.Errorf("the clone's card: %s", got)
	}
	l.must(t, "qm start 101 --stateuri "+file+options)

	if got := l.inside(t, 101, "hostname"); got != "guest-100" {
		t.Errorf("it is %s", got)
	}
	if got, want := l.inside(t, 101, "cat /sys/class/net/eth0/address"), strings.ToLower(l.conf(t, 100).MAC()); got != want {
		t.Errorf("its MAC is %s, the saved one's %s", got, want)
	}
	if got := l.must(t, "qm guest cmd 101 network-get-interfaces"); strings.Contains(got, "127.77.") {
		t.Errorf("an address without a link: %s", got)
	}
	raw, err := os.ReadFile(l.AddressPath(101))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialTimeout("tcp", net.JoinHostPort(strings.TrimSpace(string(raw)), strconv.Itoa(l.Config.GuestPort)), time.Second)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		if n, _ := conn.Read(make([]byte, 8)); n > 0 {
			t.Error("it is reached without a link")
		}
		conn.Close()
	}

	// With its link up it has no address yet: its network's settings are for another card.
	net0 := strings.Replace(l.conf(t, 101).Get("net0"), ",link_down=1", "", 1)
	l.must(t, "qm set 101 --net0 "+net0)
	if got := l.conf(t, 101).Get("net0"); got != net0 {
		t.Errorf("net0 %s as it runs, want %s", got, net0)
	}
	if got := l.must(t, "qm guest cmd 101 network-get-interfaces"); strings.Contains(got, "127.77.") {
		t.Errorf("the address of another card: %s", got)
	}
}

// A guest shares the machine's kernel: what makes another of it must not reach that.
func TestProcessGuest_CannotChangeTheMachine(t *testing.T) {
	l := newLab(t)
	l.boot(t, 100)
	hostname, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	machineID, _ := os.ReadFile("/etc/machine-id")
	for _, command := range []string{
		`! /bin/date -s @0 && ! /usr/bin/date -s @0`,
		`! ip link set dev lo address 02:00:00:00:00:01 && ! /usr/sbin/ip link set dev lo down`,
		`! /usr/sbin/ip address add 127.99.0.1/8 dev lo`,
		`! sh -c 'echo 1 >/proc/sys/vm/drop_caches' && ! sh -c 'echo x >/proc/sys/kernel/hostname'`,
		`hostname elsewhere && [ "$(hostname)" = elsewhere ]`,
		`umount -l /etc/machine-id && echo 0123 >/etc/machine-id && systemctl restart systemd-networkd`,
		`[ "$(ls /sys/class/net)" = eth0 ]`,
	} {
		l.inside(t, 100, command)
	}
	if year := time.Now().Year(); year < 2020 {
		t.Errorf("the machine's clock is in %d", year)
	}
	if now, _ := os.Hostname(); now != hostname {
		t.Errorf("the machine is %s now, and was %s", now, hostname)
	}
	if now, _ := os.ReadFile("/etc/machine-id"); !bytes.Equal(now, machineID) {
		t.Errorf("the machine's ID is %s now, and was %s", now, machineID)
	}
}

const labOwner = "99999999-2222-4333-8444-555555555555"

func scriptFile(name string) (string, error) {
	return filepath.Abs(filepath.Join("..", "..", "scripts", "proxmox", name+".sh"))
}

// script runs one of the host's scripts on the lab's host, and returns its answer.
func (l *Lab) script(t *testing.T, name string, env ...string) string {
	t.Helper()
	file, err := scriptFile(name)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", file)
	cmd.Env = append(hostEnv(l.State), append([]string{"LINUS_OWNER=" + labOwner, "TMPDIR=" + t.TempDir()}, env...)...)
	var out, log strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s%s", name, err, out.String(), log.String())
	}
	return out.String()
}

// value is that of a LINUS_ line.
func value(t *testing.T, answer, key string) string {
	t.Helper()
	_, rest, found := strings.Cut("\n"+answer, "\nLINUS_"+key+":")
	if !found {
		t.Fatalf("no LINUS_%s in\n%s", key, answer)
	}
	line, _, _ := strings.Cut(rest, "\n")
	return line
}

// vmEnv are create-vm's inputs.
func (l *Lab) vmEnv(t *testing.T, n int) []string {
	t.Helper()
	key, err := os.ReadFile(l.ClientKeyPath() + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	return []string{
		fmt.Sprintf("VM_NAME=vm-%d", n), fmt.Sprintf("LINUS_JOB=%08d-2222-4333-8444-555555555555", n), "SSH_PUBLIC_KEY=" + strings.TrimSpace(string(key)),
		"VM_TEMPLATE=9000", "VM_CPU=1", "VM_RAM=1024", "VM_DISK=10", "VM_OS=debian-12", fmt.Sprintf("VM_SSH_PORT=%d", l.Config.GuestPort),
	}
}

func TestCheckpoint_ByTheHostsScripts(t *testing.T) {
	bothVersions(t, func(t *testing.T, l *Lab, _ string) {
		l.must(t, "qm set 9000 --tags x") // no lock is on it
		made := l.script(t, "create-vm", l.vmEnv(t, 1)...)
		id := value(t, made, "VM_ID")
		saved := l.script(t, "checkpoint-vm", append(l.vmEnv(t, 1), "VM_ID="+id, "CHECKPOINT_ROOM=0")...)
		if got := value(t, saved, "CHECKPOINT_ID"); got != id {
			t.Fatalf("checkpoint %s of VM %s", got, id)
		}
		seen := map[string]bool{}
		for n := 2; n <= 3; n++ {
			began := time.Now()
			restored := l.script(t, "create-vm", append(l.vmEnv(t, n), "VM_CHECKPOINT="+id)...)
			t.Logf("restored in %s", time.Since(began))
			if got := value(t, restored, "VM_SOURCE"); got != "restored" {
				t.Errorf("source %s", got)
			}
			vm, err := strconv.Atoi(value(t, restored, "VM_ID"))
			if err != nil {
				t.Fatal(err)
			}
			client := l.login(t, vm, process.DefaultUser)
			if got := remote(t, client, "hostname; cat /etc/hostname"); got != fmt.Sprintf("vm-%d\nvm-%[1]d", n) {
				t.Errorf("host name %q", got)
			}
			if got, want := remote(t, client, "cat /var/lib/cloud/data/instance-id; cat /var/lib/cloud/instance/boot-finished >/dev/null"), remote(t, client, "sed 's/.*: //' /run/lab/seed"); got != want {
				t.Errorf("instance %s, on the drive %s", got, want)
			}
			for _, of := range []string{"cat /etc/machine-id", "cat /etc/ssh/ssh_host_ed25519_key.pub | cut -d' ' -f2", "cat /sys/class/net/eth0/address"} {
				got := remote(t, client, of)
				if seen[got] || got == "" {
					t.Errorf("%s: %s, as another VM", of, got)
				}
				seen[got] = true
			}
		}
		env := append(l.vmEnv(t, 1), "VM_ID="+id)
		if got := value(t, l.script(t, "destroy-vm", env...), "VM_OUTCOME"); got != "destroyed" {
			t.Errorf("its end: %s", got)
		}
	})
}
