package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"linus/internal/job"
	"linus/internal/lab/netns"
	"linus/internal/loops"
)

// Addresses that are somebody's on the internet, and in the lab those of a machine behind
// the node.
const (
	internet4, internet6 = "9.9.9.9", "2620:fe::9"
	bySpoofedIP          = "9.9.9.8" // the VM's route there has another source address
	bySpoofedMAC         = "9.9.9.7" // the VM's route there is by another card
	metadata             = "169.254.169.254"
)

// Names that the engine resolves, which the VM may reach: at an address of the internet, and
// at one of the VM's own network.
const publicName, privateName = "public.example", "private.example"

// knowsNames has the engines of this host resolve the names, and reach the lab's internet,
// as this machine's other programs do not.
func (h *host) knowsNames(t *testing.T) {
	t.Helper()
	n := netns.Of(h.lab.State)
	dir := filepath.Dir(h.dir) // it outlives the engine
	hosts, program := filepath.Join(dir, "hosts"), filepath.Join(dir, "linus-with-names")
	names := fmt.Sprintf("127.0.0.1 localhost\n%s %s\n%s %s\n", publicHost(n), publicName, lanHost(n), privateName)
	wrapper := fmt.Sprintf("#!/bin/sh\nexec unshare --mount sh -c 'mount --bind %s /etc/hosts && exec \"$0\" \"$@\"' %s \"$@\"\n", hosts, h.linus())
	err := os.WriteFile(hosts, []byte(names), 0o600)
	if err == nil {
		err = os.WriteFile(program, []byte(wrapper), 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
	h.next = program
	route := func(verb string) {
		if out, err := exec.Command("ip", "route", verb, publicHost(n)+"/32", "via", n.Host.String(), "dev", n.Veth).CombinedOutput(); err != nil {
			t.Errorf("ip route %s: %v: %s", verb, err, out)
		}
	}
	route("add")
	t.Cleanup(func() { route("delete") })
}

// publicHost is the machine's address that publicName has, in the lab's internet. It is no other
// lab's on this machine.
func publicHost(n netns.Network) string {
	b := n.Host.As4()
	b[0] = 9
	return netip.AddrFrom4(b).String()
}

// lanHost is the address of the machine on the guests' network.
func lanHost(n netns.Network) string { return onNetwork(n.Gateway, 40) }

// onNetwork returns an address of the network of another.
func onNetwork(a netip.Addr, last byte) string {
	b := a.As4()
	b[3] = last
	return netip.AddrFrom4(b).String()
}

// around is what there is around the VMs of a qemu lab: a machine that is on their LAN, as
// another VM would be, is the metadata service there, and is behind the node as well.
type around struct {
	t           *testing.T
	node, space string // namespaces
	gateway     netip.Addr
	prefix6     string // of the guests' network, up to ::
}

func newAround(t *testing.T, h *host) *around {
	t.Helper()
	n := netns.Of(h.lab.State)
	a := &around{t: t, node: n.Namespace, space: n.Namespace + "w", gateway: n.Gateway}
	found := regexp.MustCompile(`inet6 (fd77:[0-9a-f:]*::)1/64`).FindStringSubmatch(a.ip("-n", a.node, "-6", "addr", "show"))
	if found == nil {
		t.Fatal("the node has no IPv6 address on the guests' network")
	}
	a.prefix6 = found[1]
	a.ip("netns", "add", a.space)
	t.Cleanup(func() { a.ip("netns", "delete", a.space) })
	for _, c := range []string{
		"-n NODE link add wan0 type veth peer name wan netns SPACE", "-n NODE link add lan0 type veth peer name lan netns SPACE",
		"-n NODE link set lan0 master " + h.lab.Config.Bridge, "-n NODE link set lan0 up", "-n NODE link set wan0 up", "-n NODE addr add fe80::1/64 dev wan0 nodad",
		"-n SPACE link set lo up", "-n SPACE link set lan up", "-n SPACE link set wan up",
		"-n NODE route add 9.9.9.0/24 dev wan0", "-n NODE route add " + publicHost(n) + "/32 dev wan0", "-n SPACE addr add " + publicHost(n) + "/32 dev wan", "-n NODE -6 route add 2620:fe::/64 dev wan0",
		"-n SPACE addr add " + internet4 + "/32 dev wan", "-n SPACE addr add " + bySpoofedIP + "/32 dev wan", "-n SPACE addr add " + bySpoofedMAC + "/32 dev wan",
		"-n SPACE addr add " + internet6 + "/64 dev wan nodad",
		"-n SPACE addr add " + a.on(40) + "/24 dev lan", "-n SPACE addr add " + metadata + "/32 dev lan", "-n SPACE addr add " + a.prefix6 + "40/64 dev lan nodad",
	} {
		a.ip(strings.Fields(strings.NewReplacer("NODE", a.node, "SPACE", a.space).Replace(c))...)
	}
	if out, err := exec.CommandContext(t.Context(), "ip", "netns", "exec", a.node, "sysctl", "-qw", "net.ipv6.conf.all.forwarding=1").CombinedOutput(); err != nil {
		t.Fatalf("IPv6 forwarding: %v: %s", err, out)
	}
	// What comes from the internet's addresses goes back by the node, and not by the LAN.
	for _, c := range []string{
		"-n SPACE rule add from 9.9.9.0/24 lookup 100", "-n SPACE rule add from " + publicHost(n) + " lookup 100", "-n SPACE route add default via " + n.Host.String() + " dev wan onlink table 100",
		"-n SPACE -6 rule add from 2620:fe::/64 lookup 100", "-n SPACE -6 route add default via fe80::1 dev wan table 100",
	} {
		a.ip(strings.Fields(strings.ReplaceAll(c, "SPACE", a.space))...)
	}
	space := netns.Network{Namespace: a.space}.Path()
	a.listen(space, "80")
	a.listen(space, "443")
	a.listen(n.Path(), "8080")
	a.listen(n.Path(), "53")
	a.answer(n.Path(), a.gateway.String())
	a.answer(space, lanHost(n))
	a.answer(space, internet4)
	return a
}

func (a *around) ip(args ...string) string {
	a.t.Helper()
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		a.t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// on returns an address of the guests' network.
func (a *around) on(last byte) string { return onNetwork(a.gateway, last) }

// countsForeign has the node count who answers for a VM's address with another card than the
// VM's first, and returns how to read that.
func (a *around) countsForeign(h *host, id, address string) (read func() string) {
	a.t.Helper()
	conf, err := os.ReadFile(filepath.Join(h.dir, "etc/pve/qemu-server", id+".conf"))
	mac := regexp.MustCompile(`(?m)^net0: virtio=([0-9A-F:]+)`).FindSubmatch(conf)
	if err != nil || mac == nil {
		a.t.Fatalf("the VM's card: %v: %s", err, conf)
	}
	nft := func(words string) string {
		a.t.Helper()
		out, err := exec.CommandContext(a.t.Context(), "ip", "netns", "exec", a.node, "nft", words).CombinedOutput()
		if err != nil {
			a.t.Fatalf("nft %s: %v: %s", words, err, out)
		}
		return string(out)
	}
	nft("table bridge foreign { chain answers { type filter hook prerouting priority -400; arp operation reply arp saddr ip " + address +
		" arp saddr ether != " + string(mac[1]) + " counter; }; }")
	return func() string { return nft("list table bridge foreign") }
}

// answer answers what comes by UDP to an address in a namespace, as a name server would.
func (a *around) answer(path, address string) {
	a.t.Helper()
	var server net.PacketConn
	if err := netns.Do(path, func() (err error) {
		server, err = net.ListenPacket("udp", net.JoinHostPort(address, "53"))
		return err
	}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = server.Close() })
	go func() {
		for question := make([]byte, 512); ; {
			_, from, err := server.ReadFrom(question)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = server.WriteTo([]byte("pong\n"), from)
			}
		}
	}()
}

// reaches reports whether a TCP connection from a namespace comes about.
func (a *around) reaches(path, address string) bool {
	err := netns.Do(path, func() error {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err == nil {
			_ = conn.Close()
		}
		return err
	})
	return err == nil
}

// listen accepts TCP connections to a port in a namespace, and answers an HTTP request.
func (a *around) listen(path, port string) {
	a.t.Helper()
	var l net.Listener
	if err := netns.Do(path, func() (err error) {
		l, err = net.Listen("tcp", ":"+port)
		return err
	}); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close() //nolint:errcheck // whoever it was has what there is
				_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
				if _, err := conn.Read(make([]byte, 1)); err == nil {
					_, _ = io.WriteString(conn, "HTTP/1.0 200 OK\r\n\r\nreached\n")
				}
			}()
		}
	}()
}

