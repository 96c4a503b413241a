package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"linus/internal/lab/state"
	"linus/internal/sleep"
)

// newCluster is a lab of three nodes of different size.
func newCluster(t *testing.T, change ...func(*Options)) (first, second, third *Lab) {
	t.Helper()
	l := newLab(t, append([]func(*Options){func(o *Options) {
		o.Nodes, o.NodeMemory, o.NodeCPUs = 3, []string{"32G", "16G", "8G"}, []int{16, 8}
	}}, change...)...)
	nodes, err := l.Nodes()
	if err != nil || len(nodes) != 3 {
		t.Fatalf("nodes: %v, %v", nodes, err)
	}
	return nodes[0], nodes[1], nodes[2]
}

// members is .members as a node shows it: the nodes it sees online, and its quorum.
func (l *Lab) members(t *testing.T) (online []string, quorate int) {
	t.Helper()
	var m struct {
		NodeName string
		Cluster  struct{ Quorate int }
		NodeList map[string]struct {
			Online int
			IP     string
		}
	}
	raw, err := os.ReadFile(l.Path("etc", "pve", ".members"))
	if err == nil {
		err = json.Unmarshal(raw, &m)
	}
	if err != nil {
		t.Fatal(err)
	}
	if self := m.NodeList[l.Config.Node]; m.NodeName != l.Config.Node || self.IP != l.Config.SSHHost || len(m.NodeList) != 3 {
		t.Errorf("%s: .members: %s", l.Config.Node, raw)
	}
	for name, node := range m.NodeList {
		if node.Online == 1 {
			online = append(online, name)
		}
	}
	slices.Sort(online)
	return online, m.Cluster.Quorate
}

// resources are the entries of a kind of /cluster/resources, by their IDs.
func (l *Lab) resources(t *testing.T, kind string) map[string]map[string]any {
	t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(l.must(t, "pvesh get /cluster/resources --output-format json --type "+kind)), &list); err != nil {
		t.Fatal(err)
	}
	byID := map[string]map[string]any{}
	for _, entry := range list {
		byID[fmt.Sprint(entry["id"])] = entry
	}
	return byID
}

// nextStatistics waits until the nodes have told their statistics once more.
func nextStatistics(t *testing.T) {
	t.Helper()
	next := time.Now().Truncate(state.StatisticsInterval).Add(state.StatisticsInterval)
	if err := sleep.For(t.Context(), time.Until(next)); err != nil {
		t.Fatal(err)
	}
}

