package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
)

// network is the qemu driver's network: one named network namespace that holds
// the bridge, the VMs' taps, DHCP and the lab's sshd, so that the "host" sees
// its guests, and a veth pair to the outside, where linus runs and reaches the
// sshd only, as in most homes.
//
//	outside ── veth ── host ┬ sshd, dnsmasq
//	                        └ bridge ── tap ── VM
type network struct {
	namespace string // its name under /run/netns
	bridge    string
	veth      string       // the outside end's name
	outside   netip.Addr   // the outside end's address: what guests call back to
	host      netip.Addr   // the inside end's: where the lab's sshd listens
	gateway   netip.Addr   // the bridge's: the guests' router and DHCP server
	guests    netip.Prefix // the guests' subnet
	gateway6  netip.Addr   // the bridge's IPv6 address, whose /64 guests that ask for one get addresses in
}

// networkSlots is the number of different labs' addresses: 10.78.0.0/16 in /30s.
const networkSlots = 1 << 14

// network is the lab's network. Its addresses follow from where the lab's sshd
// listens, and before the first up from the state directory's hash.
func networkOf(s *State) network {
	slot := s.Hash() % networkSlots
	if host, err := netip.ParseAddr(s.Config.SSHHost); err == nil && host.Is4() {
		b := host.As4()
		slot = (uint32(b[2])<<8 | uint32(b[3])) >> 2
	}
	return networkAt(s.Name(), s.Config.Bridge, slot)
}

func networkAt(name, bridge string, slot uint32) network {
	link := slot << 2
	address := func(n uint32) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 78, byte((link + n) >> 8), byte(link + n)})
	}
	gateway := netip.AddrFrom4([4]byte{10, 77, byte(slot), 1})
	gateway6 := netip.AddrFrom16([16]byte{0xfd, 0x77, 6: byte(slot >> 8), 7: byte(slot), 15: 1})
	return network{
		namespace: "pvelab-" + name,
		bridge:    bridge,
		veth:      "pvl" + name,
		outside:   address(1),
		host:      address(2),
		gateway:   gateway,
		guests:    netip.PrefixFrom(gateway, 24).Masked(),
		gateway6:  gateway6,
	}
}

// freeNetwork steps from the derived addresses to some that no interface of
// this machine overlaps with.
func freeNetwork(ctx context.Context, s *State) (network, error) {
	out, err := runTool(ctx, "ip", "-4", "-o", "addr", "show")
	if err != nil {
		return network{}, err
	}
	var taken []netip.Prefix
	for field := range strings.FieldsSeq(string(out)) {
		if prefix, err := netip.ParsePrefix(field); err == nil {
			taken = append(taken, prefix.Masked())
		}
	}
	for n := range uint32(networkSlots) {
		candidate := networkAt(s.Name(), s.Config.Bridge, (s.Hash()+n)%networkSlots)
		link := netip.PrefixFrom(candidate.outside, 30).Masked()
		free := true
		for _, prefix := range taken {
			free = free && !prefix.Overlaps(link) && !prefix.Overlaps(candidate.guests)
		}
		if free {
			return candidate, nil
		}
	}
	return network{}, errors.New("no free addresses for the lab's network in 10.77.0.0/16 and 10.78.0.0/16")
}

// upNetwork makes the network, or completes it and applies the settings anew.
// It sets s.Config.SSHHost and SSHPort.
func upNetwork(ctx context.Context, s *State) error {
	n := networkOf(s)
	// The veth pair is made last but for DHCP: without it the namespace is what
	// a killed up left, or empty.
	if !n.complete() {
		if err := downNetwork(ctx, s); err != nil {
			return err
		}
		var err error
		if n, err = freeNetwork(ctx, s); err != nil {
			return err
		}
		if err := n.create(ctx); err != nil {
			return errors.Join(err, n.remove(context.WithoutCancel(ctx)))
		}
	}
	s.Config.SSHHost, s.Config.SSHPort = n.host.String(), 22
	if err := n.applyRules(ctx, s.Config.BlockCallbacks); err != nil {
		return err
	}
	if err := n.applyRoute(ctx, s.Config.Direct); err != nil {
		return err
	}
	return n.startDHCP(ctx, s)
}

// downNetwork ends every process in the namespace and removes it. What is not
// there is no error.
func downNetwork(ctx context.Context, s *State) error { return networkOf(s).remove(ctx) }

func (n network) path() string { return filepath.Join(netnsDir, n.namespace) }

func (n network) complete() bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", n.veth))
	return err == nil && isMountPoint(n.path())
}

