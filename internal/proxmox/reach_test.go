package proxmox

import (
	"reflect"
	"strings"
	"testing"

	"linus/internal/remote"
	"linus/internal/result"
	"linus/internal/vm"
)

const keyLine = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMyIQX+MISFUQ0Zv1KGaPMrSnDE5qnXOiBl6AKSLpwHa"

// What a guest can say of how it is reached, and what is taken of it.
func TestBooted_TakesOnlyWhatCanBeAVMs(t *testing.T) {
	const answered = "LINUS_VM_ID:105\nLINUS_VM_NODE:pve\nLINUS_VM_USER:debian\nLINUS_VM_IP:10.0.0.5\nLINUS_VM_HOST_KEY:" + keyLine + "\n"
	tests := []struct {
		name     string
		key      string
		value    string
		loopback bool
		trust    bool   // first use
		want     vm.VM  // as far as it differs from the usual answer's
		wrong    string // part of the error; empty: it is taken
	}{
		{name: "all as it should be"},
		{name: "private", key: "IP", value: "192.168.1.20", want: vm.VM{IP: "192.168.1.20"}},
		{name: "IPv6", key: "IP", value: "2001:DB8:0::5", want: vm.VM{IP: "2001:db8::5"}},
		{name: "IPv6 of one site", key: "IP", value: "fd00::5", want: vm.VM{IP: "fd00::5"}},
		{name: "no address", key: "IP", wrong: "is not an IP address"},
		{name: "a name", key: "IP", value: "vm.example", wrong: "is not an IP address"},
		{name: "an address and a port", key: "IP", value: "10.0.0.5:22", wrong: "is not an IP address"},
		{name: "an option", key: "IP", value: "-oProxyCommand=id", wrong: "is not an IP address"},
		{name: "numbers that C reads as an address", key: "IP", value: "0x7f.1", wrong: "is not an IP address"},
		{name: "loopback", key: "IP", value: "127.0.0.1", wrong: "it is the host's own"},
		{name: "loopback elsewhere", key: "IP", value: "127.77.1.2", wrong: "it is the host's own"},
		{name: "loopback in a lab", key: "IP", value: "127.77.1.2", loopback: true, want: vm.VM{IP: "127.77.1.2"}},
		{name: "the lab's host", key: "IP", value: "127.0.0.1", loopback: true, wrong: "it is the host's own"},
		{name: "the lab's host in IPv6's clothes", key: "IP", value: "::ffff:127.0.0.1", loopback: true, wrong: "it is the host's own"},
		{name: "IPv6 loopback", key: "IP", value: "::1", wrong: "it is the host's own"},
		{name: "link-local", key: "IP", value: "169.254.1.1", wrong: "not the address of one machine in a network"},
		{name: "IPv6 link-local", key: "IP", value: "fe80::1", wrong: "not the address of one machine in a network"},
		{name: "zone", key: "IP", value: "fe80::1%eth0", wrong: "it names an interface"},
		{name: "zone of a good address", key: "IP", value: "fd00::5%vmbr0", wrong: "it names an interface"},
		{name: "multicast", key: "IP", value: "224.0.0.1", wrong: "not the address of one machine in a network"},
		{name: "IPv6 multicast", key: "IP", value: "ff02::1", wrong: "not the address of one machine in a network"},
		{name: "broadcast", key: "IP", value: "255.255.255.255", wrong: "not the address of one machine in a network"},
		{name: "unspecified", key: "IP", value: "0.0.0.0", wrong: "not the address of one machine in a network"},
		{name: "this network", key: "IP", value: "0.0.0.1", wrong: "0.0.0.0/8"},
		{name: "reserved", key: "IP", value: "240.0.0.1", wrong: "240.0.0.0/4"},
		{name: "IPv4 in IPv6", key: "IP", value: "::ffff:10.0.0.5", wrong: "::/8"},
		{name: "IPv4 in IPv6, the older way", key: "IP", value: "::10.0.0.5", wrong: "::/8"},
		{name: "IPv4 behind NAT64", key: "IP", value: "64:ff9b::a00:5", wrong: "::/8"},
		{name: "IPv4 in 6to4", key: "IP", value: "2002:7f00:1::", wrong: "2002::/16"},
		{name: "IPv4 in Teredo", key: "IP", value: "2001:0:7f00:1::1", wrong: "2001::/32"},
		{name: "another VM's answer", key: "ID", value: "106", wrong: `the result is about VM "106"`},
		{name: "node that is none", key: "NODE", value: "pve 2", wrong: "is not a node's name"},
		{name: "node that climbs", key: "NODE", value: "../pve", wrong: "is not a node's name"},
		{name: "no user", key: "USER", wrong: "is not a user's name"},
		{name: "user that is an option", key: "USER", value: "-l", wrong: "is not a user's name"},
		{name: "key with a comment", key: "HOST_KEY", value: keyLine + " root@guest", want: vm.VM{HostKey: keyLine}},
		{name: "no key", key: "HOST_KEY", wrong: "its SSH host key is invalid"},
		{name: "no key, and first use is trusted", key: "HOST_KEY", trust: true, want: vm.VM{HostKey: "none"}},
		{name: "text for a key, and first use is trusted", key: "HOST_KEY", value: "ssh-ed25519 AAAA", trust: true, wrong: "its SSH host key is invalid"},
		{name: "text for a key", key: "HOST_KEY", value: "ssh-ed25519 AAAA", wrong: "its SSH host key is invalid"},
		{name: "key with options", key: "HOST_KEY", value: `command="id" ` + keyLine, wrong: "not a single key"},
		{name: "key with escapes", key: "HOST_KEY", value: "ssh-ed25519 \x1b]0;x\x07 " + keyLine, wrong: "its SSH host key is invalid"},
		{name: "key with a long comment", key: "HOST_KEY", value: keyLine + " " + strings.Repeat("x", 5000), wrong: "bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := New(Options{Host: remote.NewPool(remote.Options{Host: "pve"}), Loopback: tt.loopback, TrustFirstUse: tt.trust})
			text := answered
			if tt.key != "" {
				text += "LINUS_VM_" + tt.key + ":" + tt.value + "\n"
			}
			res, err := result.Parse(strings.NewReader(text), "", nil)
			if err != nil && tt.wrong == "" {
				t.Fatal(err)
			}
			v, err := p.booted("start VM 105", vm.VM{ID: 105}, res)
			if tt.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wrong) || len(err.Error()) > 1000 {
					t.Fatalf("taken: %+v, %.2000v; want an error that says %q", v, err, tt.wrong)
				}
				return
			}
			want := vm.VM{ID: 105, Node: "pve", User: "debian", IP: "10.0.0.5", HostKey: keyLine}
			if tt.want.IP != "" {
				want.IP = tt.want.IP
			}
			if tt.want.HostKey != "" {
				want.HostKey = strings.TrimPrefix(tt.want.HostKey, "none")
			}
			if err != nil || !reflect.DeepEqual(v, want) {
				t.Errorf("%+v, %v; want %+v", v, err, want)
			}
		})
	}
}