// egressFromInside tries, from inside a VM that was made with egress allow and in which a
// job runs with a terminal, what each mode lets pass, one after the other.
func egressFromInside(t *testing.T, h *host, c *mcpClient, tty *console, vm, id, address string) {
	loops.AtNightOnly(t, "TestEgress_WhatPasses has all modes")
	a := newAround(t, h)
	tty.send(`dns() { (for ip; do (exec 3<>/dev/udp/$ip/53 && echo "?" >&3 && read -r -n 1 -t 3 x <&3 && echo "udp $ip $x") 2>/dev/null & done; wait); echo "asked $((40+2))"; }` + "\n")
	foreign := a.countsForeign(h, id, address)
	// The kernel has each card answer for the addresses of all.
	task := fmt.Sprintf(`echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
card=$(ip -o route show default | sed 's/.* dev \([^ ]*\).*/\1/')
ip route add 169.254.0.0/16 dev "$card"
ip addr add %[1]s/24 dev "$card"
ip route add %[2]s/32 via %[3]s dev "$card" src %[1]s
ip -6 addr add %[4]s99/64 dev "$card" nodad
ip -6 route replace default via %[4]s1 dev "$card"
if ip link add link "$card" name other type macvlan mode bridge; then
  ip addr add %[5]s/32 dev other && ip link set other up && ip route add %[6]s/32 via %[3]s dev other onlink src %[5]s && echo another card
fi`, a.on(44), bySpoofedIP, a.gateway, a.prefix6, a.on(45), bySpoofedMAC)
	setup := c.submit(map[string]any{"agentType": "script", "vm": vm, "sudo": true, "task": "set -e\n" + task})
	c.wait(setup)
	result := c.call("get_job_result", map[string]any{"job_id": setup})
	if result["exit_code"] != 0.0 {
		t.Fatalf("set-up: %v", result)
	}
	at := func(host, port string) string { return net.JoinHostPort(host, port) }
	gateway := a.gateway.String()
	targets := []string{
		at(internet4, "80"), at(gateway, "53"), at(a.on(40), "80"), at(metadata, "80"), at(gateway, "8080"), at(bySpoofedIP, "80"),
		at(internet6, "80"), at(a.prefix6+"40", "80"), at(a.prefix6+"1", "8080"),
	}
	if strings.Contains(result["output"].(string), "another card") {
		targets = append(targets, at(bySpoofedMAC, "80"))
	} else {
		t.Log("the guest's kernel has no macvlan: no other MAC address is tried")
	}
	servers := []string{gateway, internet4, a.on(40)}
	space, node := netns.Network{Namespace: a.space}.Path(), netns.Of(h.lab.State).Path()
	tests := []struct {
		mode    string
		reached []string
		dns     []string // the servers that answer by UDP
		rule    string   // the last of the VM's chain, once the rules are there
	}{
		{"allow", nil, nil, "drop"},
		{"none", nil, nil, "drop"},
		{"lan", targets, servers, ""},
		{"internet", targets[:2], servers[:2], "accept"},
	}
	for _, tt := range tests {
		t.Run(tt.mode, func(t *testing.T) {
			h.setMode(t, id, tt.mode, gateway)
			r := h.network(t, "show", vm)
			ready := tt.rule == "" && len(r.Rules) == 0 || slices.Contains(r.Rules, "chain from_"+id+": "+tt.rule)
			if string(r.Mode) != tt.mode || r.Problem != "" || !ready || tt.rule == "drop" && slices.Contains(r.Rules, "chain from_"+id+": accept") {
				t.Fatalf("%+v", r.NetworkRules)
			}
			attempts := h.network(t, "test", append([]string{vm}, targets...)...).Attempts
			for tries := 1; tries < 5 && slices.ContainsFunc(attempts, func(got job.NetworkAttempt) bool {
				return got.Result == job.ResultNoAnswer && slices.Contains(tt.reached, got.Target)
			}); tries++ { // an emulated VM on a busy machine may need longer than a try takes
				attempts = h.network(t, "test", append([]string{vm}, targets...)...).Attempts
			}
			for _, got := range attempts {
				reached := slices.Contains(tt.reached, got.Target)
				spoofed := strings.HasPrefix(got.Target, bySpoofedIP) || strings.HasPrefix(got.Target, bySpoofedMAC)
				switch {
				case got.Way == job.WayProxy:
					if got.Result != job.ResultRefused || !strings.HasPrefix(got.Detail, "only ") {
						t.Errorf("by the proxy: %+v", got)
					}
				case (got.Result == job.ResultConnected) != reached || got.Result == job.ResultUnknown || got.Result == job.ResultUnresolved:
					t.Errorf("%+v", got)
				case tt.mode != "lan" && !spoofed && strings.HasSuffix(got.Rule, "accept") != reached || tt.mode != "lan" && got.Rule == "":
					t.Errorf("by rule: %+v", got)
				}
			}
			said := ""
			for tries := 0; tries < 5 && (tries == 0 || slices.ContainsFunc(tt.dns, func(server string) bool { return !strings.Contains(said, "udp "+server+" p") })); tries++ {
				tty.send("dns " + strings.Join(servers, " ") + "\n")
				said = tty.until("asked 42")
			}
			for _, server := range servers {
				if strings.Contains(said, "udp "+server+" p") != slices.Contains(tt.dns, server) {
					t.Errorf("by UDP to %s: %q", server, said)
				}
			}
			// Another on its network, as another VM would be, and the node.
			if a.reaches(space, at(address, "22")) != (tt.mode == "lan") || !a.reaches(node, at(address, "22")) {
				t.Error("another on the network reaches it where it is not to, or the node or the network does not")
			}
		})
		if tt.mode != "allow" {
			continue
		}
		want := []string{
			"allowed.invalid unreachable", "other.example refused", "allowed.invalid:22 refused",
			publicName + " connected", publicName + ":80 connected", privateName + " refused",
		}
		var r job.NetworkReport
		for _, names := range [][]string{{"allowed.invalid", "other.example", "allowed.invalid:22"}, {publicName, publicName + ":80", privateName}} {
			r = h.network(t, "test", append([]string{vm}, names...)...)
			for _, got := range r.Attempts {
				if text := got.Target + " " + string(got.Result); (got.Way == job.WayProxy) != slices.Contains(want, text) {
					t.Errorf("names: %+v", got)
				}
			}
		}
		for _, text := range []string{publicName + ":443 allowed", privateName + ":443 refused: its address is not public"} {
			if !slices.ContainsFunc(r.Connections, func(e job.Event) bool { return e.Text == text }) {
				t.Errorf("no connection of the job's is %q: %+v", text, r.Connections)
			}
		}
	}
	if got := foreign(); !strings.Contains(got, "counter packets 0 ") { // linus would go no further, once the node believes it
		t.Errorf("another card than the VM's has answered for its address: %s", got)
	}
}

