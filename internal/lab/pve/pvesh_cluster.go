package pve

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"linus/internal/lab/state"
	"linus/internal/sleep"
)

// What a node reports about the other nodes of its cluster.

// at returns the call on another node.
func (c *call) at(node *state.State) *call {
	sub := *c
	sub.s, sub.via = node, c.s
	return &sub
}

// proxied returns the call on the node that an API path names. pvesh forwards it there over SSH,
// whether or not the node is known to be offline.
func (c *call) proxied(name, path string) (*call, error) {
	if name == "" || name == c.s.Config.Node && !c.s.Lists(state.FaultMissingNode, name) {
		return c, nil
	}
	node, m, ok := c.s.Member(name)
	switch {
	case !ok && name == c.s.Config.Node:
		return nil, state.Fail(255, "595 Errors during connection establishment, proxy handshake: No route to host")
	case !ok:
		return nil, state.Fail(255, "hostname lookup '%s' failed - failed to get address info for: %s: Name or service not known", name, name)
	}
	at := c.at(node)
	if !m.Down.IsZero() {
		// The time for which the machine waits for an answer to its ARP requests.
		if err := sleep.For(c.ctx, 3*time.Second); err != nil {
			return nil, err
		}
		return nil, at.proxyError(state.Fail(255, "ssh: connect to host %s port 22: No route to host", m.IP), path)
	}
	return at, sleep.For(c.ctx, time.Duration(node.Config.SlowMS)*time.Millisecond)
}

// proxyError is pvesh's error for an error on the node it forwarded a call to.
func (c *call) proxyError(err error, path string) error {
	if c.via == nil {
		return err
	}
	_, m, _ := c.via.Member(c.s.Config.Node)
	code := 255
	if exit := new(state.ExitError); errors.As(err, &exit) {
		code = exit.Code
	}
	return state.Fail(255, "%s\nproxy handler failed: command '%s -- pvesh --noproxy get %s --output-format json' failed: exit code %d",
		strings.TrimRight(err.Error(), "\n"), sshCommand(m), path, code)
}

// sshCommand is the command with which one node of a cluster reaches another.
func sshCommand(m state.Member) string {
	return fmt.Sprintf("/usr/bin/ssh -e none -o 'BatchMode=yes' -o 'HostKeyAlias=%[1]s' -o 'UserKnownHostsFile=/etc/pve/nodes/%[1]s/ssh_known_hosts' -o 'GlobalKnownHostsFile=none' root@%[2]s", m.Name, m.IP)
}

func apiResources(c *call, _ map[string]string) (any, error) {
	kind := c.opts["type"]
	if kind != "" && !slices.Contains([]string{"vm", "storage", "node", "sdn"}, kind) {
		return nil, state.Fail(255, "400 Parameter verification failed.\ntype: value '%s' does not have a value in the enumeration 'vm, storage, node, sdn'", kind)
	}
	list := []map[string]any{}
	ha := c.s.HAStates()
	for _, n := range c.s.Nodes() {
		last := c.lastWord(n)
		if kind == "" || kind == "vm" {
			for id, conf := range c.s.ConfsOf(n.Name) {
				list = append(list, last.vm(n.Name, id, conf))
			}
			for _, id := range c.s.IDsOf(n.Name, "lxc") {
				list = append(list, last.container(n.Name, id))
			}
		}
		if kind == "" || kind == "node" {
			entry := last.node(n)
			if state, known := ha[n.Name]; known {
				entry["hastate"] = state
			}
			list = append(list, entry)
		}
		if kind == "" || kind == "storage" {
			for _, st := range c.s.Storages() {
				list = append(list, last.storage(n.Name, st))
			}
		}
	}
	return list, nil
}

// word is a node's last statistics, sent every 10 s. Those of a node that is gone stay unchanged for
// 5 minutes.
type word struct {
	call      *call
	told      time.Time // when they were sent; zero: now, in a lab of one node
	forgotten bool
	gone      bool  // the node's VMs are shown as they were then:
	running   []int // these were running
}

