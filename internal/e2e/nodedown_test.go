package e2e

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"linus/internal/lab"
	"linus/internal/loops"
)

// down is a cluster whose third node goes down in the middle of something.
type down struct {
	*cluster
	node *lab.Lab
}

const downNode = "pve3"

// nodeDown is a cluster of three, and what its third node keeps.
func nodeDown(t *testing.T) *down {
	t.Helper()
	c := newCluster(t, []int{1, 2})
	nodes, err := c.h.lab.Nodes()
	c.must(err)
	return &down{cluster: c, node: nodes[2]}
}

// only has VMs made on the node, or on all.
func (d *down) only(on bool) {
	d.t.Helper()
	for _, other := range []string{"pve1", "pve2"} {
		d.h.cli(d.t, "node", map[bool]string{true: "cordon", false: "uncordon"}[on], other)
	}
}

// confs are the configs that the node has, by their text.
func (d *down) confs() (texts []string) {
	found, _ := filepath.Glob(filepath.Join(d.h.dir, "etc/pve/nodes", downNode, "qemu-server/*.conf"))
	for _, path := range found {
		if text, err := os.ReadFile(path); err == nil {
			texts = append(texts, string(text))
		}
	}
	return texts
}

// when cuts the node's power as soon as one of its configs has all of the words.
func (d *down) when(words ...string) {
	d.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		for _, text := range d.confs() {
			has := true
			for _, word := range words {
				has = has && strings.Contains(text, word)
			}
			if has {
				d.must(d.h.lab.NodeDown(d.t.Context(), downNode))
				return
			}
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("no config with %q: %q", words, d.confs())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// kept is what is on the node besides the template.
func (d *down) kept() string {
	h := &host{dir: d.node.Dir}
	return h.kept(d.t) + "\n" + strings.Join(d.confs(), "\n")
}

// up boots the node, and waits until nothing is kept there but what was before.
func (d *down) up(before string) {
	d.t.Helper()
	d.must(d.h.lab.NodeUp(d.t.Context(), downNode))
	for deadline := time.Now().Add(3 * time.Minute); d.kept() != before; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("the node kept\n%s\nand keeps\n%s", before, d.kept())
		}
	}
}

// started is a command that ends while the node is down, in a time that people wait.
func (d *down) started(args ...string) (end func() (code int, text string)) {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 3*time.Minute)
	cmd := exec.CommandContext(ctx, d.h.linus(), args...)
	cmd.Env = d.h.env
	type outcome struct {
		code int
		text string
	}
	ended := make(chan outcome, 1)
	go func() {
		out, _ := cmd.CombinedOutput()
		ended <- outcome{cmd.ProcessState.ExitCode(), string(out)}
	}()
	return func() (int, string) {
		d.t.Helper()
		defer cancel()
		o := <-ended
		if ctx.Err() != nil {
			d.t.Errorf("%q does not end while the node is down: %s", args, o.text)
		}
		return o.code, o.text
	}
}

// A checkpoint whose node goes down while it is made is given up, which names the node, and
// what there is of it goes when the node is back. One that there is stays through that, and is of
// use again; a job whose restore it hits fails as one that boots, and others boot elsewhere.
func TestNodeDown_Checkpoint(t *testing.T) {
	loops.AtNightOnly(t, "TestCheckpoint_OneThatIsUnfitWhileANodeIsAway and TestPlace_AJobIsLostWithItsNode have a node that is away")
	t.Parallel()
	d := nodeDown(t)
	before := d.kept()
	for _, moment := range []string{"linus-state=cloning", "vmstate:"} {
		end := d.started("template", "checkpoint", "build", "--node", downNode, "--wait")
		d.when("linus-checkpoint-", moment)
		if code, text := end(); code == 0 || !strings.Contains(text, downNode) || !strings.Contains(text, "offline") {
			t.Errorf("a checkpoint on a node that goes down at %q: exit %d, %s", moment, code, text)
		}
		d.up(before)
	}

	d.h.cli(t, "template", "checkpoint", "build", "--node", downNode, "--wait")
	before = d.kept()
	d.only(true)
	id := d.submit(script("sleep 1000"))
	d.when("linus-job=" + id)
	d.only(false)
	if j := d.wait(id); j["status"] != "failed" || !strings.Contains(j["error"].(string), downNode) {
		t.Errorf("a job whose restore is hit: %v", j)
	}
	next := d.submit(script("true"))
	if on := d.cluster.node(next); on == downNode {
		t.Errorf("the next is on %s", on)
	}
	d.succeed(next)
	d.up(before)
	m := script("true")
	m["start"] = "restore"
	last := d.submit(m)
	if on := d.cluster.node(last); on != downNode {
		t.Errorf("restored on %s", on)
	}
	d.succeed(last)
	d.up(before)
}

// A VM whose node goes down while it is forked has no copies, which is told while the node is
// down; what there is of them goes when it is back, and the VM is there.
func TestNodeDown_Fork(t *testing.T) {
	loops.AtNightOnly(t, "TestFork_AHostThatGoesAway has a host that is away with what is left of copies")
	t.Parallel()
	d := nodeDown(t)
	d.only(true)
	var made struct {
		ID int `json:"vm_id"`
	}
	d.must(json.Unmarshal([]byte(d.h.cli(t, "vm", "create", "dev", "-o", "json")), &made))
	d.only(false)
	end := d.started("vm", "fork", "dev", "--count", "2")
	d.when("[linus-fork]")
	if code, text := end(); code == 0 || !strings.Contains(text, "no copy was kept") || !strings.Contains(text, downNode) {
		t.Errorf("a fork on a node that goes down: exit %d, %s", code, text)
	}
	d.must(d.h.lab.NodeUp(t.Context(), downNode))
	conf := filepath.Join(d.h.dir, "etc/pve/nodes", downNode, "qemu-server", strconv.Itoa(made.ID)+".conf")
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(200 * time.Millisecond) {
		text, err := os.ReadFile(conf)
		d.must(err)
		left := (&host{dir: d.node.Dir}).volumes(t)
		if len(d.cluster.confs()) == 1 && !strings.Contains(string(text), "linus-fork") && !strings.Contains(string(text), "lock:") && len(left) == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("left: %v, %v\n%s", d.cluster.confs(), left, text)
		}
	}
	d.h.until(t, func() bool { // that it is no more forked is recorded after it is so
		code, _ := d.h.exits(t, "vm", "start", "dev")
		return code == 0
	})
	if out := d.h.cli(t, "vm", "ssh", "dev", "--", "echo", "on"); out != "on\n" {
		t.Errorf("dev says %q", out)
	}
	d.h.cli(t, "vm", "destroy", "dev", "--yes")
	d.gone()
}
