package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// qemuDriver runs each VM as a QEMU machine in the lab's network namespace. It
// needs root and /dev/net/tun.
type qemuDriver struct{}

var _ Driver = qemuDriver{}

func newQemuDriver() Driver { return qemuDriver{} }

// stopGrace is how long QEMU may take to write out and leave before it is
// killed.
const stopGrace = 5 * time.Second

// Up makes the lab's network and sets where its sshd listens.
func (qemuDriver) Up(ctx context.Context, s *State) error {
	if err := upNetwork(ctx, s); err != nil {
		return err
	}
	s.Config.GuestPort = 22
	return nil
}

// Down ends every machine, whoever started it: all live in the namespace.
func (qemuDriver) Down(ctx context.Context, s *State) error { return downNetwork(ctx, s) }

// BuildImage returns the cached guest image and decides, once for this lab,
// between KVM and emulation.
func (qemuDriver) BuildImage(ctx context.Context, s *State) (string, error) {
	cache, err := imageCacheDir()
	if err != nil {
		return "", err
	}
	log := s.log()
	image, err := images{cache: cache, recipe: imageRecipes, log: log}.ensure(ctx, s.Config.ImageVariant)
	if err != nil {
		return "", err
	}
	verdict, err := kvmVerdict(ctx, cache, image+".vmlinuz")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(log, "qemu: "+verdict.text())
	return image, writeFileAtomic(s.path("accel"), []byte(verdict.accel()), 0o644)
}

// Start makes the seed and the machine. QEMU leaves for the background when
// the machine is set up, in a session of its own.
func (d qemuDriver) Start(ctx context.Context, s *State, vm VMRef) error {
	if err := checkMachine(vm.Conf, s.Config.Bridge); err != nil {
		return err
	}
	accel, err := os.ReadFile(s.path("accel"))
	if err != nil {
		return fmt.Errorf("the lab is not up: %w", err)
	}
	n, runDir := networkOf(s), s.RunDir(vm.ID)
	if err := os.RemoveAll(runDir); err != nil { // of a machine that ended by itself
		return err
	}
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return err
	}
	err = d.start(ctx, s, machine{
		id: vm.ID, conf: vm.Conf, kvm: string(accel) == accelKVM,
		runDir: runDir, serial: s.LogPath(vm.ID), tapUp: filepath.Join(runDir, "tap-up"),
	}, n)
	if err != nil {
		return errors.Join(err, d.Stop(context.WithoutCancel(ctx), s, vm))
	}
	return nil
}

func (qemuDriver) start(ctx context.Context, s *State, m machine, n network) error {
	var err error
	if m.drives, err = machineDrives(s, m.conf); err != nil {
		return err
	}
	for _, d := range m.drives {
		if d.cdrom && parseDrive(m.conf.Get(d.slot)).cloudInit() {
			if err := cloudInitSeed(m.id, m.conf, n.gateway.String()).write(ctx, d.path); err != nil {
				return fmt.Errorf("write the cloud-init drive: %w", err)
			}
		}
	}
	if err := n.writeTapUp(m.tapUp); err != nil {
		return err
	}
	args, err := m.args()
	if err != nil {
		return err
	}
	err = inNetns(n.path(), func() error {
		cmd, err := tool(ctx, "qemu-system-x86_64", args...)
		if err != nil {
			return err
		}
		cmd.Dir = m.runDir
		return runQuiet(cmd)
	})
	if err != nil {
		return err
	}
	return adoptPidFile(filepath.Join(m.runDir, "qemu.pid"), filepath.Join(m.runDir, "pid"))
}

// machineDrives finds the files behind a config's drives.
func machineDrives(s *State, conf *Conf) ([]machineDrive, error) {
	var drives []machineDrive
	for _, slot := range driveSlots(conf) {
		line := parseDrive(conf.Get(slot))
		path, err := s.VolumePath(line.file)
		if err != nil {
			return nil, err
		}
		format := "raw"
		if !line.cdrom() {
			if format, err = diskFormat(path); err != nil {
				return nil, err
			}
		}
		drives = append(drives, machineDrive{slot: slot, path: path, format: format, cdrom: line.cdrom()})
	}
	return drives, nil
}

// Stop ends QEMU by SIGTERM, on which it writes out what it holds of its
// disks, as pulling the plug of a real machine would not lose a disk's
// metadata either; then by SIGKILL.
func (qemuDriver) Stop(ctx context.Context, s *State, vm VMRef) error {
	pidFile := s.PidFile(vm.ID)
	gentle, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	if err := killPidFile(gentle, pidFile, syscall.SIGTERM); err != nil {
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return err
		}
		if err := killPidFile(ctx, pidFile, syscall.SIGKILL); err != nil {
			return err
		}
	}
	return os.RemoveAll(s.RunDir(vm.ID))
}

// Shutdown asks the guest's agent where there is one, as PVE does, else
// presses the power button.
func (d qemuDriver) Shutdown(ctx context.Context, s *State, vm VMRef) error {
	if vm.Conf.AgentEnabled() {
		// The agent does not answer this one. Where it does not even listen, the
		// wait below says so.
		_, err := agentCall(ctx, s.AgentSocket(vm.ID), "guest-shutdown", nil, agentPingTimeout)
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, io.EOF) {
			return err
		}
	} else if err := qmpCommand(ctx, qmpSocket(s.RunDir(vm.ID)), "system_powerdown", nil); err != nil {
		return err
	}
	if err := waitPidFile(ctx, s.PidFile(vm.ID)); err != nil {
		return ErrShutdownTimeout
	}
	return os.RemoveAll(s.RunDir(vm.ID))
}

// writeTapUp writes the script that QEMU runs with the name of each tap it
// makes; the tap goes away with QEMU.
func (n network) writeTapUp(path string) error {
	ip, err := findTool("ip")
	if err != nil {
		return err
	}
	script := strings.Join([]string{"#!/bin/sh", "exec " + ip + ` link set "$1" master ` + n.bridge + " up", ""}, "\n")
	return os.WriteFile(path, []byte(script), 0o755)
}

// Nameserver is the bridge's address.
func (qemuDriver) Nameserver(s *State) string { return networkOf(s).gateway.String() }
