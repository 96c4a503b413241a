package lab

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab/process"
	"linus/internal/lab/state"
)

func TestSnapshot_RollbackGivesFilesAndConfigBack(t *testing.T) {
	l := newLab(t)
	client := l.boot(t, 100)
	remote(t, client, "echo first >/opt/file; chmod 1777 /srv; sync")
	l.must(t, "qm set 100 --description linus-job=1")
	if got, want := l.must(t, "qm snapshot 100 clean --description fresh"), "snapshotting 'drive-scsi0' (local-lvm:vm-100-disk-0)\n"; got != want {
		t.Errorf("snapshot prints %q, want %q", got, want)
	}
	key := l.must(t, "qm guest exec 100 -- cat /etc/ssh/ssh_host_ed25519_key.pub")
	remote(t, client, "echo second >/opt/file; touch /opt/later; rm -rf /etc/ssh/ssh_host_*")
	l.must(t, "qm set 100 --description linus-job=2 --tags later")
	before := l.conf(t, 100)

	l.must(t, "qm rollback 100 clean")
	if got := l.must(t, "qm status 100"); got != "status: stopped\n" {
		t.Errorf("after the rollback: %s", got)
	}
	conf := l.conf(t, 100)
	if conf.Has("tags") || conf.Get("description") != "linus-job=2\n" || conf.Get("parent") != "clean" || conf.Has("lock") {
		t.Errorf("config after the rollback:\n%s", conf)
	}
	if conf.Get("vmgenid") == before.Get("vmgenid") || conf.Get("net0") != before.Get("net0") {
		t.Errorf("vmgenid %q, net0 %q", conf.Get("vmgenid"), conf.Get("net0"))
	}
	l.must(t, "qm start 100")
	client = l.login(t, 100, process.DefaultUser)
	if got := remote(t, client, "cat /opt/file; ls /opt/later 2>&1; stat -c %a /srv"); !strings.HasPrefix(got, "first\n") || !strings.Contains(got, "No such file") || !strings.HasSuffix(got, "\n1777") {
		t.Errorf("files after the rollback: %q", got)
	}
	if again := l.must(t, "qm guest exec 100 -- cat /etc/ssh/ssh_host_ed25519_key.pub"); again != key {
		t.Errorf("host key %q, was %q", again, key)
	}
}

func TestSnapshot_ListsAndDeletesATree(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	for _, name := range []string{"one", "two", "three"} {
		l.must(t, "qm snapshot 100 "+name)
	}
	if r := l.run(t, "qm snapshot 100 two"); r.code == 0 || r.err != "snapshot name 'two' already used\n" {
		t.Errorf("a name twice: %+v", r)
	}
	if r := l.run(t, "qm template 100"); r.code == 0 || !strings.Contains(r.err, "because VM contains snapshots") {
		t.Errorf("a template of a VM with snapshots: %+v", r)
	}
	l.must(t, "qm delsnapshot 100 two")
	conf := l.conf(t, 100)
	if got := slices.Sorted(maps.Keys(conf.Snapshots)); !cmp.Equal(got, []string{"one", "three"}) || conf.Snapshots["three"]["parent"] != "one" || conf.Get("parent") != "three" {
		t.Errorf("after two is deleted:\n%s", conf)
	}
	if got := l.must(t, "pvesh get /nodes/pve/qemu/100/snapshot --output-format json"); !strings.Contains(got, `"name":"current","parent":"three"`) {
		t.Errorf("the API: %s", got)
	}
	if got := l.must(t, "qm config 100 --snapshot one"); !strings.Contains(got, "snaptime: ") || strings.Contains(got, "parent: ") {
		t.Errorf("config of the first snapshot:\n%s", got)
	}
	if got := l.must(t, "qm clone 100 101"); l.conf(t, 101).Has("parent") || len(l.conf(t, 101).Snapshots) != 0 {
		t.Errorf("a clone has the snapshots: %s", got)
	}
	if got := l.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 3 {
		t.Errorf("snapshots show as volumes:\n%s", got)
	}
	l.must(t, "qm destroy 100")
	if left, err := filepath.Glob(l.Path("storage", "local-lvm", ".vm-100*")); err != nil || len(left) != 0 {
		t.Errorf("destroy left %v, %v", left, err)
	}
}

