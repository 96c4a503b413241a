// Package process runs a VM as one process of this machine, in its own namespaces, in milliseconds:
// it is the driver, and what runs inside. It isolates nothing.
package process

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"linus/internal/lab/cloudinit"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// Driver runs each VM as one process, the pvelab binary, which is the init of a PID namespace with
// its own root file system. Commands, files and signals are as in a real VM; nothing is isolated.
type Driver struct{}

// Up chooses the port of the guests' SSH servers.
func (Driver) Up(_ context.Context, s *state.State) error {
	if s.Config.GuestPort == 0 {
		s.Config.GuestPort = guestPort(Address(s, 0))
	}
	return nil
}

// Down has nothing to remove: guests are stopped one by one.
func (Driver) Down(context.Context, *state.State) error { return nil }

// Address is the address of a VM's SSH server, in 127.77.0.0/16, which needs no set-up. n counts
// from a start derived from the lab's directory, so that labs side by side rarely collide; if they
// do, the guest takes the next address.
func Address(s *state.State, n int) netip.Addr {
	const hosts = 254 * 254 // neither 0 nor 255 in the last two bytes
	at := (int(s.Hash()%hosts) + n) % hosts
	return netip.AddrFrom4([4]byte{127, 77, byte(at/254 + 1), byte(at%254 + 1)})
}

// guestCandidates returns the addresses a VM may take: the one in its cloud-init settings, else
// those from its own number on. IPv6 loopback is one address, for one VM at a time.
func guestCandidates(s *state.State, vm state.VM) []string {
	settings := state.Props(vm.Conf.Get("ipconfig0"))
	for _, key := range []string{"ip", "ip6"} {
		if prefix, err := netip.ParsePrefix(settings[key]); err == nil && prefix.Addr().IsLoopback() {
			return []string{prefix.Addr().String()}
		}
	}
	if settings["ip"] == "" && settings["ip6"] != "" {
		return []string{netip.IPv6Loopback().String()}
	}
	candidates := make([]string, 0, 256)
	for n := range cap(candidates) {
		candidates = append(candidates, Address(s, vm.ID+n).String())
	}
	return candidates
}

// guestConfig is a guest's configuration, sent as JSON on its stdin.
type guestConfig struct {
	ID         int
	Hostname   string
	User       string
	Keys       string // public keys, one per line
	InstanceID string
	MAC        string
	Addresses  []string // candidates, in order
	Port       int
	Agent      string // path of the agent's socket; "" if the VM has no agent
	Root       string // empty directory to mount the root file system on
	Disk       string // directory of the files that survive a reboot
	Binary     string // the pvelab binary
	LinkDown   bool   // whether its card's link is down
	Saved      *saved // the guest whose identity it takes; nil: it boots normally

	Storages []string          // directories of the lab's volumes
	Disks    map[string]string // volumes it is started with, by serial number
}

// DefaultUser is the login user if the config names none.
const DefaultUser = "debian"

func configOf(s *state.State, vm state.VM) (guestConfig, error) {
	config := guestConfig{
		ID: vm.ID, Hostname: cmp.Or(vm.Conf.Get("name"), fmt.Sprintf("VM%d", vm.ID)), User: cmp.Or(vm.Conf.Get("ciuser"), DefaultUser), Keys: vm.Conf.SSHKeys(),
		MAC: strings.ToLower(vm.Conf.MAC()), Addresses: guestCandidates(s, vm), Port: s.Config.GuestPort,
		Root: filepath.Join(s.RunDir(vm.ID), "root"), Disk: filepath.Join(s.RunDir(vm.ID), "disk"), Binary: s.Config.Binary,
	}
	if nic, ok := state.ParseNIC(vm.Conf.Get("net0")); ok {
		config.LinkDown = nic.Down
	}
	for _, dir := range []string{s.Path("storage"), s.Common("storage")} {
		if _, err := os.Stat(dir); err == nil && !slices.Contains(config.Storages, dir) {
			config.Storages = append(config.Storages, dir)
		}
	}
	config.Disks = map[string]string{}
	for _, d := range state.Drives(vm.Conf.Values) {
		if serial := d.Props["serial"]; serial != "" {
			path, err := s.VolumePath(d.File)
			if err != nil {
				return config, err
			}
			config.Disks[serial] = plugged(path, d)
		}
	}
	meta := cloudinit.New(vm.ID, vm.Conf, "").Meta
	config.InstanceID = strings.TrimSpace(strings.TrimPrefix(meta, "instance-id:"))
	if vm.Conf.AgentEnabled() {
		config.Agent = s.AgentSocket(vm.ID)
	}
	if _, volid := vm.Conf.BootDisk(); volid != "" {
		path, err := s.VolumePath(volid)
		if err != nil {
			return config, err
		}
		if _, err := os.Stat(path); err != nil {
			return config, fmt.Errorf("volume '%s' does not exist", volid)
		}
		config.Disk = path + contentSuffix
	}
	return config, nil
}

