// Package lab is a stand-in Proxmox VE host that can be brought up and taken down on demand: a real
// sshd with work-alikes of qm, pvesh, pvesm and pveversion behind it, VMs of one of two kinds, and
// faults on demand. cmd/pvelab and tests use it. It knows nothing about jobs, and outside of tests
// no part of the product imports it.
//
//	lab -> process -> cloudinit, sshserver -> state -> sys
//	lab -> qemu -> agent, cloudinit, image, netns -> state -> sys
//	lab -> pve           -> agent, cloudinit                -> state -> sys
//	lab -> systemd, nspawn, image
package lab

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"linus/internal/lab/nspawn"
	"linus/internal/lab/process"
	"linus/internal/lab/pve"
	"linus/internal/lab/qemu"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
	"linus/internal/lab/systemd"
)

// Options are the options of a lab. Dir and Binary are required.
type Options struct {
	Dir            string    // state directory, created if missing
	Driver         string    // DriverProcess (default) or DriverQemu
	Systemd        string    // SystemdSimulated (default) or SystemdReal
	Binary         string    // the pvelab binary, which acts as qm and as the process guests' init
	Version        string    // PVE version to simulate: 9.2 (default) or 8.2
	Storage        string    // local-lvm (default) or local
	ImageVariant   string    // qemu: "" tuned, "plain" like users' images
	Direct         bool      // qemu: route the guests' subnet from outside
	BlockCallbacks bool      // qemu: the guests cannot reach the outside
	SlowMS         int       // start-up time of each command, and of loading Proxmox's modules; about 700 on a real host
	CallMS         int       // time of a command whose modules are already loaded; about 40 on a real host
	Nodes          int       // number of nodes; 0, 1: no cluster. Only with the process driver and simulated systemd
	NodeMemory     []string  // memory of each node, such as 32G; nodes beyond the list use its last value
	NodeCPUs       []int     // CPUs of each node, in the same way
	Log            io.Writer // progress for people; nil: none
}

// Lab is a stand-in Proxmox host: its state directory, its commands, its VMs.
type Lab struct {
	*pve.Host
}

// withDriver returns the lab of a state directory with the driver that its settings name.
func withDriver(s *state.State) (*Lab, error) {
	l := &Lab{&pve.Host{State: s}}
	if l.outside() {
		l.Enter = l.enter
	}
	switch s.Config.Driver {
	case state.DriverProcess:
		l.Driver = process.Driver{}
		return l, nil
	case state.DriverQemu:
		l.Driver = qemu.Driver{}
		return l, nil
	}
	return nil, fmt.Errorf("unknown lab driver %q: use %s or %s", s.Config.Driver, state.DriverProcess, state.DriverQemu)
}

// Open returns the lab in dir, which may be up or half-made, or ErrNoLab if there is none.
func Open(dir string) (*Lab, error) {
	s, err := state.Open(dir)
	if err != nil {
		return nil, err
	}
	return withDriver(s)
}

// parts are the entries of a state directory; Down removes only these.
var parts = []string{"etc", "storage", "locks", "run", "log", "bin", "perl", "dpkg-status", "ssh", "home", "root", "image.qcow2", "accel", "proc", "nodes", "cluster", "faults.json", "lab.json"}

// Up creates a lab, or completes an existing one: it can be run again at any time.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	l, err := prepare(opts)
	if err != nil {
		return nil, err
	}
	if missing := Missing(l.Config.Driver); len(missing) > 0 {
		return nil, missingError(l.Config.Driver, missing)
	}
	if l.Config.RealSystemd {
		if missing := nspawn.Missing(); len(missing) > 0 {
			return nil, errors.New(strings.Join(missing, " ") + " A lab with --systemd simulated needs none of this.")
		}
	}
	if l, err = claim(l); err != nil {
		return nil, err
	}
	err = l.WithLock(ctx, io.Discard, upLock, l.Path("locks", upLock), upWait, func() error { return l.up(ctx) })
	if err != nil {
		return nil, err
	}
	return l, nil
}

// Up and Down of the same lab exclude each other. Up may build the guest image under the lock.
const (
	upLock   = "up"
	upWait   = 10 * time.Minute
	downWait = 30 * time.Second
)

