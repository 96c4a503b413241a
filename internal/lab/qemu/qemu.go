// Package qemu runs a VM as a real QEMU machine in the lab's network namespace.
package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"linus/internal/lab/agent"
	"linus/internal/lab/cloudinit"
	"linus/internal/lab/image"
	"linus/internal/lab/netns"
	"linus/internal/lab/state"
	"linus/internal/lab/sys"
)

// Driver runs each VM as a QEMU machine in the lab's network. It needs root and /dev/net/tun.
type Driver struct{}

// stopGrace is how long QEMU may take to flush its disks and exit before it is killed.
const stopGrace = 5 * time.Second

// Up creates the lab's network and sets where its sshd listens.
func (Driver) Up(ctx context.Context, s *state.State) error {
	if err := netns.Up(ctx, s); err != nil {
		return err
	}
	s.Config.GuestPort = 22
	return nil
}

// Down ends every machine, whoever started it: all live in the namespace.
func (Driver) Down(ctx context.Context, s *state.State) error { return netns.Down(ctx, s) }

// BuildImage returns the cached guest image and decides, once per lab, between KVM and emulation.
func (Driver) BuildImage(ctx context.Context, s *state.State) (string, error) {
	cache, err := image.CacheDir()
	if err != nil {
		return "", err
	}
	log := s.Progress()
	image, err := image.Builder{Cache: cache, Recipe: image.Recipes, Log: log}.Ensure(ctx, s.Config.ImageVariant)
	if err != nil {
		return "", err
	}
	verdict, err := kvmVerdict(ctx, cache, image+".vmlinuz")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(log, "qemu: "+verdict.text())
	return image, sys.WriteFile(s.Path("accel"), []byte(verdict.accel()), 0o644)
}

// Start makes the seed and starts the machine. QEMU then goes to the background in its own session.
func (d Driver) Start(ctx context.Context, s *state.State, vm state.VM) error {
	return d.launch(ctx, s, vm, "")
}

// launch is Start, except that with incoming the machine waits for its memory from there.
func (d Driver) launch(ctx context.Context, s *state.State, vm state.VM, incoming string) error {
	if err := checkMachine(vm.Conf, s.Config.Bridge); err != nil {
		return err
	}
	accel, err := os.ReadFile(s.Path("accel"))
	if err != nil {
		return fmt.Errorf("the lab is not up: %w", err)
	}
	n, runDir := netns.Of(s), s.RunDir(vm.ID)
	if err := os.RemoveAll(runDir); err != nil { // left by a machine that ended on its own
		return err
	}
	if err := sys.MkdirAll(runDir, s.QemuDir()); err != nil {
		return err
	}
	err = d.start(ctx, s, machine{
		id: vm.ID, conf: vm.Conf, kvm: string(accel) == accelKVM,
		runDir: runDir, pidFile: s.QemuPidFile(vm.ID), serial: s.LogPath(vm.ID), tapUp: filepath.Join(runDir, "tap-up"),
		incoming: incoming,
	}, n)
	if err == nil {
		err = s.ShowAgent(vm.ID)
	}
	if err == nil && incoming == "" {
		err = d.downLinks(ctx, s, vm)
	}
	if err != nil {
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx), s, vm))
	}
	return nil
}

func (Driver) start(ctx context.Context, s *state.State, m machine, n netns.Network) error {
	var err error
	if m.drives, err = machineDrives(s, m.conf); err != nil {
		return err
	}
	for _, d := range m.drives {
		if d.cdrom && state.ParseDrive(m.conf.Get(d.slot)).CloudInit() {
			if err := cloudinit.New(m.id, m.conf, n.Gateway.String()).Write(ctx, d.path); err != nil {
				return fmt.Errorf("write the cloud-init drive: %w", err)
			}
		}
	}
	if err := n.WriteTapUp(m.tapUp); err != nil {
		return err
	}
	args, err := m.args()
	if err != nil {
		return err
	}
	err = netns.Do(n.Path(), func() error {
		cmd, err := sys.Command(ctx, "qemu-system-x86_64", args...)
		if err != nil {
			return err
		}
		cmd.Dir = m.runDir
		return sys.RunCommand(cmd)
	})
	if err != nil {
		return err
	}
	return sys.AdoptPidFile(m.pidFile, s.PidFile(m.id))
}

// machineDrives finds the files behind a config's drives.
func machineDrives(s *state.State, conf *state.Conf) ([]machineDrive, error) {
	var drives []machineDrive
	for _, slot := range driveSlots(conf) {
		line := state.ParseDrive(conf.Get(slot))
		path, err := s.VolumePath(line.File)
		if err != nil {
			return nil, err
		}
		format := "raw"
		if !line.CDROM() {
			if format, err = state.DiskFormat(path); err != nil {
				return nil, err
			}
		}
		drives = append(drives, machineDrive{
			slot: slot, path: path, format: format, cdrom: line.CDROM(), ro: line.Props["ro"] == "1", serial: line.Props["serial"], thread: line.Props["iothread"] == "1",
		})
	}
	return drives, nil
}

// Stop ends QEMU by SIGTERM, then by SIGKILL. On SIGTERM, QEMU flushes what it holds of its disks:
// pulling the plug of a real machine would not lose a disk's metadata either.
func (Driver) Stop(ctx context.Context, s *state.State, vm state.VM) error {
	pidFile := s.PidFile(vm.ID)
	gentle, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := sys.KillPidFile(gentle, pidFile, syscall.SIGTERM); err != nil {
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if err := sys.KillPidFile(ctx, pidFile, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return errors.Join(s.ForgetProcess(vm.ID), os.RemoveAll(s.RunDir(vm.ID)))
}

// Shutdown asks the guest's agent if it is enabled, as PVE does, else presses the power button.
func (d Driver) Shutdown(ctx context.Context, s *state.State, vm state.VM) error {
	if vm.Conf.AgentEnabled() {
		// The agent does not answer this. If it does not even listen, the wait below reports it.
		_, err := agent.Call(ctx, s.AgentSocket(vm.ID), "guest-shutdown", nil, agent.PingTimeout)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
			return err
		}
	} else if err := Monitor(ctx, s.RunDir(vm.ID), "system_powerdown", nil); err != nil {
		return err
	}
	if err := sys.WaitPidFile(ctx, s.PidFile(vm.ID)); err != nil {
		return state.ErrShutdownTimeout
	}
	return os.RemoveAll(s.RunDir(vm.ID))
}

// Move fails: a lab of real machines has one node.
func (Driver) Move(context.Context, *state.State, *state.State, state.VM) error {
	return errors.New("the qemu lab has one node")
}
