package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"linus/internal/lab/sshserver"
	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// guest is a process VM from the inside: init, SSH server and guest agent.
type guest struct {
	config  guestConfig
	address string // of the SSH server, without the port
	procs   *procs
	signals chan os.Signal // the power button, and the guest's own power-off and reboot
}

const (
	shutdownGrace = 2 * time.Second // between SIGTERM and SIGKILL
	readyFD       = 3
)

// Run is the body of `pvelab guest`. It is the first process of its PID namespace, reads its
// settings from stdin, and returns when the VM powers off.
func Run(stdin io.Reader) error {
	// Powering off kills every process: never do that outside of a PID namespace.
	if os.Getpid() != 1 {
		return errors.New("`pvelab guest` is started by `qm start` only, as the first process of a PID namespace")
	}
	ready := os.NewFile(readyFD, "ready")
	var config guestConfig
	if err := json.NewDecoder(stdin).Decode(&config); err != nil {
		return fmt.Errorf("no settings came: the starter is gone: %w", err)
	}
	g, listeners, err := newGuest(config)
	if err != nil {
		fmt.Fprintln(ready, strings.ReplaceAll(err.Error(), "\n", " "))
		return err
	}
	fmt.Fprintln(ready, readyLine, g.address)
	ready.Close()
	return g.run(listeners)
}

// guestListeners are opened while the machine's file system is still visible.
type guestListeners struct {
	ssh   net.Listener
	agent net.Listener // nil if there is no agent
}

func newGuest(config guestConfig) (*guest, guestListeners, error) {
	g := &guest{config: config, signals: make(chan os.Signal, 1)}
	// Before the VM is reported as running: a shutdown may follow at once.
	signal.Notify(g.signals, syscall.SIGPWR, syscall.SIGUSR2, syscall.SIGINT)
	// An init must not die of a signal from within. The signals are caught and dropped rather than
	// ignored, because a process inherits what its parent ignores.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	var l guestListeners
	var err error
	if l.ssh, g.address, err = listenFirst(config.Addresses, config.Port); err != nil {
		return nil, l, err
	}
	if config.Agent != "" {
		if l.agent, err = listenUnix(config.Agent); err != nil {
			return nil, l, err
		}
	}
	if err := config.mountRoot(); err != nil {
		return nil, l, err
	}
	return g, l, g.boot()
}

// guestPort is 22 if this user can bind it and nothing else holds it on all addresses, else 2222.
func guestPort(probe fmt.Stringer) int {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(probe.String(), "22"))
	if err != nil {
		return 2222
	}
	l.Close()
	return 22
}

// listenFirst listens on the first free address.
func listenFirst(addresses []string, port int) (net.Listener, string, error) {
	var last error
	for _, address := range addresses {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", net.JoinHostPort(address, strconv.Itoa(port)))
		if err == nil {
			return l, address, nil
		}
		last = err
		if !errors.Is(err, syscall.EADDRINUSE) {
			break
		}
	}
	return nil, "", fmt.Errorf("no address for the guest's SSH server: %w", last)
}

func listenUnix(path string) (net.Listener, error) {
	short, done, err := sys.ShortSocketPath(path)
	if err != nil {
		return nil, err
	}
	defer done()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: short, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then another file may have this path
	return l, nil
}

// boot does what a system does before anybody can log in: it sets up the host name, the host key
// and, for a new instance, what cloud-init does.
func (g *guest) boot() error {
	if err := sys.MkdirAll("/run/lock", "/run/cloud-init", labDir); err != nil {
		return err
	}
	if err := g.plugDisks(); err != nil {
		return err
	}
	if g.config.Saved != nil {
		from := *g.config.Saved
		g.config.Saved = nil // its next boot is a normal one
		return g.goOn(from)
	}
	if err := unix.Sethostname([]byte(g.config.Hostname)); err != nil {
		return err
	}
	if err := clearDir("/tmp"); err != nil {
		return err
	}
	if err := setBootID(uuid.NewString()); err != nil {
		return err
	}
	if err := holdMachineID(g.config.InstanceID); err != nil {
		return err
	}
	if err := g.loadHostKey(g.config.Hostname); err != nil {
		return err
	}
	mountTab()
	if err := g.cloudInit(); err != nil {
		return err
	}
	return g.plugCard(g.config.MAC)
}

