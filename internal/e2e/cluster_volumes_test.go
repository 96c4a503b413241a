package e2e

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"linus/internal/loops"
)

// listedVolume is a volume of `volume list`.
type listedVolume struct {
	Node, Status string
	Shared       bool
	VMID         int `json:"vm_id"`
}

func (c *cluster) volume(name string) (v listedVolume) {
	c.t.Helper()
	c.must(json.Unmarshal([]byte(c.h.cli(c.t, "volume", "show", name, "-o", "json")), &v))
	return v
}

// only lets one node alone get VMs.
func (c *cluster) only(node string) {
	c.t.Helper()
	for _, other := range []string{"pve1", "pve2", "pve3"} {
		c.h.cli(c.t, "node", map[bool]string{true: "uncordon", false: "cordon"}[other == node || node == ""], other)
	}
}

// with is a job that has volumes, each at /srv/NAME.
func with(task string, names ...string) map[string]any {
	manifest, mounts := script(task), []any{}
	for _, name := range names {
		mounts = append(mounts, map[string]any{"name": name, "path": "/srv/" + name})
	}
	manifest["volumes"] = mounts
	return manifest
}

// says waits for the success of a job on a node, and for what it has printed.
func (c *cluster) says(id, node, want string) {
	c.t.Helper()
	if on := c.node(id); on != node {
		c.t.Errorf("job %s is on %s, not %s", id, on, node)
	}
	c.succeed(id)
	if got := c.call("get_job_result", map[string]any{"job_id": id}); got["output"] != want {
		c.t.Errorf("job %s says %q, not %q", id, got["output"], want)
	}
}

// Jobs go to the node that has their volumes, and wait while that gets no VMs; a volume on a storage
// that the nodes share goes with a job to any of them, and one whose holder was migrated is followed.
func TestCluster_JobsGoWhereTheirVolumesAre(t *testing.T) {
	loops.AtNightOnly(t, "TestVolume_BindsAJobToItsNode, TestVolume_JobsGoWhereItsStorageIs and TestVolume_OnASharedStorageIsForAllNodes choose the node, TestCluster_SpreadsJobsAndFollowsVMs has jobs on each")
	t.Parallel()
	c := newCluster(t, []int{1})
	c.h.cli(t, "volume", "create", "here", "--size", "1G", "--node", "pve2")
	c.h.cli(t, "volume", "create", "all", "--size", "1G", "--node", "pve3", "--storage", "shared")
	if here, all := c.volume("here"), c.volume("all"); here.Node != "pve2" || here.Shared || all.Node != "pve3" || !all.Shared {
		t.Fatalf("made: %+v, %+v", here, all)
	}
	c.says(c.submit(with("echo one >/srv/here/file; cp /srv/here/file /srv/all", "all", "here")), "pve2", "") // of nodes that are drawn, pve1 is the largest

	// The shared one is on whatever node the job is; for the other it waits, beside nodes that are free.
	c.only("pve1")
	waiting := c.submit(with("cat /srv/here/file", "here"))
	c.waits(waiting, "pve2: cordoned")
	c.says(c.submit(with("cat /srv/all/file", "all")), "pve1", "one\n")

	c.h.cli(t, "volume", "create", "there", "--size", "1G", "--node", "pve1")
	if text := c.fail("submit_job", map[string]any{"manifest": with("true", "here", "there")}); !strings.Contains(text, `volume "there" is on node pve1, and "here" on node pve2`) {
		t.Errorf("of two nodes: %s", text)
	}
	c.h.cli(t, "volume", "rm", "there", "--yes")
	c.h.cli(t, "vm", "create", "dev")
	if _, text := c.h.exits(t, "volume", "attach", "here", "dev", "/srv/here"); !strings.Contains(text, `volume "here" is on node pve2, and VM`) {
		t.Errorf("attached to a VM of another node: %s", text)
	}
	c.h.cli(t, "volume", "attach", "all", "dev", "/srv/all")
	if out := c.h.cli(t, "vm", "ssh", "dev", "--", "cat", "/srv/all/file"); out != "one\n" {
		t.Errorf("dev has %q", out)
	}
	c.h.cli(t, "vm", "destroy", "dev", "--yes")
	c.only("")
	c.says(waiting, "pve2", "one\n")

	// Its holder is migrated by hand, and its disk with it.
	node, err := c.h.lab.Node("pve2")
	c.must(err)
	_, err = node.QM(t.Context(), "migrate", strconv.Itoa(c.volume("here").VMID), "pve3")
	c.must(err)
	if list := c.h.cli(t, "volume", "list"); !strings.Contains(list, "pve3") || strings.Contains(list, "pve2") {
		t.Errorf("listed after its migration:\n%s", list)
	}
	c.says(c.submit(with("cat /srv/here/file", "here")), "pve3", "one\n")

	c.h.cli(t, "volume", "rm", "here", "--yes")
	c.h.cli(t, "volume", "rm", "all", "--yes")
	c.gone()
}
