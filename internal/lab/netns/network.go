// Package netns is the qemu driver's network: a network namespace with the lab's bridge, DHCP and
// the host's end of a veth pair. It knows nothing about VMs.
package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// Network is the qemu driver's network. A named network namespace holds the bridge, the VMs' taps,
// DHCP and the lab's sshd, so that the "host" sees its guests. A veth pair leads to the outside,
// where linus runs and, as in most homes, reaches only the sshd.
//
//	outside ── veth ── host ┬ sshd, dnsmasq
//	                        └ bridge ── tap ── VM
type Network struct {
	Namespace string // its name under /run/netns
	bridge    string
	Veth      string       // the outside end's name
	Outside   netip.Addr   // the outside end's address, which guests call back to
	Host      netip.Addr   // the inside end's address, where the lab's sshd listens
	Gateway   netip.Addr   // the bridge's address: the guests' router and DHCP server
	guests    netip.Prefix // the guests' subnet
	gateway6  netip.Addr   // the bridge's IPv6 address; guests that ask for an IPv6 address get it from its /64
}

// Slots is the number of distinct address ranges for labs: the /30s of 10.78.0.0/16.
const Slots = 1 << 14

// Of returns a lab's network. Its addresses are derived from where the lab's sshd listens or,
// before the first Up, from the state directory's hash.
func Of(s *state.State) Network {
	slot := s.Hash() % Slots
	if host, err := netip.ParseAddr(s.Config.SSHHost); err == nil && host.Is4() {
		b := host.As4()
		slot = (uint32(b[2])<<8 | uint32(b[3])) >> 2
	}
	return At(s.Name(), s.Config.Bridge, slot)
}

// At returns the network of the named lab in one of the Slots.
func At(name, bridge string, slot uint32) Network {
	link := slot << 2
	address := func(n uint32) netip.Addr {
		return netip.AddrFrom4([4]byte{10, 78, byte((link + n) >> 8), byte(link + n)})
	}
	gateway := netip.AddrFrom4([4]byte{10, 77, byte(slot), 1})
	gateway6 := netip.AddrFrom16([16]byte{0xfd, 0x77, 6: byte(slot >> 8), 7: byte(slot), 15: 1})
	return Network{
		Namespace: "pvelab-" + name,
		bridge:    bridge,
		Veth:      "pvl" + name,
		Outside:   address(1),
		Host:      address(2),
		Gateway:   gateway,
		guests:    netip.PrefixFrom(gateway, 24).Masked(),
		gateway6:  gateway6,
	}
}

// freeNetwork returns the first addresses, from the derived ones on, that no interface overlaps with.
func freeNetwork(ctx context.Context, s *state.State) (Network, error) {
	out, err := sys.Run(ctx, "ip", "-4", "-o", "addr", "show")
	if err != nil {
		return Network{}, err
	}
	var taken []netip.Prefix
	for field := range strings.FieldsSeq(string(out)) {
		if prefix, err := netip.ParsePrefix(field); err == nil {
			taken = append(taken, prefix.Masked())
		}
	}
	for n := range uint32(Slots) {
		candidate := At(s.Name(), s.Config.Bridge, (s.Hash()+n)%Slots)
		link := netip.PrefixFrom(candidate.Outside, 30).Masked()
		free := true
		for _, prefix := range taken {
			free = free && !prefix.Overlaps(link) && !prefix.Overlaps(candidate.guests)
		}
		if free {
			return candidate, nil
		}
	}
	return Network{}, errors.New("no free addresses for the lab's network in 10.77.0.0/16 and 10.78.0.0/16")
}

