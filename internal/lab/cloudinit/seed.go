// Package cloudinit makes a VM's cloud-init data (NoCloud) from its config, in PVE's format.
package cloudinit

import (
	"cmp"
	"context"
	"crypto/sha1"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// Seed is the data that a VM's cloud-init reads (NoCloud), in PVE's format
// (PVE::QemuServer::Cloudinit).
type Seed struct {
	User    string
	Network string
	Meta    string
}

// New returns the seed for a VM's config. PVE uses the host's nameserver if the config names none.
func New(id int, conf *state.Conf, nameserver string) Seed {
	user := seedUserData(id, conf)
	network := seedNetwork(conf, nameserver)
	return Seed{
		User:    user,
		Network: network,
		// A changed setting makes a new instance, so that cloud-init runs again.
		Meta: fmt.Sprintf("instance-id: %x\n", sha1.Sum([]byte(user+network))),
	}
}

func seedUserData(id int, conf *state.Conf) string {
	var b strings.Builder
	hostname := cmp.Or(conf.Get("name"), fmt.Sprintf("VM%d", id))
	fqdn := hostname
	if short, _, dotted := strings.Cut(hostname, "."); dotted {
		hostname = short
	} else if search := conf.Get("searchdomain"); search != "" {
		fqdn = hostname + "." + search
	}
	fmt.Fprintf(&b, "#cloud-config\nhostname: %s\nmanage_etc_hosts: true\nfqdn: %s\n", hostname, fqdn)
	user := conf.Get("ciuser")
	if user != "" {
		fmt.Fprintf(&b, "user: %s\n", user)
	}
	if user == "root" {
		b.WriteString("disable_root: False\n")
	}
	if password := conf.Get("cipassword"); password != "" {
		fmt.Fprintf(&b, "password: %s\n", password)
	}
	if keys := conf.SSHKeys(); keys != "" {
		b.WriteString("ssh_authorized_keys:\n")
		for key := range strings.Lines(keys) {
			if key = strings.TrimSpace(key); key != "" {
				fmt.Fprintf(&b, "  - %s\n", key)
			}
		}
	}
	b.WriteString("chpasswd:\n  expire: False\n")
	if user != "root" {
		b.WriteString("users:\n  - default\n")
	}
	if conf.Get("ciupgrade") != "0" {
		b.WriteString("package_upgrade: true\n")
	}
	return b.String()
}

// seedNetwork returns cloud-init's network config, version 1. It matches each interface that has an
// ipconfig by hardware address.
func seedNetwork(conf *state.Conf, nameserver string) string {
	var b strings.Builder
	b.WriteString("version: 1\nconfig:\n")
	for n := range state.MaxNICs {
		nic, ok := state.ParseNIC(conf.Get(fmt.Sprintf("net%d", n)))
		ipconfig := conf.Get(fmt.Sprintf("ipconfig%d", n))
		if !ok || ipconfig == "" {
			continue
		}
		fmt.Fprintf(&b, "    - type: physical\n      name: eth%d\n      mac_address: '%s'\n      subnets:\n",
			n, strings.ToLower(nic.MAC))
		props := state.Props(ipconfig)
		writeSubnet(&b, props["ip"], props["gw"], "dhcp4", "static")
		writeSubnet(&b, props["ip6"], props["gw6"], "dhcp6", "static6")
	}
	nameservers := strings.FieldsFunc(conf.Get("nameserver"), func(r rune) bool { return strings.ContainsRune(" ,;", r) })
	if len(nameservers) == 0 && conf.Get("searchdomain") == "" && nameserver != "" {
		nameservers = []string{nameserver}
	}
	b.WriteString("    - type: nameserver\n      address:\n")
	for _, address := range nameservers {
		fmt.Fprintf(&b, "      - '%s'\n", address)
	}
	if search := conf.Get("searchdomain"); search != "" {
		fmt.Fprintf(&b, "      search:\n      - '%s'\n", search)
	}
	return b.String()
}

func writeSubnet(b *strings.Builder, ip, gateway, dhcp, static string) {
	switch ip {
	case "":
	case "dhcp":
		fmt.Fprintf(b, "      - type: %s\n", dhcp)
	case "auto":
		b.WriteString("      - type: ipv6_slaac\n")
	default:
		address := ip
		fmt.Fprintf(b, "      - type: %s\n", static)
		if prefix, err := netip.ParsePrefix(ip); err == nil && prefix.Addr().Is4() {
			address = prefix.Addr().String()
			fmt.Fprintf(b, "        address: '%s'\n        netmask: '%s'\n", address, net.IP(net.CIDRMask(prefix.Bits(), 32)))
		} else {
			fmt.Fprintf(b, "        address: '%s'\n", address)
		}
		if gateway != "" {
			fmt.Fprintf(b, "        gateway: '%s'\n", gateway)
		}
	}
}

// Write creates the ISO image that carries the seed.
func (c Seed) Write(ctx context.Context, path string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), "seed.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	for name, content := range map[string]string{
		"user-data": c.User, "network-config": c.Network, "meta-data": c.Meta, "vendor-data": "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	_, err = sys.Run(ctx, "genisoimage", "-quiet", "-iso-level", "3", "-R", "-V", "cidata", "-o", path, dir)
	return err
}
