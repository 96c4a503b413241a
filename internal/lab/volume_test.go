package lab

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"linus/internal/lab/state"
	"linus/internal/loops"
)

// volumeLab are two VMs and a volume, used by the host's scripts.
type volumeLab struct {
	*Lab
	env    func(n int, more ...string) []string // of VM n, 1 or 2
	holder string
	ids    [3]string
}

const volumeAt = "/srv/my cache"

func newVolumeLab(t *testing.T, l *Lab, more ...string) *volumeLab {
	t.Helper()
	v := &volumeLab{Lab: l, env: func(n int, and ...string) []string {
		return append(l.vmEnv(t, n), append(append([]string{"STORAGE_RESERVE=0"}, more...), and...)...)
	}}
	made, err := l.onHost("volume", v.named("ACTION=create", "VOLUME_NAME=cache", "VOLUME_SIZE=1", "STORAGE_RESERVE=0")...)
	if err != nil {
		t.Fatal(err)
	}
	v.holder = value(t, made, "VM_ID")
	var both sync.WaitGroup
	for n := 1; n <= 2; n++ {
		both.Go(func() {
			made, err := l.onHost("create-vm", v.env(n)...)
			if err != nil {
				t.Error(err)
				return
			}
			v.ids[n] = value(t, made, "VM_ID")
		})
	}
	if both.Wait(); t.Failed() {
		t.FailNow()
	}
	return v
}

func (*volumeLab) named(more ...string) []string {
	return append([]string{"VOLUME_UUID=66666666-2222-4333-8444-555555555555", "VOLUME_HOLDER=linus-volume-555555555555"}, more...)
}

// does runs a script about VM n and the volume.
func (v *volumeLab) does(script string, n int, more ...string) (string, error) {
	return v.onHost(script, v.named(v.env(n, append([]string{"VM_ID=" + v.ids[n], "VOLUME_VMID=" + v.holder, "VOLUME_PATH=" + volumeAt, "VOLUME_FORMATTED=true"}, more...)...)...)...)
}

func (v *volumeLab) must(t *testing.T, script string, n int, more ...string) {
	t.Helper()
	began := time.Now()
	if _, err := v.does(script, n, more...); err != nil {
		t.Fatal(err)
	}
	t.Logf("%6.1fs for %s", time.Since(began).Seconds(), strings.Join(more, " "))
}

func (v *volumeLab) refuses(t *testing.T, want string, n int, more ...string) {
	t.Helper()
	if said, err := v.does("volume", n, more...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%q is not what was said of %s: %s %v", want, strings.Join(more, " "), said, err)
	}
}

// in runs a command in VM n, as root.
func (v *volumeLab) in(t *testing.T, n int, command string) string {
	t.Helper()
	return v.inside(t, v.number(t, v.ids[n]), "at='"+volumeAt+"'; "+command)
}

const volumeSeen = `findmnt -nro FSTYPE --mountpoint "$at" >/dev/null && cat "$at/file"`