// Up creates or completes the network, applies the settings, and sets s.Config.SSHHost and SSHPort.
func Up(ctx context.Context, s *state.State) error {
	n := Of(s)
	// Except for DHCP, the veth pair is made last. Without it, the namespace does not exist, or is
	// what a killed Up left.
	if !n.complete() {
		if err := Down(ctx, s); err != nil {
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
	s.Config.SSHHost, s.Config.SSHPort = n.Host.String(), 22
	if err := n.applyRules(ctx, s.Config.BlockCallbacks); err != nil {
		return err
	}
	if err := n.applyRoute(ctx, s.Config.Direct); err != nil {
		return err
	}
	return n.startDHCP(ctx, s)
}

// Down ends every process in the namespace and removes it, if it exists.
func Down(ctx context.Context, s *state.State) error { return Of(s).remove(ctx) }

// Path is the namespace's file, for Do.
func (n Network) Path() string { return filepath.Join(netnsDir, n.Namespace) }

func (n Network) complete() bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", n.Veth))
	return err == nil && isMountPoint(n.Path())
}

func (n Network) create(ctx context.Context) error {
	if err := createNetns(ctx, n.Namespace); err != nil {
		return err
	}
	inside := strings.Join([]string{
		"link set lo up",
		"link add " + n.bridge + " type bridge forward_delay 0 stp_state 0",
		fmt.Sprintf("addr add %s/24 dev %s", n.Gateway, n.bridge),
		fmt.Sprintf("addr add %s/64 dev %s nodad", n.gateway6, n.bridge), // without DAD: there is no guest yet that could have it
		"link set " + n.bridge + " up",
	}, "\n")
	if err := n.ipBatch(ctx, inside); err != nil {
		return err
	}
	outside := [][]string{
		{"link", "add", n.Veth, "type", "veth", "peer", "name", "eth0", "netns", n.Namespace},
		{"addr", "add", n.Outside.String() + "/30", "dev", n.Veth},
		{"link", "set", n.Veth, "up"},
	}
	for _, args := range outside {
		if _, err := sys.Run(ctx, "ip", args...); err != nil {
			return err
		}
	}
	inside = strings.Join([]string{
		fmt.Sprintf("addr add %s/30 dev eth0", n.Host),
		"link set eth0 up",
		"route add default via " + n.Outside.String(),
	}, "\n")
	if err := n.ipBatch(ctx, inside); err != nil {
		return err
	}
	return Do(n.Path(), func() error {
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1\n"), 0o644)
	})
}

// ipBatch runs ip commands inside the namespace.
func (n Network) ipBatch(ctx context.Context, commands string) error {
	cmd, err := sys.Command(ctx, "ip", "-n", n.Namespace, "-batch", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = strings.NewReader(commands + "\n")
	return sys.RunCommand(cmd)
}

// applyRules lets guests reach the outside under the host's address, so that the outside needs no
// route to them. With block, it cuts them off from the outside.
func (n Network) applyRules(ctx context.Context, block bool) error {
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
	return Do(n.Path(), func() error {
		cmd, err := sys.Command(ctx, "nft", "-f", "-")
		if err != nil {
			return err
		}
		cmd.Stdin = strings.NewReader(rules)
		return sys.RunCommand(cmd)
	})
}

// applyRoute adds or removes the outside's route to the guests.
func (n Network) applyRoute(ctx context.Context, direct bool) error {
	if direct {
		_, err := sys.Run(ctx, "ip", "route", "replace", n.guests.String(), "via", n.Host.String(), "dev", n.Veth)
		return err
	}
	out, err := sys.Run(ctx, "ip", "route", "show", n.guests.String(), "dev", n.Veth)
	if err != nil || len(bytes.TrimSpace(out)) == 0 {
		return err
	}
	_, err = sys.Run(ctx, "ip", "route", "del", n.guests.String(), "dev", n.Veth)
	return err
}

// startDHCP runs dnsmasq on the bridge for DHCP and for IPv6 router advertisements of a prefix
// without a default route. Addresses below .50 are left for VMs with a fixed address.
func (n Network) startDHCP(ctx context.Context, s *state.State) error {
	dir := s.Path("run", "dhcp")
	pidFile := filepath.Join(dir, "pid")
	if _, running := sys.ReadPidFile(pidFile); running {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	first, last := n.guests.Addr().As4(), n.guests.Addr().As4()
	first[3], last[3] = 50, 250
	err := Do(n.Path(), func() error {
		_, err := sys.Run(ctx, "dnsmasq", "--conf-file=/dev/null", "--no-hosts", "--no-resolv", "--port=0",
			"--user=root", "--group=root",
			"--interface="+n.bridge, "--bind-interfaces", "--except-interface=lo", "--dhcp-authoritative",
			fmt.Sprintf("--dhcp-range=%s,%s,255.255.255.0,1h", netip.AddrFrom4(first), netip.AddrFrom4(last)),
			"--dhcp-option=option:router,"+n.Gateway.String(), "--dhcp-option=option:dns-server,"+n.Gateway.String(),
			"--dhcp-rapid-commit", "--no-ping",
			"--enable-ra", "--dhcp-range="+netip.PrefixFrom(n.gateway6, 64).Masked().Addr().String()+",ra-only,64", "--ra-param="+n.bridge+",10,0",
			"--dhcp-leasefile="+filepath.Join(dir, "leases"), "--pid-file="+filepath.Join(dir, "dnsmasq.pid"),
			"--log-facility="+filepath.Join(dir, "log"), "--log-dhcp")
		return err
	})
	if err != nil {
		return err
	}
	return sys.AdoptPidFile(filepath.Join(dir, "dnsmasq.pid"), pidFile)
}

func (n Network) remove(ctx context.Context) error {
	if isMountPoint(n.Path()) {
		if err := killNetns(ctx, n.Path()); err != nil {
			return err
		}
	}
	if _, err := os.Stat(filepath.Join("/sys/class/net", n.Veth)); err == nil {
		if _, err := sys.Run(ctx, "ip", "link", "del", n.Veth); err != nil {
			return err
		}
	}
	return removeNetns(ctx, n.Namespace)
}

// WriteTapUp writes the script that QEMU runs for each tap it makes. Taps disappear with QEMU.
func (n Network) WriteTapUp(path string) error {
	ip, err := sys.Find("ip")
	if err != nil {
		return err
	}
	script := strings.Join([]string{"#!/bin/sh", "exec " + ip + ` link set "$1" master ` + n.bridge + " up", ""}, "\n")
	return os.WriteFile(path, []byte(script), 0o755)
}
