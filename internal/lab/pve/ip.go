package pve

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"

	"linus/internal/lab/state"
)

// The process driver's guests are on loopback, where a host has no neighbours. For the host's
// scripts, ip answers as if the guests were on the host's bridge.

// neighbour is one entry of the host's neighbour table.
type neighbour struct {
	address netip.Addr
	MAC     string
}

// neighbours returns the running VMs as the bridge has seen them.
func (c *call) neighbours() []neighbour {
	var table []neighbour
	for id, conf := range c.s.ConfsOf(c.s.Config.Node) {
		raw, _ := os.ReadFile(c.s.AddressPath(id))
		if stranger := c.s.Fault(state.FaultNeighbourAddress); stranger != "" && len(raw) > 0 {
			raw = []byte(stranger)
		}
		address, err := netip.ParseAddr(strings.TrimSpace(string(raw)))
		if err != nil {
			continue // the VM does not run
		}
		mac := strings.ToLower(conf.MAC())
		if other := c.s.Fault(state.FaultNeighbourMAC); other != "" {
			mac = other
		}
		table = append(table, neighbour{address, mac})
	}
	return table
}

// ip simulates `ip [-4|-6|-o] route get ADDRESS`, `ip [-4|-6|-o] neigh show [to ADDRESS] [dev
// DEVICE]`, `ip -o addr show`, and `ip link show` for bridges, in iproute2's syntax.
func (c *call) ip(args []string, out io.Writer) error {
	family := ""
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		family = strings.TrimLeft(args[0], "-o") + family
		args = args[1:]
	}
	words := map[string]string{}
	for i := 2; i+1 < len(args); i += 2 {
		words[args[i]] = args[i+1]
	}
	switch {
	case strings.Join(args, " ") == "addr show":
		fmt.Fprintf(out, "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever preferred_lft forever\n")
		return nil
	case len(args) == 3 && strings.Join(args[:2], " ") == "route get":
		return c.routeGet(args[2], out)
	case len(args) >= 2 && strings.Join(args[:2], " ") == "neigh show":
		c.neighShow(family, words["to"], words["dev"], out)
		return nil
	case (len(args) == 6 && words["type"] == "bridge" || len(args) == 4 && words["dev"] != "") && strings.Join(args[:2], " ") == "link show":
		if !c.bridgeExists(words["dev"]) {
			return state.Fail(1, "Device %q does not exist.", words["dev"])
		}
		fmt.Fprintf(out, "3: %s: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc noqueue state UP mode DEFAULT group default qlen 1000\\    link/ether bc:24:11:00:00:01 brd ff:ff:ff:ff:ff:ff\n", words["dev"])
		return nil
	}
	return state.Fail(255, "the lab's ip knows route get, neigh show and link show of a bridge, not %q", strings.Join(args, " "))
}

func (c *call) routeGet(text string, out io.Writer) error {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return state.Fail(1, "Error: any valid prefix is expected rather than %q.", text)
	}
	for _, n := range c.neighbours() {
		switch {
		case n.address != address:
		case c.s.Fault(state.FaultRouted) != "":
			fmt.Fprintf(out, "%s via 127.0.0.254 dev eth0 src 127.0.0.1 uid 0 \\    cache \n", address)
			return nil
		default:
			fmt.Fprintf(out, "%s dev %s src 127.0.0.1 uid 0 \\    cache \n", address, c.s.Config.Bridge)
			return nil
		}
	}
	switch {
	case address.IsLoopback():
		fmt.Fprintf(out, "local %s dev lo src %[1]s uid 0 \\    cache <local> \n", address)
	case address.IsMulticast():
		fmt.Fprintf(out, "multicast %s dev %s src 127.0.0.1 uid 0 \\    cache <mc> \n", address, c.s.Config.Bridge)
	default:
		return state.Fail(2, "RTNETLINK answers: Network is unreachable")
	}
	return nil
}

func (c *call) neighShow(family, to, device string, out io.Writer) {
	for _, n := range c.neighbours() {
		if to != "" && n.address.String() != to || family == "4" && !n.address.Is4() || family == "6" && n.address.Is4() ||
			device != "" && device != c.s.Config.Bridge || c.s.Fault(state.FaultRouted) != "" {
			continue
		}
		where := " dev " + c.s.Config.Bridge
		if device != "" {
			where = ""
		}
		fmt.Fprintf(out, "%s%s lladdr %s REACHABLE \n", n.address, where, n.MAC)
	}
}
