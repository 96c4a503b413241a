package lab

import (
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
	"syscall"
	"time"
)

// The VM that up makes a template of, so that a linked clone is the usual path.
const (
	TemplateID   = 9000
	TemplateName = "agent-template"
)

const downTimeout = 60 * time.Second

// Options are how a lab is set up. Dir and Binary are required.
type Options struct {
	Dir            string    // state directory, made when missing
	Driver         string    // DriverProcess (default) or DriverQemu
	Binary         string    // the pvelab binary, which plays qm and is the process guests' init
	Version        string    // PVE version to play: 9.2 (default) or 8.2
	Storage        string    // local-lvm (default) or local
	ImageVariant   string    // qemu: "" tuned, "plain" as users' images are
	Direct         bool      // qemu: a route from outside to the guests
	BlockCallbacks bool      // qemu: the guests cannot reach the outside
	SlowMS         int       // start-up time of each command; the real one's is about 700
	Log            io.Writer // progress for people; nil: none
}

// Lab is a lab that is up.
type Lab struct {
	*State
}

// parts are the entries of a state directory; down removes these and nothing
// else.
var parts = []string{"etc", "storage", "locks", "run", "log", "bin", "ssh", "home", "image.qcow2", "accel", "faults.json", "lab.json"}

// Up makes a lab, or completes one that is there: it can be run again at any
// time.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	s, err := prepare(opts)
	if err != nil {
		return nil, err
	}
	if missing := Missing(s.Config.Driver); len(missing) > 0 {
		return nil, missingError(s.Config.Driver, missing)
	}
	if s, err = claim(s); err != nil {
		return nil, err
	}
	err = s.withLock(ctx, io.Discard, upLock, s.path("locks", upLock), upWait, func() error { return s.up(ctx) })
	if err != nil {
		return nil, err
	}
	return &Lab{s}, nil
}

// Up and down of one lab take turns. Up may build the guest image meanwhile.
const (
	upLock   = "up"
	upWait   = 10 * time.Minute
	downWait = 30 * time.Second
)

// claim writes lab.json before anything else, so that down knows a directory
// as a lab's from the first file on. Of two who claim one directory the second
// joins the first's lab.
func claim(s *State) (*State, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, err
	}
	raw, err := json.MarshalIndent(s.Config, "", "  ")
	if err != nil {
		return nil, err
	}
	if err := createFile(s.path("lab.json"), string(raw)+"\n"); errors.Is(err, fs.ErrExist) {
		log := s.Log
		if s, err = Open(s.Dir); err != nil {
			return nil, err
		}
		s.Log = log
	} else if err != nil {
		return nil, err
	}
	return s, os.MkdirAll(s.path("locks"), 0o755)
}

func missingError(driver string, missing []string) error {
	text := strings.Join(missing, " ")
	if hint := InstallHint(driver); hint != "" {
		text += " Install with: " + hint
	}
	if driver == DriverQemu {
		text += " The process lab needs none of the machine's parts: pvelab up --driver process"
	}
	return errors.New(text)
}

