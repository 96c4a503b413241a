package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// A guest's network is the machine's loopback. It still shows a card: a directory of files in place
// of the machine's cards, and commands that know the card. The guest's network service gives the
// card its address if a settings file matches its MAC, as systemd-networkd does. While the card's
// link is down, nobody can reach the guest.

const (
	labDir      = "/run/lab"
	cardsDir    = "/sys/class/net"
	cardName    = "eth0"
	cardDir     = cardsDir + "/" + cardName
	seedPath    = labDir + "/seed"    // the cloud-init drive
	leasePath   = labDir + "/lease"   // the MAC of the card that has the address
	addressPath = labDir + "/address" // the address itself
	networkDir  = "/etc/systemd/network"
	networkFile = networkDir + "/10-cloud-init-" + cardName + ".network"
)

func networkFor(mac string) string {
	return fmt.Sprintf("[Match]\nMACAddress=%s\nName=%s\n\n[Network]\nDHCP=ipv4\n", mac, cardName)
}

// mountCards hides the machine's cards.
func (c guestConfig) mountCards() error {
	path := filepath.Join(c.Root, cardsDir)
	if _, err := os.Stat(path); err != nil {
		return nil //nolint:nilerr // a machine that shows none
	}
	if err := unix.Mount("tmpfs", path, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("hide the machine's cards: %w", err)
	}
	return nil
}

// plugCard gives the guest its cloud-init drive and a card with this MAC, and starts its network.
func (g *guest) plugCard(mac string) error {
	if err := errors.Join(os.WriteFile(seedPath, []byte("instance-id: "+g.config.InstanceID+"\n"), 0o444),
		os.WriteFile(addressPath, []byte(g.address), 0o444)); err != nil {
		return err
	}
	if g.config.MAC == "" {
		return nil
	}
	if err := os.MkdirAll(cardDir, 0o755); err != nil {
		return err
	}
	link := "up"
	if g.config.LinkDown {
		link = "down"
	}
	for name, value := range map[string]string{"address": mac, "operstate": link} {
		if err := os.WriteFile(filepath.Join(cardDir, name), []byte(value+"\n"), 0o644); err != nil {
			return err
		}
	}
	return restartNetwork()
}

// restartNetwork makes the guest's network service read its settings.
func restartNetwork() error {
	mac := readWord(cardDir + "/address")
	if err := os.RemoveAll(leasePath); err != nil || mac == "" {
		return err
	}
	files, err := filepath.Glob(networkDir + "/*.network")
	if err != nil {
		return err
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if strings.Contains(strings.ToLower(string(raw)), "macaddress="+mac+"\n") {
			return os.WriteFile(leasePath, []byte(mac), 0o644)
		}
	}
	return nil
}

// card returns the MAC of the guest's network card, and its address if it has one.
func (g *guest) card() (mac, address string) {
	mac = readWord(cardDir + "/address")
	if mac == g.config.MAC && readWord(leasePath) == mac && linkIsUp() {
		address = g.address
	}
	return mac, address
}

// linkIsUp is also true for a guest without a card, which can be reached all the same.
func linkIsUp() bool { return readWord(cardDir+"/operstate") != "down" }

func readWord(path string) string {
	raw, _ := os.ReadFile(path)
	return strings.TrimSpace(string(raw))
}

// SetLink writes the link's state where the guest and its SSH server read it.
func (Driver) SetLink(_ context.Context, s *state.State, vm state.VM, slot string, up bool) error {
	pid, running := s.Pid(vm.ID)
	if !running {
		return fmt.Errorf("VM %d is not running", vm.ID)
	}
	if slot != "net0" {
		return nil
	}
	link := "down"
	if up {
		link = "up"
	}
	return os.WriteFile(filepath.Join(fmt.Sprintf("/proc/%d/root", pid), cardDir, "operstate"), []byte(link+"\n"), 0o644)
}

