package lab

import (
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"linus/internal/lab/image"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/loops"
)

// heldMachineID leaves a guest as it is where systemd-machine-id-commit never runs.
const heldMachineID = `sudo sh -c 'cp /etc/machine-id /run/machine-id && echo uninitialized >/etc/machine-id &&
	mount --bind /run/machine-id /etc/machine-id && mount -o remount,bind,ro /etc/machine-id'`

// TestQemu_APowerCutTakesNothingThatWasTold kills QEMU as soon as a script has told of what it did:
// a VM restored, one forked, a volume formatted. The image is as Debian's packages leave it,
// with nothing masked, and the template is one of ours.
func TestQemu_APowerCutTakesNothingThatWasTold(t *testing.T) {
	loops.AtNightOnly(t, "TestCheckpoint_ByTheHostsScripts restores processes whose machine ID is held in a mount; identity.bats and volume.bats look at what is on the disk by then")
	needQemu(t)
	l := newLab(t, func(o *Options) { o.Driver, o.ImageVariant = state.DriverQemu, image.Plain })
	began := time.Now()
	step := func(format string, args ...any) {
		t.Helper()
		t.Logf("%6.1fs %s", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
	env := func(n int, more ...string) []string {
		return append(l.vmEnv(t, n), append([]string{"VM_TEMPLATE=built", "VM_CPU=2", "VM_NETWORK_TIMEOUT=900", "VM_READY_TIMEOUT=900", "STORAGE_RESERVE=0"}, more...)...)
	}
	does := func(script string, env ...string) string {
		t.Helper()
		answer, err := l.onHost(script, env...)
		if err != nil {
			t.Fatal(err)
		}
		step("%s %s", script, env[len(env)-1])
		return answer
	}
	path, err := l.Driver.BuildImage(t.Context(), l.State)
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		t.Fatal(err)
	}
	does("build-template", fmt.Sprintf("VM_IMAGE_SHA256=%x", sum.Sum(nil)), "IMAGE_DIR="+t.TempDir(), "VM_BOOTSTRAP=none", "VM_NETWORK_TIMEOUT=900",
		"VM_IMAGE_URL=file://"+path, "TEMPLATE_NAME=built")

	id := value(t, does("create-vm", env(1)...), "VM_ID")
	source := l.inside(t, l.number(t, id), "cat /etc/machine-id; grep -c machine-id /proc/self/mounts; true")
	if !strings.HasSuffix(source, "\n0") {
		t.Errorf("its machine ID is not settled: %s", source)
	}
	l.inside(t, l.number(t, id), heldMachineID)
	does("checkpoint-vm", env(1, "CHECKPOINT_ROOM=0", "VM_ID="+id)...)

	// dies ends the QEMU of VMs, which cannot write anything more.
	dies := func(answers ...string) {
		t.Helper()
		for _, answer := range answers {
			pid, running := l.Pid(l.number(t, value(t, answer, "VM_ID")))
			if !running {
				t.Fatal("it does not run")
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if err := sys.WaitPidFile(t.Context(), l.PidFile(l.number(t, value(t, answer, "VM_ID")))); err != nil {
				t.Fatal(err)
			}
		}
		step("killed")
	}
	// isItself starts VM n again, and compares what it is with what was told of it.
	seen := map[string]bool{strings.Fields(source)[0]: true}
	isItself := func(n int, answer string) {
		t.Helper()
		id := value(t, answer, "VM_ID")
		again, err := l.onHost("power-vm", env(n, "ACTION=start", "VM_ID="+id)...)
		if err != nil {
			console, _ := os.ReadFile(l.LogPath(l.number(t, id)))
			t.Errorf("start VM %s again: %v; its console ends with:\n%s", id, err, console[max(0, len(console)-4000):])
			return
		}
		step("VM %s is up again", id)
		client := l.reach(t, again)
		is, err := askIdentity(client)
		if err != nil {
			t.Error(err)
			return
		}
		wanted := map[string]string{
			"host name": fmt.Sprintf("vm-%d", n), "MAC": strings.ToLower(l.conf(t, l.number(t, id)).MAC()),
			"host keys": strings.Fields(value(t, answer, "VM_HOST_KEY"))[1], "address": value(t, answer, "VM_IP") + "/24",
		}
		for name, want := range wanted {
			if !slices.Contains(strings.Fields(is[name]), want) {
				t.Errorf("%s of VM %s is %q, was %q", name, id, is[name], want)
			}
		}
		if hosts, err := guestRun(client, "grep ^127.0.1.1 /etc/hosts; hostname; cat /etc/hostname"); err != nil || strings.Contains(strings.ReplaceAll(hosts, wanted["host name"], ""), "vm-") {
			t.Errorf("names of VM %s: %q, %v", id, hosts, err)
		}
		if machine := is["machine ID"]; seen[machine] || len(machine) != 32 {
			t.Errorf("machine ID of VM %s: %s, as another's", id, machine)
		} else {
			seen[machine] = true
		}
		if _, err := strconv.ParseUint(strings.Fields(is["instance"])[0][:15], 16, 64); err != nil || seen[is["instance"]] {
			t.Errorf("instance of VM %s: %s, %v", id, is["instance"], err)
		}
		seen[is["instance"]] = true
	}

	restored := does("create-vm", env(2, "VM_CHECKPOINT="+id)...)
	dies(restored)
	isItself(2, restored)

	vm := value(t, restored, "VM_ID")
	does("power-vm", env(2, "ACTION=fork", "VM_ID="+vm)...)
	forked := does("create-vm", env(3, "VM_FORK_JOB=00000002-2222-4333-8444-555555555555", "VM_FORK_LIVE=true", "VM_FORK="+vm)...)
	dies(forked)
	does("power-vm", env(2, "ACTION=unfork", "VM_ID="+vm)...)

	volume := []string{"VOLUME_UUID=66666666-2222-4333-8444-555555555555", "VOLUME_HOLDER=linus-volume-555555555555"}
	holder := value(t, does("volume", append(volume, "STORAGE_RESERVE=0", "VOLUME_NAME=cache", "VOLUME_SIZE=1", "ACTION=create")...), "VM_ID")
	does("volume", append(volume, env(2, "VM_ID="+vm, "VOLUME_VMID="+holder, "VOLUME_PATH=/srv/cache", "ACTION=attach")...)...)
	dies(restored)
	isItself(3, forked)
	does("power-vm", env(2, "VM_ID="+vm, "ACTION=start")...)
	l.inside(t, l.number(t, vm), `n=0; until [ "$(findmnt -nro FSTYPE --mountpoint /srv/cache)" = ext4 ]; do n=$((n + 1)); [ $n -lt 100 ] || exit 1; sleep 0.2; done`)
}
