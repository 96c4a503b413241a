package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

func TestCluster_VMsMove(t *testing.T) {
	first, second, third := newCluster(t)
	pid := func(l *Lab) int { p, _ := l.Pid(100); return p }

	first.must(t, "qm clone 9000 100 --name mover")
	out := first.must(t, "qm migrate 100 pve2")
	for _, want := range []string{" starting migration of VM 100 to node 'pve2' (127.78.", " found local disk 'local-lvm:vm-100-disk-0' (attached)\n", " migration finished successfully (duration 00:00:0"} {
		if !strings.Contains(out, want) {
			t.Errorf("offline: no %q in\n%s", want, out)
		}
	}
	if _, err := os.Stat(first.ConfPath(100)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the config is still on pve1: %v", err)
	}
	if got := first.must(t, "pvesm list local-lvm --vmid 100"); strings.Count(got, "\n") != 1 {
		t.Errorf("volumes left on pve1:\n%s", got)
	}
	second.must(t, "qm start 100")
	process, address := pid(second), second.address(t, 100)
	if r := second.run(t, "qm migrate 100 pve3 --online"); r.code == 0 || !strings.Contains(r.out, "can't migrate local disk 'local-lvm:vm-100-disk-0': can't live migrate attached local disks without with-local-disks option\n") {
		t.Errorf("online without its disks: %+v", r)
	}
	second.must(t, "qm migrate 100 pve3 --online --with-local-disks")
	if got := third.must(t, "qm status 100"); got != "status: running\n" {
		t.Errorf("on pve3: %s", got)
	}
	if pid(third) != process || third.address(t, 100) != address || pid(second) != 0 {
		t.Errorf("process %d at %s is now %d at %s", process, address, pid(third), third.address(t, 100))
	}
	raw, err := os.ReadFile(third.QemuPidFile(100))
	if err != nil || strings.TrimSpace(string(raw)) != fmt.Sprint(process) {
		t.Errorf("QEMU's pid file on pve3: %q, %v", raw, err)
	}
	if _, err := os.Stat(second.QemuPidFile(100)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("QEMU's pid file on pve2: %v", err)
	}
	third.must(t, "qm stop 100")
	third.must(t, "qm destroy 100 --purge 1 --destroy-unreferenced-disks 1")
	if _, alive := sys.ProcessStart(process); alive {
		t.Error("the guest outlives its VM")
	}
}

func TestCluster_SharedStorage(t *testing.T) {
	first, second, _ := newCluster(t, func(o *Options) { o.Storage = "shared" })
	if ids := second.IDsOf("pve2", "qemu-server"); len(ids) != 0 {
		t.Errorf("pve2 has a template of its own: %v", ids)
	}
	first.must(t, "qm clone 9000 100 --name cloned --target pve2")
	second.must(t, "qm start 100")
	if r := first.run(t, "qm destroy 9000"); r.code != 255 || !strings.Contains(r.err, "is still in use by linked cloned") {
		t.Errorf("destroy of a base that a clone on another node reads: %+v", r)
	}
	second.must(t, "qm migrate 100 pve1 --online")
	if got := first.must(t, "qm status 100"); got != "status: running\n" {
		t.Errorf("moved: %s", got)
	}
	// A VM of a node that is down is started elsewhere once its config is there: so does HA.
	if err := second.NodeDown(t.Context(), "pve1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(second.ConfPathOn("pve1", 100), second.ConfPath(100)); err != nil {
		t.Fatal(err)
	}
	second.must(t, "qm start 100")
	if err := second.NodeUp(t.Context(), "pve1"); err != nil {
		t.Fatal(err)
	}
	if r := first.run(t, "qm status 100"); r.code != 2 {
		t.Errorf("on the node that is back: %+v", r)
	}
}

