package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"linus/internal/loops"
)

// retried waits until a lost job has a successor, and returns its ID.
func (c *cluster) retried(id string) string {
	c.t.Helper()
	for {
		j := c.until(id, func(j map[string]any) bool { return j["retried_as"] != nil })
		if next, _ := j["retried_as"].(string); next != "" {
			return next
		}
	}
}

// A job is lost with its node. With retry: lost it is run again when its VM is seen to be
// gone, with retry: offline at once, and without neither; each run is a job of its own.
func TestCluster_RunsLostJobsAgain(t *testing.T) {
	loops.AtNightOnly(t, "TestRetry_RunsALostJobAgain, TestRetry_OnlyOfWhatIsLost and TestRetry_WaitsForTheOldVMToBeGone have each of its jobs, TestPlace_AJobIsLostWithItsNode a node that goes down")
	t.Parallel()
	c := newCluster(t, []int{1})
	l := newLedger(t)
	c.h.cli(t, "node", "cordon", "pve1")
	c.h.cli(t, "node", "cordon", "pve2")
	works, ids := map[string]work{}, map[string]string{}
	for n, retry := range []string{"", "lost", "offline"} {
		w := work{n: n, lines: 10, sleep: "${LINUS_SLEEP}"}
		manifest := script(l.task(w))
		manifest["env"] = map[string]any{"LINUS_SLEEP": "3600"}
		if retry != "" {
			manifest["retry"] = retry
		}
		works[retry], ids[retry] = w, c.submit(manifest)
	}
	for _, id := range ids {
		if node := c.node(id); node != "pve3" {
			t.Fatalf("on %s", node)
		}
	}
	c.h.cli(t, "node", "uncordon", "pve1")
	c.h.cli(t, "node", "uncordon", "pve2")
	for _, w := range works {
		c.h.until(t, func() bool { return l.begun(w.n) == 1 })
	}
	c.must(c.h.lab.NodeDown(t.Context(), "pve3"))
	for _, id := range ids {
		c.endsAs(id, "failed", "lost")
	}
	again := c.retried(ids["offline"])
	if node := c.node(again); node == "pve3" {
		t.Error("it runs again on the node that is down")
	}
	c.h.until(t, func() bool { return l.begun(works["offline"].n) == 2 })
	if j := c.call("get_job_status", map[string]any{"job_id": ids["lost"]}); j["retried_as"] != nil {
		t.Errorf("run again before its VM is gone: %v", j)
	}
	c.must(c.h.lab.NodeUp(t.Context(), "pve3"))
	next := c.retried(ids["lost"])
	c.h.until(t, func() bool { return l.begun(works["lost"].n) == 2 })
	for was, id := range map[string]string{ids["lost"]: next, ids["offline"]: again} {
		if status := c.h.cli(t, "job", "status", id); !strings.Contains(status, was) {
			t.Errorf("it does not name the job that it runs again, %s:\n%s", was, status)
		}
		c.call("cancel_job", map[string]any{"job_id": id})
		c.endsAs(id, "failed", "cancelled")
	}
	if j := c.call("get_job_status", map[string]any{"job_id": ids[""]}); j["retried_as"] != nil || l.begun(0) != 1 {
		t.Errorf("a job without retry began %d times: %v", l.begun(0), j)
	}
	c.gone()
}

// A template is built on every node, as one build, and again on one that has lost it; jobs
// use it on each, and it is removed on each.
func TestCluster_BuildsTemplatesOnAllNodes(t *testing.T) {
	loops.AtNightOnly(t, "TestTemplate_OnAllNodes builds and removes on each node, TestCluster_SpreadsJobsAndFollowsVMs has jobs on each")
	t.Parallel()
	c := newCluster(t, []int{2})
	data, err := os.ReadFile(filepath.Join(c.h.dir, "image.qcow2"))
	c.must(err)
	image := filepath.Join(t.TempDir(), "image.qcow2")
	c.must(os.WriteFile(image, data, 0o600))
	sum := sha256.Sum256(data)
	build := func() string {
		return c.h.cli(t, "template", "build", "--all-nodes", "--name", "everywhere", "--bootstrap", "none", "--image", "file://"+image, "--sha256", hex.EncodeToString(sum[:]))
	}
	built := build()
	if strings.Count(built, "everywhere") < 3 {
		t.Errorf("built:\n%s", built)
	}
	id := regexp.MustCompile(`template everywhere is VM (\d+) on node pve2`).FindStringSubmatch(built)
	if id == nil {
		t.Fatalf("built:\n%s", built)
	}
	c.h.cli(t, "template", "remove", id[1])
	if again := build(); strings.Count(again, " already") != 2 || !strings.Contains(again, "on node pve2\n") {
		t.Errorf("built again:\n%s", again)
	}
	var nodes []struct {
		Name      string
		Templates []string
	}
	c.must(json.Unmarshal([]byte(c.h.cli(t, "node", "list", "-o", "json")), &nodes))
	for _, node := range nodes {
		if !strings.Contains(strings.Join(node.Templates, " "), "everywhere") {
			t.Errorf("%s has the templates %q", node.Name, node.Templates)
		}
		for _, other := range nodes {
			c.h.cli(t, "node", map[bool]string{true: "uncordon", false: "cordon"}[other.Name == node.Name], other.Name)
		}
		manifest := script("hostname")
		manifest["vmTemplate"] = "everywhere"
		id := c.submit(manifest)
		if on := c.node(id); on != node.Name {
			t.Errorf("on %s, not %s", on, node.Name)
		}
		c.succeed(id)
	}
	c.h.cli(t, "template", "remove", "everywhere", "--all-nodes")
	c.gone()
	if list := c.h.cli(t, "template", "list"); strings.Contains(list, "everywhere") {
		t.Errorf("removed, and still there:\n%s", list)
	}
}