func TestSnapshot_NeedsAFormatThatHasThem(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm create 100 --scsi0 local:1")
	if r := l.run(t, "qm snapshot 100 clean"); r.code == 0 || r.err != "snapshot feature is not available\n" {
		t.Errorf("of a raw file: %+v", r)
	}
	if conf := l.conf(t, 100); conf.Has("lock") || len(conf.Snapshots) != 0 {
		t.Errorf("left behind:\n%s", conf)
	}
}

func TestSnapshot_KilledHalfWayLeavesItsLock(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	l.setFault(t, state.FaultKilledWorker, "1")
	if err := l.command(t, "qm", "snapshot", "100", "clean").Run(); err == nil {
		t.Fatal("it was to be killed")
	}
	if r := l.run(t, "qm snapshot 100 other"); r.code == 0 || r.err != "VM is locked (snapshot)\n" {
		t.Errorf("with the lock: %+v", r)
	}
	l.must(t, "qm unlock 100")
	if r := l.run(t, "qm rollback 100 clean"); r.code == 0 || !strings.Contains(r.err, "incomplete snapshot") {
		t.Errorf("rollback to a half: %+v", r)
	}
	l.must(t, "qm delsnapshot 100 clean --force")
	l.must(t, "qm snapshot 100 clean")
}

func TestDelsnapshot_ThatFailsLeavesItsLockAndHalfASnapshot(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm clone 9000 100")
	l.must(t, "qm snapshot 100 clean")
	l.must(t, "qm set 100 --lock backup")
	if r := l.run(t, "qm delsnapshot 100 clean"); r.code != 255 || r.err != "VM is locked (backup)\n" {
		t.Errorf("of a VM that is locked: %+v", r)
	}
	l.must(t, "qm unlock 100")
	half := func(what string) {
		t.Helper()
		if conf := l.conf(t, 100); conf.Get("lock") != "snapshot-delete" || conf.Snapshots["clean"]["snapstate"] != "delete" || conf.Get("parent") != "clean" {
			t.Errorf("%s:\n%s", what, conf)
		}
		if r := l.run(t, "qm delsnapshot 100 clean --force"); r.code != 255 || r.err != "VM is locked (snapshot-delete)\n" {
			t.Errorf("%s, with the lock: %+v", what, r)
		}
		l.must(t, "qm unlock 100")
	}
	l.setFault(t, state.FaultKilledWorker, "1")
	if err := l.command(t, "qm", "delsnapshot", "100", "clean").Run(); err == nil {
		t.Fatal("it was to be killed")
	}
	half("killed")
	for _, path := range []string{l.Path("storage", "local-lvm", ".vm-100*clean*")} {
		found, err := filepath.Glob(path)
		if err != nil || len(found) == 0 {
			t.Fatalf("no snapshot of the disk at %s: %v", path, err)
		}
		for _, file := range found {
			if err := os.RemoveAll(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := l.run(t, "qm delsnapshot 100 clean"); r.code == 0 {
		t.Errorf("of a disk without it: %+v", r)
	}
	half("failed")
	l.must(t, "qm delsnapshot 100 clean --force")
	if conf := l.conf(t, 100); conf.Has("lock") || conf.Has("parent") || len(conf.Snapshots) != 0 {
		t.Errorf("after all:\n%s", conf)
	}
}

func TestSnapshot_ARawFileHasNone(t *testing.T) {
	l := newLab(t)
	l.must(t, "qm create 100 --scsi0 local:0,import-from="+filepath.Join(l.Dir, "image.qcow2"))
	l.must(t, "qm create 101 --scsi0 local:0,import-from="+filepath.Join(l.Dir, "image.qcow2")+",format=qcow2")
	for id, has := range map[string]string{"100": "0", "101": "1"} {
		want := `{"hasFeature":` + has + `,"nodes":["` + l.Config.Node + `"]}` + "\n"
		if got := l.must(t, "pvesh get /nodes/"+l.Config.Node+"/qemu/"+id+"/feature --feature snapshot --output-format json"); got != want {
			t.Errorf("VM %s: %s", id, got)
		}
	}
	if r := l.run(t, "qm snapshot 100 clean"); r.code != 255 || r.err != "snapshot feature is not available\n" {
		t.Errorf("raw: %+v", r)
	}
	l.must(t, "qm snapshot 101 clean")
}
