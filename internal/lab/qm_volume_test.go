package lab

import (
	"strings"
	"testing"
)

// A disk of another VM is attached as any, and is that VM's: it goes with that one alone.
func TestForeignDisk(t *testing.T) {
	l := newLab(t)
	client := l.boot(t, 100)
	l.must(t, "qm create 101 --name holder --memory 16 --scsi0 local-lvm:1")
	l.must(t, "qm set 101 --delete scsi0 --protection 1")
	if conf := l.conf(t, 101); conf.Get("unused0") != "local-lvm:vm-101-disk-0" || conf.Has("scsi0") {
		t.Fatalf("a VM's own disk that is put aside: %s", conf)
	}
	l.refused(t, "qm set 101 --delete unused0", 255, "can't remove unused disk 'local-lvm:vm-101-disk-0' - protection mode enabled\n")
	conf := l.conf(t, 100)
	conf.Set("hotplug", "network")
	if err := l.WriteConf(100, conf); err != nil {
		t.Fatal(err)
	}
	l.must(t, "qm set 100 --scsi2 local-lvm:vm-101-disk-0")
	if conf := l.conf(t, 100); conf.Has("scsi2") || !strings.Contains(conf.String(), "[PENDING]\nscsi2: local-lvm:vm-101-disk-0") {
		t.Errorf("a disk where none is hot-plugged:\n%s", conf)
	}
	l.must(t, "qm set 100 --delete scsi2")
	conf = l.conf(t, 100)
	conf.Set("hotplug", "network,disk")
	if err := l.WriteConf(100, conf); err != nil {
		t.Fatal(err)
	}
	l.refused(t, "qm set 100 --delete scsi0", 255, "400 Parameter verification failed.\nscsi0: hotplug problem - can't unplug bootdisk 'scsi0'\n")
	if conf := l.conf(t, 100); strings.Contains(conf.String(), "scsi2") || !strings.Contains(conf.String(), "[PENDING]\ndelete: scsi0") {
		t.Errorf("a disk that waits no more, and one that is to go:\n%s", conf)
	}
	l.must(t, "qm set 100 --scsi0 "+l.conf(t, 100).Get("scsi0"))
	l.refused(t, "qm set 100 --scsi2 local-lvm:vm-101-disk-7", 255, "volume local-lvm:vm-101-disk-7 does not exist\n")
	l.must(t, "qm set 100 --scsi2 local-lvm:vm-101-disk-0,serial=linus1,backup=0")

	run := func(line string) string { return strings.TrimSpace(remote(t, client, line)) }
	dev := strings.Fields(run("lsblk -dnro PATH,SERIAL"))[0]
	if out := run("wipefs -n " + dev + "; blkid -p -o value -s UUID " + dev + " || echo $?"); out != "2" {
		t.Errorf("what an empty disk has: %q", out)
	}
	run("mkfs.ext4 -q -F -U 0d3a4f63-0d3a-4f63-8d7f-e9f4f35f1b2a " + dev + " && mkdir -p /mnt/v && mount -t ext4 -o rw " + dev + " /mnt/v && echo kept >/mnt/v/file")
	if out := run("findmnt -nro TARGET -S " + dev + "; findmnt -nro SOURCE --mountpoint /mnt/v; blkid -p -o value -s UUID " + dev); out != "/mnt/v\n"+dev+"\n0d3a4f63-0d3a-4f63-8d7f-e9f4f35f1b2a" {
		t.Errorf("what is mounted: %q", out)
	}
	l.refused(t, "qm set 100 --delete scsi2", 255, "400 Parameter verification failed.\nscsi2: hotplug problem - error on hot-unplugging device 'scsi2' - still busy in guest?\n")
	run("umount /mnt/v")
	l.must(t, "qm set 100 --delete scsi2")
	if out := run("lsblk -dnro PATH,SERIAL"); out != "" || strings.Contains(l.conf(t, 100).String(), "vm-101") {
		t.Errorf("a disk that was taken away: %q, %s", out, l.conf(t, 100))
	}
	l.must(t, "qm set 100 --scsi2 local-lvm:vm-101-disk-0,serial=linus1,ro=1")
	if out := run("mount -t ext4 -o rw " + dev + " /mnt/v || mount -t ext4 -o ro " + dev + " /mnt/v; cat /mnt/v/file; touch /mnt/v/new 2>/dev/null || echo no"); !strings.Contains(out, "kept") || !strings.HasSuffix(out, "no") {
		t.Errorf("a disk that is read only: %q", out)
	}
	l.must(t, "qm stop 100")
	l.must(t, "qm destroy 100")
	if st, _ := l.Storage("local-lvm"); len(l.Volumes(st, 101)) != 1 {
		t.Error("the disk went with a VM that is not its own")
	}
	l.must(t, "qm set 101 --protection 0")
	l.must(t, "qm destroy 101")
	if st, _ := l.Storage("local-lvm"); len(l.Volumes(st, 101)) != 0 {
		t.Error("the disk stays without its VM")
	}
}