func (c *call) lastWord(n state.Node) word {
	node, m, ok := c.s.Member(n.Name)
	if !ok {
		return word{call: c, forgotten: !n.Online, gone: !n.Online}
	}
	w := word{call: c.at(node), told: time.Now().Truncate(state.StatisticsInterval)}
	if n.Online {
		return w
	}
	if w.told = m.Gone(); w.told.IsZero() { // it is this node that hears none of the others
		_, self, _ := c.s.Member(c.s.Config.Node)
		w.told = self.Gone()
	} else {
		w.gone, w.running = true, m.Running
	}
	w.forgotten = time.Since(w.told) > state.StatisticsKept
	return w
}

// vm is a VM as /cluster/resources shows it. A VM that is not in the statistics yet, or no longer,
// has neither name nor size.
func (w word) vm(node string, id int, conf *state.Conf) map[string]any {
	entry := map[string]any{"type": "qemu", "node": node, "id": fmt.Sprintf("qemu/%d", id), "vmid": id, "status": "unknown"}
	for _, key := range []string{"tags", "lock"} { // read from the config
		if conf.Has(key) {
			entry[key] = conf.Get(key)
		}
	}
	if w.forgotten || !w.told.IsZero() && w.call.s.BornAfter(id, w.told) {
		return entry
	}
	status := w.call.vmStatus(id, conf)
	if status["status"] == "running" && !w.told.IsZero() && w.call.startedAt(id).After(w.told) || w.gone {
		status["status"], status["mem"], status["uptime"] = "stopped", 0, 0
	}
	if w.gone && slices.Contains(w.running, id) {
		status["status"] = "running"
	}
	entry["template"], entry["maxcpu"] = 0, status["cpus"]
	for _, key := range []string{"name", "status", "template", "maxmem", "maxdisk", "cpu", "mem", "disk", "uptime"} {
		if value, ok := status[key]; ok {
			entry[key] = value
		}
	}
	return entry
}

func (w word) container(node string, id int) map[string]any {
	entry := map[string]any{"type": "lxc", "node": node, "id": fmt.Sprintf("lxc/%d", id), "vmid": id, "status": "unknown"}
	if !w.forgotten {
		entry["name"], entry["status"], entry["template"] = fmt.Sprintf("ct%d", id), "stopped", 0
	}
	return entry
}

func (w word) node(n state.Node) map[string]any {
	entry := map[string]any{"type": "node", "node": n.Name, "id": "node/" + n.Name, "status": "offline"}
	memory, used, cpus := w.call.memory()
	if !w.forgotten {
		entry["maxcpu"], entry["maxmem"], entry["maxdisk"], entry["level"] = cpus, memory, int64(94)<<30, ""
	}
	if n.Online {
		entry["status"] = "online"
		entry["cpu"], entry["mem"], entry["disk"], entry["uptime"] = 0.1, used, int64(14)<<30, 86400
	}
	return entry
}

func (w word) storage(node string, st state.Storage) map[string]any {
	entry := map[string]any{
		"id": "storage/" + node + "/" + st.Name, "type": "storage", "node": node, "storage": st.Name,
		"status": "unknown", "plugintype": st.Kind, "content": shuffled(st.Content), "shared": number01(st.Shared),
	}
	if own, err := w.call.s.Storage(st.Name); err == nil && !w.forgotten {
		status := w.call.storageStatus(own)
		entry["status"], entry["maxdisk"], entry["disk"] = "available", status["total"], status["used"]
	}
	return entry
}

func number01(b bool) int {
	if b {
		return 1
	}
	return 0
}

// memory returns this node's memory and how much of it is in use, in bytes, and its number of CPUs.
// A running VM of a cluster uses all of its memory.
func (c *call) memory() (total, used int64, cpus int) {
	_, m, ok := c.s.Member(c.s.Config.Node)
	if !ok {
		return 32 << 30, 4 << 30, 8
	}
	used = 1 << 30
	for id, conf := range c.s.ConfsOf(c.s.Config.Node) {
		if _, running := c.s.Pid(id); running {
			used += memoryBytes(conf)
		}
	}
	return int64(m.MemoryMB) << 20, used, m.CPUs
}

func apiNodes(c *call, _ map[string]string) (any, error) {
	list := []map[string]any{}
	for _, n := range c.s.Nodes() {
		list = append(list, c.lastWord(n).node(n))
	}
	return list, nil
}
