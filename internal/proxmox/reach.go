package proxmox

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"linus/internal/job"
	"linus/internal/lazyregexp"
	"linus/internal/remote"
	"linus/internal/result"
	"linus/internal/vm"
)

// Valid forms of what scripts report about a VM. Addresses and keys come from inside VMs, where a job may
// have been root, so they are checked.
var (
	idForm   = lazyregexp.New(`^[1-9][0-9]{2,8}$`)
	nodeForm = lazyregexp.New(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	nameForm = lazyregexp.New(`^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?)?$`) // of at most 253 bytes
	userForm = lazyregexp.New(`^[a-z_][a-z0-9_-]{0,31}$`)
	uuidForm = lazyregexp.New(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

func readID(text string) (int, error) {
	if !idForm.MatchString(text) {
		return 0, fmt.Errorf("%q is not a VM ID", text)
	}
	return strconv.Atoi(text)
}

// booted parses the address and host key of a VM that a script has booted.
func (p *Provider) booted(op string, v vm.VM, res result.Result) (vm.VM, error) {
	v.IP, v.User, v.HostKey = res.Get("LINUS_VM_IP"), res.Get("LINUS_VM_USER"), res.Get("LINUS_VM_HOST_KEY")
	v.Node = cmp.Or(res.Get("LINUS_VM_NODE"), v.Node)
	v, err := p.checkReach(v)
	if id := res.Get("LINUS_VM_ID"); err == nil && id != strconv.Itoa(v.ID) {
		err = fmt.Errorf("the result is about VM %q", id)
	}
	if err != nil {
		return v, p.failure(op, job.HostVM, "VM "+strconv.Itoa(v.ID)+" is reported at an address, or with a host key, that is not valid: "+err.Error(),
			"nothing was sent there; check the VM's console: a guest reports its address and host key itself, and may lie")
	}
	return v, nil
}

// checkReach checks the reported address and host key of a VM, and returns the VM with both in canonical
// form. Every reported address and key is checked here. The executor checks that no other VM uses them,
// and the host script which card has the address.
func (p *Provider) checkReach(v vm.VM) (vm.VM, error) {
	ip, err := p.checkAddress(v.IP)
	switch {
	case !idForm.MatchString(strconv.Itoa(v.ID)):
		return v, fmt.Errorf("VM %d does not have an ID that Proxmox assigns", v.ID)
	case !nodeForm.MatchString(v.Node):
		return v, fmt.Errorf("%q is not a node's name", v.Node)
	case err != nil:
		return v, err
	case !userForm.MatchString(v.User):
		return v, fmt.Errorf("%q is not a user's name", v.User)
	}
	v.IP = ip.String()
	if v.HostKey == "" && p.o.TrustFirstUse {
		return v, nil
	}
	if v.HostKey, err = remote.HostKeyLine(v.HostKey); err != nil {
		return v, fmt.Errorf("its SSH host key is invalid: %w", err)
	}
	return v, nil
}

// noVMs are ranges that netip considers global unicast, but where no VM can be: "this network" and the
// reserved end of IPv4; the first 1/256 of IPv6, which includes embedded IPv4 addresses (::ffff:0:0/96,
// ::/96, 64:ff9b::/96), and the tunnels that embed one (6to4, Teredo).
var noVMs = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/8"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
}

// theHosts is the loopback address of the host's own servers.
var theHosts = netip.MustParseAddr("127.0.0.1")

// checkAddress parses an address, and returns an error if no VM can have it: it must be the unicast
// address of a single machine in a network.
func (p *Provider) checkAddress(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return ip, fmt.Errorf("%.100q is not an IP address", text)
	}
	if p.o.Loopback && ip.IsLoopback() && ip != theHosts && !ip.Is4In6() {
		return ip, nil
	}
	reason := ""
	switch {
	case ip.Zone() != "":
		reason = "it names an interface"
	case ip.IsLoopback():
		reason = "it is the host's own"
	case !ip.IsGlobalUnicast():
		reason = "it is not the address of one machine in a network"
	}
	for _, prefix := range noVMs {
		if reason == "" && prefix.Contains(ip) {
			reason = "addresses in " + prefix.String() + " do not belong to one machine"
		}
	}
	if reason != "" {
		return ip, errors.New("no VM has the address " + ip.String() + ": " + reason)
	}
	return ip, nil
}