func TestCluster_NodesShareTheirConfigsAndOneStorage(t *testing.T) {
	first, second, third := newCluster(t)
	for i, l := range []*Lab{first, second, third} {
		online, quorate := l.members(t)
		if diff := cmp.Diff([]string{"pve1", "pve2", "pve3"}, online); diff != "" || quorate != 1 {
			t.Errorf("%s: quorate %d, online (-want +got):\n%s", l.Config.Node, quorate, diff)
		}
		// Its sshd is its own, with an RSA key that the other nodes know.
		if got := hostRun(t, l.State, "echo $PVELAB_DIR; qm list 2>/dev/null"); !strings.HasPrefix(got, l.Dir+"\n") || strings.Count(got, TemplateName) != 1 || !strings.Contains(got, fmt.Sprint(TemplateID+i)) {
			t.Errorf("%s: qm list:\n%s", l.Config.Node, got)
		}
		told, err := os.ReadFile(first.Path("etc", "pve", "nodes", l.Config.Node, "ssh_known_hosts"))
		if err != nil {
			t.Fatal(err)
		}
		var shown ssh.PublicKey
		client, err := ssh.Dial("tcp", l.sshAddress(), &ssh.ClientConfig{
			User: "root", HostKeyAlgorithms: []string{ssh.KeyAlgoRSASHA512}, Timeout: 5 * time.Second,
			HostKeyCallback: ssh.HostKeyCallback(func(_ string, _ net.Addr, key ssh.PublicKey) error { shown = key; return errors.New("seen") }),
		})
		if err == nil {
			client.Close()
		}
		if want := l.Config.Node + " " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(shown))); string(told) != want {
			t.Errorf("%s: ssh_known_hosts has %q, the sshd %q", l.Config.Node, told, want)
		}
	}
	if first.Config.SSHPort != second.Config.SSHPort || first.Config.SSHHost == second.Config.SSHHost {
		t.Errorf("sshds at %s and %s", first.sshAddress(), second.sshAddress())
	}
	first.must(t, "qm clone 9000 100 --name on-first")
	second.must(t, "qm create 101 --name on-second --scsi0 shared:1 --scsi1 local:1")
	for line, want := range map[string]string{
		"qm list": "on-second", "pvesm list shared": "shared:101/vm-101-disk-0.raw", "pvesm list local": "local:101/vm-101-disk-0.raw",
	} {
		for l, seen := range map[*Lab]bool{first: line == "pvesm list shared", second: true} {
			if got := l.must(t, line); strings.Contains(got, want) != seen {
				t.Errorf("%s on %s:\n%s", line, l.Config.Node, got)
			}
		}
	}
	if got := first.must(t, "pvesh get /nodes/pve2/qemu --output-format json"); !strings.Contains(got, "on-second") {
		t.Errorf("asked through another node: %s", got)
	}
	// What root writes on one node is on all.
	hostRun(t, third.State, "cd "+third.Path("etc", "pve", "priv")+" && mkdir linus && echo x >linus/fence")
	if got := hostRun(t, first.State, "cat "+first.Path("etc", "pve", "priv", "linus", "fence")); got != "x\n" {
		t.Errorf("a file of another node: %q", got)
	}
	// A setting names one directory, which is each node's own.
	scripts := first.Env()["PROXMOX_SCRIPT_DIR"]
	hostRun(t, first.State, "mkdir -p "+scripts+" && touch "+scripts+"/first")
	if got := hostRun(t, second.State, "ls "+scripts+" 2>/dev/null || echo none"); got != "none\n" && os.Geteuid() == 0 {
		t.Errorf("scripts of another node: %q", got)
	}
	again, err := Up(t.Context(), Options{Dir: first.Dir, Binary: first.Config.Binary})
	if err != nil || again.Config != first.Config {
		t.Errorf("up again: %v, %+v", err, again)
	}
	if err := Down(t.Context(), second.Dir); err == nil || !strings.Contains(err.Error(), first.Dir) {
		t.Errorf("down of a node: %v", err)
	}
}

