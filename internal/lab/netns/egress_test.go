package netns

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"linus/internal/lab/sys"
	"linus/internal/loops"
)

// egressLab is a node's network in namespaces, without a VM: taps are veth pairs, whose
// other ends send and receive frames. The rules are those the host's scripts make, of
// configs in a directory of the test's own, and the kernel's nft holds them.
//
//	node ── vmbr0 ┬ lan
//	              ├ tap200i0 ── vm200
//	              └ fwpr201p0 ── fwln201i0 ── fwbr201i0 ── tap201i0 ── vm201
type egressLab struct {
	t      *testing.T
	prefix string
	dir    string
}

const (
	nodeMAC  = "02:00:00:00:00:01"
	lanMAC   = "02:00:00:00:00:50"
	vm200MAC = "bc:24:11:00:02:00"
	vm201MAC = "bc:24:11:00:02:01"
)

func newEgressLab(t *testing.T) *egressLab {
	t.Helper()
	loops.NotInCheck(t)
	if os.Geteuid() != 0 {
		t.Skip("a network namespace is root's to make")
	}
	for _, tool := range []string{"ip", "nft", "perl", "flock", "sha256sum"} {
		if _, err := sys.Find(tool); err != nil {
			t.Skip(err)
		}
	}
	l := &egressLab{t: t, prefix: fmt.Sprintf("eg%d-", os.Getpid()), dir: t.TempDir()}
	for _, name := range []string{"node", "lan", "vm200", "vm201"} {
		if err := createNetns(t.Context(), l.prefix+name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := removeNetns(context.Background(), l.prefix+name); err != nil {
				t.Error(err)
			}
		})
		l.ip(name, "link set lo up")
	}
	l.sysctl("node", "net/ipv6/conf/all/accept_dad", "0", "net/ipv6/conf/default/accept_dad", "0", "net/ipv4/ip_forward", "1", "net/ipv6/conf/all/forwarding", "1")
	l.ip("node", "link add vmbr0 address "+nodeMAC+" type bridge forward_delay 0 stp_state 0 mcast_snooping 0", "link set vmbr0 up",
		"addr add 10.99.0.1/24 dev vmbr0", "addr add fd99::1/64 dev vmbr0 nodad",
		"link add fwbr201i0 type bridge forward_delay 0 stp_state 0 mcast_snooping 0", "link set fwbr201i0 up",
		"link add fwln201i0 type veth peer name fwpr201p0", "link set fwln201i0 master fwbr201i0 up", "link set fwpr201p0 master vmbr0 up")
	l.ip("node", "addr add 9.9.9.1/32 dev lo", "addr add 2620:fe::1/128 dev lo nodad")
	for name, port := range map[string]struct{ dev, master, mac, ip string }{
		"lan":   {"eno1", "vmbr0", lanMAC, "50"},
		"vm200": {"tap200i0", "vmbr0", vm200MAC, "200"},
		"vm201": {"tap201i0", "fwbr201i0", vm201MAC, "201"},
	} {
		l.wire(name, port.dev, port.mac)
		l.ip("node", "link set "+port.dev+" master "+port.master)
		l.ip(name, "addr add 10.99.0."+port.ip+"/24 dev eth0", "addr add fd99::"+port.ip+"/64 dev eth0 nodad",
			"route add default via 10.99.0.1", "-6 route add default via fd99::1", "route add 169.254.0.0/16 dev eth0")
	}
	l.ip("lan", "addr add 169.254.169.254/16 dev eth0", "addr add 10.99.0.53/24 dev eth0", "addr add fd99::53/64 dev eth0 nodad")

	pve := filepath.Join(l.dir, "pve")
	for _, dir := range []string{filepath.Join(pve, "nodes/pve/qemu-server"), filepath.Join(l.dir, "run")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nodes/pve/qemu-server", filepath.Join(pve, "qemu-server")); err != nil {
		t.Fatal(err)
	}
	l.write("pve/.members", "{}")
	return l
}

func (l *egressLab) path(name string) string { return filepath.Join(netnsDir, l.prefix+name) }

func (l *egressLab) ip(name string, commands ...string) {
	l.t.Helper()
	for _, c := range commands {
		if _, err := sys.Run(l.t.Context(), "ip", append([]string{"-n", l.prefix + name}, strings.Fields(c)...)...); err != nil {
			l.t.Fatal(err)
		}
	}
}

func (l *egressLab) in(name string, f func() error) {
	l.t.Helper()
	if err := Do(l.path(name), f); err != nil {
		l.t.Fatal(err)
	}
}