func TestReadVM_TakesOnlyWhatCanBeAVM(t *testing.T) {
	const uuid = "11111111-2222-4333-8444-555555555555"
	const line = "id=105 node=pve name=dev status=running job=" + uuid + " owner=" + uuid
	want := vm.VM{ID: 105, Node: "pve", Name: "dev", Status: vm.Running, State: vm.Created, Job: uuid, Owner: uuid}
	if v, err := readVM(line); err != nil || !reflect.DeepEqual(v, want) {
		t.Errorf("readVM = %+v, %v", v, err)
	}
	for _, renamed := range []string{"name=", "name=dev.example.com"} {
		if _, err := readVM(strings.Replace(line, "name=dev", renamed, 1)); err != nil {
			t.Errorf("%s: %v", renamed, err)
		}
	}
	for _, change := range [][2]string{
		{"id=105", "id=5"}, {"id=105", "id=+105"}, {"id=105", "id=0105"}, {"id=105 ", ""}, {"id=105", "id=105 id=106"},
		{"node=pve", "node=../pve"}, {"node=pve", "node="}, {"name=dev", "name=\x1b[2J"}, {"name=dev", "name=" + strings.Repeat("a", 254)}, {"job=1", "job=x"}, {"owner=1", "owner="},
	} {
		if v, err := readVM(strings.Replace(line, change[0], change[1], 1)); err == nil {
			t.Errorf("with %q: %+v", change[1], v)
		}
	}
}