// boots has VM n boot by Proxmox's own commands, and waits until it has the volume again.
func (v *volumeLab) boots(t *testing.T, n int, commands ...string) {
	t.Helper()
	began := time.Now()
	before := v.in(t, n, "cat /proc/sys/kernel/random/boot_id")
	for _, command := range commands {
		v.Lab.must(t, "qm "+command+" "+v.ids[n])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	waitFor(t, ctx, "its boot with the volume", func() error {
		r := v.runArgs(t, []string{"qm", "guest", "exec", v.ids[n], "--", "sh", "-c", "at='" + volumeAt + "'; cat /proc/sys/kernel/random/boot_id; " + volumeSeen}, "")
		if strings.Contains(r.out, before) || !strings.Contains(r.out, "kept") {
			return fmt.Errorf("%s%s", r.out, r.err)
		}
		return nil
	})
	t.Logf("%6.1fs for %s, and the volume is mounted", time.Since(began).Seconds(), strings.Join(commands, ", "))
}

// steps is what becomes of a volume: made, attached to one that runs, written; there again at
// each boot; read by two; there when its VMs are gone.
func (v *volumeLab) steps(t *testing.T) {
	t.Helper()
	v.must(t, "volume", 1, "ACTION=attach", "VOLUME_FORMATTED=false")
	if got := v.in(t, 1, `echo kept >"$at/file"; sync; stat -c %U "$at"; grep -c x-linus-volume /etc/fstab; lsblk -dnro PATH,SERIAL | grep -c linus`); got != "debian\n1\n1" {
		t.Errorf("attached: %q", got)
	}
	v.must(t, "volume", 1, "ACTION=attach", "VOLUME_FORMATTED=false")
	if got := v.in(t, 1, volumeSeen+"; grep -c x-linus-volume /etc/fstab"); got != "kept\n1" {
		t.Errorf("attached twice: %q", got)
	}
	v.refuses(t, "is attached to VM "+v.ids[1]+" (rw)", 2, "ACTION=attach", "VOLUME_MODE=ro")

	v.boots(t, 1, "reboot")
	v.in(t, 1, `cd "$at"; setsid sh -c 'while :; do echo >>ticks; sleep 0.2; done' >/dev/null 2>&1 </dev/null & echo "$!" >/var/tmp/ticking`)
	v.must(t, "power-vm", 1, "ACTION=suspend")
	v.refuses(t, "is suspended, and has volume", 1, "ACTION=detach")
	v.must(t, "power-vm", 1, "ACTION=resume")
	v.in(t, 1, `had=$(wc -l <"$at/ticks"); n=0; while [ "$(wc -l <"$at/ticks")" = "$had" ]; do n=$((n + 1)); [ "$n" -lt 300 ] || exit 1; sleep 0.2; done`)
	v.refuses(t, "busy", 1, "ACTION=detach")
	v.in(t, 1, `kill "$(cat /var/tmp/ticking)"`)
	v.must(t, "volume", 1, "ACTION=detach")
	if got := v.in(t, 1, `ls "$at"; grep -c x-linus-volume /etc/fstab; lsblk -dnro PATH,SERIAL | grep -c linus; true`); got != "0\n0" {
		t.Errorf("taken off: %q", got)
	}

	for n := 1; n <= 2; n++ {
		v.must(t, "volume", n, "ACTION=attach", "VOLUME_MODE=ro")
		if got := v.in(t, n, volumeSeen+`; touch "$at/new" 2>/dev/null || echo no`); got != "kept\nno" {
			t.Errorf("read by VM %d: %q", n, got)
		}
	}
	v.refuses(t, "is attached to VM "+v.ids[1]+" (ro)", 2, "ACTION=attach", "VOLUME_MODE=rw")
	v.must(t, "volume", 1, "ACTION=detach")
	if said, err := v.does("destroy-vm", 2); err != nil || value(t, said, "VM_OUTCOME") != "destroyed" {
		t.Fatalf("a VM that has it is destroyed: %s %v", said, err)
	}
	v.must(t, "volume", 1, "ACTION=attach")
	if got := v.in(t, 1, volumeSeen); got != "kept" {
		t.Errorf("after the VM that read it: %q", got)
	}
}

// ends has the volume's last VM destroyed, and then the volume.
func (v *volumeLab) ends(t *testing.T) {
	t.Helper()
	for _, e := range []struct {
		name string
		env  []string
	}{
		{"the VM", nil},
		{"the volume", []string{"VM_KIND=volume", "VM_ID=" + v.holder, "VM_NAME=linus-volume-555555555555", "LINUS_JOB=66666666-2222-4333-8444-555555555555"}},
	} {
		if st, _ := v.Storage("local-lvm"); len(v.Volumes(st, v.number(t, v.holder))) != 1 {
			t.Errorf("before the end of %s the volume is gone", e.name)
		}
		if said, err := v.does("destroy-vm", 1, e.env...); err != nil || value(t, said, "VM_OUTCOME") != "destroyed" {
			t.Fatalf("%s: %s %v", e.name, said, err)
		}
	}
	if st, _ := v.Storage("local-lvm"); len(v.Volumes(st, v.number(t, v.holder))) != 0 {
		t.Error("the volume outlives its removal")
	}
}

func (l *Lab) number(t *testing.T, id string) (n int) {
	t.Helper()
	if _, err := fmt.Sscan(id, &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestVolume_ByTheHostsScripts(t *testing.T) {
	v := newVolumeLab(t, newLab(t))
	v.steps(t)
	v.boots(t, 1, "stop", "start")
	v.ends(t)
}

// TestQemu_VolumesOfMachines is that of real machines, whose kernels have to let go of a disk's
// controller, and whose file systems are those they are.
func TestQemu_VolumesOfMachines(t *testing.T) {
	loops.AtNightOnly(t, "TestVolume_ByTheHostsScripts takes processes through the same steps, by the same scripts, with the same program")
	needQemu(t)
	v := newVolumeLab(t, newLab(t, func(o *Options) { o.Driver = state.DriverQemu }), "VM_CPU=2", "VM_NETWORK_TIMEOUT=900", "VM_READY_TIMEOUT=900")
	v.in(t, 1, "rm /etc/systemd/system-generators/systemd-fstab-generator") // the lab's image boots without, to be faster
	v.steps(t)

	// One that is pulled out is there at the next boot, and its journal is read then.
	v.in(t, 1, `echo more >"$at/late"`)
	v.boots(t, 1, "stop", "start")
	if got := v.in(t, 1, `grep -cF " $(printf %s "$at" | sed 's/ /\\040/g') ext4 rw" /proc/mounts; lsblk -dnro PATH,SERIAL | grep -c linus`); got != "1\n1" {
		t.Errorf("after a stop: %q", got)
	}

	// Without its VM's unmount, readers cannot have it before a writer has had it.
	v.Lab.must(t, "qm stop "+v.ids[1])
	v.must(t, "volume", 1, "ACTION=detach")
	began := time.Now()
	v.must(t, "power-vm", 1, "ACTION=start")
	t.Logf("%6.1fs for a boot without it", time.Since(began).Seconds())
	v.refuses(t, "attach it for writing once", 1, "ACTION=attach", "VOLUME_MODE=ro")
	v.must(t, "volume", 1, "ACTION=attach")
	v.must(t, "volume", 1, "ACTION=detach")
	v.must(t, "volume", 1, "ACTION=attach", "VOLUME_MODE=ro")
	if got := v.in(t, 1, volumeSeen); got != "kept" {
		t.Errorf("after a VM that did not unmount it: %q", got)
	}
	v.must(t, "volume", 1, "ACTION=detach")

	// A guest that stands still lets go of no card. The disk is gone by then; the next try ends well.
	disk := v.conf(t, v.number(t, v.holder)).Get("unused0")
	v.Lab.must(t, "qm set "+v.ids[1]+" --scsi7 "+disk+",iothread=1,serial=pulled")
	v.in(t, 1, "n=0; until lsblk -dnro SERIAL | grep -q pulled; do n=$((n + 1)); [ $n -lt 100 ] || exit 1; sleep 0.2; done")
	v.Lab.must(t, "qm suspend "+v.ids[1])
	v.refused(t, "qm set "+v.ids[1]+" --delete scsi7", 255, "400 Parameter verification failed.\nscsi7: hotplug problem - error on hot-unplugging device 'virtioscsi7' - still busy in guest?\n")
	if conf := v.conf(t, v.number(t, v.ids[1])); !conf.Has("scsi7") || !strings.Contains(conf.String(), "delete: scsi7") {
		t.Errorf("what was not let go of:\n%s", conf)
	}
	v.Lab.must(t, "qm resume "+v.ids[1])
	v.Lab.must(t, "qm set "+v.ids[1]+" --delete scsi7")
	if conf := v.conf(t, v.number(t, v.ids[1])); conf.Has("scsi7") {
		t.Errorf("what was let go of:\n%s", conf)
	}
	v.refused(t, "qm set "+v.ids[1]+" --delete scsi0", 255, "400 Parameter verification failed.\nscsi0: hotplug problem - can't unplug bootdisk 'scsi0'\n")

	v.must(t, "volume", 1, "ACTION=attach")
	v.ends(t)
}
