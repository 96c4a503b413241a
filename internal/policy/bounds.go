package policy

import (
	"cmp"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"linus/internal/job"
	"linus/internal/vm"
)

// Choices are the settings of Bounds. Most are lists like ALLOWED_COMMANDS: of names, in which *
// and ? are wildcards, or of VLAN tags, such as 20 or 20-29. An empty list is not set.
type Choices struct {
	Bridges, VLANs, Storages, Templates, Secrets, Credentials string
	Webhooks                                                  string // hosts
	Egress, EgressNames                                       string // modes, and names as in a manifest

	Network  vm.Network // the configured network
	Storage  string     // the configured storage
	Template string     // the configured template
	Signs    bool       // there is a key for webhooks

	DefaultEgress vm.Egress // the configured mode
	DefaultNames  []string  // the configured names
}

// Bounds decide which networks, storages, templates and secrets a client may choose. Everybody may
// use what is configured, by naming it or by leaving it out. A list that is set applies to every
// client. If no list of networks is set, MCP clients get only the configured network and its
// addresses: an agent must not reach networks that its operator did not think of, nor fill storages
// meant for something else. The command line belongs to the operator.
type Bounds struct {
	own                                                Choices
	bridges, storages, templates, secrets, credentials []string
	webhooks                                           []string // hosts, or hosts with a port
	vlans                                              [][2]int
	egress                                             []vm.Egress
	names                                              []string
}

// NewBounds reads the lists. Errors are *job.FieldError, named after the setting.
func NewBounds(c Choices) (*Bounds, error) {
	b := &Bounds{own: c}
	for _, list := range []struct {
		name, text string
		to         *[]string
	}{
		{"ALLOWED_BRIDGES", c.Bridges, &b.bridges}, {"ALLOWED_STORAGES", c.Storages, &b.storages}, {"ALLOWED_TEMPLATES", c.Templates, &b.templates},
		{"ALLOWED_SECRETS", c.Secrets, &b.secrets}, {"ALLOWED_CREDENTIALS", c.Credentials, &b.credentials}, {"ALLOWED_WEBHOOKS", c.Webhooks, &b.webhooks},
	} {
		names, err := entries(list.name, list.text)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if _, err := path.Match(name, ""); err != nil || strings.ContainsAny(name, " \t/\\'\"") {
				return nil, setting(list.name, "%q is not a name", name, "write names with * and ? in them, separated by commas")
			}
		}
		*list.to = names
	}
	for _, name := range b.webhooks {
		host, port, err := net.SplitHostPort(name)
		if _, bad := strconv.ParseUint(port, 10, 16); err == nil && (host == "" || bad != nil || port[0] == '0') {
			return nil, setting("ALLOWED_WEBHOOKS", "%q does not name a host and a port", name, "write hosts such as ci.example, or ci.example:8443 for one port of it, separated by commas")
		}
	}
	if err := b.readEgress(); err != nil {
		return nil, err
	}
	tags, err := entries("ALLOWED_VLANS", c.VLANs)
	if err != nil {
		return nil, err
	}
	for _, text := range tags {
		from, to, err := job.VLANs(text)
		if err != nil || from == 0 {
			return nil, setting("ALLOWED_VLANS", "%q is not a VLAN tag", text, "write tags from 1 to 4094, or ranges such as 20-29, separated by commas")
		}
		b.vlans = append(b.vlans, [2]int{from, to})
	}
	return b, nil
}

func split(text string) (all []string) {
	for part := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		if part = strings.TrimSpace(part); part != "" {
			all = append(all, part)
		}
	}
	return all
}

// entries splits a setting that is a list; nil if it is not set.
func entries(name, text string) ([]string, error) {
	all := split(text)
	if text != "" && len(all) == 0 {
		return nil, setting(name, "%q has no entry", text, "give names separated by commas, or unset it")
	}
	return all, nil
}

// Check checks whether a client may have what a valid submission chooses. It returns nil, or a
// *job.InvalidError with everything that is not allowed.
func (b *Bounds) Check(s job.Submission) error {
	m := s.Manifest
	found := &findings{}
	mcp := asMCP(s.Client, s.Principal)
	b.token(found, s)
	if m.VM == "" {
		b.network(found, m.Network, mcp)
		b.mode(found, m.Network, mcp)
		b.template(found, m)
	}
	for i, name := range m.Secrets {
		if len(b.secrets) > 0 && !job.Among(b.secrets, name) {
			found.add(fmt.Sprintf("manifest.secrets[%d]", i), fmt.Sprintf("%q is not allowed: ALLOWED_SECRETS allows %s", name, strings.Join(b.secrets, ", ")), "leave it out")
		}
	}
	for at, name := range m.CredentialsNamed() {
		if len(b.credentials) > 0 && !job.Among(b.credentials, name) {
			found.add(at, fmt.Sprintf("%q is not allowed: ALLOWED_CREDENTIALS allows %s", name, strings.Join(b.credentials, ", ")), "leave it out")
		}
	}
	b.notify(found, s)
	if len(found.list) > 0 {
		return &job.InvalidError{Fields: found.list}
	}
	return nil
}