// systemctlTool is systemctl for a guest's only services: its network and its SSH server. The guest
// has no systemd, which would show by /run/systemd/system.
func systemctlTool(args []string, std sys.Streams) int {
	services := map[string]func() error{"systemd-networkd": restartNetwork, "ssh": restartSSH}
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return slices.Contains([]string{"-q", "--quiet", "--no-block"}, arg) })
	if len(args) == 0 {
		return realTool("systemctl", args, std)
	}
	code := 0
	switch args[0] {
	case "is-active":
		code = 3
		for _, unit := range args[1:] {
			status := "inactive"
			if services[strings.TrimSuffix(unit, ".service")] != nil {
				status, code = "active", 0
			}
			fmt.Fprintln(std.Out, status)
		}
	case "is-system-running": // the first call is answered as if the boot had not ended yet
		if os.Mkdir(labDir+"/settled", 0o755) == nil {
			fmt.Fprintln(std.Out, "starting")
			return 1
		}
		fmt.Fprintln(std.Out, "running")
	case "list-units": // there are none
	case "restart", "try-restart", "reload-or-restart":
		for _, unit := range args[1:] {
			restart := services[strings.TrimSuffix(unit, ".service")]
			if restart == nil {
				fmt.Fprintf(std.Err, "Failed to %s %s.service: Unit %[2]s.service not found.\n", args[0], unit)
				code = 5
			} else if err := restart(); err != nil {
				fmt.Fprintf(std.Err, "Job for %s.service failed: %v\n", unit, err)
				code = 1
			}
		}
	default:
		return realTool("systemctl", args, std)
	}
	return code
}

// ipTool is ip for the guest's card. The guest may not change the machine's cards.
func ipTool(args []string, std sys.Streams) int {
	line := strings.Join(args, " ")
	mac, isMAC := strings.CutPrefix(line, "link set dev "+cardName+" address ")
	switch {
	case line == "link set dev "+cardName+" down" || line == "link set dev "+cardName+" up":
		return 0
	case line == "address flush dev "+cardName:
		return told(os.RemoveAll(leasePath), "ip", std.Err)
	case line == "-o -4 address show dev "+cardName+" scope global -tentative":
		if mac := readWord(leasePath); mac != "" && mac == readWord(cardDir+"/address") && linkIsUp() {
			fmt.Fprintf(std.Out, "2: %s    inet %s/24 brd 255.255.255.255 scope global dynamic %[1]s\\       valid_lft 3600sec preferred_lft 3600sec\n", cardName, readWord(addressPath))
		}
		return 0
	case line == "-o -6 address show dev "+cardName+" scope global -tentative":
		return 0
	case isMAC:
		return told(os.WriteFile(cardDir+"/address", []byte(strings.ToLower(mac)+"\n"), 0o644), "ip", std.Err)
	}
	return realTool("ip", args, std)
}

// blkidTool finds the cloud-init drive by its label.
func blkidTool(args []string, std sys.Streams) int {
	if at := slices.Index(args, "-L"); at >= 0 && at+1 < len(args) {
		if args[at+1] != "cidata" {
			return 2
		}
		fmt.Fprintln(std.Out, seedPath)
		return 0
	}
	return volumeTool("blkid", args, std)
}

// realTool runs the machine's command of that name.
func realTool(name string, args []string, std sys.Streams) int {
	for _, dir := range []string{"/usr/bin", "/usr/sbin", "/bin", "/sbin"} {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err != nil || info.Mode()&fs.ModePerm&0o111 == 0 {
			continue
		}
		cmd := exec.Command(path, args...) //nolint:noctx // a command of a guest, which ends with it
		cmd.Stdin, cmd.Stdout, cmd.Stderr = std.In, std.Out, std.Err
		if err := cmd.Run(); err != nil {
			return max(1, cmd.ProcessState.ExitCode())
		}
		return 0
	}
	fmt.Fprintf(std.Err, "%s: command not found\n", name)
	return 127
}

func told(err error, name string, w io.Writer) int {
	if err != nil {
		fmt.Fprintf(w, "%s: %v\n", name, err)
		return 1
	}
	return 0
}