// Start runs the guest's process. It waits for its settings until it has been recorded, and exits
// if they do not arrive, so that a starter killed in between leaves no unknown process.
func (d Driver) Start(ctx context.Context, s *state.State, vm state.VM) error {
	return d.launch(ctx, s, vm, nil)
}

// launch is Start, or, if from is not nil, starts a guest with that identity.
func (Driver) launch(ctx context.Context, s *state.State, vm state.VM, from *saved) error {
	config, err := configOf(s, vm)
	if err != nil {
		return err
	}
	config.Saved = from
	if err := os.RemoveAll(s.RunDir(vm.ID)); err != nil {
		return err
	}
	if err := sys.MkdirAll(config.Root, config.Disk, s.QemuDir()); err != nil {
		return err
	}
	log, err := os.OpenFile(s.LogPath(vm.ID), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, tellReady, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	defer tellReady.Close()

	//nolint:contextcheck,noctx // the machine outlives the command that starts it
	cmd := exec.Command(s.Config.Binary, "guest", strconv.Itoa(vm.ID), s.Dir, "-pidfile", s.QemuPidFile(vm.ID))
	cmd.Env = []string{"PATH=" + guestPath, "GOGC=50", "GOMAXPROCS=2"}
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{tellReady}
	cmd.SysProcAttr = Namespaces()
	settings, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("run %s in namespaces of its own: %w", s.Config.Binary, err)
	}
	go func() { _ = cmd.Wait() }() // reaps it when it ends before we do
	tellReady.Close()
	err = record(s, vm.ID, cmd.Process.Pid)
	if err == nil {
		err = json.NewEncoder(settings).Encode(config)
	}
	settings.Close()
	if err == nil {
		var address string
		if address, err = awaitReady(ctx, ready); err == nil {
			err = os.WriteFile(s.AddressPath(vm.ID), []byte(address+"\n"), 0o644)
		}
	}
	if err != nil {
		_ = cmd.Process.Kill()
		return errors.Join(err, Driver{}.Stop(context.WithoutCancel(ctx), s, vm))
	}
	return nil
}

// record records the process of a running VM, in the lab's pid file and the way QEMU does.
func record(s *state.State, id, pid int) error {
	return errors.Join(
		sys.WritePidFile(s.PidFile(id), pid),
		sys.WriteFile(s.QemuPidFile(id), fmt.Appendf(nil, "%d\n", pid), 0o644),
		s.ShowAgent(id))
}

// Namespaces returns how a guest's process is started: as the first process of a PID namespace,
// with its own mounts and host name.
func Namespaces() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS,
	}
	if uid, gid := os.Geteuid(), os.Getegid(); uid != 0 {
		attr.Cloneflags |= syscall.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}}
	}
	return attr
}

// readyLine and its address are what a guest writes to descriptor 3 when it is up, else an error.
const readyLine = "ready"

func awaitReady(ctx context.Context, ready *os.File) (address string, err error) {
	stop := context.AfterFunc(ctx, func() { ready.Close() })
	defer stop()
	line, _ := bufio.NewReader(ready).ReadString('\n')
	line = strings.TrimSpace(line)
	address, up := strings.CutPrefix(line, readyLine+" ")
	switch {
	case up:
		return address, nil
	case ctx.Err() != nil:
		return "", ctx.Err()
	case line == "":
		return "", errors.New("the guest's process ended before it was up: see its log")
	}
	return "", errors.New(line)
}

// Stop kills the init of a running or suspended guest, and so the whole namespace.
func (d Driver) Stop(ctx context.Context, s *state.State, vm state.VM) error {
	for _, file := range []string{s.PidFile(vm.ID), filepath.Join(s.RunDir(vm.ID), frozenFile)} {
		if err := sys.KillPidFile(ctx, file, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return errors.Join(s.ForgetProcess(vm.ID), os.RemoveAll(s.RunDir(vm.ID)))
}

// Shutdown asks the guest's init to power off, as an ACPI button does.
func (d Driver) Shutdown(ctx context.Context, s *state.State, vm state.VM) error {
	pid, running := s.Pid(vm.ID)
	if !running {
		return nil
	}
	if err := syscall.Kill(pid, syscall.SIGPWR); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	if err := sys.WaitPidFile(ctx, s.PidFile(vm.ID)); err != nil {
		return state.ErrShutdownTimeout
	}
	return nil
}

// Move hands the guest's process to another node: same process, same boot, same address.
func (Driver) Move(_ context.Context, from, to *state.State, vm state.VM) error {
	pid, running := from.Pid(vm.ID)
	if !running {
		return fmt.Errorf("VM %d is not running", vm.ID)
	}
	if err := os.MkdirAll(to.QemuDir(), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(to.RunDir(vm.ID)); err != nil {
		return err
	}
	return errors.Join(
		os.Rename(from.LogPath(vm.ID), to.LogPath(vm.ID)),
		os.Rename(from.RunDir(vm.ID), to.RunDir(vm.ID)),
		sys.WriteFile(to.QemuPidFile(vm.ID), fmt.Appendf(nil, "%d\n", pid), 0o644),
		to.ShowAgent(vm.ID), from.ForgetProcess(vm.ID))
}