func (l *egressLab) sysctl(name string, pairs ...string) {
	l.t.Helper()
	l.in(name, func() error {
		for i := 0; i < len(pairs); i += 2 {
			if err := os.WriteFile("/proc/sys/"+pairs[i], []byte(pairs[i+1]), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// wire joins a namespace's eth0 to a device of the node.
func (l *egressLab) wire(name, dev, mac string) {
	l.t.Helper()
	l.ip("node", fmt.Sprintf("link add %s type veth peer name eth0 netns %s%s", dev, l.prefix, name), "link set "+dev+" up")
	l.sysctl(name, "net/ipv6/conf/eth0/accept_dad", "0", "net/ipv6/conf/eth0/addr_gen_mode", "0")
	l.ip(name, "link set eth0 address "+mac, "link set eth0 up")
}

func (l *egressLab) write(name, text string) {
	l.t.Helper()
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// config writes a VM's config.
func (l *egressLab) config(id int, mac, mode, ipconfig string) {
	l.t.Helper()
	l.write(fmt.Sprintf("pve/qemu-server/%d.conf", id), fmt.Sprintf(
		"#linus-job=11111111-2222-4333-8444-000000000%d linus-owner=x linus-egress=%s\nipconfig0: %s\nnameserver: 10.99.0.53 fd99::53\nnet0: virtio=%s,bridge=vmbr0\n",
		id, mode, ipconfig, strings.ToUpper(mac)))
}

// apply has the host's scripts make the rules.
func (l *egressLab) apply() {
	l.t.Helper()
	script := `set -Eeuo pipefail; source "$1/scripts/lib/destroy.sh"; run_init; egress_sync; run_clean; printf '%s' "${egress_reason}"`
	root, err := filepath.Abs("../../..")
	if err != nil {
		l.t.Fatal(err)
	}
	cmd := exec.CommandContext(l.t.Context(), "bash", "-c", script, "bash", root)
	cmd.Env = append(os.Environ(), "LINUS_PVE_DIR="+l.dir+"/pve", "LINUS_LOCK_DIR="+l.dir+"/run", "LINUS_RESOLV_CONF=/nonexistent", "TMPDIR="+l.dir)
	var out []byte
	l.in("node", func() (err error) {
		out, err = cmd.Output()
		return err
	})
	if len(out) > 0 {
		l.t.Fatalf("the rules could not be made: %s", out)
	}
}

// --- frames ---

// frame is an Ethernet frame. It gets a number where the kernel's bridge, which checks
// and trims IP packets, leaves it: in IPv4's identification, IPv6's flow label, the
// address that ARP asks for, or at its end.
type frame []byte

const numbered = 0xe8 // IPv4's TOS, which nothing else here has

func (f frame) number(i int) frame {
	f = append(frame{}, f...)
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x8100, 0x88a8:
		inner := append(append(frame{}, f[:12]...), f[16:]...).number(i)
		return inner.tagged(binary.BigEndian.Uint16(f[12:]), f[15])
	case 0x0800:
		f[15] = numbered
		binary.BigEndian.PutUint16(f[18:], uint16(i))
		f[24], f[25] = 0, 0
		sum := uint32(0)
		for at := 14; at < 14+int(f[14]&15)*4; at += 2 {
			sum += uint32(binary.BigEndian.Uint16(f[at:]))
		}
		for sum>>16 != 0 {
			sum = sum>>16 + sum&0xffff
		}
		binary.BigEndian.PutUint16(f[24:], ^uint16(sum))
		return f
	case 0x86dd:
		binary.BigEndian.PutUint32(f[14:], 0x600ed000|uint32(i))
		return f
	case 0x0806:
		binary.BigEndian.PutUint32(f[34:], 0xfeed0000|uint32(i))
		return f
	}
	return binary.BigEndian.AppendUint32(f, 0xfeed0000|uint32(i))
}

// numberOf returns a frame's number; false if it has none.
func (f frame) numberOf() (int, bool) {
	if len(f) < 38 {
		return 0, false
	}
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x8100, 0x88a8:
		return append(append(frame{}, f[:12]...), f[16:]...).numberOf()
	case 0x0800:
		return int(binary.BigEndian.Uint16(f[18:])), f[15] == numbered
	case 0x86dd:
		label := binary.BigEndian.Uint32(f[14:])
		return int(label & 0xfff), label>>12 == 0x600ed
	}
	mark := binary.BigEndian.Uint32(f[len(f)-4:])
	if binary.BigEndian.Uint16(f[12:]) == 0x0806 {
		mark = binary.BigEndian.Uint32(f[34:])
	}
	return int(mark & 0xffff), mark>>16 == 0xfeed
}

func mac(text string) []byte {
	m, err := net.ParseMAC(text)
	if err != nil {
		panic(err)
	}
	return m
}

func ether(dst, src string, kind uint16, payload []byte) frame {
	f := append(append(append(frame{}, mac(dst)...), mac(src)...), byte(kind>>8), byte(kind))
	f = append(f, payload...)
	return append(f, make([]byte, max(0, 60-len(f)))...)
}

func arp(dst, src, senderMAC, sender, target string) frame {
	p := append([]byte{0, 1, 8, 0, 6, 4, 0, 2}, mac(senderMAC)...)
	p = append(p, netip.MustParseAddr(sender).AsSlice()...)
	p = append(append(p, mac(lanMAC)...), netip.MustParseAddr(target).AsSlice()...)
	return ether(dst, src, 0x0806, p)
}

const (
	syn = 0x02
	ack = 0x10
	rst = 0x04
)

func tcp(sport, dport uint16, flags byte) []byte {
	h := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sport), dport)
	return append(append(h, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 0, 0), make([]byte, 10)...)
}

func udp(sport, dport uint16) []byte {
	h := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sport), dport)
	return append(append(h, 0, 16, 0, 0), make([]byte, 8)...)
}

// packet is an IP packet of either family in a frame; proto as IPv4 numbers it, 58 is
// ICMPv6.
func packet(dst, src, from, to string, proto byte, payload []byte) frame {
	a, b := netip.MustParseAddr(from), netip.MustParseAddr(to)
	if a.Is4() {
		h := []byte{0x45, 0, 0, byte(20 + len(payload)), 0, 0, 0, 0, 64, proto, 0, 0}
		return ether(dst, src, 0x0800, append(append(append(h, a.AsSlice()...), b.AsSlice()...), payload...))
	}
	h := []byte{0x60, 0, 0, 0, byte(len(payload) >> 8), byte(len(payload)), proto, 255}
	return ether(dst, src, 0x86dd, append(append(append(h, a.AsSlice()...), b.AsSlice()...), payload...))
}

// nd is a message of neighbour discovery with its options, whose first is a card's address (1 or
// 2 and its MAC) or random (14).
func nd(kind byte, target string, options ...byte) []byte {
	m := []byte{kind, 0, 0, 0, 0, 0, 0, 0}
	switch kind {
	case 133:
	case 134:
		m = append(m, make([]byte, 8)...)
	default:
		m = append(m, netip.MustParseAddr(target).AsSlice()...)
	}
	return append(m, options...)
}

func option(kind byte, card string) []byte { return append([]byte{kind, 1}, mac(card)...) }

// mld is a message of multicast listeners behind its router alert, from a machine or a router.
func mld(kind byte, more int) []byte {
	return append([]byte{58, 0, 5, 2, 0, 0, 1, 0, kind}, make([]byte, more+19)...)
}

const (
	hopLimit = 14 + 7
	code     = 14 + 40 + 1
)

// after returns the frame with an extension header of IPv6 before its payload.
func (f frame) after(kind byte) frame {
	header := []byte{f[20], 0, 1, 4, 0, 0, 0, 0}
	g := append(append(append(frame{}, f[:54]...), header...), f[54:]...)
	binary.BigEndian.PutUint16(g[18:], binary.BigEndian.Uint16(f[18:])+8)
	g[20] = kind
	return g
}

