package job

import (
	"net/netip"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"linus/internal/vm"
)

// Bounds of what a manifest asks of its VM and of what is kept of it.
const (
	MaxArtifactPatterns = 100
	minTTL              = 60              // seconds
	maxTTL              = 365 * 24 * 3600 // seconds
)

// ForVM returns the manifest with which a VM that stays is asked for: no task runs there.
func (m Manifest) ForVM() Manifest {
	m.Task, m.AgentType, m.Lifecycle = "create VM "+m.VMName, AgentScript, vm.Persistent
	return m
}

// NameTaken is the error of a VM whose name another one has. It says no more of that: it may
// be another principal's.
func NameTaken(name string) error {
	return field("manifest.vmName", "choose another", "VM already exists: the name %q is taken", name)
}

// validateVM checks which VM the task runs in.
func (m Manifest) validateVM() []*FieldError {
	var bad []*FieldError
	if m.VM != "" {
		for _, f := range []struct {
			name  string
			given bool
		}{
			{"vmTemplate", m.VMTemplate != ""},
			{"os", m.OS != ""},
			{"resources", m.Resources != vm.Resources{}},
			{"lifecycle", m.Lifecycle != ""},
			{"vmName", m.VMName != ""},
			{"ttl", m.TTL != 0},
			{"keep", m.Keep != ""},
			{"keepFor", m.KeepFor != 0},
			{"idleSuspend", m.IdleSuspend != 0},
			{"start", m.Start != ""},
			{"volumes", len(m.Volumes) > 0},
			{"retry", m.Retry != ""},
			{"network", !m.Network.IsZero()},
		} {
			if f.given {
				bad = append(bad, field("manifest."+f.name, "remove it, or remove manifest.vm to get a new VM", "has no meaning for an existing VM"))
			}
		}
		if !fits(vmTemplate, m.VM, 63) {
			bad = append(bad, field("manifest.vm", "give the name or the VM ID of a persistent VM; "+string(ListVMs)+" shows them", "%q is neither", m.VM))
		}
		return bad
	}
	if m.OS != "" && m.VMTemplate != "" {
		bad = append(bad, field("manifest.os", "give either os or vmTemplate", "is given together with vmTemplate"))
	}
	if m.OS != "" && !slices.Contains(Systems, m.OS) {
		bad = append(bad, field("manifest.os", "use one of: "+strings.Join(Systems, ", "), "%q is unknown", m.OS))
	}
	if m.Retry != "" && m.Lifecycle == vm.Persistent {
		bad = append(bad, field("manifest.retry", "remove it, or leave lifecycle out", "is for jobs whose VM goes with them"))
	}
	bad = append(bad, validateNetwork(m.Network)...)
	bad = append(bad, validateVolumes(m.Volumes)...)
	switch {
	case m.VMName == "":
	case !fits(dnsLabel, m.VMName, 63):
		bad = append(bad, field("manifest.vmName", "use letters, digits and dashes, at most 63", "%q is not a host name", m.VMName))
	case strings.Trim(m.VMName, "0123456789") == "" || len(m.VMName) == 36 && strings.Trim(m.VMName, "0123456789abcdefABCDEF-") == "": // it would be taken for another VM's
		bad = append(bad, field("manifest.vmName", "add a letter that no ID has", "%q is what an ID looks like", m.VMName))
	case isPage(m.VMName):
		bad = append(bad, field("manifest.vmName", "choose another", "%q is a page's name, beside those of the VMs", m.VMName))
	}
	if m.TTL < 0 || m.TTL > 0 && m.TTL < minTTL || m.TTL > maxTTL {
		bad = append(bad, field("manifest.ttl", "give seconds from 60 to 31536000", "%d is out of range", m.TTL))
	}
	if m.KeepFor < 0 || m.KeepFor > 0 && m.KeepFor < minTTL || m.KeepFor > maxTTL {
		bad = append(bad, field("manifest.keepFor", "give seconds from 60 to 31536000", "%d is out of range", m.KeepFor))
	} else if m.KeepFor != 0 && !m.Keep.Keeps() {
		bad = append(bad, field("manifest.keepFor", "remove it, or set keep to on_failure or always", "has no meaning without keep"))
	}
	if m.IdleSuspend < 0 || m.IdleSuspend > 0 && m.IdleSuspend < minTTL || m.IdleSuspend > maxTTL {
		bad = append(bad, field("manifest.idleSuspend", "give seconds from 60 to 31536000", "%d is out of range", m.IdleSuspend))
	} else if m.IdleSuspend != 0 && !m.Keep.Keeps() && m.Lifecycle != vm.Persistent {
		bad = append(bad, field("manifest.idleSuspend", "remove it, or set lifecycle to persistent, or keep", "has no meaning for a VM that goes with its job"))
	}
	if m.Keep.Keeps() && m.Lifecycle == vm.Persistent {
		bad = append(bad, field("manifest.keep", "remove it, and give ttl for a time", "has no meaning for a persistent VM, which stays anyway"))
	}
	if m.Lifecycle != vm.Persistent {
		if m.VMName != "" {
			bad = append(bad, field("manifest.vmName", "remove it, or set lifecycle to persistent", "has no meaning for an ephemeral VM"))
		}
		if m.TTL != 0 {
			bad = append(bad, field("manifest.ttl", "remove it, or set lifecycle to persistent", "has no meaning for an ephemeral VM"))
		}
	}
	return bad
}