// network runs `linus network show|test`.
func (h *host) network(t *testing.T, verb string, args ...string) (r job.NetworkReport) {
	t.Helper()
	out := h.cli(t, append([]string{"-o", "json", "network", verb}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("network %s: %v: %s", verb, err, out)
	}
	return r
}

// setMode changes what a VM reaches, as linus vm set does once no job runs in it, and its name server.
func (h *host) setMode(t *testing.T, id, mode, nameserver string) {
	t.Helper()
	path := filepath.Join(h.dir, "etc/pve/qemu-server", id+".conf")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := regexp.MustCompile(`(?m)^nameserver: .*\n`).ReplaceAll(text, nil)
	changed = append([]byte("nameserver: "+nameserver+"\n"), changed...) // before all sections
	if err = os.WriteFile(path+".new", changed, 0o600); err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		t.Fatal(err)
	}
	env := "ACTION=network VM_EGRESS=" + mode + " VM_ID=" + id
	for name, form := range map[string]string{"VM_NAME": `(?m)^name: (\S+)$`, "LINUS_JOB": `linus-job(?:=|%3D)(\S+)`, "LINUS_OWNER": `linus-owner(?:=|%3D)(\S+)`} {
		found := regexp.MustCompile(form).FindSubmatch(text)
		if found == nil {
			t.Fatalf("no %s in %s", name, text)
		}
		env += " " + name + "=" + string(found[1])
	}
	if out, err := h.ssh(t.Context(), strings.NewReader(h.cli(t, "scripts", "print", "power-vm")), env+" bash -s"); err != nil || !strings.Contains(out, "LINUS_RESULT:SUCCESS") {
		t.Fatalf("%v: %s", err, out)
	}
}
