package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"linus/internal/lab/image"
	"linus/internal/lab/netns"
	"linus/internal/lab/nspawn"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// The kinds of systemd a lab's host can have.
const (
	SystemdSimulated = "simulated" // the work-alike: sshd and VMs are processes of this machine
	SystemdReal      = "real"      // the host is a container: sshd, units and VMs run in it
)

const sshdUnit = "pvelab-sshd"

// container returns the container that is the host of a lab with a real systemd. Its name is
// derived from the state directory, so Down finds it even if everything else is gone.
func (l *Lab) container() nspawn.Container {
	c := nspawn.Container{
		Name: "pvelab-" + l.Name(), Root: l.Path("root"), Log: l.Path("log", "host.console"),
		Binds: []string{l.Dir, l.Config.Binary},
	}
	if l.Config.Driver == state.DriverQemu {
		c.Network = netns.Of(l.State).Path()
		c.Binds = append(c.Binds, "/dev/net/tun", "/dev/kvm")
		if cache, err := image.CacheDir(); err == nil && os.MkdirAll(cache, 0o755) == nil { // for the guests' disks, which are clones of its images
			c.Binds = append(c.Binds, cache)
		}
	}
	return c
}

// outside reports whether the lab's host is a different machine from the caller's.
func (l *Lab) outside() bool { return l.Config.RealSystemd && !l.container().Inside() }

var errInside = errors.New("this is the lab's host itself: run it on the machine that the lab is on")

// startContainer starts the container and, as a unit in it, the sshd. It is idempotent.
func (l *Lab) startContainer(ctx context.Context) error {
	if !l.outside() {
		return errInside
	}
	c := l.container()
	if err := c.Start(ctx); err != nil {
		return err
	}
	run := func(argv ...string) error {
		cmd, err := c.Command(ctx, argv...)
		if err != nil {
			return err
		}
		return sys.RunCommand(cmd)
	}
	if run("systemctl", "is-active", "--quiet", sshdUnit) == nil {
		return nil
	}
	// A real host's units find qm in /usr/sbin; these find it through the manager's PATH.
	if err := run(append([]string{"systemctl", "set-environment"}, hostEnv(l.State)...)...); err != nil {
		return err
	}
	if err := configureSSHD(ctx, l.State, false); err != nil {
		return err
	}
	sshd, err := sys.Find("sshd")
	if err != nil {
		return err
	}
	err = run("systemd-run", "--quiet", "--unit="+sshdUnit, "--description=the lab's sshd", "--property=KillMode=process", "--property=RuntimeDirectory=sshd",
		"--", sshd, "-D", "-f", l.Path("ssh", "sshd_config"), "-E", l.Path("ssh", "log"))
	if err == nil {
		err = waitSSHD(ctx, l.sshAddress(), l.Path("ssh", "sshd.pid"))
	}
	if err != nil {
		return fmt.Errorf("start the lab's sshd: %w%s", err, lastLine(l.Path("ssh", "log")))
	}
	return nil
}

// enter runs one of the lab's commands on its host.
func (l *Lab) enter(ctx context.Context, tool string, args []string, std sys.Streams) int {
	cmd, err := l.container().Command(ctx, slices.Concat([]string{l.Config.Binary, tool}, args)...)
	if err == nil {
		cmd.Env = hostEnv(l.State)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = std.In, std.Out, std.Err
		err = cmd.Run()
	}
	if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() >= 0 {
		return exit.ExitCode()
	}
	if err != nil {
		fmt.Fprintln(std.Err, err)
		return 255
	}
	return 0
}

// forgetProcesses removes the records of the container's processes: outside the container, their
// PIDs belong to other processes.
func (l *Lab) forgetProcesses() error {
	var err error
	for _, pattern := range []string{l.Path("run", "call-*"), l.Path("run", "[0-9]*", "pid")} {
		files, globErr := filepath.Glob(pattern)
		err = errors.Join(err, globErr)
		for _, file := range files {
			err = errors.Join(err, os.RemoveAll(file))
		}
	}
	return err
}