func validateNetwork(n vm.Network) []*FieldError {
	var bad []*FieldError
	if n.Bridge != "" && !bridgeName.MatchString(n.Bridge) {
		bad = append(bad, field("manifest.network.bridge", "name a bridge of the host, as in vmbr0", "%q is not a bridge's name", n.Bridge))
	}
	if n.VLAN < 0 || n.VLAN > 4094 {
		bad = append(bad, field("manifest.network.vlan", "give 1 to 4094", "%d is out of range", n.VLAN))
	}
	bad = append(bad, validateEgress(n)...)
	var addresses Addresses
	if n.IP != "" {
		var err error
		if addresses, err = ParseAddresses(n.IP); err != nil {
			bad = append(bad, field("manifest.network.ip", "give an address with its prefix length, as in 10.0.0.50/24, or dhcp", "%v", err))
		}
	}
	if n.Gateway == "" {
		return bad
	}
	gateway, gatewayErr := netip.ParseAddr(n.Gateway)
	switch {
	case gatewayErr != nil:
		bad = append(bad, field("manifest.network.gateway", "give an address, as in 10.0.0.1", "%q is not an address", n.Gateway))
	case !addresses.Fixed():
		bad = append(bad, field("manifest.network.gateway", "give network.ip as an address with its prefix length as well", "has no meaning without a fixed address"))
	case !addresses.NetworkContains(gateway):
		bad = append(bad, field("manifest.network.gateway", "give one that the VM can reach", "%s is not in the network of %s", gateway, n.IP))
	}
	return bad
}

// validateTerminal checks where the task runs and what it reads from.
func (m Manifest) validateTerminal() []*FieldError {
	var bad []*FieldError
	bad = append(bad, checkPath("manifest.cwd", m.Cwd)...)
	if f := oneOf("manifest.stdin", m.Stdin, false, StdinClosed, StdinOpen); f != nil {
		bad = append(bad, f)
	}
	_, agent := m.AgentType.Agent()
	taken := agent || m.Agent.Command != ""
	if m.Stdin == StdinOpen && taken {
		bad = append(bad, field("manifest.stdin", "put the command into task, with agentType script", "cannot be open: the agent's input is the task"))
	}
	if m.TTY && taken {
		bad = append(bad, field("manifest.tty", "put the command into task, with agentType script", "is for agentType script without agent.command"))
	}
	switch {
	case m.TTYSize == "":
	case !m.TTY:
		bad = append(bad, field("manifest.ttySize", "remove it, or set tty", "has no meaning without tty"))
	case !ttySize.MatchString(m.TTYSize):
		bad = append(bad, field("manifest.ttySize", "give ROWSxCOLUMNS, as in 24x80", "%q is not a size", m.TTYSize))
	}
	return bad
}

func checkPath(name, p string) []*FieldError {
	switch {
	case p == "":
		return nil
	case !path.IsAbs(p):
		return []*FieldError{field(name, "give an absolute path, as in /srv/app", "%q is not absolute", p)}
	case len(p) > 4096:
		return []*FieldError{field(name, "use a shorter path", "is %d bytes, the limit is 4096", len(p))}
	case strings.ContainsAny(p, "\n\r\x00") || !utf8.ValidString(p):
		return []*FieldError{field(name, "use a plain path", "%q contains a newline or a control character", p)}
	}
	return nil
}

func validateSecrets(names []string, env map[string]string) []*FieldError {
	var bad []*FieldError
	seen := map[string]bool{}
	for _, name := range names {
		_, both := env[name]
		switch {
		case !envName.MatchString(name):
			bad = append(bad, field("manifest.secrets", "use letters, digits and _, not starting with a digit", "%q is not a secret's name", name))
		case slices.Contains(reserved, name):
			bad = append(bad, field("manifest.secrets", "choose another name", "%q is reserved for the job runner", name))
		case seen[name]:
			bad = append(bad, field("manifest.secrets", "name each secret once", "%q is given twice", name))
		case both:
			bad = append(bad, field("manifest.secrets", "remove one of them", "%q is in env as well", name))
		}
		seen[name] = true
	}
	return bad
}

func validateArtifacts(patterns []string) []*FieldError {
	var bad []*FieldError
	if len(patterns) > MaxArtifactPatterns {
		bad = append(bad, field("manifest.artifacts", "use patterns that match more, such as dist/**", "are %d patterns, the limit is %d", len(patterns), MaxArtifactPatterns))
	}
	for _, p := range patterns {
		switch {
		case strings.TrimSpace(p) == "":
			bad = append(bad, field("manifest.artifacts", "give a path or a pattern such as dist/**", "has a blank pattern"))
		case len(p) > 4096:
			bad = append(bad, field("manifest.artifacts", "use a shorter pattern", "has a pattern of %d bytes, the limit is 4096", len(p)))
		case slices.Contains(strings.Split(p, "/"), ".."):
			bad = append(bad, field("manifest.artifacts", "write the path out", "%q contains \"..\"", p))
		case strings.ContainsAny(p, "\n\r\x00") || !utf8.ValidString(p):
			bad = append(bad, field("manifest.artifacts", "use ? for such a character", "%q contains a newline or a control character", p))
		}
	}
	return bad
}

// isPage reports whether a name is that of a page or stream where each VM, or pool, has its
// page: that of one with this name could not be reached.
func isPage(name string) bool { return name == "new" || name == "live" }