// claim writes lab.json before anything else, so that Down recognizes the directory as a lab's from
// the first file on. If two processes claim the same directory, the second joins the first's lab.
func claim(l *Lab) (*Lab, error) {
	if err := os.MkdirAll(l.Dir, 0o755); err != nil {
		return nil, err
	}
	raw, err := json.MarshalIndent(l.Config, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := sys.CreateFile(l.Path("lab.json"), append(raw, '\n')); errors.Is(err, fs.ErrExist) {
		log := l.Log
		if l, err = Open(l.Dir); err != nil {
			return nil, err
		}
		l.Log = log
	} else if err != nil {
		return nil, err
	}
	return l, os.MkdirAll(l.Path("locks"), 0o755)
}

func missingError(driver string, missing []string) error {
	text := strings.Join(missing, " ")
	if hint := InstallHint(driver); hint != "" {
		text += " Install with: " + hint
	}
	if driver == state.DriverQemu {
		text += " The process lab needs none of the machine's parts: pvelab up --driver process"
	}
	return errors.New(text)
}

// prepare opens the lab in opts.Dir, or makes the settings of a new one.
func prepare(opts Options) (*Lab, error) {
	l, err := Open(opts.Dir)
	switch {
	case err == nil && opts.Driver != "" && opts.Driver != l.Config.Driver:
		return nil, fmt.Errorf("%s holds a %s lab: take it down first (`pvelab down --dir %s`)", l.Dir, l.Config.Driver, opts.Dir)
	case err == nil && opts.Systemd != "" && l.Config.RealSystemd != (opts.Systemd == SystemdReal):
		return nil, fmt.Errorf("%s holds a lab with another systemd: take it down first (`pvelab down --dir %s`)", l.Dir, opts.Dir)
	case err == nil && l.Root() != l.Dir:
		return nil, l.onlyANode()
	case err == nil && opts.Nodes > 0 && opts.Nodes != l.size():
		return nil, fmt.Errorf("%s holds a lab of %d nodes: take it down first (`pvelab down --dir %s`)", l.Dir, l.size(), opts.Dir)
	case err == nil:
		l.Log = opts.Log
		return l, nil
	case !errors.Is(err, state.ErrNoLab):
		return nil, err
	}
	binary, err := filepath.Abs(opts.Binary)
	if err != nil || opts.Binary == "" {
		return nil, errors.Join(errors.New("the lab needs the pvelab binary"), err)
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, err
	}
	if err := checkEmpty(dir); err != nil {
		return nil, err
	}
	s := &state.State{Dir: dir, Log: opts.Log, Config: state.Config{
		Driver: cmp.Or(opts.Driver, state.DriverProcess), Version: cmp.Or(opts.Version, "9.2"), Node: "pve", Bridge: "vmbr0",
		Storage: cmp.Or(opts.Storage, "local-lvm"), Binary: binary, Direct: opts.Direct, BlockCallbacks: opts.BlockCallbacks,
		ImageVariant: opts.ImageVariant, RealSystemd: opts.Systemd == SystemdReal, SlowMS: opts.SlowMS, CallMS: opts.CallMS,
	}}
	if !slices.Contains([]string{"9.2", "8.2"}, s.Config.Version) {
		return nil, fmt.Errorf("the lab plays PVE 9.2 and 8.2, not %q", s.Config.Version)
	}
	if !slices.Contains([]string{"", SystemdSimulated, SystemdReal}, opts.Systemd) {
		return nil, fmt.Errorf("the lab's systemd is %s or %s, not %q", SystemdSimulated, SystemdReal, opts.Systemd)
	}
	if opts.Nodes > 1 {
		if err := planCluster(s, opts); err != nil {
			return nil, err
		}
	}
	if _, err := s.Storage(s.Config.Storage); err != nil {
		return nil, fmt.Errorf("the lab's storages are local and local-lvm, and shared in a cluster: %w", err)
	}
	return withDriver(s)
}

// checkEmpty refuses a directory with anything in it: Down would remove existing files, too.
func checkEmpty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, entry := range entries {
		if !halfWritten(entry.Name()) {
			return fmt.Errorf("%s is no lab and not empty (%s): give the lab a directory of its own", dir, entry.Name())
		}
	}
	return nil
}

// halfWritten reports whether a file is a temporary one, which a killed command may leave behind.
func halfWritten(name string) bool { return strings.HasPrefix(name, sys.Temporary) }

