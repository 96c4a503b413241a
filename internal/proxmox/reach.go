package proxmox

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"

	"linus/internal/job"
	"linus/internal/remote"
	"linus/internal/result"
)

// The forms of what scripts tell of a VM. Addresses and keys come from inside
// VMs, where a job may have been root: they are not believed by their key alone.
var (
	idForm   = regexp.MustCompile(`^[1-9][0-9]{2,8}$`)
	nodeForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	nameForm = regexp.MustCompile(`^([A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)?$`)
	userForm = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
	uuidForm = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
)

func readID(text string) (int, error) {
	if !idForm.MatchString(text) {
		return 0, fmt.Errorf("%q is no VM ID", text)
	}
	return strconv.Atoi(text)
}

// booted reads how to reach a VM that a script has brought up.
func (p *Provider) booted(op string, vm job.VM, res result.Result) (job.VM, error) {
	vm.IP, vm.User, vm.HostKey = res.Get("LINUS_VM_IP"), res.Get("LINUS_VM_USER"), res.Get("LINUS_VM_HOST_KEY")
	vm.Node = cmp.Or(res.Get("LINUS_VM_NODE"), vm.Node)
	vm, err := p.checkReach(vm)
	if id := res.Get("LINUS_VM_ID"); err == nil && id != strconv.Itoa(vm.ID) {
		err = fmt.Errorf("the answer is about VM %q", id)
	}
	if err != nil {
		return vm, &job.HostError{
			Op: op, Host: p.o.Host.Login(), Class: job.HostVM,
			Text:   "how VM " + strconv.Itoa(vm.ID) + " is said to be reached cannot be: " + err.Error(),
			Remedy: "nothing was sent there; look at the VM's console: a guest tells its address and host key itself, and may lie",
		}
	}
	return vm, nil
}

// checkReach checks how a VM is said to be reached, and returns it with address
// and host key in their one form. Everything that tells an address or a key of a
// VM goes through here; that they are in no other VM's use is the executor's to
// see, and whose card answers at the address the host script's.
func (p *Provider) checkReach(vm job.VM) (job.VM, error) {
	ip, err := p.checkAddress(vm.IP)
	switch {
	case !idForm.MatchString(strconv.Itoa(vm.ID)):
		return vm, fmt.Errorf("VM %d has no ID that Proxmox gives", vm.ID)
	case !nodeForm.MatchString(vm.Node):
		return vm, fmt.Errorf("%q is no node's name", vm.Node)
	case err != nil:
		return vm, err
	case !userForm.MatchString(vm.User):
		return vm, fmt.Errorf("%q is no user's name", vm.User)
	}
	vm.IP = ip.String()
	if vm.HostKey == "" && p.o.TrustFirstUse {
		return vm, nil
	}
	if vm.HostKey, err = remote.HostKeyLine(vm.HostKey); err != nil {
		return vm, fmt.Errorf("its SSH host key is none: %w", err)
	}
	return vm, nil
}

// Ranges that netip takes for global unicast and that no VM has an address of:
// "this network" and the reserved end of IPv4; of IPv6 the first 1/256, where
// IPv4 addresses are written in IPv6 (::ffff:0:0/96, ::/96, 64:ff9b::/96), and
// the tunnels that carry one inside (6to4, Teredo).
var noVMs = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("240.0.0.0/4"),
	netip.MustParsePrefix("::/8"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("2001::/32"),
}

// theHosts are the addresses a host's own servers have on its loopback.
var theHosts = netip.MustParseAddr("127.0.0.1")

// checkAddress returns the address in text if a VM can have it: unicast, of a
// network, one machine's own.
func (p *Provider) checkAddress(text string) (netip.Addr, error) {
	ip, err := netip.ParseAddr(text)
	if err != nil {
		return ip, fmt.Errorf("%.100q is no IP address", text)
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
		reason = "it is no machine's own in a network"
	}
	for _, prefix := range noVMs {
		if reason == "" && prefix.Contains(ip) {
			reason = "addresses in " + prefix.String() + " are no machine's own"
		}
	}
	if reason != "" {
		return ip, errors.New("no VM has the address " + ip.String() + ": " + reason)
	}
	return ip, nil
}