// prepare opens the lab in opts.Dir or makes the settings of a new one.
func prepare(opts Options) (*State, error) {
	s, err := Open(opts.Dir)
	switch {
	case err == nil && opts.Driver != "" && opts.Driver != s.Config.Driver:
		return nil, fmt.Errorf("%s holds a %s lab: take it down first (`pvelab down --dir %s`)", s.Dir, s.Config.Driver, opts.Dir)
	case err == nil:
		s.Log = opts.Log
		return s, nil
	case !errors.Is(err, ErrNoLab):
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
	s = &State{Dir: dir, Log: opts.Log, Config: Config{
		Driver: orDefault(opts.Driver, DriverProcess), Version: orDefault(opts.Version, "9.2"), Node: "pve", Bridge: "vmbr0",
		Storage: orDefault(opts.Storage, "local-lvm"), Binary: binary, Direct: opts.Direct, BlockCallbacks: opts.BlockCallbacks,
		ImageVariant: opts.ImageVariant, SlowMS: opts.SlowMS,
	}}
	if !slices.Contains([]string{"9.2", "8.2"}, s.Config.Version) {
		return nil, fmt.Errorf("the lab plays PVE 9.2 and 8.2, not %q", s.Config.Version)
	}
	if _, err := s.storage(s.Config.Storage); err != nil {
		return nil, fmt.Errorf("the lab's storages are local and local-lvm: %w", err)
	}
	_, err = s.driver()
	return s, err
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}

// checkEmpty refuses a directory with anything in it: what lies where the lab
// will write would go with the lab.
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

// halfWritten tells a file that a killed command was about to put in place.
func halfWritten(name string) bool { return strings.HasPrefix(name, temporary) }

func (s *State) up(ctx context.Context) error {
	drv, err := s.driver()
	if err != nil {
		return err
	}
	if err := s.layOut(); err != nil {
		return err
	}
	if err := drv.Up(ctx, s); err != nil {
		return err
	}
	if err := s.Save(); err != nil {
		return err
	}
	if err := startSSHD(ctx, s); err != nil {
		return err
	}
	if err := s.Save(); err != nil {
		return err
	}
	fmt.Fprintf(s.log(), "sshd: %s\n", s.sshAddress())
	if err := s.makeTemplate(ctx, drv); err != nil {
		return err
	}
	fmt.Fprintf(s.log(), "lab: %s (%s, PVE %s) is up\n", s.Dir, s.Config.Driver, s.Config.Version)
	return nil
}

func (s *State) sshAddress() string {
	return net.JoinHostPort(s.Config.SSHHost, strconv.Itoa(s.Config.SSHPort))
}

// layOut makes the directories and commands.
func (s *State) layOut() error {
	dirs := []string{
		s.nodeDir(s.Config.Node, "qemu-server"), s.nodeDir(s.Config.Node, "lxc"),
		s.path("storage", "local", "images"), s.path("storage", "local-lvm"), s.path("run"), s.path("log"), s.BinDir(),
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	links := map[string]string{
		s.path("etc", "pve", "qemu-server"): "nodes/" + s.Config.Node + "/qemu-server",
		s.path("etc", "pve", "lxc"):         "nodes/" + s.Config.Node + "/lxc",
	}
	for _, tool := range append(Tools(), "pvelab") {
		if tool == "ip" && s.Config.Driver != DriverProcess {
			continue
		}
		links[filepath.Join(s.BinDir(), tool)] = s.Config.Binary
	}
	for link, target := range links {
		if err := os.Symlink(target, link); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return s.writeMembers()
}

// makeTemplate makes VM 9000 the way an operator would, and makes a half of
// one again.
func (s *State) makeTemplate(ctx context.Context, drv Driver) error {
	conf, err := s.LoadConf(TemplateID)
	if err == nil && conf.IsTemplate() {
		return nil
	}
	image, imageErr := drv.BuildImage(ctx, s)
	if imageErr != nil {
		return fmt.Errorf("build the guest image: %w", imageErr)
	}
	id := strconv.Itoa(TemplateID)
	if err == nil {
		if _, err := s.QM(ctx, "unlock", id); err != nil {
			return err
		}
		if _, err := s.QM(ctx, "destroy", id, "--destroy-unreferenced-disks", "1"); err != nil {
			return err
		}
	}
	st := s.Config.Storage
	_, err = s.QM(ctx, "create", id, "--name", TemplateName, "--memory", "1024", "--cores", "2", "--cpu", "host", "--ostype", "l26",
		"--scsihw", "virtio-scsi-single", "--scsi0", st+":0,import-from="+image+",discard=on,iothread=1", "--scsi1", st+":cloudinit",
		"--net0", "virtio,bridge="+s.Config.Bridge, "--serial0", "socket", "--vga", "serial0", "--agent", "enabled=1",
		"--ciuser", defaultGuestUser, "--ipconfig0", "ip=dhcp", "--ciupgrade", "0")
	if err != nil {
		return err
	}
	if _, err := s.QM(ctx, "template", id); err != nil {
		return err
	}
	if conf, err := s.LoadConf(TemplateID); err != nil || !conf.IsTemplate() {
		return errors.Join(fmt.Errorf("VM %s did not become a template", id), err)
	}
	fmt.Fprintf(s.log(), "template: %s %s on %s\n", id, TemplateName, st)
	return nil
}

// QM runs qm with arguments and returns its stdout; an error holds its stderr.
func (s *State) QM(ctx context.Context, args ...string) (stdout string, err error) {
	return s.output(ctx, "qm", args)
}

// PVESH is QM for pvesh.
func (s *State) PVESH(ctx context.Context, args ...string) (stdout string, err error) {
	return s.output(ctx, "pvesh", args)
}

func (s *State) output(ctx context.Context, tool string, args []string) (string, error) {
	var out, errs strings.Builder
	code := s.Run(ctx, tool, args, Streams{In: strings.NewReader(""), Out: &out, Err: &errs})
	if code != 0 {
		return out.String(), fmt.Errorf("%s %s: exit code %d: %s", tool, strings.Join(args, " "), code, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// Env is how linus and the scripts are told of the lab.
func (s *State) Env() map[string]string {
	env := map[string]string{
		"PVELAB_DIR":           s.Dir,
		"PROXMOX_HOST":         s.Config.SSHHost,
		"PROXMOX_SSH_PORT":     strconv.Itoa(s.Config.SSHPort),
		"PROXMOX_SSH_USER":     loginName(),
		"PROXMOX_SSH_KEY_PATH": s.ClientKeyPath(),
		"PROXMOX_KNOWN_HOSTS":  s.KnownHostsPath(),
		"PROXMOX_NODE":         s.Config.Node,
		"PROXMOX_STORAGE":      s.Config.Storage,
		"PROXMOX_BRIDGE":       s.Config.Bridge,
		"PROXMOX_SCRIPT_DIR":   filepath.Join(s.homeDir(), "linus", "scripts"), // goes with the lab
		"DEFAULT_VM_TEMPLATE":  TemplateName,
	}
	if s.Config.Driver == DriverProcess {
		env["PVELAB_LOOPBACK"] = "1" // where linus takes loopback addresses for VMs'
	}
	if s.Config.GuestPort != 22 {
		env["VM_SSH_PORT"] = strconv.Itoa(s.Config.GuestPort)
	}
	return env
}

// Down ends everything the lab started and removes its directory's content,
// and the directory when nothing else is in it. It works on half a lab and
// after anything was killed.
func (l *Lab) Down(ctx context.Context) error { return l.State.Down(ctx) }

// Down takes the lab in dir down. Where there is none it only removes what an
// up that was killed at its first step has left.
func Down(ctx context.Context, dir string) error {
	s, err := Open(dir)
	if err == nil {
		return s.Down(ctx)
	}
	if !errors.Is(err, ErrNoLab) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil || checkEmpty(dir) != nil {
		return nil // nothing there, or nothing of ours
	}
	for _, entry := range entries {
		err = errors.Join(err, os.Remove(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(err, os.Remove(dir))
}

// Down is described at Lab.Down.
func (s *State) Down(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downTimeout)
	defer cancel()
	drv, err := s.driver()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path("locks"), 0o755); err != nil {
		return err
	}
	return s.withLock(ctx, io.Discard, upLock, s.path("locks", upLock), downWait, func() error {
		// The order lets nothing new begin behind our back: first what can be
		// asked to start things, then what runs.
		err := errors.Join(stopSSHD(s), s.endCalls(ctx), s.stopVMs(ctx, drv), drv.Down(ctx, s))
		if err != nil {
			return err // keep the pid files: another down can go on from here
		}
		return s.remove()
	})
}

// remove deletes the lab's files, lab.json last.
func (s *State) remove() error {
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if halfWritten(entry.Name()) {
			if err := os.Remove(s.path(entry.Name())); err != nil {
				return err
			}
		}
	}
	for _, part := range parts {
		if err := os.RemoveAll(s.path(part)); err != nil {
			return err
		}
	}
	if err := os.Remove(s.Dir); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		return err
	}
	return nil
}

// endCalls kills work-alikes that still run.
func (s *State) endCalls(ctx context.Context) error {
	files, err := filepath.Glob(s.path("run", "call-*"))
	for _, file := range files {
		err = errors.Join(err, killPidFile(ctx, file, syscall.SIGKILL))
	}
	return err
}

// stopVMs stops every VM that has a run directory, also one whose config is
// gone.
func (s *State) stopVMs(ctx context.Context, drv Driver) error {
	entries, err := os.ReadDir(s.path("run"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if id, atoiErr := strconv.Atoi(entry.Name()); atoiErr == nil {
			err = errors.Join(err, drv.Stop(ctx, s, VMRef{ID: id, Conf: NewConf()}))
		}
	}
	return err
}
