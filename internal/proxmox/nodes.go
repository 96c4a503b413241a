package proxmox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// Nodes returns the inventory with only the node that VMs are created on.
func (p *Provider) Nodes(ctx context.Context) (job.Inventory, error) {
	inv, err := p.Inventory(ctx)
	own, _ := inv.Node(inv.Asked)
	inv.Excluded = max(0, len(inv.Nodes)-1)
	inv.Nodes = []job.Node{own}
	return inv, err
}

// Inventory returns what the host reports about its cluster. It starts one of Proxmox's tools, and does
// not wait for a host that does not respond.
func (p *Provider) Inventory(ctx context.Context) (job.Inventory, error) {
	const op = "read the nodes of the cluster"
	res, err := p.run(ctx, call{op: op, script: "list-nodes"})
	if err != nil {
		return job.Inventory{}, err
	}
	inv, err := readInventory(res)
	if err != nil {
		return job.Inventory{}, p.failure(op, job.HostVM, err.Error(), "")
	}
	return inv, nil
}

// readInventory parses list-nodes' lines. Malformed lines are skipped where nothing depends on them:
// names of storages and templates come from all over the cluster.
func readInventory(res result.Result) (job.Inventory, error) {
	inv := job.Inventory{Asked: res.Get("LINUS_VM_NODE"), Quorum: true}
	switch quorum := res.Get("LINUS_QUORUM"); quorum {
	case "none":
	case "yes", "no":
		inv.Cluster, inv.Quorum = true, quorum == "yes"
	default:
		return inv, fmt.Errorf("list-nodes returned LINUS_QUORUM:%.100q", quorum)
	}
	at := map[string]int{}
	for _, line := range res.All("LINUS_NODE") {
		n, err := readNode(line)
		if err != nil {
			return inv, err
		}
		at[n.Name] = len(inv.Nodes)
		inv.Nodes = append(inv.Nodes, n)
	}
	if _, known := at[inv.Asked]; !known {
		return inv, fmt.Errorf("list-nodes is of node %.100q, which is not among its nodes", inv.Asked)
	}
	for _, line := range res.Lines {
		key, isNode := strings.CutPrefix(line.Key, "LINUS_NODE_")
		name, rest, _ := strings.Cut(line.Value, " ")
		i, known := at[name]
		if !isNode || !known {
			continue
		}
		n, words := &inv.Nodes[i], strings.Fields(rest)
		switch {
		case key == "KEY":
			if host, err := remote.HostKeyLine(rest); err == nil {
				n.HostKeys = append(n.HostKeys, host)
			}
		case key == "STORAGE" && len(words) == 3:
			n.Storages = append(n.Storages, job.NodeStorage{Name: words[0], Active: words[1] == "active", Shared: words[2] == "shared"})
		case key == "TEMPLATE" && len(words) == 6:
			t := job.NodeTemplate{Name: words[1], Sum: words[3], Shared: words[4] == "shared"}
			if uuidForm.MatchString(words[2]) {
				t.Build = words[2]
			}
			if words[5] != "-" {
				t.Has = strings.Split(words[5], ",")
			}
			var err error
			if t.ID, err = readID(words[0]); err == nil && nameForm.MatchString(t.Name) {
				n.Templates = append(n.Templates, t)
			}
		case key == "VMS":
			for _, word := range words {
				vm, err := readNodeVM(word)
				if err != nil {
					return inv, err
				}
				n.VMs = append(n.VMs, vm)
			}
		}
	}
	return inv, nil
}

// readNode parses `name=pve online=1 ip=10.0.0.1 memory=32768 used=4096 ha=online`.
func readNode(line string) (job.Node, error) {
	values := map[string]string{}
	for word := range strings.FieldsSeq(line) {
		key, value, _ := strings.Cut(word, "=")
		values[key] = value
	}
	n := job.Node{Name: values["name"], Online: values["online"] == "1", HA: values["ha"]}
	if !nodeForm.MatchString(n.Name) {
		return n, fmt.Errorf("list-nodes returned a node without name: %.200q", line)
	}
	if ip, err := netip.ParseAddr(values["ip"]); err == nil && ip.Zone() == "" {
		n.Address = ip.String()
	}
	n.MemoryMB, _ = strconv.Atoi(values["memory"]) // 0: unknown
	n.UsedMB, _ = strconv.Atoi(values["used"])
	return n, nil
}

// readNodeVM parses `101:2048:running`.
func readNodeVM(word string) (job.NodeVM, error) {
	id, rest, _ := strings.Cut(word, ":")
	memory, status, _ := strings.Cut(rest, ":")
	n, err := readID(id)
	mib, memoryErr := strconv.Atoi(memory)
	if err != nil || memoryErr != nil || mib < 0 {
		return job.NodeVM{}, fmt.Errorf("list-nodes returned VM %.100q", word)
	}
	return job.NodeVM{ID: n, MemoryMB: mib, Stopped: status == "stopped"}, nil
}

// HasBridge checks over SSH whether the host has a network interface of that name.
func (p *Provider) HasBridge(ctx context.Context, name string) (bool, error) {
	err := p.o.Host.Run(ctx, remote.Command{Name: "look for bridge " + name, Line: remote.Quote("ip", "-o", "link", "show", "dev", name)})
	var exit *remote.ExitError
	switch {
	case err == nil:
		return true, nil
	case errors.As(err, &exit):
		return false, nil
	}
	return false, p.hostError(ctx, "look for bridge "+name, err)
}