func TestCluster_Statistics(t *testing.T) {
	first, second, _ := newCluster(t)
	nodes := first.resources(t, "node")
	for name, want := range map[string][2]float64{"node/pve1": {32 << 30, 16}, "node/pve2": {16 << 30, 8}, "node/pve3": {8 << 30, 8}} {
		if n := nodes[name]; n["maxmem"] != want[0] || n["maxcpu"] != want[1] || n["status"] != "online" {
			t.Errorf("%s: %v", name, n)
		}
	}
	if raw, err := os.ReadFile(second.Path("proc", "meminfo")); err != nil || !strings.Contains(string(raw), "MemTotal:       16777216 kB\n") {
		t.Errorf("meminfo of pve2: %s, %v", raw, err)
	}
	// Seen before the next statistics, which a busy machine may be too slow for.
	id := 99
	for window := (time.Time{}); !window.Equal(time.Now().Truncate(state.StatisticsInterval)); {
		id++
		nextStatistics(t)
		window = time.Now().Truncate(state.StatisticsInterval)
		second.must(t, fmt.Sprintf("qm clone 9001 %d --name new --description d", id))
		if vm := first.resources(t, "vm")[fmt.Sprintf("qemu/%d", id)]; (vm["status"] != "unknown" || vm["name"] != nil || vm["maxmem"] != nil || vm["node"] != "pve2") && window.Equal(time.Now().Truncate(state.StatisticsInterval)) {
			t.Errorf("a VM made just now: %v", vm)
		}
	}
	if vm := first.resources(t, "vm")["qemu/9000"]; vm["name"] != TemplateName || vm["template"] != 1.0 {
		t.Errorf("a template of before: %v", vm)
	}
	nextStatistics(t)
	if vm := first.resources(t, "vm")[fmt.Sprintf("qemu/%d", id)]; vm["status"] != "stopped" || vm["name"] != "new" {
		t.Errorf("10 s later: %v", vm)
	}
	for id, want := range map[string]float64{"storage/pve1/local-lvm": 0, "storage/pve2/shared": 1} {
		if st := first.resources(t, "storage")[id]; st["shared"] != want || st["status"] != "available" {
			t.Errorf("%s: %v", id, st)
		}
	}
	if err := first.SetMaintenance(t.Context(), "pve3", true); err != nil {
		t.Fatal(err)
	}
	if n := second.resources(t, "node")["node/pve3"]; n["hastate"] != "maintenance" || n["status"] != "online" {
		t.Errorf("pve3 in maintenance: %v", n)
	}
}

func TestCluster_NodeDown(t *testing.T) {
	first, second, third := newCluster(t)
	second.must(t, "qm clone 9001 100 --name lost")
	second.must(t, "qm clone 9001 101 --name boots")
	second.must(t, "qm set 101 --onboot 1")
	second.must(t, "qm start 100")
	second.must(t, "qm start 101")
	nextStatistics(t)
	guest, _ := second.Pid(100)
	if err := first.NodeDown(t.Context(), "pve2"); err != nil {
		t.Fatal(err)
	}
	if _, alive := sys.ProcessStart(guest); alive {
		t.Error("a VM of the node that is down runs")
	}
	if _, err := dialHost(second.State); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("its sshd: %v", err)
	}
	online, quorate := first.members(t)
	if diff := cmp.Diff([]string{"pve1", "pve3"}, online); diff != "" || quorate != 1 {
		t.Errorf("quorate %d, online (-want +got):\n%s", quorate, diff)
	}
	if vm := third.resources(t, "vm")["qemu/100"]; vm["status"] != "running" || vm["node"] != "pve2" {
		t.Errorf("what is known of its VM: %v", vm)
	}
	if n := third.resources(t, "node")["node/pve2"]; n["status"] != "offline" {
		t.Errorf("the node: %v", n)
	}
	if r := first.run(t, "pvesh get /nodes/pve2/qemu --output-format json"); r.code != 255 || !strings.HasPrefix(r.err, "ssh: connect to host 127.78.") || !strings.Contains(r.err, "No route to host\nproxy handler failed: command '/usr/bin/ssh -e none") {
		t.Errorf("asked for its VMs: %+v", r)
	}
	first.must(t, "qm clone 9000 102 --name mover")
	if r := first.run(t, "qm migrate 102 pve2"); r.code != 255 || !strings.Contains(r.out, "Can't connect to destination address using public key\n") {
		t.Errorf("migrate to it: %+v", r)
	}
	// 5 minutes later the others have forgotten its VMs but for their configs.
	if err := first.edit(t.Context(), "pve2", func(m *state.Member) { m.Down = m.Down.Add(-state.StatisticsKept) }); err != nil {
		t.Fatal(err)
	}
	if vm := third.resources(t, "vm")["qemu/100"]; vm["status"] != "unknown" || vm["name"] != nil {
		t.Errorf("forgotten: %v", vm)
	}
	// With a second node down the last one has no quorum.
	if err := first.NodeDown(t.Context(), "pve3"); err != nil {
		t.Fatal(err)
	}
	if _, quorate := first.members(t); quorate != 0 {
		t.Error("one node of three is quorate")
	}
	if r := first.run(t, "qm create 110"); r.err != "cluster not ready - no quorum?\n" {
		t.Errorf("create: %+v", r)
	}
	for _, name := range []string{"pve2", "pve3"} {
		if err := first.NodeUp(t.Context(), name); err != nil {
			t.Fatal(err)
		}
	}
	if online, quorate := second.members(t); len(online) != 3 || quorate != 1 {
		t.Errorf("back: quorate %d, online %v", quorate, online)
	}
	// Faults show in the cluster's files, too.
	if err := errors.Join(second.SetFault(state.FaultMissingNode, "pve3"), second.SetFault(state.FaultNoQuorum, "1")); err != nil {
		t.Fatal(err)
	}
	if online, quorate := second.members(t); !cmp.Equal(online, []string{"pve1", "pve2"}) || quorate != 0 {
		t.Errorf("with faults: quorate %d, online %v", quorate, online)
	}
	if err := second.ClearFaults(); err != nil {
		t.Fatal(err)
	}
	if online, quorate := second.members(t); len(online) != 3 || quorate != 1 {
		t.Errorf("without faults: quorate %d, online %v", quorate, online)
	}
	if got := hostRun(t, second.State, "qm status 100; qm status 101"); got != "status: stopped\nstatus: running\n" {
		t.Errorf("after the boot: %s", got)
	}
}