func (l *Lab) up(ctx context.Context) error {
	nodes, err := l.layOutNodes(ctx)
	for _, node := range nodes {
		if err == nil {
			err = node.upNode(ctx)
		}
	}
	if err == nil {
		err = l.ForgetBirths() // what Up made is as old as the lab
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(l.Progress(), "lab: %s (%s, PVE %s) is up\n", l.Dir, l.Config.Driver, l.Config.Version)
	return nil
}

// upNode brings up the lab's host, or one node of a cluster, and makes its template.
func (l *Lab) upNode(ctx context.Context) error {
	if err := l.Driver.Up(ctx, l.State); err != nil {
		return err
	}
	if err := l.Save(); err != nil {
		return err
	}
	if err := l.start(ctx); err != nil {
		return err
	}
	if err := l.Save(); err != nil {
		return err
	}
	fmt.Fprintf(l.Progress(), "sshd: %s\n", l.sshAddress())
	return l.makeTemplate(ctx)
}

func (l *Lab) sshAddress() string {
	return net.JoinHostPort(l.Config.SSHHost, strconv.Itoa(l.Config.SSHPort))
}

// layOut creates the directories and commands.
func (l *Lab) layOut() error {
	if l.Config.Cluster != "" {
		if err := os.MkdirAll(l.Path("etc", "pve"), 0o755); err != nil {
			return err
		}
		if err := l.ShowCluster(); err != nil {
			return err
		}
	}
	err := sys.MkdirAll(
		l.NodeDir(l.Config.Node, "qemu-server"), l.NodeDir(l.Config.Node, "lxc"), l.Path("etc", "pve", "priv"),
		l.Path("storage", "local", "images"), l.Path("storage", "local-lvm"), l.QemuDir(), l.Path("log"), l.BinDir(),
	)
	if err != nil {
		return err
	}
	if err := l.SetMemory(l.memoryMB(), 0); err != nil {
		return err
	}
	links := map[string]string{
		l.Path("etc", "pve", "qemu-server"): "nodes/" + l.Config.Node + "/qemu-server",
		l.Path("etc", "pve", "lxc"):         "nodes/" + l.Config.Node + "/lxc",
	}
	for _, tool := range slices.Concat(pve.Tools(), systemd.Tools(), []string{"pvelab"}) {
		if l.Config.RealSystemd && slices.Contains(systemd.Tools(), tool) {
			continue
		}
		if (tool == "ip" || tool == "nft") && l.Config.Driver != state.DriverProcess {
			continue
		}
		links[filepath.Join(l.BinDir(), tool)] = l.Config.Binary
	}
	if err := pve.WriteModules(l.Path("perl")); err != nil {
		return err
	}
	if err := sys.CreateFile(l.Path("dpkg-status"), nil); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	for link, target := range links {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	if !l.Config.RealSystemd {
		if err := l.units().SetEnvironment(hostEnv(l.State)); err != nil {
			return err
		}
	}
	return l.WriteMembers()
}

// Env returns the settings with which linus and the scripts use the lab.
func (l *Lab) Env() map[string]string {
	env := map[string]string{
		"PVELAB_DIR":           l.Dir,
		"PROXMOX_HOST":         l.Config.SSHHost,
		"PROXMOX_SSH_PORT":     strconv.Itoa(l.Config.SSHPort),
		"PROXMOX_SSH_USER":     loginName(),
		"PROXMOX_SSH_KEY_PATH": l.ClientKeyPath(),
		"PROXMOX_KNOWN_HOSTS":  l.KnownHostsPath(),
		"PROXMOX_NODE":         l.Config.Node,
		"PROXMOX_STORAGE":      l.Config.Storage,
		"PROXMOX_BRIDGE":       l.Config.Bridge,
		"PROXMOX_SCRIPT_DIR":   filepath.Join(nodeHome(l.State), "linus", "scripts"), // is removed with the lab
		"DEFAULT_VM_TEMPLATE":  TemplateName,
	}
	if l.Config.Driver == state.DriverProcess {
		env["PVELAB_LOOPBACK"] = "1" // makes linus accept loopback addresses as those of VMs
	}
	if l.Config.GuestPort != 22 {
		env["VM_SSH_PORT"] = strconv.Itoa(l.Config.GuestPort)
	}
	return env
}
