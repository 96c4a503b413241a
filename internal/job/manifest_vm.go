package job

import (
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"linus/internal/vm"
)

// MaxArtifactPatterns bounds the patterns of artifacts to collect from a VM.
const MaxArtifactPatterns = 100

// ForVM returns the manifest of a request for a VM that stays: no task runs there.
func (m Manifest) ForVM() Manifest {
	m.Task, m.AgentType, m.Lifecycle = "create VM "+m.VMName, AgentScript, vm.Persistent
	return m
}

// NameTaken returns the error for a VM name that is taken. It says nothing about the other VM, which
// may be another principal's.
func NameTaken(name string) error {
	return field("manifest.vmName", "choose another", "VM already exists: the name %q is taken", name)
}

// validateName checks the name of a VM that stays, apart from its syntax.
func validateName(name string) []*FieldError {
	switch {
	case name == "":
	case strings.Trim(name, "0123456789") == "" || len(name) == 36 && strings.Trim(name, "0123456789abcdefABCDEF-") == "": // it would be taken for the ID of another VM
		return []*FieldError{field("manifest.vmName", "add a letter that no ID has", "%q looks like an ID", name)}
	case isPage(name):
		return []*FieldError{field("manifest.vmName", "choose another", "%q is taken by one of linus's own pages, next to those of the VMs", name)}
	}
	return nil
}

func validateNetwork(n vm.Network) []*FieldError {
	bad := validateEgress(n)
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
	switch gateway, err := netip.ParseAddr(n.Gateway); {
	case err != nil:
		bad = append(bad, field("manifest.network.gateway", "give an address, as in 10.0.0.1", "%q is not an address", n.Gateway))
	case addresses.Fixed() && !addresses.NetworkContains(gateway):
		bad = append(bad, field("manifest.network.gateway", "give one that the VM can reach", "%s is not in the network of %s", gateway, n.IP))
	}
	return bad
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

// isPage reports whether a name is that of a page or stream beside the pages of VMs or pools: the
// page of a VM or pool of this name could not be reached.
func isPage(name string) bool { return name == "new" || name == "live" }
