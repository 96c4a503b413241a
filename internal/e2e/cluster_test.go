package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// cluster is a lab of three nodes, and an installation that spreads VMs over them.
type cluster struct {
	*mcpClient
	h *host
	t *testing.T
}

// newCluster is a cluster whose entries are these nodes, by number.
func newCluster(t *testing.T, entries []int, settings ...string) *cluster {
	t.Helper()
	h := newHostAs(t, lab.Options{Driver: lab.DriverProcess, Nodes: 3, NodeMemory: []string{"32G", "16G", "8G"}},
		append([]string{"PROXMOX_NODE=", "PROXMOX_NODES=all", "HEARTBEAT_THRESHOLD_SECONDS=30", "CLEANUP_INTERVAL_SECONDS=10", "MAX_JOBS=20"}, settings...)...)
	nodes, err := h.lab.Nodes()
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, i := range entries {
		hosts = append(hosts, nodes[i-1].Config.SSHHost)
	}
	h.env = append(h.env, "PROXMOX_HOST="+strings.Join(hosts, ","))
	h.cli(t, "host", "trust", "--yes")
	return &cluster{mcpClient: h.connect(t), h: h, t: t}
}

// node returns the node a job's VM is on, once it runs.
func (c *cluster) node(id string) string {
	c.t.Helper()
	j := c.until(id, func(j map[string]any) bool { return j["status"] == "running" || j["completed_at"] != nil })
	vm, _ := j["vm"].(map[string]any)
	if vm == nil || vm["node"] == nil {
		c.t.Fatalf("job without a node: %v", j)
	}
	return vm["node"].(string)
}

// sleeper is a job that runs until it is told to end.
func (c *cluster) sleeper() (id string, end func()) {
	c.t.Helper()
	manifest := script("read -r word; echo $word")
	manifest["stdin"] = "open"
	id = c.submit(manifest)
	return id, func() {
		c.t.Helper()
		c.call("interact_with_job", map[string]any{"job_id": id, "input": "ended\n"})
	}
}

// confs are the configs of VMs of ours on all nodes.
func (c *cluster) confs() []string {
	c.t.Helper()
	all, err := filepath.Glob(filepath.Join(c.h.dir, "etc/pve/nodes/*/qemu-server/*.conf"))
	c.must(err)
	if len(all) == 0 {
		c.t.Fatal("the cluster has no configs, not even of templates")
	}
	return slices.DeleteFunc(all, func(path string) bool {
		text, err := os.ReadFile(path)
		return err != nil || !strings.Contains(string(text), "linus-job=")
	})
}