func setBootID(id string) error {
	if err := os.WriteFile(bootIDPath, []byte(id+"\n"), 0o444); err != nil {
		return err
	}
	if err := unix.Mount(bootIDPath, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("give the boot an id of its own: %w", err)
	}
	return nil
}

const (
	machineIDPath = "/etc/machine-id"
	uninitialized = "uninitialized\n" // the content of an image's file, and thus of a first boot's
)

// holdMachineID gives a first boot its ID the way systemd does: in a mount over the file, which is
// read-only. systemd-machine-id-commit, which would end that, is masked here.
func holdMachineID(instance string) error {
	if raw, _ := os.ReadFile(machineIDPath); len(raw) > 0 && string(raw) != uninitialized {
		return nil
	}
	const held = "/run/machine-id"
	id := strings.ReplaceAll(uuid.NewSHA1(uuid.NameSpaceOID, []byte(instance)).String(), "-", "") + "\n"
	if err := errors.Join(os.WriteFile(machineIDPath, []byte(uninitialized), 0o444), os.WriteFile(held, []byte(id), 0o444)); err != nil {
		return err
	}
	if err := unix.Mount(held, machineIDPath, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount a machine ID: %w", err)
	}
	if err := unix.Mount("", machineIDPath, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("make the machine ID read-only: %w", err)
	}
	return nil
}