// longer returns the frame with more behind what its headers say.
func (f frame) longer(by int) frame {
	return append(append(frame{}, f...), bytes.Repeat([]byte{'x'}, by)...)
}

// change returns the frame with other bytes at an offset.
func (f frame) change(at int, with ...byte) frame {
	f = append(frame{}, f...)
	copy(f[at:], with)
	return f
}

// tagged returns the frame with a VLAN tag.
func (f frame) tagged(kind uint16, id byte) frame {
	return append(append(append(frame{}, f[:12]...), byte(kind>>8), byte(kind), 0, id), f[12:]...)
}

func (l *egressLab) socket(name string) int {
	l.t.Helper()
	fd := -1
	l.in(name, func() (err error) {
		card, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all&0xffff); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all & 0xffff, Ifindex: card.Index})
	})
	l.t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

// send sends frames from one namespace's card, each with its number, then one that
// always passes, from there or elsewhere, and returns which of them another's card has received before that.
func (l *egressLab) send(from, to string, frames []frame, lastFrom string, last frame) map[int]bool {
	l.t.Helper()
	out, in := l.socket(from), l.socket(to)
	lastOut := out
	if lastFrom != from {
		lastOut = l.socket(lastFrom)
	}
	if err := unix.SetsockoptTimeval(in, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		l.t.Fatal(err)
	}
	const end = 999
	for i, f := range append(frames, last) {
		if i == len(frames) {
			i, out = end, lastOut
		}
		if _, err := unix.Write(out, f.number(i)); err != nil {
			l.t.Fatal(err)
		}
	}
	came := map[int]bool{}
	buffer := make([]byte, 4096)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		n, err := unix.Read(in, buffer)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			l.t.Fatalf("the last frame from %s does not arrive at %s: %v", from, to, err)
		}
		i, ok := frame(buffer[:n]).numberOf()
		if ok && i == end {
			return came
		}
		if ok { // else it is the kernel's own
			came[i] = true
		}
	}
	l.t.Fatalf("the last frame from %s does not arrive at %s", from, to)
	return nil
}

type egressRow struct {
	name  string
	frame frame
	pass  string // the modes in which it passes
}

func (l *egressLab) check(mode, from, to string, rows []egressRow, last frame) {
	l.t.Helper()
	var frames []frame
	for _, r := range rows {
		frames = append(frames, r.frame)
	}
	came := l.send(from, to, frames, from, last)
	for i, r := range rows {
		if want := strings.Contains(" "+r.pass+" ", " "+mode+" "); came[i] != want {
			l.t.Errorf("%s, %s to %s: %s passes: %t", mode, from, to, r.name, came[i])
		}
	}
}

const everyone = "ff:ff:ff:ff:ff:ff"

