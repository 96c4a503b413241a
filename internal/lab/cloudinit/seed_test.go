package cloudinit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

func TestSeedUserData_IsWhatPVEWrites(t *testing.T) {
	tests := []struct {
		name string
		conf string
		want string
	}{
		{"user and keys", `name: linus-job-1
ciuser: worker
ciupgrade: 0
sshkeys: ssh-ed25519%20AAAA%20one%0Assh-ed25519%20BBBB%20two%0A
`, `#cloud-config
hostname: linus-job-1
manage_etc_hosts: true
fqdn: linus-job-1
user: worker
ssh_authorized_keys:
  - ssh-ed25519 AAAA one
  - ssh-ed25519 BBBB two
chpasswd:
  expire: False
users:
  - default
`},
		{"nothing set upgrades", ``, `#cloud-config
hostname: VM104
manage_etc_hosts: true
fqdn: VM104
chpasswd:
  expire: False
users:
  - default
package_upgrade: true
`},
		{"root, password, dotted name", `name: a.example.org
ciuser: root
cipassword: hash
ciupgrade: 0
`, `#cloud-config
hostname: a
manage_etc_hosts: true
fqdn: a.example.org
user: root
disable_root: False
password: hash
chpasswd:
  expire: False
`},
		{"search domain completes the name", `name: a
searchdomain: example.org
ciupgrade: 0
`, `#cloud-config
hostname: a
manage_etc_hosts: true
fqdn: a.example.org
chpasswd:
  expire: False
users:
  - default
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, seedUserData(104, state.ParseConf(tt.conf))); diff != "" {
				t.Errorf("user-data (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSeedNetwork_IsWhatPVEWrites(t *testing.T) {
	const head = "version: 1\nconfig:\n"
	tests := []struct {
		name string
		conf string
		want string
	}{
		{"dhcp, the host's nameserver", `net0: virtio=BC:24:11:AA:BB:CC,bridge=vmbr0
ipconfig0: ip=dhcp
`, head + `    - type: physical
      name: eth0
      mac_address: 'bc:24:11:aa:bb:cc'
      subnets:
      - type: dhcp4
    - type: nameserver
      address:
      - '10.77.1.1'
`},
		{"fixed addresses, named nameservers", `net0: virtio=BC:24:11:AA:BB:CC,bridge=vmbr0
ipconfig0: ip=10.0.0.7/22,gw=10.0.0.1,ip6=fd00::7/64,gw6=fd00::1
nameserver: 9.9.9.9 8.8.8.8
searchdomain: example.org
`, head + `    - type: physical
      name: eth0
      mac_address: 'bc:24:11:aa:bb:cc'
      subnets:
      - type: static
        address: '10.0.0.7'
        netmask: '255.255.252.0'
        gateway: '10.0.0.1'
      - type: static6
        address: 'fd00::7/64'
        gateway: 'fd00::1'
    - type: nameserver
      address:
      - '9.9.9.9'
      - '8.8.8.8'
      search:
      - 'example.org'
`},
		{"an interface without ipconfig is left out", `net0: virtio=BC:24:11:AA:BB:CC,bridge=vmbr0
net1: e1000=BC:24:11:AA:BB:CD,bridge=vmbr0
ipconfig1: ip6=auto
`, head + `    - type: physical
      name: eth1
      mac_address: 'bc:24:11:aa:bb:cd'
      subnets:
      - type: ipv6_slaac
    - type: nameserver
      address:
      - '10.77.1.1'
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, seedNetwork(state.ParseConf(tt.conf), "10.77.1.1")); diff != "" {
				t.Errorf("network-config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSeed_ChangedSettingsAreANewInstance(t *testing.T) {
	first := New(100, state.ParseConf("name: a\n"), "")
	same := New(100, state.ParseConf("name: a\nmemory: 4096\n"), "")
	other := New(100, state.ParseConf("name: b\n"), "")
	if first.Meta != same.Meta {
		t.Errorf("instance ids differ for the same settings: %q and %q", first.Meta, same.Meta)
	}
	if first.Meta == other.Meta {
		t.Errorf("instance id %q for different settings", first.Meta)
	}
}

func TestSeed_ISOIsLabelledForNoCloud(t *testing.T) {
	if _, err := sys.Find("genisoimage"); err != nil {
		t.Skip("genisoimage is not installed")
	}
	path := filepath.Join(t.TempDir(), "seed.iso")
	if err := New(100, state.ParseConf("name: a\n"), "").Write(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The primary volume descriptor is the 17th sector; its label starts at 40.
	if label := strings.TrimSpace(string(raw[16*2048+40 : 16*2048+72])); label != "cidata" {
		t.Errorf("volume label %q, want cidata", label)
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "seed.*")); len(left) != 1 {
		t.Errorf("left behind beside the image: %v", left)
	}
}
