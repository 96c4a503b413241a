// Package nspawn boots a real systemd in a container on this machine, with its own PID namespace,
// mounts, cgroups and root directory, and with the machine's programs or others. It isolates
// nothing, and knows nothing about labs.
package nspawn

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"linus/internal/lab/sys"
	"linus/internal/sleep"
)

// Container is a machine whose process 1 is systemd.
type Container struct {
	Name    string   // host name and name of the cgroups, unique among this machine's containers
	Root    string   // root directory, created if missing; what is written there survives a power cut
	Binds   []string // paths of this machine to share at the same place; missing ones are left out
	Network string   // path of its network namespace; empty: the machine's own
	Log     string   // file of the console's output
	Tied    bool     // the container ends with the process that starts it
	Whole   bool     // Root is an installed system with a machine-id; nothing of this machine is put there
}

const bootTimeout = 90 * time.Second

// Missing describes, one sentence each, what a container needs and this machine lacks.
func Missing() []string {
	var missing []string
	if os.Geteuid() != 0 {
		missing = append(missing, "A real systemd runs in a container and needs root: run it with sudo.")
	}
	for _, need := range [][2]string{
		{"systemd-nspawn", "systemd-container"}, {"/lib/systemd/systemd", "systemd"}, {"dbus-daemon", "dbus"}, {"nsenter", "util-linux"},
	} {
		if _, err := sys.Find(need[0]); err != nil {
			missing = append(missing, fmt.Sprintf("A real systemd needs %s (package %s).", need[0], need[1]))
		}
	}
	if len(hierarchies()) == 0 {
		missing = append(missing, "A real systemd needs cgroups, which are not mounted at /sys/fs/cgroup.")
	}
	return missing
}

// Start boots the container and returns when its systemd accepts units. It leaves a running
// container as it is, and stops one that fails to boot.
func (c Container) Start(ctx context.Context) error {
	if c.Running() {
		return nil
	}
	if err := c.Stop(ctx); err != nil { // left by a killed Start
		return err
	}
	var shown []string
	if !c.Whole {
		if err := c.makeRoot(ctx); err != nil {
			return fmt.Errorf("make the container's root: %w", err)
		}
		shown = machinePaths()
	}
	log, err := os.Create(c.Log)
	if err != nil {
		return err
	}
	defer log.Close()
	// systemd must be alone in its cgroup: it would end other processes there as its own.
	args := []string{"-c", `
		name=$1 hierarchies=$2
		shift 2
		for hierarchy in ${hierarchies}; do
			mkdir -p "${hierarchy}/${name}" && echo $$ >"${hierarchy}/${name}/cgroup.procs" || exit 1
		done
		if grep -E '^[0-9]+:(name=systemd)?:' /proc/self/cgroup | grep -vq ":/${name}\$"; then
			echo 'not in a cgroup of its own' >&2
			exit 1
		fi
		exec systemd-nspawn "$@"`, "bash", c.Name, strings.Join(hierarchies(), " "),
		"--quiet", "--directory=" + c.Root, "--boot", "--register=no", "--keep-unit", "--machine=" + c.Name,
		"--resolv-conf=off", "--timezone=off", "--link-journal=no"}
	for _, path := range shown {
		args = append(args, "--bind-ro="+escape(path))
	}
	for _, path := range c.Binds {
		if _, err := os.Stat(path); err == nil {
			args = append(args, "--bind="+escape(path))
		}
	}
	if c.Network != "" {
		args = append(args, "--network-namespace-path="+c.Network, "--bind="+escape(c.Network), "--capability=CAP_NET_ADMIN")
	}
	nspawn := exec.Command("bash", args...) //nolint:noctx,contextcheck // the machine outlives the command that starts it
	nspawn.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	nspawn.Dir = "/"
	nspawn.Stdout, nspawn.Stderr = log, log
	nspawn.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if c.Tied {
		nspawn.SysProcAttr.Pdeathsig = syscall.SIGTERM
	}
	started, ended := make(chan error), make(chan struct{})
	go func() { // the kernel ties its death to that of the thread that starts it
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := nspawn.Start()
		started <- err
		if err == nil {
			_ = nspawn.Wait() // the console's log says why
		}
		close(ended)
	}()
	if err := <-started; err != nil {
		return err
	}
	if err := c.booted(ctx, ended); err != nil {
		err = fmt.Errorf("boot a systemd in a container: %w%s", err, consoleEnd(c.Log))
		return errors.Join(err, c.Stop(context.WithoutCancel(ctx)))
	}
	return nil
}

// booted returns when systemd has started all its units.
func (c Container) booted(ctx context.Context, ended <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, bootTimeout)
	defer cancel()
	for {
		if cmd, err := c.Command(ctx, "systemctl", "is-system-running"); err == nil {
			out, _ := cmd.Output()
			if state := strings.TrimSpace(string(out)); state == "running" || state == "degraded" {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ended:
			return errors.New("systemd-nspawn ended")
		case <-time.After(50 * time.Millisecond): // nothing announces the end of a boot
		}
	}
}

// Running reports whether the container has a process 1.
func (c Container) Running() bool { return c.init() != 0 }

// Inside reports whether the caller runs in the container.
func (c Container) Inside() bool {
	name, err := os.Hostname()
	return err == nil && name == c.Name
}

// Command returns a command that runs in the container as its root, with only PATH in its
// environment. It dies with the container, and belongs to no unit.
func (c Container) Command(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	init := c.init()
	if init == 0 {
		return nil, fmt.Errorf("the container %s is not running", c.Name)
	}
	cmd, err := sys.Command(ctx, "nsenter", append([]string{"-t", strconv.Itoa(init), "-m", "-p", "-n", "-u", "-i", "-C", "--"}, argv...)...)
	if err != nil {
		return nil, err
	}
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd, nil
}

// Stop is a power cut. It returns when no process, mount or cgroup of the container is left; the
// container's files stay. It needs only the container's name, and works even after the process that
// started the container was killed.
func (c Container) Stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	gentle := time.Now().Add(5 * time.Second)
	for {
		pids := c.processes()
		if len(pids) == 0 {
			break
		}
		// When process 1 dies, the kernel kills the whole container, and systemd-nspawn cleans up.
		victims := pids
		if init := c.init(); init != 0 {
			victims = []int{init}
		} else if time.Now().Before(gentle) {
			victims = nil
		}
		for _, pid := range victims {
			if err := sys.KillProven(pid, func() bool { return c.owns(pid) }); err != nil {
				return err
			}
		}
		if err := sleep.For(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("%d processes of the container %s do not end: %w", len(pids), c.Name, err)
		}
	}
	for _, cgroup := range c.cgroups() {
		if err := removeCgroup(ctx, cgroup); err != nil {
			return err
		}
	}
	return c.unmounted()
}

// unmounted fails if this machine sees a mount in the container's root: whoever made the root is
// about to remove it, and would remove what is mounted there.
func (c Container) unmounted() error {
	root, err := filepath.EvalSymlinks(c.Root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, path := range sys.MountPoints("/proc/thread-self") {
		if strings.HasPrefix(path+"/", root+"/") {
			return fmt.Errorf("%s is still mounted", path)
		}
	}
	return nil
}

// escape quotes a path for --bind=.
func escape(path string) string { return strings.NewReplacer(`\`, `\\`, ":", `\:`).Replace(path) }

// consoleEnd returns ": " and the end of the console's log, for an error's text.
func consoleEnd(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil || len(raw) == 0 {
		return ""
	}
	return ": " + strings.TrimSpace(string(raw[max(0, len(raw)-500):]))
}