// asMCP reports whether a client has the rights of an MCP client. So has a token's holder, who can
// name its client at will.
func asMCP(client string, p job.Principal) bool {
	return job.IsMCP(client) || p.Name != "" && !p.Admin()
}

// CheckStorage returns a *job.FieldError if a client may not have a volume on a storage; empty: the
// configured storage.
func (b *Bounds) CheckStorage(client string, p job.Principal, name string) error {
	own := b.own.Storage
	name = cmp.Or(name, own)
	refuse := func(remedy, format string, args ...any) error {
		return &job.FieldError{Field: "storage", Problem: fmt.Sprintf("%q is not allowed: ", name) + fmt.Sprintf(format, args...), Remedy: remedy}
	}
	switch {
	case name != own && len(b.storages) > 0 && !job.Among(b.storages, name):
		return refuse("use one of these, or leave it out", "ALLOWED_STORAGES allows %s, and %s is configured", strings.Join(b.storages, ", "), own)
	case name != own && len(b.storages) == 0 && asMCP(client, p):
		return refuse("leave it out", "MCP clients and tokens get only the configured storage, %s, and ALLOWED_STORAGES is not set", own)
	case len(p.Storages) > 0 && !job.Among(p.Storages, name):
		return refuse("use one of these", "this token allows %s", strings.Join(p.Storages, ", "))
	}
	return nil
}

// network checks what a new VM is connected to.
func (b *Bounds) network(found *findings, n vm.Network, mcp bool) {
	own := b.own.Network
	const alone = "MCP clients get only the configured network"
	elsewhere := false // on a network that a list names, whose addresses linus does not know
	if n.Bridge != "" && n.Bridge != own.Bridge {
		switch {
		case len(b.bridges) > 0 && !job.Among(b.bridges, n.Bridge):
			found.add("manifest.network.bridge", fmt.Sprintf("%q is not allowed: ALLOWED_BRIDGES allows %s, and %s is configured", n.Bridge, strings.Join(b.bridges, ", "), own.Bridge), "use one of these, or leave it out")
		case len(b.bridges) == 0 && mcp:
			found.add("manifest.network.bridge", fmt.Sprintf("%q is not allowed: %s, bridge %s, and ALLOWED_BRIDGES is not set", n.Bridge, alone, own.Bridge), "leave it out")
		default:
			elsewhere = true
		}
	}
	if n.VLAN != 0 && n.VLAN != own.VLAN {
		configured := "none"
		if own.VLAN != 0 {
			configured = strconv.Itoa(own.VLAN)
		}
		switch {
		case len(b.vlans) > 0 && !slices.ContainsFunc(b.vlans, func(r [2]int) bool { return r[0] <= n.VLAN && n.VLAN <= r[1] }):
			found.add("manifest.network.vlan", fmt.Sprintf("%d is not allowed: ALLOWED_VLANS allows %s, and %s is configured", n.VLAN, b.own.VLANs, configured), "use one of these, or leave it out")
		case len(b.vlans) == 0 && mcp:
			found.add("manifest.network.vlan", fmt.Sprintf("%d is not allowed: %s, VLAN %s, and ALLOWED_VLANS is not set", n.VLAN, alone, configured), "leave it out")
		default:
			elsewhere = true
		}
	}
	if !mcp || elsewhere {
		return
	}
	if n.IP != "" && n.IP != own.IP {
		found.add("manifest.network.ip", fmt.Sprintf("%q is not allowed: %s, with addresses of VM_IP_CONFIG (%s)", n.IP, alone, own.IP), "leave it out, or choose a bridge of ALLOWED_BRIDGES or a VLAN of ALLOWED_VLANS")
	}
	if n.Gateway != "" && n.Gateway != own.Gateway {
		found.add("manifest.network.gateway", fmt.Sprintf("%q is not allowed: %s, with the gateway of VM_GATEWAY", n.Gateway, alone), "leave it out")
	}
}

// template checks what a new VM is created from.
func (b *Bounds) template(found *findings, m job.Manifest) {
	field, name := madeFrom(m)
	if len(b.templates) == 0 || name == "" || (m.OS == "" && name == b.own.Template) || job.Among(b.templates, name) {
		return
	}
	found.add(field, fmt.Sprintf("%q is not allowed: ALLOWED_TEMPLATES allows %s, and %s is configured", name, strings.Join(b.templates, ", "), b.own.Template), "use one of these, by the name it has there, or leave it out")
}

// madeFrom returns what a new VM is created from, and the field that says so.
func madeFrom(m job.Manifest) (field, name string) {
	if m.OS != "" {
		return "manifest.os", m.OS
	}
	return "manifest.vmTemplate", m.VMTemplate
}
