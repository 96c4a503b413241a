package lab

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// requirement is a file or command that a driver needs, with its Debian package.
type requirement struct {
	name    string // a command, or an absolute path
	pkg     string
	drivers []string
}

var (
	bothDrivers = []string{state.DriverProcess, state.DriverQemu}
	onlyQemu    = []string{state.DriverQemu}
)

var requirements = []requirement{
	{"sshd", "openssh-server", bothDrivers},
	{"bash", "bash", bothDrivers},
	{"qemu-system-x86_64", "qemu-system-x86", onlyQemu},
	{"qemu-img", "qemu-utils", onlyQemu},
	{"genisoimage", "genisoimage", onlyQemu},
	{"dnsmasq", "dnsmasq-base", onlyQemu},
	{"nft", "nftables", onlyQemu},
	{"ip", "iproute2", onlyQemu},
	{"mmdebstrap", "mmdebstrap", onlyQemu},
	{"unshare", "util-linux", onlyQemu},
	{"cpio", "cpio", onlyQemu},
	{"sfdisk", "fdisk", onlyQemu},
	{"mke2fs", "e2fsprogs", onlyQemu},
	{"mkfs.vfat", "dosfstools", onlyQemu},
	{"mcopy", "mtools", onlyQemu},
	{"grub-mkimage", "grub-common", onlyQemu},
	{"/usr/lib/grub/i386-pc/boot.img", "grub-pc-bin", onlyQemu},
	{"/usr/lib/grub/x86_64-efi/normal.mod", "grub-efi-amd64-bin", onlyQemu},
}

// Missing describes, one sentence each, what a driver needs and this machine lacks.
func Missing(driver string) []string {
	var missing []string
	if driver == state.DriverQemu {
		if os.Geteuid() != 0 {
			missing = append(missing, "The qemu lab creates a network namespace and needs root: run it with sudo.")
		}
		if err := sys.Openable("/dev/net/tun"); err != nil {
			missing = append(missing, fmt.Sprintf("The qemu lab needs /dev/net/tun for its VMs' network (%v): "+
				"run `modprobe tun`, or give the container the device.", err))
		}
	}
	for _, need := range lacking(driver) {
		missing = append(missing, fmt.Sprintf("%s is not installed (package %s).", need.name, need.pkg))
	}
	return missing
}

// InstallHint returns the command that installs the packages Missing reports, or "".
func InstallHint(driver string) string {
	var packages []string
	for _, need := range lacking(driver) {
		packages = append(packages, need.pkg)
	}
	if len(packages) == 0 {
		return ""
	}
	slices.Sort(packages)
	return "apt-get install --no-install-recommends -y " + strings.Join(slices.Compact(packages), " ")
}

func lacking(driver string) []requirement {
	var needs []requirement
	for _, need := range requirements {
		if _, err := sys.Find(need.name); err != nil && slices.Contains(need.drivers, driver) {
			needs = append(needs, need)
		}
	}
	return needs
}