func TestCluster_QuorumLost(t *testing.T) {
	first, second, third := newCluster(t)
	third.must(t, "qm clone 9002 100 --name cut")
	third.must(t, "qm clone 9002 101 --name idle")
	third.must(t, "qm set 101 --scsi3 shared:1")
	third.must(t, "qm start 100")
	if err := first.SetCutOff(t.Context(), "pve3", true); err != nil {
		t.Fatal(err)
	}
	online, quorate := third.members(t)
	if diff := cmp.Diff([]string{"pve3"}, online); diff != "" || quorate != 0 {
		t.Errorf("pve3: quorate %d, online (-want +got):\n%s", quorate, diff)
	}
	if online, quorate := first.members(t); len(online) != 2 || quorate != 1 {
		t.Errorf("pve1: quorate %d, online %v", quorate, online)
	}
	const refused = "cluster not ready - no quorum?\n"
	for line, want := range map[string]string{
		"qm create 110": refused, "qm clone 9002 110": refused, "qm start 101": refused, "qm migrate 101 pve1": refused,
		"qm set 101 --memory 2048":       "unable to open file '/etc/pve/nodes/pve3/qemu-server/101.conf.tmp.",
		"qm create 110 --scsi0 shared:1": refused,
	} {
		if r := third.run(t, line); r.code == 0 || !strings.HasPrefix(r.err, want) {
			t.Errorf("%s: %+v, want %q", line, r, want)
		}
	}
	// What runs goes on and can be stopped; nobody can write.
	if got := hostRun(t, third.State, "qm status 100; touch "+third.Path("etc", "pve", "priv", "fence")+" 2>/dev/null || echo refused"); got != "status: running\nrefused\n" {
		t.Errorf("on the node without quorum: %q", got)
	}
	// The others go on, and the node does not see it.
	first.must(t, "qm clone 9000 110 --name later")
	if _, err := os.Stat(third.ConfPathOn("pve1", 110)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the node without quorum sees what came later: %v", err)
	}
	if err := first.SetCutOff(t.Context(), "pve3", false); err != nil {
		t.Fatal(err)
	}
	if r := third.run(t, "qm create 110"); !strings.Contains(r.err, "VM 110 already exists on node 'pve1'") {
		t.Errorf("with quorum again: %+v", r)
	}
	third.must(t, "qm set 101 --memory 2048")

	// A destroy that began without quorum has freed the node's own disks when it fails.
	for _, l := range []*Lab{first, second, third} {
		if err := first.SetCutOff(t.Context(), l.Config.Node, true); err != nil {
			t.Fatal(err)
		}
	}
	for _, l := range []*Lab{first, second, third} {
		if online, quorate := l.members(t); len(online) != 1 || quorate != 0 {
			t.Errorf("%s alone: quorate %d, online %v", l.Config.Node, quorate, online)
		}
	}
	if r := third.run(t, "qm destroy 101 --purge 1"); r.code != 255 || !strings.Contains(r.err, "Permission denied") ||
		!strings.Contains(r.out, "WARN: Could not remove disk 'shared:101/vm-101-disk-0.raw', check manually: cfs-lock 'storage-shared' error: no quorum!\n") {
		t.Errorf("destroy: %+v", r)
	}
	for storage, left := range map[string]int{"local-lvm": 0, "shared": 1} {
		if got := third.must(t, "pvesm list "+storage+" --vmid 101"); strings.Count(got, "\n") != 1+left {
			t.Errorf("volumes:\n%s", got)
		}
	}
	third.must(t, "qm stop 100")
	// The lab is taken down without quorum.
}