// Every case begins with VM 100 on pve1, VM 200 on pve2 and container 201 there.
func TestCluster_Texts(t *testing.T) {
	first, second, _ := newCluster(t)
	first.must(t, "qm clone 9000 100 --name here")
	first.must(t, "qm start 100")
	second.must(t, "qm create 200 --name there --memory 512")
	if err := second.PlantContainer("pve2", 201); err != nil {
		t.Fatal(err)
	}
	const atomic = "close (rename) atomic file '/etc/pve/nodes/pve1/qemu-server/%d.conf' failed: File exists\n"
	tests := []struct {
		name, line string
		code       int
		err        string
	}{
		{"status of another node's VM", "qm status 200", 2, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist\n"},
		{"stop of another node's VM", "qm stop 200", 2, "unable to find configuration file for VM 200 on node 'pve1'\n"},
		{"destroy of another node's VM", "qm destroy 200 --purge 1", 2, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist\n"},
		{"create with another node's ID", "qm create 200 --name x", 255, "unable to create VM 200 - VM 200 already exists on node 'pve2'\n"},
		{"clone to another node's ID", "qm clone 9000 200", 255, fmt.Sprintf(atomic, 200)},
		{"clone to another node's container", "qm clone 9000 201", 255, fmt.Sprintf(atomic, 201)},
		{"clone to a node without the disks", "qm clone 9000 110 --target pve2", 255, "can't clone VM to node 'pve2' (VM uses local storage)\n"},
		{"clone to no node", "qm clone 9000 110 --target mars", 255, "no such cluster node 'mars'\n"},
		{"migrate to itself", "qm migrate 100 pve1", 255, "400 Parameter verification failed.\ntarget: target is local node.\n"},
		{"migrate to no node", "qm migrate 100 mars", 255, "no such cluster node 'mars'\n"},
		{"migrate another node's VM", "qm migrate 200 pve3", 2, "Configuration file 'nodes/pve1/qemu-server/200.conf' does not exist\n"},
		{"migrate what runs", "qm migrate 100 pve2", 255, "can't migrate running VM without --online\n"},
		{"migrate what runs on local disks", "qm migrate 100 pve2 --online", 255, "migration aborted\n"},
		{"a VM that its node has not", "pvesh get /nodes/pve2/qemu/100/snapshot --output-format json", 255, "Configuration file 'nodes/pve2/qemu-server/100.conf' does not exist\nproxy handler failed: command '/usr/bin/ssh "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := first.run(t, tt.line); got.code != tt.code || !strings.Contains(got.err, tt.err) {
				t.Errorf("got %+v, want exit code %d and %q", got, tt.code, tt.err)
			}
		})
	}
	first.must(t, "qm create 300 --name base --scsi0 local:1")
	first.must(t, "qm template 300")
	first.must(t, "qm clone 300 301")
	if r := first.run(t, "qm migrate 301 pve2"); r.code != 255 || !strings.Contains(r.out, "can't migrate 'local:300/base-300-disk-0.raw/301/vm-301-disk-0.qcow2' as it's a clone of 'base-300-disk-0.raw'") {
		t.Errorf("migrate a linked clone: %+v", r)
	}
	first.must(t, "qm destroy 301")
	first.must(t, "qm destroy 300")
	if got := first.IDsOf("pve1", "qemu-server"); !cmp.Equal(got, []int{100, 9000}) {
		t.Errorf("VMs of pve1: %v", got)
	}
	if lock := first.conf(t, 100).Get("lock"); lock != "" {
		t.Errorf("an aborted migration left the lock %s", lock)
	}
}

func TestCluster_OneOfManyGetsAnID(t *testing.T) {
	first, second, third := newCluster(t)
	var won sync.Map
	var all sync.WaitGroup
	for i, l := range []*Lab{first, second, third, first, second, third} {
		all.Go(func() {
			if r := l.run(t, fmt.Sprintf("qm create 500 --name racer%d", i)); r.code == 0 {
				won.Store(i, l.Config.Node)
			} else if !strings.Contains(r.err, "already exists on node") {
				t.Errorf("%s: %+v", l.Config.Node, r)
			}
		})
	}
	all.Wait()
	var winners []any
	won.Range(func(_, node any) bool { winners = append(winners, node); return true })
	files, _ := filepath.Glob(first.Path("etc", "pve", "nodes", "*", "qemu-server", "500.conf"))
	if len(winners) != 1 || len(files) != 1 || !strings.Contains(files[0], fmt.Sprint(winners[0])) {
		t.Errorf("winners %v, configs %v", winners, files)
	}
}

func TestCluster_RefusesWhatItCannotBe(t *testing.T) {
	for want, o := range map[string]Options{
		"process driver":      {Nodes: 3, Driver: DriverQemu},
		"simulated systemd":   {Nodes: 3, Systemd: SystemdReal},
		"at most 9 nodes":     {Nodes: 10},
		"no size of at least": {Nodes: 2, NodeMemory: []string{"lots"}},
	} {
		o.Dir, o.Binary = filepath.Join(t.TempDir(), "lab"), "pvelab"
		if _, err := Up(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
		if _, err := os.Stat(o.Dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v left %s", o, o.Dir)
		}
	}
}

func TestCluster_UpKilledAnywhereLeavesNothingAfterDown(t *testing.T) {
	binary, err := pvelabBinary()
	if err != nil {
		t.Fatal(err)
	}
	for delay := 5 * time.Millisecond; delay < 2*time.Second; delay = delay * 2 {
		dir := filepath.Join(t.TempDir(), "lab")
		up := exec.CommandContext(t.Context(), binary, "up", "--nodes", "2", "--dir", dir)
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(delay)
		_ = up.Process.Kill()
		_ = up.Wait()
		if out, err := exec.CommandContext(t.Context(), binary, "down", "--dir", dir).CombinedOutput(); err != nil {
			t.Fatalf("down after a kill at %s: %v: %s", delay, err, out)
		}
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("killed at %s, down left %s", delay, dir)
		}
		assertNothingLeft(t, &state.State{Dir: dir})
	}
}