func (n network) create(ctx context.Context) error {
	if err := createNetns(ctx, n.namespace); err != nil {
		return err
	}
	inside := strings.Join([]string{
		"link set lo up",
		"link add " + n.bridge + " type bridge forward_delay 0 stp_state 0",
		fmt.Sprintf("addr add %s/24 dev %s", n.gateway, n.bridge),
		fmt.Sprintf("addr add %s/64 dev %s nodad", n.gateway6, n.bridge), // no guest has it, and no guest is there to ask
		"link set " + n.bridge + " up",
	}, "\n")
	if err := n.ipBatch(ctx, inside); err != nil {
		return err
	}
	outside := [][]string{
		{"link", "add", n.veth, "type", "veth", "peer", "name", "eth0", "netns", n.namespace},
		{"addr", "add", n.outside.String() + "/30", "dev", n.veth},
		{"link", "set", n.veth, "up"},
	}
	for _, args := range outside {
		if _, err := runTool(ctx, "ip", args...); err != nil {
			return err
		}
	}
	inside = strings.Join([]string{
		fmt.Sprintf("addr add %s/30 dev eth0", n.host),
		"link set eth0 up",
		"route add default via " + n.outside.String(),
	}, "\n")
	if err := n.ipBatch(ctx, inside); err != nil {
		return err
	}
	return inNetns(n.path(), func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0o644)
	})
}

// ipBatch runs ip commands inside the namespace.
func (n network) ipBatch(ctx context.Context, commands string) error {
	cmd, err := tool(ctx, "ip", "-n", n.namespace, "-batch", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(commands + "\n")
	return runQuiet(cmd)
}

// applyRules lets guests reach the outside under the host's address, so that
// the outside needs no route to them; or, with block, not at all.
func (n network) applyRules(ctx context.Context, block bool) error {
	verdict := "accept"
	if block {
		verdict = "drop"
	}
	rules := fmt.Sprintf(`table ip pvelab
delete table ip pvelab
table ip pvelab {
	chain forward {
		type filter hook forward priority 0; policy accept;
		ct state established,related accept
		iifname %q oifname "eth0" %s
	}
	chain postrouting {
		type nat hook postrouting priority 100; policy accept;
		ip saddr %s oifname "eth0" masquerade
	}
}
`, n.bridge, verdict, n.guests)
	return inNetns(n.path(), func() error {
		cmd, err := tool(ctx, "nft", "-f", "-")
		if err != nil {
			return err
		}
		cmd.Stdin = strings.NewReader(rules)
		return runQuiet(cmd)
	})
}

// applyRoute adds or removes the outside's route to the guests.
func (n network) applyRoute(ctx context.Context, direct bool) error {
	if direct {
		_, err := runTool(ctx, "ip", "route", "replace", n.guests.String(), "via", n.host.String(), "dev", n.veth)
		return err
	}
	out, err := runTool(ctx, "ip", "route", "show", n.guests.String(), "dev", n.veth)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return err
	}
	_, err = runTool(ctx, "ip", "route", "del", n.guests.String(), "dev", n.veth)
	return err
}

// startDHCP runs dnsmasq on the bridge: DHCP, and IPv6 router advertisements of
// a prefix without a way out. Addresses below .50 are left for VMs with a fixed
// one.
func (n network) startDHCP(ctx context.Context, s *State) error {
	dir := s.path("run", "dhcp")
	pidFile := filepath.Join(dir, "pid")
	if _, running := readPidFile(pidFile); running {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	first, last := n.guests.Addr().As4(), n.guests.Addr().As4()
	first[3], last[3] = 50, 250
	err := inNetns(n.path(), func() error {
		_, err := runTool(ctx, "dnsmasq", "--conf-file=/dev/null", "--no-hosts", "--no-resolv", "--port=0",
			"--user=root", "--group=root",
			"--interface="+n.bridge, "--bind-interfaces", "--except-interface=lo", "--dhcp-authoritative",
			fmt.Sprintf("--dhcp-range=%s,%s,255.255.255.0,1h", netip.AddrFrom4(first), netip.AddrFrom4(last)),
			"--dhcp-option=option:router,"+n.gateway.String(), "--dhcp-option=option:dns-server,"+n.gateway.String(),
			"--dhcp-rapid-commit", "--no-ping",
			"--enable-ra", "--dhcp-range="+netip.PrefixFrom(n.gateway6, 64).Masked().Addr().String()+",ra-only,64", "--ra-param="+n.bridge+",10,0",
			"--dhcp-leasefile="+filepath.Join(dir, "leases"), "--pid-file="+filepath.Join(dir, "dnsmasq.pid"),
			"--log-facility="+filepath.Join(dir, "log"), "--log-dhcp")
		return err
	})
	if err != nil {
		return err
	}
	return adoptPidFile(filepath.Join(dir, "dnsmasq.pid"), pidFile)
}

func (n network) remove(ctx context.Context) error {
	if isMountPoint(n.path()) {
		if err := killNetns(ctx, n.path()); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", n.veth)); err == nil {
		if _, err := runTool(ctx, "ip", "link", "del", n.veth); err != nil {
			return err
		}
	}
	return removeNetns(ctx, n.namespace)
}