// gone waits until no VM of ours is left on any node.
func (c *cluster) gone() {
	c.t.Helper()
	deadline := time.After(5 * time.Minute)
	for len(c.confs()) > 0 {
		select {
		case <-deadline:
			for _, path := range c.confs() {
				text, _ := os.ReadFile(path) // one that has just gone is not left
				c.t.Errorf("left: %s\n%s", path, text)
			}
			c.t.FailNow()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// succeed waits for a job's success.
func (c *cluster) succeed(id string) {
	c.t.Helper()
	if j := c.wait(id); j["status"] != "success" {
		c.t.Errorf("job %s: %v", id, j)
	}
}

// waits waits until the job says that it waits because of something.
func (c *cluster) waits(id, why string) {
	c.t.Helper()
	c.until(id, func(j map[string]any) bool {
		progress, _ := j["progress"].(string)
		if j["status"] != "pending" {
			c.t.Fatalf("it does not wait: %v", j)
		}
		return strings.HasPrefix(progress, "waiting: ") && strings.Contains(progress, why)
	})
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// Jobs are spread over three nodes of different size, none of them is on a node that is
// cordoned, in maintenance or full, and a VM that was moved by hand is followed to where
// it is, and destroyed there.
func TestCluster_SpreadsJobsAndFollowsVMs(t *testing.T) {
	t.Parallel()
	c := newCluster(t, []int{1})
	ctx := t.Context()

	var listed []struct {
		Name, Status string
		MemoryMB     int `json:"memory_mb"`
		Spread       bool
	}
	c.must(json.Unmarshal([]byte(c.h.cli(t, "node", "list", "-o", "json")), &listed))
	if len(listed) != 3 || listed[2].Name != "pve3" || listed[2].MemoryMB != 8<<10 || listed[0].Status != "online" || !listed[0].Spread {
		t.Errorf("node list: %+v", listed)
	}
	report := c.call("check_host", nil)
	var checked []string
	for _, item := range report["checks"].([]any) {
		check := item.(map[string]any)
		if check["name"] == "template" {
			checked = append(checked, fmt.Sprint(check["node"], " ", check["level"]))
		}
	}
	if report["ok"] != true || !slices.Equal(checked, []string{"pve1 ok", "pve2 ok", "pve3 ok"}) {
		t.Errorf("check_host: %v", report)
	}

	on := map[string]int{}
	var ids []string
	var ends []func()
	for len(ids) < 3 || len(on) < 2 && len(ids) < 9 { // nodes are drawn at random
		id, end := c.sleeper()
		ids, ends = append(ids, id), append(ends, end)
		if len(ids) >= 3 {
			clear(on)
			for _, id := range ids {
				on[c.node(id)]++
			}
		}
	}
	if len(on) < 2 || on["pve3"] > 3 {
		t.Errorf("%d VMs of 2 GiB are on %v", len(ids), on)
	}
	for i, id := range ids {
		ends[i]()
		c.succeed(id)
	}
	c.gone()

	t.Run("cordon and maintenance", func(t *testing.T) {
		c.h.cli(t, "node", "cordon", "pve1")
		c.h.cli(t, "node", "cordon", "pve2")
		for range 2 {
			id := c.submit(script("hostname"))
			if node := c.node(id); node != "pve3" {
				t.Errorf("on %s", node)
			}
			c.succeed(id)
		}
		c.must(c.h.lab.SetMaintenance(ctx, "pve3", true))
		<-time.After(11 * time.Second) // as long as what is known of the cluster counts
		id := c.submit(script("hostname"))
		c.waits(id, "pve1: cordoned (linus node uncordon pve1); pve2: cordoned (linus node uncordon pve2); pve3: in maintenance")
		c.h.cli(t, "node", "uncordon", "pve2")
		if node := c.node(id); node != "pve2" {
			t.Errorf("on %s", node)
		}
		c.succeed(id)
		c.h.cli(t, "node", "uncordon", "pve1")
		c.must(c.h.lab.SetMaintenance(ctx, "pve3", false))
	})

	t.Run("what fits nowhere", func(t *testing.T) {
		manifest := script("true")
		manifest["resources"] = map[string]any{"memory": "64G"}
		if text := c.fail("submit_job", map[string]any{"manifest": manifest}); !strings.Contains(text, "pve3: 7 GiB for VMs in all, needs 64") {
			t.Errorf("%s", text)
		}
	})

	t.Run("moved by hand", func(t *testing.T) {
		id, end := c.sleeper()
		from := c.node(id)
		to := map[string]string{"pve1": "pve2", "pve2": "pve1", "pve3": "pve1"}[from]
		vm := c.call("get_job_status", map[string]any{"job_id": id})["vm"].(map[string]any)
		node, err := c.h.lab.Node(from)
		c.must(err)
		number := strconv.Itoa(int(vm["id"].(float64)))
		_, err = node.QM(ctx, "migrate", number, to, "--online", "--with-local-disks")
		c.must(err)
		end()
		c.succeed(id)
		c.gone()
		if leases := c.leases(); len(leases) > 0 {
			t.Errorf("leases of a VM that has moved: %v", leases)
		}
	})

	t.Run("uninstall", func(t *testing.T) {
		c.h.cli(t, "node", "cordon", "pve1")
		c.h.cli(t, "node", "cordon", "pve2")
		c.h.cli(t, "vm", "create", "stays")
		c.h.stop(t)
		nodes, err := c.h.lab.Nodes()
		c.must(err)
		timers := func() (there []string) {
			for _, node := range nodes {
				if _, err := os.Stat(filepath.Join(node.Dir, "etc/systemd/system/linus-sweep.timer")); err == nil {
					there = append(there, node.Config.Node)
				}
			}
			return there
		}
		before := timers()
		code, text := c.h.exits(t, "host", "uninstall", "--yes", "--all-nodes")
		if code != 1 || !strings.Contains(text, "(stays); destroy them first") || !slices.Equal(timers(), before) || !slices.Contains(before, "pve3") {
			t.Errorf("with a VM on one node: exit code %d, timers of %v, then of %v, %s", code, before, timers(), text)
		}
		code, text = c.h.exits(t, "host", "uninstall", "--yes", "--all-nodes", "--leave-vms")
		if code != 0 || len(timers()) > 0 || !regexp.MustCompile(`node pve3: stays: VM \d+ \(stays\)`).MatchString(text) {
			t.Errorf("exit code %d, timers of %v, %s", code, timers(), text)
		}
		for _, node := range before {
			if !strings.Contains(text, "node "+node+": is removed: linus-sweep.timer") {
				t.Errorf("of %s it does not say what is removed: %s", node, text)
			}
		}
		if len(c.confs()) != 1 {
			t.Errorf("VMs: %v", c.confs())
		}
	})
}

// leases waits until no node has a lease, and returns those that stay.
func (c *cluster) leases() (left []string) {
	c.t.Helper()
	nodes, err := c.h.lab.Nodes()
	c.must(err)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		left = nil
		for _, node := range nodes {
			found, err := filepath.Glob(filepath.Join(node.Dir, "home/linus/leases/*-*"))
			c.must(err)
			left = append(left, found...)
		}
		if len(left) == 0 {
			break
		}
	}
	return left
}

// A node that goes down takes its job with it, and nothing is said to be destroyed until
// the node is back and it is. Entries that are down are passed over. Without quorum
// nothing is created, and jobs go on.
func TestCluster_OutlastsNodesThatGoDown(t *testing.T) {
	loops.AtNightOnly(t, "TestPlace_AJobIsLostWithItsNode and TestPlace_OutlastsAnEntryThatIsDown have a node and an entry that go down, TestCluster_QuorumLost and TestCluster_NodeDown what a host says then")
	t.Parallel()
	c := newCluster(t, []int{1, 2})
	ctx := t.Context()

	t.Run("a node in the middle of a job", func(t *testing.T) {
		c.h.cli(t, "node", "cordon", "pve1")
		c.h.cli(t, "node", "cordon", "pve2")
		id, _ := c.sleeper()
		if node := c.node(id); node != "pve3" {
			t.Fatalf("on %s", node)
		}
		c.h.cli(t, "node", "uncordon", "pve1")
		c.h.cli(t, "node", "uncordon", "pve2")
		c.must(c.h.lab.NodeDown(ctx, "pve3"))
		if j := c.wait(id); j["reason"] != "lost" {
			t.Errorf("%v", j)
		}
		if list := c.h.cli(t, "vm", "list"); !strings.Contains(list, "destroying") && !strings.Contains(list, "unknown") {
			t.Errorf("vm list: %s", list)
		}
		if nodes := c.h.cli(t, "node", "list"); !strings.Contains(nodes, "offline") {
			t.Errorf("node list: %s", nodes)
		}
		next := c.submit(script("hostname")) // the others go on
		c.succeed(next)
		c.must(c.h.lab.NodeUp(ctx, "pve3"))
		c.gone()
	})

	t.Run("an entry", func(t *testing.T) {
		c.h.cli(t, "node", "cordon", "pve1") // what is known of it is up to ten seconds old
		id, end := c.sleeper()
		c.node(id)
		c.must(c.h.lab.NodeDown(ctx, "pve1"))
		if text := c.h.cli(t, "vm", "ssh", id, "--", "echo", "by its node"); text != "by its node\n" {
			t.Errorf("logged in: %q", text)
		}
		next := c.submit(script("hostname"))
		c.succeed(next)
		end()
		c.succeed(id)
		c.must(c.h.lab.NodeUp(ctx, "pve1"))
		c.h.cli(t, "node", "uncordon", "pve1")
		c.gone()
	})

	t.Run("quorum", func(t *testing.T) {
		id, end := c.sleeper()
		c.node(id)
		for _, node := range []string{"pve1", "pve2", "pve3"} {
			c.must(c.h.lab.SetCutOff(ctx, node, true))
		}
		<-time.After(11 * time.Second)
		next := c.submit(script("hostname"))
		c.waits(next, "the cluster has no quorum")
		end()
		c.succeed(id)
		for _, node := range []string{"pve1", "pve2", "pve3"} {
			c.must(c.h.lab.SetCutOff(ctx, node, false))
		}
		c.succeed(next)
		c.gone()
	})
}