func clearDir(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

const hostKeyPath = "/etc/ssh/ssh_host_ed25519_key"

// loadHostKey reads the guest's host key, or creates it at the first boot. The SSH server uses that
// key until the server is restarted.
func (g *guest) loadHostKey(hostname string) error {
	comment := "root@" + hostname
	key, err := sshserver.Key(hostKeyPath, comment, false)
	if err != nil {
		return err
	}
	if err := os.WriteFile(hostKeyPath+".pub", []byte(sshserver.Public(key)+" "+comment+"\n"), 0o644); err != nil {
		return err
	}
	return restartSSH()
}

func (g *guest) home() string {
	if g.config.User == "root" {
		return "/root"
	}
	return "/home/" + g.config.User
}

const (
	instanceIDPath   = "/var/lib/cloud/data/instance-id"
	cloudResultPath  = "/run/cloud-init/result.json"
	bootFinishedPath = "/var/lib/cloud/instance/boot-finished"
	bootIDPath       = "/run/boot_id"
)

// cloudInit applies the cloud-init settings, once per instance ID.
func (g *guest) cloudInit() error {
	seen, _ := os.ReadFile(instanceIDPath)
	if strings.TrimSpace(string(seen)) != g.config.InstanceID {
		if err := g.newInstance(); err != nil {
			return err
		}
	}
	return g.finishCloudInit()
}

func (g *guest) finishCloudInit() error {
	finished := fmt.Sprintf("%s - %s\n", time.Now().UTC().Format(time.RFC1123Z), "process guest")
	result := `{"v1": {"datasource": "DataSourceNoCloud", "errors": []}}` + "\n"
	return errors.Join(
		os.WriteFile(bootFinishedPath, []byte(finished), 0o644),
		os.WriteFile(cloudResultPath, []byte(result), 0o644))
}

func (g *guest) newInstance() error {
	instance := "/var/lib/cloud/instances/" + g.config.InstanceID
	sshDir := filepath.Join(g.home(), ".ssh")
	for dir, mode := range map[string]os.FileMode{instance: 0o755, sshDir: 0o700} {
		if err := os.MkdirAll(dir, mode); err != nil {
			return err
		}
	}
	link := "/var/lib/cloud/instance"
	if err := os.RemoveAll(link); err != nil {
		return err
	}
	if err := os.Symlink(instance, link); err != nil {
		return err
	}
	// The login user is the namespace's root. It comes first, so that a lookup of user 0 finds it.
	user, group := "root:x:0:0:root:/root:/bin/bash\n", "root:x:0:\n"
	if g.config.User != "root" {
		user = fmt.Sprintf("%s:x:0:0:%[1]s:%s:/bin/bash\n", g.config.User, g.home()) + user
		group = g.config.User + ":x:0:\n" + group
	}
	files := map[string]string{
		"/etc/passwd":                            user + systemAccounts(hostRoot+"/etc/passwd"),
		"/etc/group":                             group + systemAccounts(hostRoot+"/etc/group"),
		"/etc/hostname":                          g.config.Hostname + "\n",
		"/etc/hosts":                             "127.0.0.1 localhost\n" + g.address + " " + g.config.Hostname + "\n",
		networkFile:                              networkFor(g.config.MAC),
		filepath.Join(sshDir, "authorized_keys"): strings.TrimSpace(g.config.Keys) + "\n",
		instanceIDPath:                           g.config.InstanceID + "\n",
		"/var/lib/cloud/data/previous-instance-id": "NO_PREVIOUS_INSTANCE_ID\n",
	}
	if err := os.MkdirAll(filepath.Dir(networkFile), 0o755); err != nil {
		return err
	}
	for path, content := range files {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return os.Chmod(filepath.Join(sshDir, "authorized_keys"), 0o600)
}

// run serves until the VM powers off. A reboot ends every process, empties /run and boots again.
func (g *guest) run(l guestListeners) error {
	for {
		reboot := g.serve(l)
		g.endAll()
		if !reboot {
			fmt.Fprintln(os.Stderr, "power off")
			return nil
		}
		fmt.Fprintln(os.Stderr, "reboot")
		_ = unix.Unmount("/proc/sys/kernel/random/boot_id", unix.MNT_DETACH)
		_ = unix.Unmount(machineIDPath, unix.MNT_DETACH)
		unmountVolumes()
		if err := clearDir("/run"); err != nil {
			return err
		}
		if err := g.boot(); err != nil {
			return err
		}
	}
}

// serve runs from one boot to the next power-off or reboot.
func (g *guest) serve(l guestListeners) (reboot bool) {
	var stopReaping func()
	g.procs, stopReaping = newProcs()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { acceptAll(ctx, l.ssh, g.serveSSH) })
	if l.agent != nil {
		wg.Go(func() { acceptAll(ctx, l.agent, newAgent(g).serve) })
	}
	fmt.Fprintf(os.Stderr, "%s: up at %s, boot id in /proc/sys/kernel/random/boot_id\n", g.config.Hostname, l.ssh.Addr())

	reboot = <-g.signals == syscall.SIGINT
	g.terminate()
	cancel()
	wg.Wait()
	stopReaping()
	return reboot
}

// acceptAll serves connections until ctx ends; then it closes them and waits for their handlers.
// The listener stays open for the next boot.
func acceptAll(ctx context.Context, l net.Listener, handle func(net.Conn)) {
	var wg sync.WaitGroup
	defer wg.Wait()
	deadline, _ := l.(interface{ SetDeadline(time.Time) error })
	_ = deadline.SetDeadline(time.Time{})
	stop := context.AfterFunc(ctx, func() { _ = deadline.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		conn, err := l.Accept()
		if ctx.Err() != nil {
			if conn != nil {
				conn.Close()
			}
			return
		}
		if err != nil {
			_ = sleep.For(ctx, 10*time.Millisecond) // out of file descriptors: try again
			continue
		}
		wg.Go(func() {
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			handle(conn)
		})
	}
}

// terminate asks every process to end, and waits up to shutdownGrace.
func (g *guest) terminate() {
	_ = syscall.Kill(-1, syscall.SIGTERM)
	deadline := time.Now().Add(shutdownGrace)
	for time.Now().Before(deadline) {
		if err := syscall.Kill(-1, 0); errors.Is(err, syscall.ESRCH) {
			return
		}
		time.Sleep(5 * time.Millisecond) //nolint:forbidigo // bounded by the deadline; nothing can cancel a power-off
	}
}

// endAll kills and reaps the remaining processes.
func (g *guest) endAll() {
	_ = syscall.Kill(-1, syscall.SIGKILL)
	for {
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(-1, &status, 0, nil); err != nil && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