// TestEgress_WhatPasses sends each frame in each mode, out of a VM and into it, from a tap on the
// bridge and from one on Proxmox's firewall bridge. lan says that the frame passes where
// there are no rules: it would have been seen.
func TestEgress_WhatPasses(t *testing.T) {
	l := newEgressLab(t)
	const own6, ll = "fd99::200", "fe80::be24:11ff:fe00:200"
	for _, vm := range []struct {
		name, mac, ip, ip6, ll, other string
		id                            int
	}{
		{"vm200", vm200MAC, "10.99.0.200", own6, ll, "10.99.0.201", 200},
		{"vm201", vm201MAC, "10.99.0.201", "fd99::201", "fe80::be24:11ff:fe00:201", "10.99.0.200", 201},
	} {
		// All frames go to the LAN's machine, whatever their IP address: what it sees has passed.
		to4 := func(to string, proto byte, payload []byte) frame {
			return packet(lanMAC, vm.mac, vm.ip, to, proto, payload)
		}
		to6 := func(to string, proto byte, payload []byte) frame {
			return packet(lanMAC, vm.mac, vm.ip6, to, proto, payload)
		}
		const web, all = 443, "lan internet none allow listed denied"
		out4 := []egressRow{
			{"TCP to the internet", to4("9.9.9.9", 6, tcp(40000, web, syn)), "lan internet listed"},
			{"UDP to the internet", to4("9.9.9.9", 17, udp(40000, web)), "lan internet listed"},
			{"a ping to the internet", to4("9.9.9.9", 1, make([]byte, 16)), "lan internet listed"},
			{"TCP to another of the internet", to4("9.9.8.8", 6, tcp(40000, web, syn)), "lan internet denied"},
			{"a later fragment to the internet", to4("9.9.9.9", 17, udp(40000, web)).change(20, 0x00, 0x10), "lan"},
			{"DNS, its server's", to4("10.99.0.53", 17, udp(40000, 53)), "lan internet"},
			{"DNS by TCP, its server's", to4("10.99.0.53", 6, tcp(40000, 53, syn)), "lan internet"},
			{"SSH's answer to the node", to4("10.99.0.1", 6, tcp(22, 50000, syn|ack)), all},
			{"ARP as itself", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1"), all},
			{"ARP's question who has its address", arp(everyone, vm.mac, vm.mac, "0.0.0.0", vm.ip), all},
			{"a connection to the node from SSH's port", to4("10.99.0.1", 6, tcp(22, 8006, syn)), "lan"},
			{"the node's API", to4("10.99.0.1", 6, tcp(40000, 8006, syn)), "lan"},
			{"the node's name server", to4("10.99.0.1", 17, udp(40000, 53)), "lan"},
			{"the node's other address", to4("9.9.9.1", 6, tcp(40000, web, syn)), "lan"},
			{"a later fragment to the node", to4("10.99.0.1", 6, tcp(22, 50000, ack)).change(20, 0x00, 0x10), "lan"},
			{"another port of its name server", to4("10.99.0.53", 17, udp(40000, 54)), "lan"},
			{"another's DNS on the LAN", to4("10.99.0.50", 17, udp(40000, 53)), "lan"},
			{"the LAN", to4("10.99.0.50", 6, tcp(40000, web, syn)), "lan"},
			{"another VM", to4(vm.other, 6, tcp(40000, 22, syn)), "lan"},
			{"the metadata service", to4("169.254.169.254", 6, tcp(40000, 80, syn)), "lan"},
			{"10/8", to4("10.1.2.3", 17, udp(1, 2)), "lan"},
			{"172.16/12", to4("172.31.255.254", 17, udp(1, 2)), "lan"},
			{"192.168/16", to4("192.168.1.1", 17, udp(1, 2)), "lan"},
			{"100.64/10", to4("100.127.0.1", 17, udp(1, 2)), "lan"},
			{"0/8", to4("0.0.0.7", 17, udp(1, 2)), "lan"},
			{"127/8", to4("127.0.0.1", 17, udp(1, 2)), "lan"},
			{"198.18/15", to4("198.19.0.1", 17, udp(1, 2)), "lan"},
			{"Azure's platform", to4("168.63.129.16", 6, tcp(40000, 80, syn)), "lan"},
			{"the name servers of private networks", to4("192.175.48.6", 17, udp(40000, 53)), "lan"},
			{"multicast", to4("224.0.0.251", 17, udp(5353, 5353)), "lan"},
			{"240/4", to4("240.0.0.1", 17, udp(1, 2)), "lan"},
			{"broadcast", to4("255.255.255.255", 17, udp(1, 2)), "lan"},
			{"a DHCP request, though its address was given", packet(everyone, vm.mac, "0.0.0.0", "255.255.255.255", 17, udp(68, 67)), "lan"},
			{"a DHCP answer", to4("255.255.255.255", 17, udp(67, 68)), "lan"},
			{"another's address", packet(lanMAC, vm.mac, "10.99.0.50", "9.9.9.9", 17, udp(1, 2)), "lan"},
			{"another VM's address", packet(lanMAC, vm.mac, vm.other, "9.9.9.9", 17, udp(1, 2)), "lan"},
			{"the node's address", packet(lanMAC, vm.mac, "10.99.0.1", "9.9.9.9", 17, udp(1, 2)), "lan"},
			{"no address", packet(lanMAC, vm.mac, "0.0.0.0", "9.9.9.9", 17, udp(1, 2)), "lan"},
			{"another MAC", packet(lanMAC, "02:00:00:00:00:77", vm.ip, "9.9.9.9", 17, udp(1, 2)), "lan"},
			{"ARP as another's address", arp(everyone, vm.mac, vm.mac, "10.99.0.50", "10.99.0.1"), "lan"},
			{"ARP as the node", arp(everyone, vm.mac, vm.mac, "10.99.0.1", "10.99.0.50"), "lan"},
			{"ARP as another's card", arp(everyone, vm.mac, "02:00:00:00:00:77", vm.ip, "10.99.0.1"), "lan"},
			{"ARP without padding", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1")[:42], all},
			{"ARP with something in its padding", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1").change(59, 1), "lan"},
			{"ARP with 4 bytes of padding", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1")[:46], "lan"},
			{"ARP with 1 kB behind it", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1")[:42].longer(1024), "lan"},
			{"ARP of longer cards", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1").change(18, 8), "lan"},
			{"ARP of longer addresses", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1").change(19, 16), "lan"},
			{"ARP of IPv6", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1").change(16, 0x86, 0xdd), "lan"},
			{"ARP of another kind of network", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1").change(14, 0, 6), "lan"},
			{"ARP that neither asks nor answers", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1").change(20, 0, 9), "lan"},
			{"ARP in another's frame", arp(everyone, "02:00:00:00:00:77", vm.mac, vm.ip, "10.99.0.1"), "lan"},
			{"an IP option", to4("9.9.9.9", 17, append(make([]byte, 4), udp(1, 2)...)).change(14, 0x46), "lan"},
			{"a VLAN", to4("9.9.9.9", 17, udp(1, 2)).tagged(0x8100, 7), "lan"},
			{"VLAN 0", to4("9.9.9.9", 17, udp(1, 2)).tagged(0x8100, 0), "lan"},
			{"a VLAN of providers", to4("9.9.9.9", 17, udp(1, 2)).tagged(0x88a8, 7), "lan"},
			{"IPv6", to6("2620:fe::9", 17, udp(1, 2)), "lan"},
			{"an IPv6 router advertisement", packet("33:33:00:00:00:01", vm.mac, vm.ll, "ff02::1", 58, nd(134, "::")), "lan"},
			{"spanning tree", ether("01:80:c2:00:00:00", vm.mac, 38, []byte{0x42, 0x42, 3}), "lan"},
			{"LLDP to a station", ether(lanMAC, vm.mac, 0x88cc, []byte{1}), "lan"},
			{"PPPoE", ether(lanMAC, vm.mac, 0x8864, []byte{1}), "lan"},
		}
		in := func(from, fromMAC string, proto byte, payload []byte) frame {
			return packet(vm.mac, fromMAC, from, vm.ip, proto, payload)
		}
		in4 := []egressRow{
			{"SSH of the node", in("10.99.0.1", lanMAC, 6, tcp(50000, 22, syn)), all},
			{"another port, from the node", in("10.99.0.1", lanMAC, 6, tcp(50000, 80, syn)), "lan"},
			{"SSH of the LAN", in("10.99.0.50", lanMAC, 6, tcp(50000, 22, syn)), "lan"},
			{"SSH of another VM", in(vm.other, lanMAC, 6, tcp(50000, 22, syn)), "lan"},
			{"SSH of the internet", in("9.9.9.9", lanMAC, 6, tcp(50000, 22, syn)), "lan"},
			{"an answer of the internet", in("9.9.9.9", lanMAC, 6, tcp(web, 40000, syn|ack)), "lan internet listed"},
			{"a datagram of the internet", in("9.9.9.9", lanMAC, 17, udp(web, 40000)), "lan internet listed"},
			{"an answer of another of the internet", in("9.9.8.8", lanMAC, 6, tcp(web, 40000, syn|ack)), "lan internet denied"},
			{"an answer of the LAN", in("10.99.0.50", lanMAC, 6, tcp(web, 40000, syn|ack)), "lan"},
			{"an answer of its name server", in("10.99.0.53", lanMAC, 17, udp(53, 40000)), "lan internet"},
			{"another port of its name server", in("10.99.0.53", lanMAC, 17, udp(54, 40000)), "lan"},
			{"a router's word that a packet was too big", in("10.99.0.1", lanMAC, 1, []byte{3, 4, 0, 0, 0, 0, 0, 0}), "lan internet listed denied"},
			{"a ping of the LAN", in("10.99.0.50", lanMAC, 1, []byte{8, 0, 0, 0, 0, 0, 0, 0}), "lan"},
			{"what is for another address", packet(vm.mac, lanMAC, "9.9.9.9", "10.99.0.77", 17, udp(1, 2)), "lan"},
			{"broadcast", packet(everyone, lanMAC, "10.99.0.50", "10.99.0.255", 17, udp(1, 2)), "lan"},
			{"IPv6", packet(vm.mac, lanMAC, "2620:fe::9", vm.ip6, 17, udp(1, 2)), "lan"},
			{"ARP without padding", arp(vm.mac, lanMAC, lanMAC, "10.99.0.50", vm.ip)[:42], all},
			{"ARP with 1 kB behind it", arp(vm.mac, lanMAC, lanMAC, "10.99.0.50", vm.ip).longer(1024), "lan"},
			{"ARP of longer cards", arp(vm.mac, lanMAC, lanMAC, "10.99.0.50", vm.ip).change(18, 8), "lan"},
			{"ARP of IPv6", arp(vm.mac, lanMAC, lanMAC, "10.99.0.50", vm.ip).change(16, 0x86, 0xdd), "lan"},
		}
		kB := make([]byte, 1200)
		ask := func(to string, options ...byte) frame { return to6(to, 58, nd(135, "fd99::1", options...)) }
		report := func(from, to string, more int) frame {
			return packet("33:33:00:00:00:16", vm.mac, from, to, 0, mld(143, more)).change(hopLimit, 1)
		}
		out6 := []egressRow{
			{"TCP to the internet", to6("2620:fe::9", 6, tcp(40000, web, syn)), "lan internet listed"},
			{"UDP to the internet", to6("2620:fe::9", 17, udp(40000, web)), "lan internet listed"},
			{"TCP to another of the internet", to6("2606:4700::9", 6, tcp(40000, web, syn)), "lan internet denied"},
			{"DNS, its server's", to6("fd99::53", 17, udp(40000, 53)), "lan internet"},
			{"SSH's answer to the node", to6("fd99::1", 6, tcp(22, 50000, syn|ack)), all},
			{"neighbour discovery as itself", to6("ff02::1:ff00:1", 58, nd(135, "fd99::1")), all},
			{"an answer about itself", to6("fd99::1", 58, nd(136, vm.ip6)), all},
			{"an answer about its link-local address", packet(lanMAC, vm.mac, vm.ll, "fe80::1", 58, nd(136, vm.ll)), all},
			{"the question who has its address", packet(lanMAC, vm.mac, "::", "ff02::1:ff00:200", 58, nd(135, vm.ip6)), all},
			{"the question for a router", packet(lanMAC, vm.mac, vm.ll, "ff02::2", 58, nd(133, "::")), all},
			{"the same with a random number", packet(lanMAC, vm.mac, "::", "ff02::1:ff00:200", 58, nd(135, vm.ip6, 14, 1, 1, 2, 3, 4, 5, 6)), all},
			{"neighbour discovery with its card", ask("ff02::1:ff00:1", option(1, vm.mac)...), all},
			{"neighbour discovery of one it knows", ask("fd99::1", option(1, vm.mac)...), all},
			{"an answer with its card", to6("fd99::1", 58, nd(136, vm.ip6, option(2, vm.mac)...)), all},
			{"the question for a router with its card", packet(lanMAC, vm.mac, vm.ll, "ff02::2", 58, nd(133, "", option(1, vm.mac)...)), all},
			{"groups it listens to", report(vm.ll, "ff02::16", 0), all},
			{"a group it listens to, before it has an address", report("::", "ff02::16", 0), all},
			{"neighbour discovery with 1 kB", ask("ff02::1:ff00:1", kB...), "lan"},
			{"neighbour discovery with 1 kB, to the internet", ask("2620:fe::9", kB...), "lan"},
			{"neighbour discovery to the internet", ask("2620:fe::9"), "lan"},
			{"neighbour discovery to another private network", ask("fd98::50"), "lan"},
			{"neighbour discovery to everybody's site", ask("ff05::2"), "lan"},
			{"neighbour discovery with 1 kB behind it", ask("ff02::1:ff00:1").longer(1024), "lan"},
			{"neighbour discovery with 8 bytes behind it", ask("ff02::1:ff00:1").longer(8), "lan"},
			{"neighbour discovery with another's card", ask("ff02::1:ff00:1", option(1, lanMAC)...), "lan"},
			{"neighbour discovery with another option", ask("ff02::1:ff00:1", option(9, vm.mac)...), "lan"},
			{"neighbour discovery that came from elsewhere", ask("ff02::1:ff00:1").change(hopLimit, 50), "lan"},
			{"neighbour discovery with a code", ask("ff02::1:ff00:1").change(code, 1), "lan"},
			{"neighbour discovery by a way of its own", ask("fd99::1").after(43), "lan"},
			{"neighbour discovery behind options", ask("fd99::1").after(60), "lan"},
			{"an answer with 1 kB", to6("fd99::1", 58, nd(136, vm.ip6, kB...)), "lan"},
			{"an answer about itself, to the internet", to6("2620:fe::9", 58, nd(136, vm.ip6)), "lan"},
			{"an answer about itself with another's card", to6("fd99::1", 58, nd(136, vm.ip6, option(2, lanMAC)...)), "lan"},
			{"an answer about itself that came from elsewhere", to6("fd99::1", 58, nd(136, vm.ip6)).change(hopLimit, 50), "lan"},
			{"the question for a router with 1 kB", packet(lanMAC, vm.mac, vm.ll, "ff02::2", 58, nd(133, "", kB...)), "lan"},
			{"the question for a router, to the internet", packet(lanMAC, vm.mac, vm.ll, "2620:fe::9", 58, nd(133, "")), "lan"},
			{"groups with 1 kB", report(vm.ll, "ff02::16", 1000), "lan"},
			{"groups, to the internet", report(vm.ll, "2620:fe::9", 0), "lan"},
			{"groups with another hop limit", report(vm.ll, "ff02::16", 0).change(hopLimit, 64), "lan"},
			{"groups by a way of its own", report(vm.ll, "ff02::16", 0).after(43), "lan"},
			{"groups without a router alert", packet(lanMAC, vm.mac, vm.ll, "ff02::16", 58, mld(143, 0)[8:]), "lan"},
			{"groups with another option", report(vm.ll, "ff02::16", 0).change(14+40+2, 30), "lan"},
			{"a question for groups", packet(lanMAC, vm.mac, vm.ll, "ff02::1", 0, mld(130, 0)).change(hopLimit, 1), "lan"},
			{"the question who has another's address", packet(lanMAC, vm.mac, "::", "ff02::1:ff00:50", 58, nd(135, "fd99::50")), "lan"},
			{"an answer about another", to6("fd99::1", 58, nd(136, "fd99::50")), "lan"},
			{"an answer about the router", packet(lanMAC, vm.mac, vm.ll, "ff02::1", 58, nd(136, "fe80::1")), "lan"},
			{"an answer about another, to the internet", to6("2620:fe::9", 58, nd(136, "fd99::50")), "lan"},
			{"a router advertisement", packet(lanMAC, vm.mac, vm.ll, "ff02::1", 58, nd(134, "::")), "lan"},
			{"a redirect", to6("2620:fe::9", 58, nd(137, "fe80::1")), "lan"},
			{"a fragment to the internet", to6("2620:fe::9", 44, append([]byte{17, 0, 0, 1, 0, 0, 0, 1}, udp(40000, web)...)), "lan"},
			{"a later fragment to the node", to6("fd99::1", 44, append([]byte{6, 0, 1, 0, 0, 0, 0, 1}, tcp(22, 50000, ack)...)), "lan"},
			{"an answer about another behind a header", to6("2620:fe::9", 60, append([]byte{58, 0, 1, 4, 0, 0, 0, 0}, nd(136, "fd99::50")...)), "lan"},
			{"the node's API", to6("fd99::1", 6, tcp(40000, 8006, syn)), "lan"},
			{"the node's other address", to6("2620:fe::1", 6, tcp(40000, web, syn)), "lan"},
			{"the LAN", to6("fd99::50", 6, tcp(40000, web, syn)), "lan"},
			{"the LAN's link-local", to6("fe80::50", 6, tcp(40000, web, syn)), "lan"},
			{"another's DNS on the LAN", to6("fd99::50", 17, udp(40000, 53)), "lan"},
			{"the metadata service", to6("fd00:ec2::254", 6, tcp(40000, 80, syn)), "lan"},
			{"the name servers of private networks", to6("2620:4f:8000::6", 17, udp(40000, 53)), "lan"},
			{"multicast", to6("ff02::fb", 17, udp(5353, 5353)), "lan"},
			{"IPv4 in IPv6", to6("::ffff:10.99.0.50", 6, tcp(40000, web, syn)), "lan"},
			{"6to4 of the LAN", to6("2002:a63:32::1", 6, tcp(40000, web, syn)), "lan"},
			{"NAT64 of the LAN", to6("64:ff9b::a63:32", 6, tcp(40000, web, syn)), "lan"},
			{"another's address", packet(lanMAC, vm.mac, "fd99::50", "2620:fe::9", 17, udp(1, 2)), "lan"},
			{"its link-local address to the internet", packet(lanMAC, vm.mac, vm.ll, "2620:fe::9", 17, udp(1, 2)), "lan"},
			{"another MAC", packet(lanMAC, "02:00:00:00:00:77", vm.ip6, "2620:fe::9", 17, udp(1, 2)), "lan"},
			{"a DHCP answer", packet(lanMAC, vm.mac, vm.ll, "ff02::1:2", 17, udp(547, 546)), "lan"},
			{"ARP", arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1"), "lan"},
			{"IPv4", to4("9.9.9.9", 17, udp(1, 2)), "lan"},
			{"a VLAN", to6("2620:fe::9", 17, udp(1, 2)).tagged(0x8100, 7), "lan"},
		}
		in6 := []egressRow{
			{"SSH of the node", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 6, tcp(50000, 22, syn)), all},
			{"SSH of the LAN", packet(vm.mac, lanMAC, "fd99::50", vm.ip6, 6, tcp(50000, 22, syn)), "lan"},
			{"SSH of the internet", packet(vm.mac, lanMAC, "2620:fe::9", vm.ip6, 6, tcp(50000, 22, syn)), "lan"},
			{"an answer of the internet", packet(vm.mac, lanMAC, "2620:fe::9", vm.ip6, 6, tcp(web, 40000, syn|ack)), "lan internet listed"},
			{"an answer of another of the internet", packet(vm.mac, lanMAC, "2606:4700::9", vm.ip6, 6, tcp(web, 40000, syn|ack)), "lan internet denied"},
			{"an answer of its name server", packet(vm.mac, lanMAC, "fd99::53", vm.ip6, 17, udp(53, 40000)), "lan internet"},
			{"a datagram of the LAN", packet(vm.mac, lanMAC, "fd99::50", vm.ip6, 17, udp(1, 2)), "lan"},
			{"a router's word that a packet was too big", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, []byte{2, 0, 0, 0, 0, 0, 0, 0}), "lan internet listed denied"},
			{"a redirect", packet(vm.mac, lanMAC, "fe80::1", vm.ip6, 58, nd(137, "fe80::1")), "lan"},
			{"the question who has its address", packet(vm.mac, lanMAC, "fd99::1", "ff02::1:ff00:200", 58, nd(135, vm.ip6, option(1, lanMAC)...)), all},
			{"an answer about a neighbour", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, nd(136, "fd99::1", option(2, lanMAC)...)), all},
			{"a router", packet(vm.mac, lanMAC, "fe80::1", "ff02::1", 58, nd(134, "", option(1, lanMAC)...)), all},
			{"a router's question for groups", packet(vm.mac, lanMAC, "fe80::1", "ff02::1", 0, mld(130, 8)).change(hopLimit, 1), all},
			{"a question from elsewhere", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, nd(135, vm.ip6)).change(hopLimit, 50), "lan"},
			{"a question with 1 kB", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, nd(135, vm.ip6, kB...)), "lan"},
			{"a question behind options", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, nd(135, vm.ip6)).after(60), "lan"},
			{"a question for another's address", packet(vm.mac, lanMAC, "fd99::1", "fd99::77", 58, nd(135, "fd99::77")), "lan"},
			{"an answer from elsewhere", packet(vm.mac, lanMAC, "2620:fe::9", vm.ip6, 58, nd(136, "2620:fe::9")).change(hopLimit, 50), "lan"},
			{"an answer with 1 kB", packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, nd(136, "fd99::1", kB...)), "lan"},
			{"a router from elsewhere", packet(vm.mac, lanMAC, "fe80::1", "ff02::1", 58, nd(134, "")).change(hopLimit, 50), "lan"},
			{"a router that is no neighbour", packet(vm.mac, lanMAC, "2620:fe::9", vm.ip6, 58, nd(134, "")), "lan"},
			{"a question for groups with 1 kB", packet(vm.mac, lanMAC, "fe80::1", "ff02::1", 0, mld(130, 1000)).change(hopLimit, 1), "lan"},
			{"a question for groups by a way of its own", packet(vm.mac, lanMAC, "fe80::1", "ff02::1", 0, mld(130, 8)).change(hopLimit, 1).after(43), "lan"},
			{"IPv4", packet(vm.mac, lanMAC, "9.9.9.9", vm.ip, 17, udp(1, 2)), "lan"},
		}
		lastOut, lastIn := arp(everyone, vm.mac, vm.mac, vm.ip, "10.99.0.1"), arp(vm.mac, lanMAC, lanMAC, "10.99.0.50", vm.ip)
		lastOut6 := packet(lanMAC, vm.mac, vm.ip6, "fd99::1", 58, nd(136, vm.ip6))
		lastIn6 := packet(vm.mac, lanMAC, "fd99::1", vm.ip6, 58, nd(135, vm.ip6))
		conf := filepath.Join(l.dir, "pve", "qemu-server", fmt.Sprint(vm.id)+".conf")
		_ = os.Remove(conf)
		l.apply()
		l.check("lan", vm.name, "lan", out4, lastOut)
		l.check("lan", "lan", vm.name, in4, lastIn)
		l.check("lan", vm.name, "lan", out6, lastOut6)
		l.check("lan", "lan", vm.name, in6, lastIn6)
		for _, mode := range []struct{ name, word string }{
			{"internet", "internet"}, {"none", "none"}, {"allow", "allow"},
			// A list that reaches no further than internet: not the node, whose address is in it, and nothing private.
			{"listed", "allow:22+9.9.9.0/24,9.9.9.9,9.9.9.8/29,10.0.0.0/8,127.0.0.1,169.254.169.254,224.0.0.0/3,0.0.0.0/5,2620:fe::9,2620:fe::/64,fd99::/64,fe80::/10,::ffff:10.99.0.50,::/4"},
			{"denied", "internet-9.9.9.9,9.9.9.8/30,10.99.0.53,2620:fe::9,2620:fe::/64,fd99::53"},
			{"none", "allow+9.9.9.9,x,2620:fe::9"},
			{"none", "allow-9.9.9.9,2620:fe::9"},
		} {
			l.config(vm.id, vm.mac, mode.word, "ip="+vm.ip+"/24,gw=10.99.0.1")
			l.apply()
			l.check(mode.name, vm.name, "lan", out4, lastOut)
			l.check(mode.name, "lan", vm.name, in4, lastIn)
			l.config(vm.id, vm.mac, mode.word, "ip6="+vm.ip6+"/64,gw6=fd99::1")
			l.apply()
			l.check(mode.name, vm.name, "lan", out6, lastOut6)
			l.check(mode.name, "lan", vm.name, in6, lastIn6)
		}
	}
}

// TestEgress_LimitedVMsDoNotMeet: whatever else they may ask on their network, they do
// not hear each other.
func TestEgress_LimitedVMsDoNotMeet(t *testing.T) {
	l := newEgressLab(t)
	const ll = "fe80::be24:11ff:fe00:200"
	frames4 := []frame{
		arp(everyone, vm200MAC, vm200MAC, "10.99.0.200", "10.99.0.201"), arp(vm201MAC, vm200MAC, vm200MAC, "10.99.0.200", "10.99.0.201"),
		arp(vm201MAC, vm200MAC, vm200MAC, "0.0.0.0", "10.99.0.200")[:42],
	}
	frames6 := []frame{
		packet("33:33:ff:00:02:01", vm200MAC, "fd99::200", "ff02::1:ff00:201", 58, nd(135, "fd99::201", option(1, vm200MAC)...)),
		packet(vm201MAC, vm200MAC, "fd99::200", "fd99::201", 58, nd(135, "fd99::201")),
		packet(vm201MAC, vm200MAC, ll, "fe80::be24:11ff:fe00:201", 58, nd(136, ll)),
		packet("33:33:00:00:00:02", vm200MAC, ll, "ff02::2", 58, nd(133, "")),
		packet("33:33:00:00:00:16", vm200MAC, ll, "ff02::16", 0, mld(143, 0)).change(hopLimit, 1),
	}
	hears := func(frames []frame, last frame, want int) {
		t.Helper()
		if came := l.send("vm200", "vm201", frames, "lan", last); len(came) != want {
			t.Errorf("of %d frames of another VM these arrive, not %d: %v", len(frames), want, came)
		}
	}
	last4 := arp(vm201MAC, lanMAC, lanMAC, "10.99.0.50", "10.99.0.201")
	last6 := packet(vm201MAC, lanMAC, "fd99::1", "fd99::201", 58, nd(135, "fd99::201"))
	for _, limited := range []bool{false, true} {
		want4, want6 := len(frames4), len(frames6)
		if limited {
			want4, want6 = 0, 0
			l.config(201, vm201MAC, "none", "ip=10.99.0.201/24")
		}
		l.config(200, vm200MAC, "none", "ip=10.99.0.200/24")
		l.apply()
		hears(frames4, last4, want4)
		if limited {
			l.config(201, vm201MAC, "none", "ip6=fd99::201/64")
		}
		l.config(200, vm200MAC, "none", "ip6=fd99::200/64")
		l.apply()
		hears(frames6, last6, want6)
	}
}

// TestEgress_BeforeAnAddressIsKnown: until then only what gets one passes, and
// afterwards only what comes from that one.
func TestEgress_BeforeAnAddressIsKnown(t *testing.T) {
	l := newEgressLab(t)
	request := packet(everyone, vm200MAC, "0.0.0.0", "255.255.255.255", 17, udp(68, 67))
	rebind := packet(everyone, vm200MAC, "10.99.0.200", "255.255.255.255", 17, udp(68, 67))
	web := packet(lanMAC, vm200MAC, "10.99.0.200", "9.9.9.9", 6, tcp(40000, 443, syn))
	ssh := packet(lanMAC, vm200MAC, "10.99.0.200", "10.99.0.1", 6, tcp(22, 50000, syn|ack))
	probe := arp(everyone, vm200MAC, vm200MAC, "0.0.0.0", "10.99.0.200")
	rows := []egressRow{
		{"a DHCP request", request, "closed open"},
		{"a DHCP request to one server", packet(lanMAC, vm200MAC, "10.99.0.200", "10.99.0.53", 17, udp(68, 67)), ""},
		{"a renewal by broadcast", rebind, "open"},
		{"the internet", web, "open"},
		{"SSH's answer", ssh, "closed open"[len("closed "):]},
		{"ARP as an address", arp(everyone, vm200MAC, vm200MAC, "10.99.0.200", "10.99.0.1"), "open"},
		{"ARP as another address", arp(everyone, vm200MAC, vm200MAC, "10.99.0.50", "10.99.0.1"), ""},
	}
	l.config(200, vm200MAC, "internet", "ip=dhcp")
	l.apply()
	l.check("closed", "vm200", "lan", rows, probe)
	l.check("closed", "lan", "vm200", []egressRow{
		{"a DHCP answer", packet(everyone, lanMAC, "10.99.0.53", "255.255.255.255", 17, udp(67, 68)), "closed"},
		{"SSH of the node", packet(vm200MAC, lanMAC, "10.99.0.1", "10.99.0.200", 6, tcp(50000, 22, syn)), ""},
	}, arp(vm200MAC, lanMAC, lanMAC, "10.99.0.50", "10.99.0.200"))
	learned := "run/egress-200-11111111-2222-4333-8444-000000000200"
	for _, of := range []string{"bc:24:11:ff:ff:ff 10.99.0.200", vm200MAC + " 10.99.0.x", vm200MAC + " fd99::200", ""} { // of another card, or no address
		l.write(learned, of+"\n")
		l.apply()
		l.check("closed", "vm200", "lan", rows, probe)
	}
	l.write(learned, vm200MAC+" 10.99.0.200\n")
	l.apply()
	l.check("open", "vm200", "lan", rows, probe)

	l.config(200, vm200MAC, "internet", "ip6=auto")
	l.write(learned, "")
	l.apply()
	const ll = "fe80::be24:11ff:fe00:200"
	rows = []egressRow{
		{"the question for a router", packet(lanMAC, vm200MAC, ll, "ff02::2", 58, nd(133, "::")), "closed open"},
		{"a DHCP request", packet(lanMAC, vm200MAC, ll, "ff02::1:2", 17, udp(546, 547)), "closed open"},
		{"the question who has an address", packet(lanMAC, vm200MAC, "::", "ff02::1:ff00:200", 58, nd(135, "2a00:99::200")), "closed open"},
		{"the internet", packet(lanMAC, vm200MAC, "2a00:99::200", "2620:fe::9", 17, udp(1, 2)), "open"},
		{"its own network", packet(lanMAC, vm200MAC, "2a00:99::200", "2a00:99::50", 17, udp(1, 2)), ""},
		{"another address of its own", packet(lanMAC, vm200MAC, "2a00:99::201", "2620:fe::9", 17, udp(1, 2)), ""},
	}
	last := packet(lanMAC, vm200MAC, ll, "fe80::1", 58, nd(136, ll))
	l.check("closed", "vm200", "lan", rows, last)
	l.write(learned, vm200MAC+" 2a00:99::200\n")
	l.apply()
	l.check("open", "vm200", "lan", rows, last)
}

// TestEgress_TheNodeAndNobodyElseLogsIn connects to a VM's SSH port, by the kernel's own stack.
func TestEgress_TheNodeAndNobodyElseLogsIn(t *testing.T) {
	l := newEgressLab(t)
	for _, vm := range []struct{ name, ip, config string }{
		{"vm200", "10.99.0.200", "ip=10.99.0.200/24"}, {"vm200", "fd99::200", "ip6=fd99::200/64"},
		{"vm201", "10.99.0.201", "ip=10.99.0.201/24"}, {"vm201", "fd99::201", "ip6=fd99::201/64"},
	} {
		id, mac := 200, vm200MAC
		if vm.name == "vm201" {
			id, mac = 201, vm201MAC
		}
		l.config(id, mac, "none", vm.config)
		l.apply()
		var server net.Listener
		l.in(vm.name, func() (err error) {
			server, err = net.Listen("tcp", net.JoinHostPort(vm.ip, "22"))
			return err
		})
		dial := func(from string, limit time.Duration) error {
			return Do(l.path(from), func() error {
				conn, err := net.DialTimeout("tcp", net.JoinHostPort(vm.ip, "22"), limit)
				if err == nil {
					_ = conn.Close()
				}
				return err
			})
		}
		if err := dial("node", 10*time.Second); err != nil {
			t.Errorf("the node to %s: %v", vm.ip, err)
		}
		if dial("lan", time.Second) == nil {
			t.Errorf("the LAN reaches %s", vm.ip)
		}
		_ = server.Close()
	}
}
